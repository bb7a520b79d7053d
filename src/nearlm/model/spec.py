"""Which model to load, and how; imports no torch, so that command-line options can be made from it."""

from dataclasses import dataclass

BUILT_IN = ("smollm2-135m",)
FFN = "ffn"  # where keys come from unless another tap is named
AUTO, FLOAT32, FLOAT16, PLAIN = WEIGHTS = ("auto", "float32", "float16", "plain")


@dataclass(frozen=True)
class ModelSpec:
    """Which model to load, and how; without a model it means a store's own."""

    model: str | None = None
    """Hub id, model folder, .gguf file, or smollm2-135m. [default: the store's own]"""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    trust_remote_code: bool = False
    """Run code that comes with the model."""
    adapter: str | None = None
    """PEFT adapter to put on top of the model."""
    quantization: str | None = None
    """Load the model as 8bit or 4bit."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 …"""
    dtype: str = "auto"
    """auto, float32, bfloat16, float16."""
    weights: str = "auto"
    """Of linear layers on a CPU, while scoring and generating: float32 (packed), float16 (packed, rounded), or plain.
    [default: float32 if it fits into half of the free memory]"""
