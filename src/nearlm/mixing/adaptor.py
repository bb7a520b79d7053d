"""The retrieval adaptor: when to ask the memory and how much to trust it; its files, and using it."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from nearlm.base import QUIET, Job, OptionError, Reporter, StoreError, files
from nearlm.base.records import FileInfo, check_files, read_record, write_record
from nearlm.mixing.adapting import FORMAT, AdaptorInfo, Verdict, learn, search_hash, search_only, traced, tuned_settings
from nearlm.mixing.adaptor_network import AdaptorNetwork, capped_lambda, scalar_columns
from nearlm.mixing.adaptor_training import SHARES, SURE, TRUSTED_TOKENS, Training
from nearlm.mixing.ngrams import MAX_N, NGrams, Tokens
from nearlm.mixing.traces import traced_text
from nearlm.model.lm import LM
from nearlm.search import Retriever
from nearlm.store import DEFAULT, NO_ADAPTOR, AdaptorFiles, Datastore, SearchSettings
from nearlm.text import Texts, TokenText

DEFAULT_BUDGET = 0.1

Floats = npt.NDArray[np.float64]
Reals = npt.NDArray[np.floating]


class Adaptor:
    """A trained adaptor of a store's index: `gate(skip)` says of contexts what λ they get, 0 if they do not ask.

    The network ranks contexts by how much they gain from the memory. Its λ(c) is used too when `weight` is learned;
    when that was no better than one λ for all, or the network only classifies, `weight` is constant.
    """

    def __init__(
        self,
        network: AdaptorNetwork,
        verdict: Verdict,
        settings: SearchSettings,
        ngrams: NGrams | None,
        name: str = DEFAULT,
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

    @classmethod
    def train(
        cls,
        lm: LM,
        store: Datastore,
        text: Texts | TokenText,
        training: Training = Training(),
        *,
        name: str = DEFAULT,
        index: str = DEFAULT,
        stride: int | None = None,
        reporter: Reporter = QUIET,
    ) -> "Adaptor":
        """Train an adaptor on a validation text, which must not be in the store, and save it under a name.

        A text that has been read has its stride already.
        """
        place = adaptor_files(store, name)
        tuned = tuned_settings(store, index)
        reading = store.reading(stride)
        place.folder.mkdir(parents=True, exist_ok=True)
        with files.lock(place.folder):
            job = Job(place.folder, "adapt")
            if not isinstance(text, TokenText):
                text = traced_text(text, lm.tokenizer, reading, reporter)
            trace = traced(lm, Retriever.open(store, tuned), text, reading, tuned, reporter)
            network, info = learn(lm, trace, job, training, tuned, reporter)
            save_adaptor(place, network, info)
            job.close()
        return cls.load(store, name)

    @classmethod
    def load(cls, store: Datastore, name: str = DEFAULT) -> "Adaptor":
        """Open an adaptor of a store; refuse one of an earlier state of it."""
        place = adaptor_files(store, name)
        again = f"nearlm adapt {store.path} --text …{'' if name == DEFAULT else f' --adaptor {name}'}"
        if not place.description.exists():
            known = ", ".join(store.adaptors) or "none"
            raise StoreError(f"{store.path} has no adaptor {name!r} (it has {known}); make one with: {again}")
        version = files.read_json(place.description).get("format")
        if version != FORMAT:
            raise StoreError(f"adaptor {name!r} has format {version}, this nearlm reads {FORMAT}; train again: {again}")
        info = verify_adaptor(store, name)
        if info.store != store.checksum:
            raise StoreError(f"adaptor {name!r} is of an earlier state of {store.path}; train it again: {again}")
        network = AdaptorNetwork(info.shape)
        network.load_state_dict(load_tensors(place.weights.read_bytes()))
        return cls(network.eval(), info, info.settings, NGrams.open(store) if info.shape.counts else None, name)

    @property
    def info(self) -> AdaptorInfo:
        """What its file says of it; one that was never saved has none."""
        assert isinstance(self.verdict, AdaptorInfo)
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
                f"the adaptor was trained for index {self.settings.index!r}, this is {retriever.name!r}; "
                f"use --index {self.settings.index}, or train one for this index with `nearlm adapt`"
            )
        if fingerprint != self.info.model:
            raise OptionError("the adaptor was trained with another model; train it again with `nearlm adapt`")
        used = search_only(retriever.settings.over(settings))
        for name in ("k", "temperature", "nprobe", "distances"):
            here = getattr(used, name)
            trained = getattr(self.settings, name)
            if here != trained:
                raise OptionError(
                    f"the adaptor was trained with {name}={trained}, here it is {here}; "
                    f"leave --{name} out, or tune the index and train again"
                )
        if search_hash(retriever) != self.info.search:
            raise OptionError(
                f"the adaptor was trained with an earlier index {retriever.name!r}; train it again with `nearlm adapt`"
            )

    def threshold(self, skip: float) -> float:
        """Return the score below which a context does not ask, so that about this share of them does not."""
        if not 0 <= skip <= 1:
            raise OptionError(f"--skip is {skip}, expected 0 to 1 or auto")
        if skip in (0, 1):
            return float(self.thresholds[-1 if skip else 0])
        inner = np.clip(skip, SHARES[1], SHARES[-2])
        return float(np.interp(inner, SHARES[1:-1], self.thresholds[1:-1]))

    def best_skip(self, budget: float = DEFAULT_BUDGET) -> float:
        """Return the largest share whose held-out perplexity surely exceeds that of one constant λ by at most `budget`.

        Surely is by two standard errors. Too few held-out tokens say nothing: the share is then 0.
        """
        if not budget >= 0:
            raise OptionError(f"--budget is {budget}, expected 0 or more perplexity")
        held = self.verdict.held_out
        if held.tokens < TRUSTED_TOKENS:
            return 0.0
        sure = np.array(held.curve) * (1 + SURE * np.array(held.errors))
        return float(max(SHARES[sure <= held.constant + budget], default=0.0))

    def gate(self, skip: float | str = 0.0, budget: float | None = None) -> "Gate":
        """Return what decides which contexts ask, for a share to skip or `auto`."""
        if skip == "auto":
            return Gate(self, self.best_skip(DEFAULT_BUDGET if budget is None else budget))
        if budget is not None:
            raise OptionError("--budget chooses the share to skip; give it with --skip auto")
        try:
            return Gate(self, float(skip))
        except ValueError:
            raise OptionError(f"--skip is {skip!r}, expected 0 to 1 or auto") from None

    def log_weights(self, keys: Reals, conf: Reals | None, ent: Reals | None, contexts: Tokens | None) -> Floats:
        """Return the network's (log λ, log 1 - λ), [n, 2]."""
        counts = self.ngrams.look_up(contexts) if self.ngrams and contexts is not None else None
        return self.network.log_weights(keys, scalar_columns(self.inputs, len(keys), conf, ent, counts))

    def table(self) -> str:
        """Say how well it does on what was held out, for people."""
        held = self.info.held_out
        training = self.info.training
        weight = "λ(c)" if self.learned else f"λ={self.lam:g} for all"
        rows = [
            f"trained on {training.tokens:,} tokens, {training.epochs} epochs, a={training.a:g}; "
            f"held out: {held.tokens:,} tokens ({held.unit})",
            f"held-out perplexity: LM {held.nlm:.3f}, constant λ {held.constant:.3f}; with {weight}:",
        ]
        for percent in (0, 20, 40, 50, 60, 80, 100):
            rows.append(f"  {percent:3d} % skipped   {held.curve[percent]:.3f}   random {held.random[percent]:.3f}")
        return "\n".join(rows)


