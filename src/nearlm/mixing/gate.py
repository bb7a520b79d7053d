"""The gate (the paper's retrieval adaptor): when to skip retrieval, how much to trust it, and its files."""

from functools import partial

import numpy as np

from nearlm.base import QUIET, Doubles, Job, OptionError, Reals, Reporter, StoreError, files
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.gate_learning import FORMAT, GateInfo, Looked, Verdict, Ways, learn
from nearlm.mixing.gate_network import GateNetwork, capped_lambda
from nearlm.mixing.gate_training import SHARES, SURE, TRUSTED_TOKENS, Training
from nearlm.mixing.mixture import Mixture
from nearlm.mixing.mixture_features import Known, Proposal
from nearlm.mixing.mixture_training import Searched, mixture_examples
from nearlm.mixing.network_files import check_described, load_network, read_trained, save_trained
from nearlm.mixing.traces import Trace, trace_text
from nearlm.mixing.trained import check_of_store, check_trained, search_for, tuned_settings
from nearlm.model.lm import AnyModel
from nearlm.search import Retriever
from nearlm.store import DEFAULT, NONE, AnyStore, Datastore, NetworkFiles, SearchSettings, Tuned
from nearlm.store.model_files import load_lm
from nearlm.text import Texts, TokenText

DEFAULT_BUDGET = 0.1


