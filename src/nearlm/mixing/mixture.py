"""A mixture: after the search a network weighs the LM and all that the memory proposes. How it is trained and kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from nearlm.base import QUIET, Json, OptionError, Reporter, StoreError, canonical_hash, files
from nearlm.base.arrays import FEW
from nearlm.base.records import FileInfo
from nearlm.mixing.advice import Advice, there_of
from nearlm.mixing.candidates import from_neighbors
from nearlm.mixing.few_contexts import few_log_weights, few_neighbors, few_proposals
from nearlm.mixing.infinigram import InfiniGram
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.mixing.mixture_features import (
    KNN,
    NGRAM,
    Bools,
    Known,
    Proposal,
    check_sources,
    features_of,
    kind_of,
    name_at,
    parse_sources,
    propose,
)
from nearlm.mixing.mixture_network import MixtureNetwork, Weigher, network_of
from nearlm.mixing.mixture_training import (
    MixtureExamples,
    MixtureVerdict,
    Samples,
    Searched,
    learn_mixture,
    mixture_examples,
)
from nearlm.mixing.network_files import check_described, load_network, read_trained, save_trained
from nearlm.mixing.odds import Odds
from nearlm.mixing.samples import Lessons, trace_lessons
from nearlm.mixing.traces import LMTrace
from nearlm.mixing.trained import check_of_store, check_trained, lasting_hash, search_for, search_only, tuned_settings
from nearlm.mixing.usual import USUAL_SOURCES, UsualWeights
from nearlm.model.lm import AnyModel
from nearlm.search import Neighbors, Retriever
from nearlm.store import DEFAULT, NONE, AnyStore, Datastore, NetworkFiles, SearchSettings, StoreState, Tuned
from nearlm.store.model_files import load_lm
from nearlm.text import Texts, TokenText

Found = Neighbors | None
FORMAT = 1
ALL_SOURCES = "knn,ngram,text"


@dataclass(frozen=True)
class OtherStore:
    """What `mixture.json` says of a further store that a mixture weighs: what it is, and how it is searched."""

    name: str
    store: str
    search: str
    settings: SearchSettings
    state: StoreState | None = None


@dataclass(frozen=True)
class MixtureInfo(MixtureVerdict):
    """What `mixture.json` says of a mixture: what it may be used with, how it was trained, and how well it does.

    `others` are the stores that it weighs together with the one that it is kept in, `samples` the tokens that the LM
    wrote by itself to learn from.
    """

    format: int
    sources: tuple[str, ...]
    store: str
    search: str
    model: str
    text: str
    settings: SearchSettings
    seed: int
    files: dict[str, FileInfo]
    state: StoreState | None = None  # none in older files
    others: tuple[OtherStore, ...] = ()
    samples: int = 0

    @property
    def stores(self) -> tuple[OtherStore, ...]:
        """What it says of each store."""
        return (OtherStore("", self.store, self.search, self.settings, self.state), *self.others)


@dataclass(frozen=True, repr=False)
class Mixture:
    """Sources of candidates and the network that weighs their experts, p = Σ_e w_e(c) p_e.

    Every expert is a distribution and the weights add up to 1, so p does. An expert whose source found nothing, or was
    not asked since the token skips retrieval, weighs 0.

    Example:
        >>> tuning = nearlm.tune("mystore", "valid/")
        >>> mixture = nearlm.Mixture.train("mystore", "valid/")
        >>> knnlm = nearlm.KNNLM.load("mystore")
    """

    name: str
    info: MixtureInfo
    network: MixtureNetwork | UsualWeights | Odds
    infinigram: InfiniGram | None
    others: tuple[InfiniGram | None, ...] = ()  # the ∞-grams of further stores

    @classmethod
    def usual(cls, store: Datastore) -> "Mixture":
        """Mix LM, ∞-gram and the text so far by a rule that nobody trained; it needs no keys, and is not saved."""
        info = untrained_info(USUAL_SOURCES, SearchSettings(), store.checksum, store.manifest.model.fingerprint)
        return cls(NONE, info, UsualWeights(), InfiniGram.open(store))

    @classmethod
    def train(
        cls,
        store: AnyStore,
        text: Texts | TokenText,
        model: AnyModel = None,
        *,
        sources: str = ALL_SOURCES,
        name: str = DEFAULT,
        index: str = DEFAULT,
        seed: int = 0,
        stride: int | None = None,
        samples: int | None = None,
        reporter: Reporter = QUIET,
    ) -> "Mixture":
        """Train a mixture on a validation text and save it with the store, for an index that has been tuned.

        Args:
            store: Folder of a store, `cache:NAME`, or an open store.
            text: Names of texts, or a `TextSource`; it should not be in the store.
            model: The store's model, by default as it was built.
            sources: What is mixed with the LM, some of knn,ngram,text: neighbours, the ∞-gram of the store's text, and
                the text read so far.
            name: Name of the mixture.
            index: Which index of the store it is for.
            seed: Seed of the training.
            stride: Tokens from window to window, by default the window.
            samples: Tokens that the LM writes by itself, to learn from too; by default 0.4 of the text's, up to 20,000.
            reporter: Whom to tell of the progress.

        """
        opened = Datastore.open(store)
        place = mixture_files(opened, name)
        tuned = tuned_settings(opened, index) if KNN in parse_sources(sources) else None
        lm = load_lm(opened, model)
        place.folder.mkdir(parents=True, exist_ok=True)
        with files.lock(place.folder):
            lessons = trace_lessons(lm, opened, text, samples, seed, reporter, stride)
            network, info = _learn(opened, lessons, lm.fingerprint(), parse_sources(sources), tuned, seed, reporter)
            save_trained(place, network, info)
        return cls.load(opened, name)

    @classmethod
    def load(cls, store: Datastore, name: str = DEFAULT, others: Sequence[Datastore] = ()) -> "Mixture":
        """Open a mixture of a store, also one from before the last appends; refuse one of another store.

        One that weighs several stores is kept in the first; the others are named in its order.
        """
        place = mixture_files(store, name)
        again = f"nearlm gate {store.path} `text=…`{'' if name == DEFAULT else f' `gate={name!r}`'}, or Mixture.train()"
        check_described(store, place, FORMAT, again)
        info = verify_mixture(store, name)
        check_of_store(f"mixture {name!r}", info, store, again)
        if len(others) != len(info.others):
            weighed = " and ".join([store.path.name, *(other.name for other in info.others)])
            raise OptionError(f"the mixture {name!r} of {store.path} is for {weighed}; name just these stores")
        for other, noted in zip(others, info.others, strict=True):
            check_of_store(f"mixture {name!r} of {store.path}", noted, other, again)
        infinigrams = [
            InfiniGram.open(one) if name_at(NGRAM, number) in info.sources else None
            for number, one in enumerate((store, *others))
        ]
        return cls(name, info, _read_network(place, info), infinigrams[0], tuple(infinigrams[1:]))

    def __repr__(self) -> str:
        return f"Mixture({self.name!r}: LM, {', '.join(self.info.sources)})"

    @property
    def searches(self) -> bool:
        """Whether neighbours are searched for it."""
        return KNN in map(kind_of, self.info.sources)

    @property
    def hash(self) -> str:
        """What tells it from every other: a hash of its weights."""
        return canonical_hash({name: file.sha256 for name, file in self.info.files.items()})

    @property
    def bytes(self) -> int:
        """The size of its files and of the suffix array that it looks up."""
        own = sum(file.bytes for file in self.info.files.values())
        return own + sum(one.bytes for one in self.infinigrams if one is not None)

    @property
    def infinigrams(self) -> tuple[InfiniGram | None, ...]:
        """The ∞-gram of each store."""
        return (self.infinigram, *self.others)

    @property
    def knn_temperature(self) -> float:
        """The tuned T, around which its temperatures are."""
        return self.temperatures[0]

    @cached_property
    def temperatures(self) -> tuple[float, ...]:
        """The tuned T of each store."""
        return tuple(one.settings.knn_temperature or 1.0 for one in self.info.stores)

    @cached_property
    def _weigher(self) -> Weigher | UsualWeights | Odds:
        return self.network.frozen()

    def ask(self, known: Known) -> dict[str, Proposal]:
        """Ask the sources that need no search."""
        make = few_proposals if len(known) <= FEW else propose
        return make(self.info.sources, known, *self.infinigrams)

    def weigh(
        self, known: Known, proposals: dict[str, Proposal], near: Neighbors | None, retrieved: Bools, *others: Found
    ) -> Advice:
        """Weigh what sources propose and, of the contexts that retrieved, the neighbours, in `others` stores too."""
        sources = self.info.sources
        few = len(known) <= FEW
        make = few_neighbors if few else from_neighbors
        for number, found in enumerate((near, *others)):
            if found is not None and name_at(KNN, number) in sources:
                candidates = make(found, self.temperatures[number])
                proposals = {**proposals, name_at(KNN, number): Proposal(np.flatnonzero(retrieved), candidates)}
        alone = not self.others  # numba would compile that kernel anew, for seconds, for every number of sources
        if few and alone and isinstance(self._weigher, Weigher):
            log_weights = few_log_weights(sources, known, proposals, self._weigher)
        else:
            there = there_of(sources, proposals, len(retrieved))
            log_weights = self._weigher.log_weights(features_of(sources, known, proposals), there)
        return Advice(sources, proposals, log_weights, near, retrieved)

    def check(self, retriever: Retriever | None, settings: SearchSettings, fingerprint: str) -> None:
        """Refuse an index, search settings or a model other than those of the training."""
        if self.searches and retriever is not None:
            check_trained("mixture", self.info.settings, self.info.search, retriever, settings)
        if fingerprint != self.info.model:
            raise OptionError("the mixture was trained with another model; train it again with `nearlm gate`")

    def table(self) -> str:
        """Say how well it does on what was held out, for people."""
        info = self.info
        untrained = "weights of each store alone" if info.others else "constant λ"
        constant = f", {untrained} {info.constant:.3f}" if self.searches else ""
        without = f", without searches {info.skipped:.3f}" if self.searches else ""
        own = f" and {info.samples:,} of the model's own" if info.samples else ""
        rows = [
            f"trained on {info.tokens:,} tokens{own}; held out: {info.held_tokens:,} tokens ({info.unit})",
            f"held-out perplexity: LM {info.nlm:.3f}{constant}, mixture {info.searched:.3f}{without}",
        ]
        return "\n".join(rows)


def _learn(
    store: Datastore,
    lessons: Lessons,
    model: str,
    sources: tuple[str, ...],
    tuned: Tuned | None,
    seed: int,
    reporter: Reporter,
) -> tuple[MixtureNetwork, MixtureInfo]:
    """Train a network on traced texts, and say all there is to say of it."""
    traced, own = lessons
    retriever = None if tuned is None else Retriever.open(store, tuned)
    infinigram = build_infinigram(store, reporter) if NGRAM in sources else None

    def look(one: LMTrace) -> tuple[MixtureExamples, Searched | None]:
        searched = None
        if retriever is not None and tuned is not None:
            searched = Searched(search_for(one, retriever, tuned, reporter), tuned)
        return mixture_examples(one, sources, infinigram, searched), searched

    examples, searched = look(traced)
    samples = None if own is None else Samples(look(own)[0], own.text.documents)
    constant = traced.log_lm if searched is None else searched.trace.log_p(searched.tuned)
    network, verdict = learn_mixture(examples, traced, constant, seed, reporter, samples=samples)
    return network, MixtureInfo(
        **vars(verdict),
        format=FORMAT,
        sources=sources,
        store=store.checksum,
        search=lasting_hash(searched.trace.retriever) if searched else "",
        model=model,
        text=traced.text.sha256,
        settings=search_only(tuned) if tuned else SearchSettings(),
        seed=seed,
        files={},
        state=store.state,
        samples=len(own) if own else 0,
    )


def untrained_info(sources: tuple[str, ...], settings: SearchSettings, store: str = "", model: str = "") -> MixtureInfo:
    """Describe a mixture that nobody trained, of which nothing was measured."""
    nothing = MixtureVerdict(False, 0, 0, "", *[float("nan")] * 6)
    made_from: Json = {"store": store, "search": "", "model": model, "text": "", "seed": 0, "files": {}}
    return MixtureInfo(**vars(nothing), **made_from, format=FORMAT, sources=sources, settings=settings)


def untrained_mixture(
    sources: tuple[str, ...], infinigram: InfiniGram | None, tuned: SearchSettings = SearchSettings()
) -> Mixture:
    """Make a mixture whose weights mean nothing, to time it."""
    info = untrained_info(sources, search_only(tuned))
    return Mixture("untrained", info, network_of(sources).eval(), infinigram)


def mixture_files(store: Datastore, name: str) -> NetworkFiles:
    """Return the files of a mixture of a store."""
    if name == NONE:
        raise OptionError(f"`mixture` is {name!r}, which stands for no mixture at all; expected another name")
    return store.layout.mixture(name)


def verify_mixture(store: Datastore, name: str) -> MixtureInfo:
    """Return what is known of a mixture; refuse one whose weights are not as they were written."""
    place = mixture_files(store, name)
    info = read_trained(MixtureInfo, place, _remedy(place))
    check_sources(info.sources, 1 + len(info.others))
    suffixes = store.layout.suffixes.description
    if NGRAM in info.sources and not suffixes.exists():
        raise StoreError(f"{suffixes} is missing, which mixture {name!r} looks up; {_remedy(place)}")
    return info


def _read_network(place: NetworkFiles, info: MixtureInfo) -> MixtureNetwork:
    return load_network(partial(network_of, info.sources), place.weights, _remedy(place))


def _remedy(place: NetworkFiles) -> str:
    return f"remove {place.folder} and train the mixture again"
