"""What a build depends on: its options, their defaults, and how to tell one plan from another."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nearlm.base import Json, OptionError, canonical_hash, check_at_least, to_json
from nearlm.store.layout import KEY_DTYPES
from nearlm.store.manifest import Manifest
from nearlm.text import check_window

if TYPE_CHECKING:
    from nearlm.model.lm import LM

WINDOW = 512
SHARD_RECORDS = 1 << 18
BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}
ALL_KEYS, NO_KEYS = "all", "none"
_MACHINE = ("append_to", "probe", "torch", "threads")


@dataclass(frozen=True)
class BuildOptions:
    """How a text becomes records; None takes the default, or for an append what the store has."""

    window: int | None = None
    """Tokens the model reads at once, a context's most. [default: 512]"""
    stride: int | None = None
    """Tokens from window to window. [default: the window]"""
    pack: bool | None = None
    """Let windows cross documents."""
    bos: bool | None = None
    """Begin each document with the BOS token. [default: as the tokenizer does]"""
    separator: str | None = None
    """After each document: eos, none, or a text. [default: eos]"""
    batch_tokens: int | None = None
    """Tokens in a batch of windows. [default: 2048, on a GPU 32768]"""
    shard_records: int = SHARD_RECORDS
    """Records in a file."""
    keys: str | None = None
    """all, or none for a store of the text alone, in seconds; `build` without it adds the keys later. [default: all]"""
    key_dtype: str | None = None
    """Precision of the context vectors: float16, float32, or int8 with a scale per axis. [default: float16]"""
    key_tap: str | None = None
    """Where the model's context vectors come from: ffn, last_hidden, or a module path. [default: ffn]"""

    def __post_init__(self) -> None:
        counts = ("window", "stride", "batch_tokens", "shard_records")
        check_at_least(1, **{name: getattr(self, name) for name in counts})
        if self.key_dtype not in (None, *KEY_DTYPES):
            raise OptionError(f"`key_dtype` is {self.key_dtype!r}, expected one of {', '.join(KEY_DTYPES)}")
        if self.keys not in (None, ALL_KEYS, NO_KEYS):
            raise OptionError(f"`keys` is {self.keys!r}, expected {ALL_KEYS} or {NO_KEYS}")

    @property
    def wants_keys(self) -> bool:
        """Whether records are made, not the token stream alone."""
        return self.keys != NO_KEYS

    def resolve_options(self, lm: "LM", appended: Manifest | None) -> "BuildOptions":
        """Fill in the defaults, or for an append what the store's manifest says, and check the whole."""
        options = replace(self, key_tap=lm.tap.path)
        if appended:
            options = options._inherit(appended)
        window = options.window or min(WINDOW, lm.limit or WINDOW)
        if lm.limit and window > lm.limit:
            raise OptionError(f"`window` is {window}, but {lm.name} reads at most {lm.limit} tokens")
        stride = options.stride or window
        check_window(window, stride)
        return replace(
            options,
            window=window,
            stride=stride,
            pack=bool(options.pack),
            separator="eos" if options.separator is None else options.separator,
            batch_tokens=options.batch_tokens or BATCH_TOKENS.get(lm.device.type, 8192),
            key_dtype=options.key_dtype or "float16",
            keys=None if options.wants_keys else NO_KEYS,
        )

    def _inherit(self, manifest: Manifest) -> "BuildOptions":
        """Take an append's options from its store, and refuse others."""
        stored: dict[str, Any] = {
            name: getattr(manifest, name) for name in ("window", "stride", "pack", "key_dtype", "key_tap")
        }
        stored["separator"] = manifest.separator_option
        stored["keys"] = ALL_KEYS if manifest.records else NO_KEYS
        if self.bos is not None:
            stored["bos"] = bool(manifest.bos)
        for name, value in stored.items():
            wish = getattr(self, name)
            if wish is not None and wish != value:
                raise OptionError(f"`{name}` is {wish}, but the store was built with {value}; leave it out")
        return replace(self, **stored)


@dataclass(frozen=True)
class BuildPlan:
    """All that the records of a build or append depend on, apart from the text itself."""

    texts: list[str]
    field: str
    glob: str | None
    max_tokens: int | None
    options: BuildOptions
    bos: list[int]
    separator: list[int]
    model: str
    probe: str
    tokenizer: str
    key_tap: str
    dtype: str
    torch: str
    threads: int
    append_to: str | None = None

    def to_json(self) -> Json:
        """Return the plan as plain values."""
        plan: Json = to_json(self)
        plan["options"]["max_tokens"] = plan.pop("max_tokens")
        if self.options.bos is None:  # as in plans from before there was a choice
            del plan["options"]["bos"]
        if self.options.wants_keys:  # likewise
            del plan["options"]["keys"]
        return plan

    @property
    def identity(self) -> str:
        """A hash of what was requested, whatever the machine, and whether with keys or, for now, without."""
        plan = replace(self, options=replace(self.options, keys=None)).to_json()
        return canonical_hash({name: value for name, value in plan.items() if name not in _MACHINE})


def difference(old: Any, new: Any) -> tuple[Any, Any]:
    """Narrow two unequal values down to their first differing entries."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**new, **old}:
            if old.get(name) != new.get(name):
                return f"{name}={old.get(name)}", f"{name}={new.get(name)}"
    return old, new
