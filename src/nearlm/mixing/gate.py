"""The gate (the paper's retrieval adaptor): when to skip retrieval, how much to trust it, and its files."""

from dataclasses import replace

import numpy as np
from safetensors.torch import save as save_tensors

from nearlm.base import QUIET, Doubles, Int32s, Job, OptionError, Reals, Reporter, StoreError, files
from nearlm.base.records import FileInfo, check_files, check_names, read_record, write_record
from nearlm.mixing.gate_learning import (
    FORMAT,
    GateInfo,
    Verdict,
    learn,
    search_hash,
    search_only,
    trace_for,
    tuned_settings,
)
from nearlm.mixing.gate_network import GateNetwork, capped_lambda, load_network, scalar_columns
from nearlm.mixing.gate_training import SHARES, SURE, TRUSTED_TOKENS, Training
from nearlm.mixing.ngrams import MAX_N, NGrams
from nearlm.mixing.traces import cache_text
from nearlm.model.lm import AnyModel
from nearlm.search import Retriever
from nearlm.store import DEFAULT, NO_GATE, AnyStore, Datastore, GateFiles, SearchSettings
from nearlm.store.model_files import load_lm
from nearlm.text import Texts, TokenText

DEFAULT_BUDGET = 0.1


class Gate:
    """A trained gate of a store's index: it gives each context its λ, 0 where retrieval is skipped.

    The network ranks contexts by how much they gain from the memory. Its λ(c) is used too when `weight` is learned;
    when that was no better than one λ for all, or the network only classifies, `weight` is constant. `at` sets the
    share of contexts that skip retrieval.

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
        ngrams: NGrams | None,
        name: str = DEFAULT,
        skip: float = 0.0,
    ):
        self.network = network
        self.inputs = network.inputs
        self.verdict = verdict
        self.settings = settings
        self.ngrams = ngrams
        self.name = name
        self.lam = verdict.lam
        self.learned = verdict.weight == "learned"
        self.thresholds = np.array([-np.inf, *verdict.thresholds, np.inf])
        self.skip = skip
        self.threshold = self.threshold_at(skip)
        self.trivial = skip == 1 or (skip == 0 and not self.learned)
        self.needs_statistics = self.inputs.statistics and not self.trivial
        self.needs_contexts = self.inputs.counts and not self.trivial

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
            stride: Tokens from window to window, by default the window.
            reporter: Whom to tell of the progress.

        """
        store = Datastore.open(store)
        place = gate_files(store, name)
        tuned = tuned_settings(store, index)
        lm = load_lm(store, model)
        reading = store.reading(stride)  # a text that has been read already has its stride
        place.folder.mkdir(parents=True, exist_ok=True)
        with files.lock(place.folder):
            job = Job(place.folder, "gate")
            if not isinstance(text, TokenText):
                text = cache_text(text, lm.tokenizer, reading, reporter)
            trace = trace_for(lm, Retriever.open(store, tuned), text, reading, tuned, reporter)
            network, info = learn(lm, trace, job, training, tuned, reporter)
            save_gate(place, network, info)
            job.close()
        return cls.load(store, name)

    @classmethod
    def load(cls, store: Datastore, name: str = DEFAULT) -> "Gate":
        """Open a gate of a store; refuse one of an earlier state of it."""
        place = gate_files(store, name)
        again = f"nearlm gate {store.path} `text=…`{'' if name == DEFAULT else f' `gate={name!r}`'}, or Gate.train()"
        if not place.description.exists():
            known = ", ".join(store.gates) or "none"
            raise StoreError(f"{store.path} has no gate {name!r} (it has {known}); make one with: {again}")
        version = files.read_json(place.description).get("format")
        if version != FORMAT:
            raise StoreError(f"gate {name!r} has format {version}, this nearlm reads {FORMAT}; train again: {again}")
        info = verify_gate(store, name)
        if info.store != store.checksum:
            raise StoreError(f"gate {name!r} is of an earlier state of {store.path}; train it again: {again}")
        network = _read_network(place, info, store.query_dim)
        return cls(network.eval(), info, info.settings, NGrams.open(store) if info.shape.counts else None, name)

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
        """The size of its files and of the n-gram tables that it looks up."""
        own = sum(file.bytes for file in self.info.files.values())
        return own + (self.ngrams.bytes if self.ngrams else 0)

    def check(self, retriever: Retriever, settings: SearchSettings, fingerprint: str) -> None:
        """Refuse an index, search settings or a model other than those of the training."""
        if retriever.name != self.settings.index:
            raise OptionError(
                f"the gate was trained for index {self.settings.index!r}, this is {retriever.name!r}; "
                f"use `index={self.settings.index!r}`, or train one for this index with `nearlm gate`"
            )
        if fingerprint != self.info.model:
            raise OptionError("the gate was trained with another model; train it again with `nearlm gate`")
        used = search_only(retriever.settings.over(settings))
        for name in ("k", "knn_temperature", "nprobe", "distances"):
            here = getattr(used, name)
            trained = getattr(self.settings, name)
            if here != trained:
                raise OptionError(
                    f"the gate was trained with {name}={trained}, here it is {here}; "
                    f"leave `{name}` out, or tune the index and train again"
                )
        if search_hash(retriever) != self.info.search:
            raise OptionError(
                f"the gate was trained with an earlier index {retriever.name!r}; train it again with `nearlm gate`"
            )

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
        return Gate(self.network, self.verdict, self.settings, self.ngrams, self.name, share)

    def warm_up(self) -> None:
        """Compile or load the kernels, so that the first real call is not timed with it."""
        keys = np.zeros((1, self.inputs.dim), np.float32)
        one = np.zeros(1, np.float32)
        self.weights(keys, one, one, np.zeros((1, MAX_N), np.int32))

    def weights(self, keys: Reals, conf: Reals | None, ent: Reals | None, contexts: Int32s | None) -> Doubles:
        """Return the λ of n contexts; 0 means that they skip retrieval.

        `conf` and `ent`, and `contexts`, [n, 4], may be None unless `needs_statistics` or `needs_contexts`.
        """
        if self.trivial:
            return np.full(len(keys), 0.0 if self.skip == 1 else self.lam)
        return self.weigh(self.log_weights(keys, conf, ent, contexts)[:, 0])

    def weigh(self, log_lam: Doubles) -> Doubles:
        """Return the λ of contexts for what the network said of them."""
        lam = capped_lambda(log_lam) if self.learned else self.lam
        return np.where(log_lam >= self.threshold, lam, 0.0)

    def log_weights(self, keys: Reals, conf: Reals | None, ent: Reals | None, contexts: Int32s | None) -> Doubles:
        """Return the network's (log λ, log 1 - λ), [n, 2]."""
        counts = self.ngrams.look_up(contexts) if self.ngrams and contexts is not None else None
        return self.network.log_weights(keys, scalar_columns(self.inputs, len(keys), conf, ent, counts))

    def table(self) -> str:
        """Say how well it does on what was held out, for people."""
        held = self.info.held_out
        training = self.info.training
        weight = "λ(c)" if self.learned else f"λ={self.lam:g} for all"
        rows = [
            f"trained on {training.tokens:,} tokens, {training.epochs} epochs, l1={training.l1:g}; "
            f"held out: {held.tokens:,} tokens ({held.unit})",
            f"held-out perplexity: LM {held.nlm:.3f}, constant λ {held.constant:.3f}; with {weight}:",
        ]
        for percent in (0, 20, 40, 50, 60, 80, 100):
            rows.append(f"  {percent:3d} % skipped   {held.curve[percent]:.3f}   random {held.random[percent]:.3f}")
        return "\n".join(rows)


