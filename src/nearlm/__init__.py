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
    from nearlm.base.errors import NearLMError
    from nearlm.knnlm.attachment import attach
    from nearlm.knnlm.knnlm import KNNLM
    from nearlm.mixing.adaptor import Adaptor
    from nearlm.model.lm import LM
    from nearlm.model.pretrained import ModelSpec
    from nearlm.search.index import faiss_index
    from nearlm.search.indexing import build_index
    from nearlm.search.retriever import Retriever
    from nearlm.shrink.pruning import prune_store
    from nearlm.shrink.reduction import reduce_store
    from nearlm.store.build import build
    from nearlm.store.datastore import Datastore

_HOMES = {
    "KNNLM": "knnlm.knnlm",
    "LM": "model.lm",
    "Adaptor": "mixing.adaptor",
    "Datastore": "store.datastore",
    "ModelSpec": "model.pretrained",
    "NearLMError": "base.errors",
    "Retriever": "search.retriever",
    "attach": "knnlm.attachment",
    "build": "store.build",
    "build_index": "search.indexing",
    "faiss_index": "search.index",
    "prune_store": "shrink.pruning",
    "reduce_store": "shrink.reduction",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import nearlm` loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'nearlm' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"nearlm.{_HOMES[name]}"), name)