class Gate:
    """An adaptor with a share to skip."""

    def __init__(self, adaptor: Adaptor, skip: float):
        self.adaptor = adaptor
        self.skip = skip
        self.threshold = adaptor.threshold(skip)
        self.trivial = skip == 1 or (skip == 0 and not adaptor.learned)
        self.needs_statistics = adaptor.inputs.statistics and not self.trivial
        self.needs_contexts = adaptor.inputs.counts and not self.trivial

    def warm_up(self) -> None:
        """Compile or load the kernels, so that the first real call is not timed with it."""
        keys = np.zeros((1, self.adaptor.inputs.dim), np.float32)
        one = np.zeros(1, np.float32)
        self.weights(keys, one, one, np.zeros((1, MAX_N), np.int32))

    def weights(self, keys: Reals, conf: Reals | None, ent: Reals | None, contexts: Tokens | None) -> Floats:
        """Return the λ of n contexts; 0 means that they do not ask.

        `conf` and `ent`, and `contexts`, [n, 4], may be None unless `needs_statistics` or `needs_contexts`.
        """
        if self.trivial:
            return np.full(len(keys), 0.0 if self.skip == 1 else self.adaptor.lam)
        return self.weigh(self.adaptor.log_weights(keys, conf, ent, contexts)[:, 0])

    def weigh(self, log_lam: Floats) -> Floats:
        """Return the λ of contexts for what the network said of them."""
        lam = capped_lambda(log_lam) if self.adaptor.learned else self.adaptor.lam
        return np.where(log_lam >= self.threshold, lam, 0.0)


def adaptor_files(store: Datastore, name: str) -> AdaptorFiles:
    """Return the files of an adaptor of a store."""
    if name == NO_ADAPTOR:
        raise OptionError(f"--adaptor is {name!r}, which stands for no adaptor at all; expected another name")
    return store.layout.adaptor(name)


def save_adaptor(place: AdaptorFiles, network: AdaptorNetwork, info: AdaptorInfo) -> None:
    """Write an adaptor's files, `adaptor.json` last."""
    place.folder.mkdir(parents=True, exist_ok=True)
    files.remove(place.description)
    files.write_bytes(place.weights, save_tensors(network.state_dict()))
    write_record(place.description, replace(info, files={place.weights.name: FileInfo.of(place.weights)}))


def verify_adaptor(store: Datastore, name: str) -> AdaptorInfo:
    """Return what is known of an adaptor; refuse one whose weights are not as they were written."""
    place = adaptor_files(store, name)
    info = read_record(AdaptorInfo, place.description)
    remedy = f"remove {place.folder} and train the adaptor again"
    check_files(place.folder, info.files, remedy, every_byte=True)
    return info