def gate_files(store: Datastore, name: str) -> GateFiles:
    """Return the files of a gate of a store."""
    if name == NO_GATE:
        raise OptionError(f"`gate` is {name!r}, which stands for no gate at all; expected another name")
    return store.layout.gate(name)


def save_gate(place: GateFiles, network: GateNetwork, info: GateInfo) -> None:
    """Write a gate's files, `gate.json` last."""
    place.folder.mkdir(parents=True, exist_ok=True)
    files.remove(place.description)
    files.write_bytes(place.weights, save_tensors(network.state_dict()))
    write_record(place.description, replace(info, files={place.weights.name: FileInfo.of(place.weights)}))


def _read_network(place: GateFiles, info: GateInfo, dim: int) -> GateNetwork:
    """Read the weights of a gate of contexts of `dim` dimensions."""
    remedy = f"remove {place.folder} and train the gate again"
    held = info.held_out
    lengths = {len(values) for values in (held.curve, held.errors, held.random)}
    if info.shape.dim != dim or lengths != {len(SHARES)} or len(info.thresholds) != len(SHARES) - 2:
        raise StoreError(f"{place.description} describes no gate of this store; {remedy}")
    return load_network(place.weights, info.shape, remedy)


def verify_gate(store: Datastore, name: str) -> GateInfo:
    """Return what is known of a gate; refuse one whose weights are not as they were written."""
    place = gate_files(store, name)
    info = read_record(GateInfo, place.description)
    check_names(place.description, {*info.files, place.weights.name}, info.files.keys() & {place.weights.name})
    remedy = f"remove {place.folder} and train the gate again"
    check_files(place.folder, info.files, remedy, every_byte=True)
    if info.shape.counts and not store.layout.ngrams.description.exists():
        raise StoreError(f"{store.layout.ngrams.description} is missing, which gate {name!r} looks up; {remedy}")
    return info
