"""What a memory of some size will take, by the law of growth: disk, RAM, time, which index, overhead per token."""

import math
import re
from dataclasses import dataclass

from nearlm.base import OptionError, check_at_least
from nearlm.base.progress import duration, size
from nearlm.cluster.law import CPU_FLOPS, LAW, SUFFIX_BYTES, SUFFIX_RAM, SUFFIX_SECONDS, TOKEN_BYTES
from nearlm.model import ModelSpec
from nearlm.search.kinds import AUTO, IndexSpec, choose_index, code_bytes_within, describe, index_bytes
from nearlm.search.training import training_ram

_USABLE = 0.8  # of a machine's RAM, beside the model and the system
_LARGE = 1e16
_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}


@dataclass(frozen=True)
class ModelSize:
    """What of a model decides how long it takes: weights that every token passes, and the width of its keys."""

    name: str
    dim: int
    body: int


@dataclass(frozen=True)
class Forecast:
    """What a memory of some size will take; times are of `workers` machines or GPUs that are equally fast."""

    records: int
    dim: int
    workers: int
    flops: float
    store_bytes: int
    half_bytes: int
    index: str
    factory: str
    code_bytes: int | None
    index_bytes: int
    ram: int | None
    shards: int
    training_ram: int
    suffix_bytes: int
    suffix_ram: int
    suffix_seconds: float
    build_seconds: float | None
    index_seconds: float
    lm_microseconds: float | None
    search_microseconds: float
    search_alone_microseconds: float
    measured_from: int
    measured_to: int

    @property
    def extrapolated(self) -> bool:
        """Whether the size lies outside of what was measured."""
        return not self.measured_from <= self.records <= self.measured_to

    def table(self) -> str:
        """Write it for people, with the commands that follow from it."""
        rows = {
            "records": f"{self.records:,} of {self.dim} dimensions",
            "disk": f"{size(self.store_bytes)} of records ({size(self.half_bytes)} with `key_dtype=int8`), "
            f"{size(self.index_bytes)} of index, {size(self.suffix_bytes)} of ∞-gram",
            "index": self.index,
            "RAM to search": self._ram(),
            "RAM to make it": f"{size(self.training_ram)} to train the index; {size(self.suffix_ram)} for the ∞-gram; "
            f"without `ray` {size(self.index_bytes)} to fill it",
            "build": self._build(),
            "indexing": f"{duration(self.index_seconds)}; ∞-gram {duration(self.suffix_seconds)}",
            "overhead": self._overhead(),
            "commands": self._commands(),
            "": self._range(),
        }
        return "\n".join(f"{name:16}{text}" for name, text in rows.items())

    def _ram(self) -> str:
        whole = f"{size(self.index_bytes)} for all lists; those that do not fit are read from disk"
        if self.ram is None:
            return whole
        if self.shards == 1:
            return f"{size(self.index_bytes)}, which fits into {size(self.ram)}"
        return f"{size(self.index_bytes)} in {self.shards} parts, each on a machine of {size(self.ram)}"

    def _build(self) -> str:
        if self.build_seconds is None:
            return "depends on the model; name it with `model`"
        many = f"{self.workers} workers" if self.workers > 1 else "one worker"
        return f"{duration(self.build_seconds)} by {many} of {self.flops / 1e12:g} TFLOP/s"

    def _overhead(self) -> str:
        search = self.search_microseconds
        line = f"{search:.0f} µs per token in batches, {self.search_alone_microseconds:.0f} one by one"
        if self.lm_microseconds is None:
            return line
        return f"{line}; the model takes {self.lm_microseconds:,.0f} µs ({search / self.lm_microseconds:.1%})"

    def _commands(self) -> str:
        ray = f" `ray` `workers={self.workers}`" if self.workers > 1 else ""
        code = f" `bytes={self.code_bytes}`" if self.code_bytes else ""
        serve = f"; nearlm serve-index STORE `shards={self.shards}`" if self.shards > 1 else ""
        index = " `ray`" if self.workers > 1 else ""
        return f"nearlm build … `out=STORE`{ray}; nearlm index STORE{code}{index}{serve}"

    def _range(self) -> str:
        within = f"measured from {self.measured_from:,} to {self.measured_to:,} records on two CPU cores"
        return f"{within}; this is extrapolated" if self.extrapolated else within