class Gate:
    """A trained gate of a store's index: before the search it gives each context its λ, 0 where it skips retrieval.

    The network ranks contexts by how much they gain from the memory. Its λ(c) is used too when `weight` is learned;
    when that was no better than one λ for all, or the network only classifies, `weight` is constant. A gate for a
    mixture only ranks. `at` sets the share of contexts that skip retrieval.

    Example:
        >>> tuning = nearlm.tune("mystore", "valid/")
        >>> gate = nearlm.Gate.train("mystore", "valid/")
        >>> knnlm = nearlm.KNNLM.load("mystore", settings=nearlm.SearchSettings(gate="default", skip=0.5))
    """

    def __init__(
        self,
        network: GateNetwork,
        verdict: Verdict,
        settings: SearchSettings,
        looked: Looked,
        name: str = DEFAULT,
        skip: float = 0.0,
    ):
        self.network = network
        self.inputs = network.inputs
        self.verdict = verdict
        self.settings = settings
        self.looked = looked
        self.name = name
        self.lam = verdict.lam
        self.learned = verdict.weight == "learned"
        self.thresholds = np.array([-np.inf, *verdict.thresholds, np.inf])
        self.skip = skip
        self.threshold = self.threshold_at(skip)
        self.trivial = skip == 1 or (skip == 0 and not self.learned)
        self.needs_statistics = (self.inputs.statistics or self.inputs.suffix) and not self.trivial
        self.needs_contexts = (self.inputs.counts or self.inputs.suffix) and not self.trivial

    @classmethod
    def train(
        cls,
        store: AnyStore,
        text: Texts | TokenText,
        model: AnyModel = None,
        training: Training = Training(),
        *,
        name: str = DEFAULT,
        index: str = DEFAULT,
        mixture: str | None = None,
        stride: int | None = None,
        reporter: Reporter = QUIET,
    ) -> "Gate":
        """Train a gate on a validation text and save it with the store, for an index that has been tuned.

        Args:
            store: Folder of a store, `cache:NAME`, or an open store.
            text: Names of texts, or a `TextSource`; it should not be in the store.
            model: The store's model, by default as it was built.
            training: How the network is trained.
            name: Name of the gate.
            index: Which index of the store it is for.
            mixture: Which mixture of the store it works with; by default none, and the gate chooses λ itself.
            stride: Tokens from window to window, by default the window.
            reporter: Whom to tell of the progress.
        """
        store = Datastore.open(store)
        place = gate_files(store, name)
        tuned = tuned_settings(store, index)
        lm = load_lm(store, model)
        place.folder.mkdir(parents=True, exist_ok=True)
        with files.lock(place.folder):
            job = Job(place.folder, "gate")
            traced = trace_text(lm, store, text, reporter, stride=stride)
            trace = search_for(traced, Retriever.open(store, tuned), tuned, reporter)
            ways = None if mixture is None else _ways(Mixture.load(store, mixture), trace, tuned)
            network, info = learn(lm, trace, job, training, tuned, reporter, ways)
            save_trained(place, network, info)
            job.close()
        return cls.load(store, name)

    @classmethod
    def load(cls, store: Datastore, name: str = DEFAULT) -> "Gate":
        """Open a gate of a store, also one from before the last appends; refuse one of another store."""
        place = gate_files(store, name)
        again = f"nearlm gate {store.path} `text=…`{'' if name == DEFAULT else f' `gate={name!r}`'}, or Gate.train()"
        check_described(store, place, FORMAT, again)
        info = verify_gate(store, name)
        check_of_store(f"gate {name!r}", info, store, again)
        network = _read_network(place, info, store.query_dim)
        return cls(network.eval(), info, info.settings, Looked.open(store, info.shape), name)

    def __repr__(self) -> str:
        weight = "λ(c)" if self.learned else f"λ={self.lam:g}"
        return f"Gate({self.name!r} for index {self.settings.index!r}: {weight}, skips {self.skip:.0%})"

    @property
    def info(self) -> GateInfo:
        """What its file says of it; one that was never saved has none."""
        assert isinstance(self.verdict, GateInfo)
        return self.verdict

    @property
    def bytes(self) -> int:
        """The size of its files and of the tables that it looks up."""
        return sum(file.bytes for file in self.info.files.values()) + self.looked.bytes

    def check(self, retriever: Retriever, settings: SearchSettings, fingerprint: str, mixture: str = "") -> None:
        """Refuse an index, search settings, a model or a mixture (by its hash) other than those of the training."""
        check_trained("gate", self.settings, self.info.search, retriever, settings)
        if fingerprint != self.info.model:
            raise OptionError("the gate was trained with another model; train it again with `nearlm gate`")
        if mixture != self.info.mixture:
            trained = "a mixture that is not this one" if self.info.mixture else "no mixture"
            raise OptionError(f"the gate was trained for {trained}; train both with `nearlm gate`")

    def threshold_at(self, skip: float) -> float:
        """Return the score below which a context skips retrieval, so that about this share of them does."""
        if not 0 <= skip <= 1:
            raise OptionError(f"`skip` is {skip}, expected 0 to 1 or auto")
        if skip in (0, 1):
            return float(self.thresholds[-1 if skip else 0])
        inner = np.clip(skip, SHARES[1], SHARES[-2])
        return float(np.interp(inner, SHARES[1:-1], self.thresholds[1:-1]))

    def best_skip(self, budget: float = DEFAULT_BUDGET) -> float:
        """Return the largest share whose held-out perplexity surely exceeds that of one constant λ by at most `budget`.

        Surely is by two standard errors. Too few held-out tokens say nothing: the share is then 0.
        """
        if not budget >= 0:
            raise OptionError(f"`budget` is {budget}, expected 0 or more perplexity")
        held = self.verdict.held_out
        if held.tokens < TRUSTED_TOKENS:
            return 0.0
        sure = np.array(held.curve) * (1 + SURE * np.array(held.errors))
        return float(max(SHARES[sure <= held.constant + budget], default=0.0))

    def at(self, skip: float | str = 0.0, budget: float | None = None) -> "Gate":
        """Return this gate with a share of contexts that skip retrieval, or `auto`: as many as a budget allows."""
        if skip == "auto":
            share = self.best_skip(DEFAULT_BUDGET if budget is None else budget)
        elif budget is not None:
            raise OptionError("`budget` chooses the share to skip; give it with `skip='auto'`")
        else:
            try:
                share = float(skip)
            except ValueError:
                raise OptionError(f"`skip` is {skip!r}, expected 0 to 1 or auto") from None
        return Gate(self.network, self.verdict, self.settings, self.looked, self.name, share)

    def warm_up(self) -> None:
        """Compile or load the kernels, so that the first real call is not timed with it."""
        contexts = Contexts(np.zeros(1, np.int32), np.zeros(1, np.int64), np.ones(1, np.int64))
        self.weights(np.zeros((1, self.inputs.dim), np.float32), Known.of(None, contexts, 1))

    def weights(self, keys: Reals, known: Known, proposals: dict[str, Proposal] | None = None) -> Doubles:
        """Return the λ of n contexts; 0 means that they skip retrieval.

        Of `known`, statistics and contexts matter only if `needs_statistics` or `needs_contexts`.
        """
        if self.trivial:
            return np.full(len(keys), 0.0 if self.skip == 1 else self.lam)
        return self.weigh(self.log_weights(keys, known, proposals)[:, 0])

    def weigh(self, log_lam: Doubles) -> Doubles:
        """Return the λ of contexts for what the network said of them."""
        lam = capped_lambda(log_lam) if self.learned else self.lam
        return np.where(log_lam >= self.threshold, lam, 0.0)

    def log_weights(self, keys: Reals, known: Known, proposals: dict[str, Proposal] | None = None) -> Doubles:
        """Return the network's (log λ, log 1 - λ), [n, 2]."""
        return self.network.log_weights(keys, self.looked.scalars(self.inputs, known, proposals))

    def table(self) -> str:
        """Say how well it does on what was held out, for people."""
        held = self.info.held_out
        training = self.info.training
        weight = "λ(c)" if self.learned else f"λ={self.lam:g} for all"
        bounds = f"LM {held.nlm:.3f}, constant λ {held.constant:.3f}; with {weight}"
        if self.info.mixture:
            bounds = f"without searches {held.nlm:.3f}, with all {held.constant:.3f}"
        rows = [
            f"trained on {training.tokens:,} tokens, {training.epochs} epochs, l1={training.l1:g}; "
            f"held out: {held.tokens:,} tokens ({held.unit})",
            f"held-out perplexity: {bounds}:",
        ]
        for percent in (0, 20, 40, 50, 60, 80, 100):
            rows.append(f"  {percent:3d} % skipped   {held.curve[percent]:.3f}   random {held.random[percent]:.3f}")
        return "\n".join(rows)


