"""The retrieval adaptor: learn from a trace when to ask the memory and how much to trust it, keep it, use it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from nearlm.base import Job, Json, OptionError, Reporter, StoreError, files
from nearlm.mixing.adapting import TRUSTED_TOKENS, Settings, learn, parse_a, search_hash
from nearlm.mixing.adaptor_network import (
    DEFAULT_FEATURES,
    AdaptorNetwork,
    Shape,
    capped_lambda,
    parse_features,
    scalar_columns,
)
from nearlm.mixing.adaptor_training import DEFAULT_A, SHARES, SURE, Training
from nearlm.mixing.ngrams import MAX_N, NGrams, Tokens
from nearlm.mixing.traces import TokenText
from nearlm.model import LM
from nearlm.search import DEFAULT, Retriever
from nearlm.store import Datastore, describe

FORMAT = 2
DEFAULT_BUDGET = 0.1
NO_ADAPTOR = "none"
_WEIGHTS = "adaptor.safetensors"

Floats = npt.NDArray[np.float64]


class Adaptor:
    """A trained adaptor of a store's index: `gate(skip)` says of contexts what λ they get, 0 if they do not ask.

    The network ranks contexts by how much they gain from the memory. Its λ(c) is used too when `weight` is learned;
    when that was no better than one λ for all, or the network only classifies, `weight` is constant.
    """

    def __init__(self, network: AdaptorNetwork, described: Json, ngrams: NGrams | None, name: str = DEFAULT):
        self.network, self.described, self.ngrams, self.name = network, described, ngrams, name
        self.shape, self.learned = network.shape, described["weight"] == "learned"
        self.lam = float(described["lam"])
        self.settings = Settings(**described["settings"])
        self.thresholds = np.array([-np.inf, *described["thresholds"], np.inf])

    @classmethod
    def train(
        cls,
        lm: LM,
        store: Datastore,
        texts: str | Sequence[str] | TokenText,
        *,
        name: str = DEFAULT,
        index: str = DEFAULT,
        features: str | Sequence[str] = DEFAULT_FEATURES,
        standardise: str = "all",
        a: float | str = DEFAULT_A,
        training: Training | None = None,
        reporter: Reporter | None = None,
        **options: Any,
    ) -> "Adaptor":
        """Train an adaptor on a validation text, which must not be in the store, and save it under a name.

        `options` are `stride`, `max_tokens` and those of a corpus; a text that has been read takes none of them.
        """
        reporter, training = reporter or Reporter(quiet=True), training or Training()
        shape = Shape(lm.dim, parse_features(features), standardise)  # f(c) itself, also of a reduced store
        grid = parse_a(a)
        folder, settings = adaptor_folder(store, name), Settings.tuned(store, index)
        folder.mkdir(parents=True, exist_ok=True)
        with files.lock(folder):
            job = Job(folder, "adapt")
            network, described = learn(lm, store, texts, job, shape, settings, grid, training, reporter, **options)
            save_adaptor(folder, network, described)
            job.close()
        return cls.load(store, name)

    @classmethod
    def load(cls, store: Datastore, name: str = DEFAULT) -> "Adaptor":
        """Open an adaptor of a store; refuse one of an earlier state of it."""
        folder = adaptor_folder(store, name)
        again = f"nearlm adapt {store.path} --text …{'' if name == DEFAULT else f' --adaptor {name}'}"
        if not (folder / "adaptor.json").exists():
            known = ", ".join(store.adaptors) or "none"
            raise StoreError(f"{store.path} has no adaptor {name!r} (it has {known}); make one with: {again}")
        described = files.read_stamped(folder / "adaptor.json")
        if described.get("format") != FORMAT:
            found = described.get("format")
            raise StoreError(f"adaptor {name!r} has format {found}, this nearlm reads {FORMAT}; train again: {again}")
        if described["store"] != store.manifest["checksum"]:
            raise StoreError(f"adaptor {name!r} is of an earlier state of {store.path}; train it again: {again}")
        verify_adaptor(store, name)
        shape = Shape.from_json(described["shape"])
        network = AdaptorNetwork(shape)
        network.load_state_dict(load_tensors((folder / _WEIGHTS).read_bytes()))
        return cls(network.eval(), described, NGrams.open(store) if shape.counts else None, name)

    @property
    def bytes(self) -> int:
        """The size of its files and of the n-gram tables that it looks up."""
        own: int = sum(file["bytes"] for file in self.described["files"].values())
        return own + (self.ngrams.bytes if self.ngrams else 0)

    def check(self, retriever: Retriever, temperature: float, k: int, fingerprint: str) -> None:
        """Refuse an index, search settings or a model other than those of the training."""
        trained, given = self.described, search_hash(retriever)
        if retriever.name != self.settings.index:
            raise OptionError(
                f"the adaptor was trained for index {self.settings.index!r}, this is {retriever.name!r}; "
                f"use --index {self.settings.index}, or train one for this index with `nearlm adapt`"
            )
        if fingerprint != trained["model"]:
            raise OptionError("the adaptor was trained with another model; train it again with `nearlm adapt`")
        ours = self.settings
        theirs = Settings(retriever.name, k, temperature, retriever.index.nprobe, retriever.distances)
        for option, value in asdict(ours).items():
            if getattr(theirs, option) != value:
                raise OptionError(
                    f"the adaptor was trained with {option}={value}, here it is {getattr(theirs, option)}; "
                    f"leave --{option} out, or tune the index and train again"
                )
        if given != trained["search"]:
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
        held = self.described["held_out"]
        if held["tokens"] < TRUSTED_TOKENS:
            return 0.0
        curve = np.array(held["curve"])
        within = SHARES[curve * (1 + SURE * np.array(held["errors"])) <= held["constant"] + budget]
        return float(max(within, default=0.0))

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

    def log_weights(
        self,
        keys: npt.NDArray[np.floating],
        conf: npt.NDArray[np.floating] | None,
        ent: npt.NDArray[np.floating] | None,
        contexts: Tokens | None,
    ) -> Floats:
        """Return the network's (log λ, log 1 - λ), [n, 2]."""
        counts = self.ngrams.look_up(contexts) if self.ngrams and contexts is not None else None
        return self.network.log_weights(keys, scalar_columns(self.shape, len(keys), conf, ent, counts))

    def table(self) -> str:
        """Say how well it does on what was held out, for people."""
        held, training = self.described["held_out"], self.described["training"]
        weight = "λ(c)" if self.learned else f"λ={self.lam:g} for all"
        rows = [
            f"trained on {training['tokens']:,} tokens, {training['epochs']} epochs, a={training['a']:g}; "
            f"held out: {held['tokens']:,} tokens ({held['unit']})",
            f"held-out perplexity: LM {held['nlm']:.3f}, constant λ {held['constant']:.3f}; with {weight}:",
        ]
        for percent in (0, 20, 40, 50, 60, 80, 100):
            rows.append(
                f"  {percent:3d} % skipped   {held['curve'][percent]:.3f}   random {held['random'][percent]:.3f}"
            )
        return "\n".join(rows)


