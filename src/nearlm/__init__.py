"""A memory for any Hugging Face causal LM: kNN-LM datastores, retrieval and mixing."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"
__all__ = [
    "KNNLM",
    "LM",
    "Adaptor",
    "Datastore",
    "ModelSpec",
    "NearLMError",
    "Retriever",
    "attach",
    "build",
    "build_index",
    "faiss_index",
    "prune_store",
    "reduce_store",
]

if TYPE_CHECKING:
    from nearlm.adaptor import Adaptor
    from nearlm.attaching import attach
    from nearlm.datastore import Datastore
    from nearlm.errors import NearLMError
    from nearlm.extract import build
    from nearlm.index import faiss_index
    from nearlm.indexing import build_index
    from nearlm.knnlm import KNNLM
    from nearlm.lm import LM
    from nearlm.pretrained import ModelSpec
    from nearlm.prune.pruning import prune_store
    from nearlm.reduce import reduce_store
    from nearlm.retrieve import Retriever

_HOMES = {
    "KNNLM": "knnlm",
    "LM": "lm",
    "Adaptor": "adaptor",
    "Datastore": "datastore",
    "ModelSpec": "pretrained",
    "NearLMError": "errors",
    "Retriever": "retrieve",
    "attach": "attaching",
    "build": "extract",
    "build_index": "indexing",
    "faiss_index": "index",
    "prune_store": "prune.pruning",
    "reduce_store": "reduce",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import nearlm` loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'nearlm' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"nearlm.{_HOMES[name]}"), name)
