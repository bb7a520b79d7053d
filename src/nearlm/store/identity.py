"""Whether a model is the one that made a store: its architecture, its tokenizer, and its keys of a fixed sequence."""

from pathlib import Path

import numpy as np

from nearlm.base import ModelError
from nearlm.base.arrays import Doubles, Floats
from nearlm.store.manifest import Manifest

_SAME = 0.9999
_SIMILAR = 0.98
Model = tuple[str, Floats, str, str]  # fingerprint, keys of the probe, fingerprint of the tokenizer, name


def check_identity(manifest: Manifest, store: Path, probe: Floats, model: Model) -> str | None:
    """Refuse a model or tokenizer that did not make a store; return a warning if it differs slightly."""
    ours = manifest.model
    fingerprint, keys, tokenizer, name = model
    if fingerprint != ours.fingerprint:
        raise ModelError(f"{store} was built with {ours.name}, {name} is another architecture or size")
    if tokenizer != manifest.tokenizer.fingerprint:
        raise ModelError(f"{store} was built with the tokenizer of {ours.name}, that of {name} differs")
    cosine = float(np.median(_cosines(probe, keys)))
    if not cosine >= _SIMILAR:
        raise ModelError(
            f"{store} was built with {ours.name}, {name} has other weights "
            f"(median cosine of probe keys {cosine:.3f}, expected at least {_SIMILAR})"
        )
    if cosine < _SAME:
        cause = f"another dtype, or slightly other weights (median cosine {cosine:.5f})"
        return f"{name} gives slightly other keys than {ours.name} did: {cause}"
    return None


def _cosines(a: Floats, b: Floats) -> Doubles:
    if a.shape != b.shape:
        return np.zeros(1)
    x, y = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return (x * y).sum(1) / np.maximum(norms, 1e-30)  # type: ignore[no-any-return]