class Gate:
    """An adaptor with a share to skip."""

    def __init__(self, adaptor: Adaptor, skip: float):
        self.adaptor, self.skip, self.threshold = adaptor, skip, adaptor.threshold(skip)
        self.trivial = skip == 1 or (skip == 0 and not adaptor.learned)
        self.needs_statistics = adaptor.shape.statistics and not self.trivial
        self.needs_contexts = adaptor.shape.counts and not self.trivial

    def warm_up(self) -> None:
        """Compile or load the kernels, so that the first real call is not timed with it."""
        keys, one = np.zeros((1, self.adaptor.shape.dim), np.float32), np.zeros(1, np.float32)
        self.weights(keys, one, one, np.zeros((1, MAX_N), np.int32))

    def weights(
        self,
        keys: npt.NDArray[np.floating],
        conf: npt.NDArray[np.floating] | None,
        ent: npt.NDArray[np.floating] | None,
        contexts: Tokens | None,
    ) -> Floats:
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


def adaptor_folder(store: Datastore, name: str) -> Path:
    """Return where an adaptor of a store lives."""
    if not name or name != Path(name).name or name.startswith("."):
        raise OptionError(f"--adaptor is {name!r}, expected a plain name")
    if name == NO_ADAPTOR:
        raise OptionError(f"--adaptor is {name!r}, which stands for no adaptor at all; expected another name")
    return store.path / "adaptor" / name


def save_adaptor(folder: Path, network: AdaptorNetwork, described: Json) -> None:
    """Write an adaptor's files, `adaptor.json` last."""
    folder.mkdir(parents=True, exist_ok=True)
    files.remove(folder / "adaptor.json")
    files.write_bytes(folder / _WEIGHTS, save_tensors(network.state_dict()))
    listed = {_WEIGHTS: describe(folder / _WEIGHTS)}
    head = {"format": FORMAT, "shape": network.shape.to_json()}
    files.write_stamped(folder / "adaptor.json", {**head, **described, "files": listed})


def verify_adaptor(store: Datastore, name: str) -> None:
    """Refuse an adaptor whose weights are not as they were written."""
    folder = adaptor_folder(store, name)
    for file, stated in files.read_stamped(folder / "adaptor.json")["files"].items():
        if not (folder / file).is_file() or describe(folder / file) != stated:
            raise StoreError(f"{folder / file} is missing or damaged; remove {folder} and train the adaptor again")
