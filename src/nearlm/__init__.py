"""A memory for any Hugging Face causal LM: kNN-LM datastores, retrieval and mixing."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearlm.base import NearLMError, Reporter
    from nearlm.knnlm import KNNLM, Attachment, Evaluation, Explanation, attach, evaluate
    from nearlm.mixing import Gate, Learned, Memory, Mixture, Training, Tuning, build_infinigram, learn_all, tune
    from nearlm.model import ModelSpec
    from nearlm.model.lm import LM
    from nearlm.optimizer import Choice, Fit, FitOptions, fit, optimize
    from nearlm.search import IndexInfo, Retriever, build_index, faiss_index
    from nearlm.shrink import PruneOptions, ReduceOptions, prune_store, reduce_store
    from nearlm.store import BuildOptions, Datastore, SearchSettings
    from nearlm.store.builder import build
    from nearlm.text import TextSource

__version__ = "0.1.0.dev0"
__all__ = [
    "KNNLM",
    "LM",
    "Attachment",
    "BuildOptions",
    "Choice",
    "Datastore",
    "Evaluation",
    "Explanation",
    "Fit",
    "FitOptions",
    "Gate",
    "IndexInfo",
    "Learned",
    "Memory",
    "Mixture",
    "ModelSpec",
    "NearLMError",
    "PruneOptions",
    "ReduceOptions",
    "Reporter",
    "Retriever",
    "SearchSettings",
    "TextSource",
    "Training",
    "Tuning",
    "attach",
    "build",
    "build_index",
    "build_infinigram",
    "evaluate",
    "faiss_index",
    "fit",
    "learn_all",
    "optimize",
    "prune_store",
    "reduce_store",
    "tune",
]
_HOMES = "base text model model.lm store store.builder search shrink mixing knnlm optimizer".split()


def __getattr__(name: str) -> Any:
    """Import on first use, from the lightest package that has it, so that `import nearlm` loads no torch."""
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"nearlm.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'nearlm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
