"""Networks on disk: refused where they are missing, of another version, or not what was written."""

import json

import pytest
import torch
from safetensors.torch import save

from nearlm.base.errors import StoreError
from nearlm.mixing.network_files import check_described, load_network


def test_what_is_missing_or_of_another_version_is_refused(tmp_path):
    place = tmp_path / "gate.json"
    with pytest.raises(StoreError, match="has no gate 'x' \\(it has a, b\\); make one with: again"):
        check_described(tmp_path, "gate", "x", ["a", "b"], place, 4, "again")
    place.write_text(json.dumps({"format": 3}))
    with pytest.raises(StoreError, match="gate 'x' has format 3, this nearlm reads 4; train again: again"):
        check_described(tmp_path, "gate", "x", [], place, 4, "again")
    check_described(tmp_path, "gate", "x", [], place, 3, "again")


def test_weights_are_those_of_the_network_or_refused(tmp_path):
    made, path = torch.nn.Linear(3, 2), tmp_path / "weights"
    path.write_bytes(save(made.state_dict()))
    loaded = load_network(lambda: torch.nn.Linear(3, 2), path, "remedy")
    torch.testing.assert_close(made.weight, loaded.weight, rtol=0, atol=0)
    assert loaded(torch.ones(1, 3)).shape == (1, 2) and not loaded.training
    wrong = [torch.nn.Linear(2, 2), torch.nn.Linear(3, 2).double(), torch.nn.Linear(3, 2, bias=False)]
    for content in (b"", b"nonsense", *(save(one.state_dict()) for one in wrong)):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"not as nearlm writes it.*remedy"):
            load_network(lambda: torch.nn.Linear(3, 2), path, "remedy")
