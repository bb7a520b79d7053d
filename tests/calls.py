"""The library's functions with their options given one by one, as tests like to write them."""

from dataclasses import fields

from nearlm.base import QUIET, Reporter
from nearlm.knnlm import KNNLM, Attachment
from nearlm.knnlm import evaluate as evaluate_text
from nearlm.mixing import Memory
from nearlm.mixing import tune as tune_index
from nearlm.paper import lm_training
from nearlm.search import build_index as index_store
from nearlm.shrink import PruneOptions, ReduceOptions
from nearlm.shrink import prune_store as prune
from nearlm.shrink import reduce_store as reduce
from nearlm.store import BuildOptions, SearchSettings
from nearlm.store.builder import build as build_store
from nearlm.text import TextSource

_OF_A_TEXT = {field.name for field in fields(TextSource)} - {"text"}


def source(text, options: dict) -> TextSource:
    """Take the options of a text out of all options."""
    given = {name: options.pop(name) for name in _OF_A_TEXT & options.keys()}
    return TextSource((text,) if isinstance(text, str) else tuple(text), **given)


def build(model, text, out, *, append=False, restart=False, quiet=False, **options):
    read = source(text, options)
    made = BuildOptions(**options)
    return build_store(model, read, out, made, append=append, restart=restart, reporter=Reporter(quiet))


def build_index(store, factory=None, *, quiet=False, **options):
    return index_store(store, factory, reporter=Reporter(quiet), **options)


def prune_store(store, method, out, *, restart=False, quiet=False, **options):
    given = {name: value for name, value in options.items() if value is not None}
    return prune(store, PruneOptions(method, **given), out, restart=restart, reporter=Reporter(quiet))


def reduce_store(store, dim, out, *, restart=False, quiet=False, **options):
    return reduce(store, ReduceOptions(dim, **options), out, restart=restart, reporter=Reporter(quiet))


def tune(lm, retriever, text, *, k=None, stride=None, reporter=QUIET, **options):
    how = {"index": retriever.name, "nprobe": retriever.index.nprobe, "distances": retriever.distances}
    return tune_index(retriever.store, source(text, options), lm, k=k, stride=stride, reporter=reporter, **how)


def evaluate(knnlm, text, *, stride=None, reporter=QUIET, **options):
    read = source(text, options)
    return evaluate_text(knnlm, read, stride=stride, reporter=reporter, **options)


def load_knnlm(store, model=None, *, knn=True, **settings) -> KNNLM:
    return KNNLM.load(store, model, SearchSettings(**settings), knn=knn)


def memory_of(retriever, *, gate=None, **settings) -> Memory | None:
    """Make a memory; with a gate, T and k are its gate's unless they are given."""
    if retriever is None:
        return None
    wished = SearchSettings(**settings)
    return Memory.of(retriever, wished if gate is None else wished.over(gate.settings), gate)


def knnlm_of(lm, store, retriever, **settings) -> KNNLM:
    return KNNLM(lm, store, memory_of(retriever, **settings))


def attach(lm, retriever, **settings):
    return Attachment(lm, memory_of(retriever, **settings))


def train_lm(text, out, options=None, *, reporter=QUIET, **given):
    return lm_training.train_lm(source(text, given), out, options, reporter=reporter)


def finetune(model, text, out, *, tokens, options=lm_training.FINETUNING, reporter=QUIET, **given):
    read = source(text, {**given, "max_tokens": tokens})
    return lm_training.finetune(model, read, out, options, reporter=reporter)
