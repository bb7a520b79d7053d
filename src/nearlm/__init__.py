"""A memory for any Hugging Face causal LM: kNN-LM datastores, retrieval and mixing."""

import importlib
from typing import TYPE_CHECKING, Any

from nearlm.openmp import share_openmp

if TYPE_CHECKING:
    from nearlm.base import NearLMError, Reporter
    from nearlm.knnlm import KNNLM, Attachment, Continuation, Evaluation, Explanation, attach, evaluate
    from nearlm.mixing import (
        Gate,
        Learned,
        Memory,
        Mixture,
        Training,
        Tuning,
        add,
        build_infinigram,
        build_text_first,
        compact,
        forget,
        learn_all,
        tune,
    )
    from nearlm.model import ModelSpec
    from nearlm.model.lm import LM
    from nearlm.optimizer import Choice, Fit, FitOptions, fit, optimize
    from nearlm.search import IndexInfo, Retriever, build_index, faiss_index
    from nearlm.shrink import PruneOptions, ReduceOptions, prune_store, reduce_store
    from nearlm.store import BuildOptions, Datastore, Gone, SearchSettings
    from nearlm.store.builder import build
    from nearlm.store.sharing import pull, push
    from nearlm.text import TextSource

__version__ = "0.1.0.dev0"
__all__ = [
    "KNNLM",
    "LM",
    "Attachment",
    "BuildOptions",
    "Choice",
    "Continuation",
    "Datastore",
    "Evaluation",
    "Explanation",
    "Fit",
    "FitOptions",
    "Gate",
    "Gone",
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
    "add",
    "attach",
    "build",
    "build_index",
    "build_infinigram",
    "build_text_first",
    "compact",
    "evaluate",
    "faiss_index",
    "fit",
    "forget",
    "learn_all",
    "optimize",
    "prune_store",
    "pull",
    "push",
    "reduce_store",
    "tune",
]
_HOMES = "base text model model.lm store store.sharing store.builder search shrink mixing knnlm optimizer".split()

share_openmp()


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