def forecast(
    records: int,
    dim: int | None = None,
    model: str | ModelSize | None = None,
    *,
    ram: int | None = None,
    workers: int = 1,
    flops: float | None = None,
) -> Forecast:
    """Say what a memory will take.

    Args:
        records: Tokens of text, one record each.
        dim: Dimensions of a key; by default the model's.
        model: A model folder, hub id or `smollm2-135m`, for the time of the build.
        ram: Bytes of RAM of each machine; the index is made to fit into all of them.
        workers: Machines or GPUs that build and search.
        flops: What each computes in a second; by default what two CPU cores did.
    """
    check_at_least(1, records=records, dim=dim, ram=ram, workers=workers, flops=flops)
    known = measure_model(model) if isinstance(model, str) else model
    if dim is None and known is None:
        raise OptionError("`dim` is not given; name it, or a `model`")
    width = dim or known.dim  # type: ignore[union-attr]
    speed = flops or CPU_FLOPS
    cost = None if known is None else 2 * known.body / speed
    return _by_law(records, width, ram, workers, speed, cost)


def _by_law(records: int, width: int, ram: int | None, workers: int, speed: float, cost: float | None) -> Forecast:
    """Put together what the law says, for a model that takes `cost` seconds per token."""
    spec, code, shards = choose(records, width, ram, workers)
    least, most = LAW.range
    return Forecast(
        records=records,
        dim=width,
        workers=workers,
        flops=speed,
        store_bytes=records * (2 * width + TOKEN_BYTES),
        half_bytes=records * (width + TOKEN_BYTES),
        index=describe(spec),
        factory=spec.factory,
        code_bytes=code,
        index_bytes=index_bytes(spec, records, width),
        ram=ram,
        shards=shards,
        training_ram=training_ram(spec, records, width),
        suffix_bytes=records * SUFFIX_BYTES,
        suffix_ram=records * SUFFIX_RAM,
        suffix_seconds=records * SUFFIX_SECONDS,
        build_seconds=None if cost is None else records * cost / workers,
        index_seconds=LAW.index_seconds(records),
        lm_microseconds=None if cost is None else 1e6 * cost,
        search_microseconds=LAW.microseconds(records),
        search_alone_microseconds=LAW.microseconds(records, alone=True),
        measured_from=least,
        measured_to=most,
    )


def choose(records: int, dim: int, ram: int | None, workers: int) -> tuple[IndexSpec, int | None, int]:
    """Return the `auto` index that fits into the RAM of all machines, its bytes per code if narrower, and its parts."""
    spec = choose_index(AUTO, records, dim)
    if ram is None:
        return spec, None, 1
    each = int(ram * _USABLE)
    needed = index_bytes(spec, records, dim)
    if needed <= each * workers:
        return spec, None, math.ceil(needed / each)
    code = code_bytes_within(each * workers, records, dim)
    spec = choose_index(AUTO, records, dim, code_bytes=code)
    return spec, code, math.ceil(index_bytes(spec, records, dim) / each)


def measure_model(name: str) -> ModelSize:
    """Count a model's weights from its config alone: those of its body, without embeddings and head."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from nearlm.base import ModelError
    from nearlm.model.pretrained import place_of, quiet_transformers

    place, options = place_of(ModelSpec(name))
    try:
        with quiet_transformers(), torch.device("meta"):
            config = AutoConfig.from_pretrained(place, **options)
            made = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # transformers raises what it likes
        raise ModelError(
            f"the config of {name!r} cannot be read ({type(error).__name__}: {error}); leave it out"
        ) from None
    outer = {
        id(part.weight) for part in (made.get_input_embeddings(), made.get_output_embeddings()) if part is not None
    }
    body = sum(weight.numel() for weight in made.parameters() if id(weight) not in outer)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return ModelSize(name, int(text.hidden_size), body)


def read_count(option: str, text: str) -> int:
    """Read a number as people write it: 1e9, 250M, 2_000_000."""
    read = re.fullmatch(
        r"([0-9]+(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)([kKMGBT]?)", text.strip().replace("_", "").replace(",", "")
    )
    value = float(read[1]) * _UNITS[read[2]] if read else 0
    if not 1 <= value < _LARGE:
        raise OptionError(f"`{option}` is {text!r}, expected a number like 1e9, 250M or 2000000")
    return int(value)
