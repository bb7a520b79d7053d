"""A memory for any Hugging Face causal LM: kNN-LM datastores, retrieval and mixing."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearlm.base import NearLMError
    from nearlm.knnlm import KNNLM, attach
    from nearlm.mixing import Gate, Memory
    from nearlm.model import ModelSpec
    from nearlm.model.lm import LM
    from nearlm.search import Retriever, build_index, faiss_index
    from nearlm.shrink import PruneOptions, ReduceOptions, prune_store, reduce_store
    from nearlm.store import BuildOptions, Datastore, SearchSettings
    from nearlm.store.builder import build
    from nearlm.text import TextSource

__version__ = "0.1.0.dev0"
__all__ = [
    "KNNLM",
    "LM",
    "BuildOptions",
    "Datastore",
    "Gate",
    "Memory",
    "ModelSpec",
    "NearLMError",
    "PruneOptions",
    "ReduceOptions",
    "Retriever",
    "SearchSettings",
    "TextSource",
    "attach",
    "build",
    "build_index",
    "faiss_index",
    "prune_store",
    "reduce_store",
]
_HOMES = ("base", "text", "model", "store", "search", "shrink", "mixing", "knnlm", "model.lm", "store.builder")


def __getattr__(name: str) -> Any:
    """Import on first use, from the lightest package that has it, so that `import nearlm` loads no torch."""
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"nearlm.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'nearlm' has no attribute {name!r}")
