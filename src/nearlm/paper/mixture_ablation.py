"""What each source and each group of features is worth to a mixture on a test text, and what the sources cost."""

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from nearlm.base import QUIET, Doubles, Job, Reporter, line_up
from nearlm.mixing import (
    SOURCES,
    InfiniGram,
    Memory,
    MixtureExamples,
    Searched,
    best_setting,
    build_infinigram,
    feature_groups,
    mixture_examples,
    perplexity,
    search_hash,
    split_rows,
    train_mixture,
    untrained_mixture,
)
from nearlm.optimizer import Bench
from nearlm.search import PAPER_K, Retriever
from nearlm.store import SearchSettings

SEEDS = 3
VALID, TEST, UNRELATED = "valid", "test", "unrelated"  # texts
_TIMES = 3
_ALL = tuple(SOURCES)
_SETS = [chosen for count in range(1, len(_ALL) + 1) for chosen in combinations(_ALL, count)]
_NAMES = {"knn": "neighbours", "ngram": "∞-gram", "text": "text so far"}
_GROUPS = {
    "lm": "the LM's confidence and entropy",
    "measures": "distances, lengths, counts",
    "largest": "largest probabilities",
    "top": "p of the LM's likeliest token",
    "agreement": "p of each other's likeliest token",
}


@dataclass(frozen=True)
class Perplexities:
    """Of tokens held out from the training, of the test, of the test without any search, and of unrelated text."""

    held_out: float
    test: float
    without_search: float
    unrelated: float | None


@dataclass(frozen=True)
class MixtureRow:
    """A mixture of some sources beside the LM, perhaps without a group of features: means over the seeds.

    `spread` is the test's largest perplexity less its smallest. `microseconds` are those of a token beyond LM and
    search: look-ups, features, network and mixing.
    """

    sources: tuple[str, ...]
    left_out: str
    perplexity: Perplexities
    spread: float
    microseconds: float | None

    @property
    def name(self) -> str:
        """Its sources, or the features that it does without, for people."""
        return _GROUPS.get(self.left_out) or ", ".join(_NAMES.get(source, source) for source in self.sources)


@dataclass(frozen=True)
class MixtureAblation:
    """Every set of sources, the whole last, and the whole without each group of features."""

    tokens: int
    seeds: int
    search: SearchSettings
    search_microseconds: float
    nlm: Perplexities
    constant: Perplexities
    sources: list[MixtureRow]
    features: list[MixtureRow]

    @property
    def whole(self) -> MixtureRow:
        """The mixture of all sources, with all features."""
        return self.sources[-1]

    @property
    def without_source(self) -> dict[str, MixtureRow]:
        """The mixtures that do without one source, by its name."""
        rows = [row for row in self.sources if len(row.sources) == len(self.whole.sources) - 1]
        missing = [next(name for name in self.whole.sources if name not in row.sources) for row in rows]
        return {_NAMES.get(name, name): row for name, row in zip(missing, rows, strict=True)}

    def worse(self, row: MixtureRow) -> float:
        """Return how much worse than the whole a row is on the test, as a share of its perplexity."""
        return row.perplexity.test / self.whole.perplexity.test - 1

    def table(self) -> str:
        """Return the rows, for people."""
        head = ["", "held out", "test", "(spread)", "without searches", "unrelated", "µs beyond LM and search"]
        rows = [head]
        rows += [_cells(name, one) for name, one in (("LM alone", self.nlm), ("one λ", self.constant))]
        rows += [_cells(row.name, row.perplexity, row) for row in self.sources]
        rows += [_cells(f"without {row.name}", row.perplexity, row) for row in self.features]
        search = self.search
        lists = f", {search.nprobe} lists" if search.nprobe else ""
        said = (
            f"{self.tokens:,} test tokens, means of {self.seeds} seeds; k={search.k}{lists}, "
            f"T={search.knn_temperature:g}, one λ={search.lam:g}; a search takes {self.search_microseconds:.1f} µs"
        )
        return "\n".join([said, *line_up(rows)])


def _cells(name: str, found: Perplexities, row: MixtureRow | None = None) -> list[str]:
    unrelated = "–" if found.unrelated is None else f"{found.unrelated:.3f}"
    cells = [name, f"{found.held_out:.3f}", f"{found.test:.3f}", "–", f"{found.without_search:.3f}", unrelated, "–"]
    if row is not None:
        cells[3] = f"{row.spread:.3f}"
        cells[6] = "–" if row.microseconds is None else f"{row.microseconds:.1f}"
    return cells


