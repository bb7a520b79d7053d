"""What a store keeps of its model: the tokenizer, the keys of a probe, and how to load it again."""

import tempfile
import warnings
from pathlib import Path

import numpy as np
from torch import nn

from nearlm.base import ArrayFile, FileInfo, Floats, Job, ModelError, NearLMWarning, OptionError, files
from nearlm.model import BUILT_IN, ModelSpec
from nearlm.model.lm import LM, PROBE_TOKENS, AnyModel
from nearlm.store.datastore import Datastore
from nearlm.store.layout import Layout
from nearlm.store.manifest import ModelInfo
from nearlm.store.writing import is_elsewhere, portable_path


def load_lm(store: Datastore, model: AnyModel = None) -> LM:
    """Load the model of a store, or take another that must give the same keys: a transformers model as it is."""
    training = isinstance(model, nn.Module) and model.training
    lm = as_lm(store, model)
    check_lm(store, lm)
    lm.model.train(training)
    return lm


def check_lm(store: Datastore, lm: LM) -> None:
    """Refuse a model that did not make a store, by its shapes, its tokenizer and the keys that it gives."""
    tap = store.manifest.key_tap
    if lm.tap.path != tap:
        raise ModelError(f"keys of {store.path} come from {tap}, those of {lm.name} from {lm.tap.path}; set `key_tap`")
    warning = store.check_model(lm.fingerprint(), lm.probe(), lm.tokenizer_fingerprint(), lm.name)
    if warning:
        warnings.warn(warning, NearLMWarning, stacklevel=3)


def as_lm(store: Datastore, model: AnyModel) -> LM:
    """Load what `load_lm` takes, unchecked."""
    if isinstance(model, LM):
        return model
    if model is None or isinstance(model, str | ModelSpec):
        spec = store.model_spec() if model is None else model
        if isinstance(spec, ModelSpec):
            _say_from_where(store, spec)
        return LM.load(spec, key_tap=store.manifest.key_tap)
    if isinstance(model, nn.Module):
        return LM(model, store.tokenizer, key_tap=store.manifest.key_tap)
    raise OptionError(
        f"`model` is a {type(model).__name__}, expected a name, a ModelSpec, an LM or a transformers model"
    )


def _say_from_where(store: Datastore, spec: ModelSpec) -> None:
    """Say aloud that a model comes from a place that the store names, and that does not lie beside it."""
    known = store.model_spec()
    for place, noted in ((spec.model, known.model), (spec.adapter, known.adapter)):
        if place and place == noted and is_elsewhere(Path(place), store.path):
            warnings.warn(f"loading the model from {place}, as {store.path} says", NearLMWarning, stacklevel=4)


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
