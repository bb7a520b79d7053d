"""A memory for any Hugging Face causal LM: kNN-LM datastores, retrieval and mixing."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"
__all__ = ["LM", "Datastore", "ModelSpec", "NearLMError", "build"]

if TYPE_CHECKING:
    from nearlm.datastore import Datastore
    from nearlm.errors import NearLMError
    from nearlm.extract import build
    from nearlm.lm import LM
    from nearlm.pretrained import ModelSpec

_HOMES = {
    "LM": "lm",
    "Datastore": "datastore",
    "ModelSpec": "pretrained",
    "NearLMError": "errors",
    "build": "extract",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import nearlm` loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'nearlm' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"nearlm.{_HOMES[name]}"), name)
