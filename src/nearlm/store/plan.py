"""What a build depends on: its options, their defaults, and how to tell one plan from another."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from nearlm.base import Json, OptionError, files
from nearlm.model import LM
from nearlm.store.datastore import KEY_DTYPES
from nearlm.text import check_window

WINDOW = 512
SHARD_RECORDS = 1 << 18
BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}
_MACHINE = ("append_to", "probe", "torch", "threads")


@dataclass(frozen=True)
class BuildOptions:
    """How a text becomes records; `None` takes the default, or for an append what the store has."""

    max_tokens: int | None = None
    window: int | None = None
    stride: int | None = None
    pack: bool | None = None
    separator: str | None = None
    batch_tokens: int | None = None
    shard_records: int = SHARD_RECORDS
    key_dtype: str | None = None
    key_tap: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 2), ("window", 1), ("stride", 1), ("batch_tokens", 1), ("shard_records", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"--{name.replace('_', '-')} is {value}, expected at least {least}")
        if self.key_dtype not in (None, *KEY_DTYPES):
            raise OptionError(f"--key-dtype is {self.key_dtype!r}, expected one of {', '.join(KEY_DTYPES)}")


def resolve(options: BuildOptions, lm: LM, appended: Json | None) -> Json:
    """Fill in the defaults, or for an append what the store's manifest says, and check the whole."""
    options = replace(options, key_tap=lm.tap.path)
    if appended:
        options = _inherit(options, appended)
    window = options.window or min(WINDOW, lm.limit or WINDOW)
    if lm.limit and window > lm.limit:
        raise OptionError(f"--window is {window}, but {lm.name} reads at most {lm.limit} tokens")
    stride = options.stride or window
    check_window(window, stride)
    resolved = replace(
        options,
        window=window,
        stride=stride,
        pack=bool(options.pack),
        separator=options.separator if options.separator is not None else "eos",
        batch_tokens=options.batch_tokens or BATCH_TOKENS.get(lm.device.type, 8192),
        key_dtype=options.key_dtype or "float16",
    )
    return asdict(resolved)


def identity(plan: Json) -> str:
    """Return a hash of what was asked for, whatever machine carries it out."""
    return files.canonical_hash({name: value for name, value in plan.items() if name not in _MACHINE})


def difference(old: Any, new: Any) -> tuple[Any, Any]:
    """Narrow two unequal values down to the first entries that differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in new:
            if old.get(name) != new[name]:
                return f"{name}={old.get(name)}", f"{name}={new[name]}"
    return old, new


def _inherit(options: BuildOptions, manifest: Json) -> BuildOptions:
    """Take an append's options from its store, and refuse others."""
    stored = {name: manifest[name] for name in ("window", "stride", "pack", "key_dtype", "key_tap")}
    stored["separator"] = manifest["separator_option"]
    for name, value in stored.items():
        wish = getattr(options, name)
        if wish is not None and wish != value:
            raise OptionError(
                f"--{name.replace('_', '-')} is {wish}, but the store was built with {value}; leave it out"
            )
    return replace(options, **stored)
