"""From a record to its text: its document, what stands before it, and the positions that it stands for."""

import functools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nearlm.base import Ints, Json, StoreError

if TYPE_CHECKING:
    from nearlm.store.datastore import Datastore

_SHOWN = 100  # positions of a merged record


@dataclass(frozen=True)
class Context:
    """Where a record comes from: its document, the target's position there, the text before it, and the target."""

    document: str
    position: int
    text: str
    target: str
    store: str = ""  # its name, where there are several


def find_context(store: "Datastore", record: int, before: int) -> Context:
    """Trace a record to its text: up to `before` tokens of its document in front of the target."""
    store.need_keys()
    if not -len(store) <= record < len(store):
        raise StoreError(f"record {record} does not exist; {store.path} has records 0 to {len(store) - 1}")
    position = int(store.origin[record])
    if store.forgotten is not None and store.forgotten.holds(position):
        raise StoreError(f"record {record} is of a document that {store.path} has forgotten; name another")
    document, start = store.document_of(position)
    text = store.tokens[max(start, position - before) : position]
    decode = functools.partial(store.tokenizer.decode, skip_special_tokens=False)
    return Context(document, position - start, decode(text), decode([int(store.values[record])]))


def find_positions(store: "Datastore", record: int) -> Ints:
    """Return all positions of the token stream that a record stands for, in order: as many as it weighs."""
    if store.assign is None or store.weights[record] == 1:
        return np.array([store.origin[record]], np.int64)
    return np.flatnonzero(store.assign == record % len(store))


def describe_record(store: "Datastore", record: int) -> Json:
    """Say all there is to say of one record."""
    context = store.context_of(record)
    weight = int(store.weights[record])
    known = {name: value for name, value in asdict(context).items() if name != "store"}
    traced = {"record": record, **known, "token": int(store.values[record]), "weight": weight}
    return traced if weight == 1 else {**traced, "positions": store.positions_of(record).tolist()[:_SHOWN]}


def load_tokenizer(folder: Path, remedy: str) -> Any:
    """Load the tokenizer that a store keeps; no code that comes with it is run."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers and tokenizers raise what they like
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise StoreError(f"{folder} cannot be loaded ({why}); {remedy}") from error