def ablate_mixture(
    benches: dict[str, Bench],
    retriever: Retriever,
    folder: Path,
    *,
    k: int = PAPER_K,
    seeds: int = SEEDS,
    reporter: Reporter = QUIET,
) -> MixtureAblation:
    """Train mixtures with something left out on a validation text and try them on a test, and an unrelated text.

    `benches` has the traced texts: `valid`, `test` and perhaps `unrelated`. What has been measured is noted in a folder
    until all is.
    """
    variants = _Variants(benches, retriever, k, seeds, reporter)
    job = Job(folder, "mixture")
    job.resume({"search": search_hash(retriever), "k": k, "seeds": seeds, **variants.texts})
    *costs, search = job.once("microseconds", list[float], variants.time)

    def row(sources: tuple[str, ...], left_out: str = "", cost: float | None = None) -> MixtureRow:
        made = job.once("-".join((*sources, left_out)), MixtureRow, lambda: variants.row(sources, left_out, cost))
        reporter.say(f"  {'without ' * bool(left_out)}{made.name}: perplexity {made.perplexity.test:.3f}")
        return made

    found = MixtureAblation(
        tokens=len(benches[TEST].traced),
        seeds=seeds,
        search=SearchSettings(**variants.tuned.values),
        search_microseconds=search,
        nlm=variants.nlm(),
        constant=variants.constant(),
        sources=[row(sources, cost=cost) for sources, cost in zip(_SETS, costs, strict=True)],
        features=[row(_ALL, group) for group in _GROUPS],
    )
    job.close()
    return found


class _Variants:
    """Trains and tries mixtures on traced texts, each searched once."""

    def __init__(self, benches: dict[str, Bench], retriever: Retriever, k: int, seeds: int, reporter: Reporter):
        self.benches = benches
        self.retriever = retriever
        self.seeds = seeds
        self.infinigram: InfiniGram = build_infinigram(retriever.store, reporter)
        traces = {name: bench.trace(retriever, k) for name, bench in benches.items()}
        self.tuned = best_setting(traces[VALID])
        self.searched = {name: Searched(trace, self.tuned) for name, trace in traces.items()}
        self.split = split_rows(benches[VALID].documents, 0)

    @property
    def texts(self) -> dict[str, str]:
        """What tells the texts from all others."""
        return {name: bench.traced.key for name, bench in self.benches.items()}

    def row(self, sources: tuple[str, ...], left_out: str, microseconds: float | None) -> MixtureRow:
        """Train mixtures of some sources, one for each seed, and try them."""
        examples = {name: self._examples(name, sources, left_out) for name in self.benches}
        valid = examples.pop(VALID)
        held = valid[self.split.held]
        found = []
        for seed in range(self.seeds):
            network = train_mixture(valid, self.split, seed)
            logp = {name: one.log_mixture(network) for name, one in {"held": held, **examples}.items()}
            logp["skipped"] = examples[TEST].without_search().log_mixture(network)
            found.append({name: perplexity(one) for name, one in logp.items()})
        mean = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
        tests = [one[TEST] for one in found]
        perplexities = Perplexities(mean["held"], mean[TEST], mean["skipped"], mean.get(UNRELATED))
        return MixtureRow(sources, left_out, perplexities, max(tests) - min(tests), microseconds)

    def _examples(self, text: str, sources: tuple[str, ...], left_out: str) -> MixtureExamples:
        examples = mixture_examples(self.benches[text].traced, sources, self.infinigram, self.searched[text])
        if not left_out:
            return examples
        return examples.without_features(feature_groups(sources)[left_out])

    def time(self) -> list[float]:
        """Return the µs per token of every set of sources beyond LM and search, and then those of a search.

        All are timed in turns, since a machine's speed drifts, and of each the best counts.
        """
        bench = self.benches[TEST]
        memories = [self._memory(sources) for sources in _SETS]
        rounds = [[bench.mixing_seconds(memory) for memory in memories] for _ in range(_TIMES)]
        search = 1 / bench.searches_per_second(self.retriever, self.tuned.k or PAPER_K)
        return [1e6 * seconds for seconds in (*np.min(rounds, 0).tolist(), search)]

    def _memory(self, sources: tuple[str, ...]) -> Memory:
        """Return a memory that takes as long as one with a trained mixture does."""
        settings = SearchSettings(**self.tuned.values)
        mixture = untrained_mixture(sources, self.infinigram, self.tuned)
        if mixture.searches:
            return Memory.of(self.retriever, settings, None, mixture)
        return Memory(self.retriever.store, None, SearchSettings(), None, mixture)

    def nlm(self) -> Perplexities:
        """Return what the LM does alone."""
        return self._fixed({name: one.trace.log_lm for name, one in self.searched.items()})

    def constant(self) -> Perplexities:
        """Return what one λ for all tokens does."""
        return self._fixed({name: one.trace.log_p(self.tuned) for name, one in self.searched.items()})

    def _fixed(self, logp: dict[str, Doubles]) -> Perplexities:
        """Return the perplexities of what is not trained."""
        return Perplexities(
            perplexity(logp[VALID][self.split.held]),
            perplexity(logp[TEST]),
            perplexity(self.benches[TEST].traced.log_lm),
            perplexity(logp[UNRELATED]) if UNRELATED in logp else None,
        )
