"""States of a training: in memory and on disk, damaged ones, and weights without moments."""

import pytest
import torch

from nearlm.base.errors import StoreError
from nearlm.model.adapted_states import WEIGHT, State, States

STATE = State({f"{WEIGHT}a": torch.arange(3.0), "exp_avg.a": torch.ones(3)}, {"step": 4, "best": 0.125})


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_state_is_kept_and_found(tmp_path, on_disk):
    states = States(tmp_path / "states" if on_disk else None)
    assert states.find("latest") is None
    states.keep("latest", STATE)
    found = (States(states.folder) if on_disk else states).get("latest")
    assert found.note == STATE.note and found.tensors.keys() == STATE.tensors.keys()
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in STATE.tensors.items())
    states.keep("latest", State({}, {"loss": 1.0}))
    assert states.get("latest") == State({}, {"loss": 1.0})


def test_weights_come_without_moments():
    assert list(STATE.weights().tensors) == [f"{WEIGHT}a"] and STATE.weights().note == STATE.note


def test_a_damaged_state_is_as_if_it_were_not_there(tmp_path):
    states = States(tmp_path)
    states.keep("latest", STATE)
    path = tmp_path / "latest.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    assert states.find("latest") is None
    with pytest.raises(StoreError, match="'latest' of a training is gone"):
        states.get("latest")
