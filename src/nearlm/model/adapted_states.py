"""States of a training on its way: tensors and a note, in memory or as files that a killed training resumes from."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from nearlm.base import Json, StoreError, files

WEIGHT = "weight."  # that the names of weights begin with; those of moments do not


@dataclass(frozen=True)
class State:
    """Tensors by name, and what is noted with them."""

    tensors: dict[str, Tensor]
    note: Json = field(default_factory=dict)

    def weights(self) -> "State":
        """Return the weights alone, without the optimizer's moments."""
        return State({name: tensor for name, tensor in self.tensors.items() if name.startswith(WEIGHT)}, self.note)


class States:
    """States by name: files of a folder, or without one in memory."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self._known: dict[str, State] = {}

    def keep(self, name: str, state: State) -> None:
        """Keep a state in place of one of the same name, whole or not at all."""
        if self.folder is None:
            self._known[name] = state
            return
        from safetensors.torch import save

        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {each: tensor.contiguous() for each, tensor in state.tensors.items()}
        files.write_bytes(self._path(name), save(tensors, {"note": json.dumps(state.note)}))

    def find(self, name: str) -> State | None:
        """Return a state, None if none of the name was kept, or it is damaged."""
        if self.folder is None:
            return self._known.get(name)
        from safetensors import SafetensorError, safe_open

        if not self._path(name).exists():
            return None
        try:
            with safe_open(self._path(name), "pt") as file:
                tensors = {each: file.get_tensor(each) for each in file.keys()}  # noqa: SIM118
                return State(tensors, json.loads((file.metadata() or {})["note"]))
        except (SafetensorError, KeyError, ValueError):
            return None

    def get(self, name: str) -> State:
        """Return a state that was kept."""
        found = self.find(name)
        if found is None:
            raise StoreError(f"the state {name!r} of a training is gone from {self.folder}; begin it again")
        return found

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.safetensors"
