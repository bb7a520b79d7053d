"""Several stores that are used together: opening them, whether they fit together, and what each is called."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from nearlm.base import ModelError, NearLMWarning, OptionError
from nearlm.store.datastore import AnyStore, Datastore

AnyStores = AnyStore | Sequence[AnyStore]


def open_stores(stores: AnyStores) -> tuple[Datastore, ...]:
    """Open one store, or several of the same model and tap; refuse others, and the same one twice."""
    named = [stores] if isinstance(stores, str | Path | Datastore) else list(stores)
    if not named:
        raise OptionError("there is no store; name at least one")
    opened = tuple(Datastore.open(store) for store in named)
    first = opened[0]
    for number, other in enumerate(opened[1:], 1):
        if other.path.resolve() in [one.path.resolve() for one in opened[:number]]:
            raise OptionError(f"{other.path} is named twice; name each store once")
        _check_alike(first, other)
    return opened


def _check_alike(first: Datastore, other: Datastore) -> None:
    """Refuse a store that another model, tokenizer or tap made: the same query has to be looked up in both."""
    ours = first.manifest
    if other.manifest.key_tap != ours.key_tap:
        taps = f"keys of {first.path} come from {ours.key_tap}, those of {other.path} from {other.manifest.key_tap}"
        raise ModelError(f"{taps}; build one of them again with the same `key_tap` to use them together")
    tokenizer = ours.tokenizer.fingerprint
    try:
        warning = other.check_model(ours.model.fingerprint, first.probe, tokenizer, f"the model of {first.path}")
    except ModelError as error:
        raise ModelError(f"{error}; stores that are used together need the same model") from None
    if warning:
        warnings.warn(warning, NearLMWarning, stacklevel=4)


def store_names(stores: Sequence[Datastore]) -> tuple[str, ...]:
    """Return what each store is called among the others: its folder's name, with a number if that is taken."""
    names: list[str] = []
    for store in stores:
        name = store.path.name
        numbered = (f"{name}-{number}" for number in range(2, len(names) + 3))
        names.append(next(each for each in (name, *numbered) if each not in names))
    return tuple(names)
