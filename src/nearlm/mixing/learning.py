"""Learn all that can be learned for an index from one validation text: λ, T and k, a mixture, and a gate for it."""

import contextlib
from dataclasses import dataclass
from typing import Any

from nearlm.base import QUIET, Reporter, StoreError
from nearlm.mixing.gate import Gate, verify_gate
from nearlm.mixing.gate_learning import GateInfo
from nearlm.mixing.gate_training import Training
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.mixing.mixture import ALL_SOURCES, Mixture, MixtureInfo, verify_mixture
from nearlm.mixing.mixture_features import KNN
from nearlm.mixing.samples import check_samples
from nearlm.mixing.several import learn_together
from nearlm.mixing.traces import cache_text
from nearlm.mixing.trained import what_came_after
from nearlm.mixing.tuning import tune
from nearlm.model.lm import LM, AnyModel
from nearlm.search import read_index_info, read_settings
from nearlm.store import DEFAULT, NONE, AnyStore, AnyStores, Datastore, open_stores
from nearlm.store.model_files import load_lm
from nearlm.text import Texts, TokenText


@dataclass(frozen=True, repr=False)
class Learned:
    """What was learned: a mixture, unless none was asked for, and a gate that decides which tokens skip retrieval.

    A store without keys has no gate, since there is nothing to skip.
    """

    mixture: Mixture | None
    gate: Gate | None

    def __repr__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Say how well they do on what was held out, for people."""
        return "\n".join(part.table() for part in (self.mixture, self.gate) if part is not None)


def learn_all(
    store: AnyStores,
    text: Texts,
    model: AnyModel = None,
    training: Training = Training(),
    *,
    name: str = DEFAULT,
    index: str = DEFAULT,
    sources: str = ALL_SOURCES,
    stride: int | None = None,
    samples: int | None = None,
    reporter: Reporter = QUIET,
) -> Learned:
    """Tune an index unless it is tuned, train a mixture and then a gate for it, all on one validation text.

    If the mixture is not surely better than one λ, the gate chooses λ itself, as in the paper. Without keys, or for
    several stores at once, which must be tuned, there is only a mixture; that of several is kept in the first.

    Args:
        store: Folder of a store, `cache:NAME`, or an open store; or a list of several.
        text: Names of texts, or a `TextSource`, that should not be in the store.
        model: The store's model, by default as it was built.
        training: How the gate's network is trained.
        name: Name of mixture and gate; by default that of several stores is `with-` and the names of the others.
        index: Which index they are for.
        sources: What is mixed with the LM, some of knn,ngram,text, or none for no mixture.
        stride: Tokens from window to window, by default the window.
        samples: Tokens that the LM writes by itself, to learn from too; by default 0.4 of the text's, up to 20,000.
        reporter: Whom to tell of the progress.

    Example:
        >>> learned = nearlm.learn_all("mystore", "valid/")
        >>> knnlm = nearlm.KNNLM.load("mystore")  # uses what was learned, if it is better
    """
    mixing: Any = {"sources": sources, "seed": training.seed, "samples": check_samples(samples)}
    lm = load_lm((stores := open_stores(store))[0], model)
    how: Any = {"name": name, "index": index, "stride": stride, "reporter": reporter}
    if len(stores) > 1:
        return Learned(learn_together(stores, text, lm, **mixing, **how), None)
    return _learn_one(stores[0], text, lm, training, mixing, how)


def _learn_one(store: Datastore, text: Texts, lm: LM, training: Training, mixing: Any, how: Any) -> Learned:
    """Learn how to use one store, with keys or without."""
    if len(store):
        read = cache_text(text, lm.tokenizer, store.reading(how["stride"]), how["reporter"])
        return _learn(store, read, lm, training, mixing, how)
    mixing["sources"] = _without_search(store, mixing["sources"], how["reporter"])
    without = {name: value for name, value in how.items() if name != "index"}
    return Learned(Mixture.train(store, text, lm, **mixing, **without), None)


def catch_up(store: AnyStore, reporter: Reporter = QUIET) -> None:
    """After text or keys were added to a store: bring its ∞-gram up to date, and say what else is of before.

    A store of text alone always gets an ∞-gram, one with keys only if it had one.
    """
    opened = Datastore.open(store)
    if not len(opened) or opened.layout.suffixes.folder.exists():
        build_infinigram(opened.path, reporter)
    for name in opened.indexes:
        with contextlib.suppress(StoreError):  # what cannot be read says so when it is used, here and below
            _say_lacking(opened, name, reporter)
    for kind, names, read in (("mixture", opened.mixtures, verify_mixture), ("gate", opened.gates, verify_gate)):
        for name in names:
            with contextlib.suppress(StoreError):
                _say_grown(opened, f"{kind} {name!r}", read(opened, name), reporter)


def _say_lacking(store: Datastore, index: str, reporter: Reporter) -> None:
    if read_index_info(store, index).manifest != store.held:
        again = f"nearlm index {store.path}{'' if index == DEFAULT else f' `index={index!r}`'}, or build_index()"
        reporter.say(f"index {index!r} lacks the new records; bring it up to date with: {again}")


def _say_grown(store: Datastore, what: str, info: MixtureInfo | GateInfo, reporter: Reporter) -> None:
    added = what_came_after(info, store)
    if added:
        reporter.say(
            f"{what} was trained before {store.path} got {added}, and is used as it is; nearlm gate trains again"
        )


def _learn(store: Datastore, text: TokenText, lm: LM, training: Training, mixing: Any, how: Any) -> Learned:
    """Tune, then train a mixture, then a gate: for the mixture, or by itself if that is not better than one λ."""
    if read_settings(store, how["index"]) is None:
        tune(store, text, lm, index=how["index"], stride=how["stride"], reporter=how["reporter"])
    mixture = None if mixing["sources"] == NONE else Mixture.train(store, text, lm, **mixing, **how)
    better = mixture is not None and mixture.info.better
    return Learned(mixture, Gate.train(store, text, lm, training, mixture=how["name"] if better else None, **how))


def _without_search(store: Datastore, sources: str, reporter: Reporter) -> str:
    """Leave out the source that needs a search; refuse to be left with none."""
    left = ",".join(source for source in sources.split(",") if source.strip() not in (KNN, NONE))
    if not left:
        store.need_keys()
    reporter.say(f"{store.path} has no keys: learning to weigh {left}, and no gate, since nothing is searched")
    return left