def _ways(mixture: Mixture, trace: Trace, tuned: Tuned) -> Ways:
    """Return what a mixture makes of every token with a search and without."""
    examples = mixture_examples(trace.lm, mixture.info.sources, mixture.infinigram, Searched(trace, tuned))
    without = examples.without_search().log_mixture(mixture.network)
    return Ways(without, examples.log_mixture(mixture.network), mixture.hash)


def gate_files(store: Datastore, name: str) -> NetworkFiles:
    """Return the files of a gate of a store."""
    if name == NONE:
        raise OptionError(f"`gate` is {name!r}, which stands for no gate at all; expected another name")
    return store.layout.gate(name)


def _read_network(place: NetworkFiles, info: GateInfo, dim: int) -> GateNetwork:
    """Read the weights of a gate of contexts of `dim` dimensions."""
    remedy = f"remove {place.folder} and train the gate again"
    held = info.held_out
    lengths = {len(values) for values in (held.curve, held.errors, held.random)}
    if info.shape.dim != dim or lengths != {len(SHARES)} or len(info.thresholds) != len(SHARES) - 2:
        raise StoreError(f"{place.description} describes no gate of this store; {remedy}")
    return load_network(partial(GateNetwork, info.shape), place.weights, remedy)


def verify_gate(store: Datastore, name: str) -> GateInfo:
    """Return what is known of a gate; refuse one whose weights are not as they were written."""
    place = gate_files(store, name)
    remedy = f"remove {place.folder} and train the gate again"
    info = read_trained(GateInfo, place, remedy)
    looked = {store.layout.ngrams.description: info.shape.counts, store.layout.suffixes.description: info.shape.suffix}
    for path, needed in looked.items():
        if needed and not path.exists():
            raise StoreError(f"{path} is missing, which gate {name!r} looks up; {remedy}")
    return info
