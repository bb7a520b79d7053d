"""What a store keeps of its model: the tokenizer, the keys of a probe, and how to load it again."""

import tempfile
from pathlib import Path

import numpy as np

from nearlm.base import ArrayFile, FileInfo, Floats, Job, files
from nearlm.model import BUILT_IN
from nearlm.model.lm import LM, PROBE_TOKENS
from nearlm.store.layout import Layout
from nearlm.store.manifest import ModelInfo
from nearlm.store.writing import portable_path


def save_model(layout: Layout, job: Job, lm: LM, probe: Floats) -> dict[str, FileInfo]:
    """Keep the tokenizer and the probe's keys with the records; return what their files became."""
    ArrayFile(layout.probe, np.dtype("float32"), probe.shape).write(probe)
    target = layout.tokenizer
    files.remove(target)
    with tempfile.TemporaryDirectory(dir=job.folder) as temporary:
        lm.tokenizer.save_pretrained(temporary)
        made = Path(temporary) / target.name
        made.mkdir()
        for path in sorted(Path(temporary).iterdir()):
            if path.is_file():
                files.sync_file(path)
                path.replace(made / path.name)
        files.replace(made, target)
    kept = [layout.probe, *sorted(target.iterdir())]
    return {path.relative_to(layout.folder).as_posix(): FileInfo.of(path) for path in kept}


def describe_model(lm: LM, fingerprint: str, folder: Path) -> ModelInfo:
    """Say how to load a model again from a store's folder, and how to tell it from others."""
    spec = lm.spec
    name, name_path = _portable(str(spec.model), folder)
    adapter, adapter_path = _portable(spec.adapter, folder) if spec.adapter else (None, None)
    return ModelInfo(
        name=name,
        name_path=name_path,
        revision=spec.revision,
        quantization=spec.quantization,
        adapter=adapter,
        adapter_path=adapter_path,
        fingerprint=fingerprint,
        probe_tokens=PROBE_TOKENS,
        dtype=lm.dtype,
        trust_remote_code=spec.trust_remote_code,
    )


def _portable(name: str, folder: Path) -> tuple[str, str | None]:
    """Split a model's name into one that can be shown and, for a local one, its path from the store."""
    path = Path(name).expanduser()
    if name in BUILT_IN or not path.exists():
        return Path(name).name if Path(name).is_absolute() else name, None
    return path.resolve().name, portable_path(path, folder)
