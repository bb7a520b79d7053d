"""Networks on disk: refused where they are missing, of another version, or not what was written."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save

from nearlm.base import FileInfo, StoreError, files, write_record
from nearlm.mixing.network_files import check_described, load_network, read_trained, save_trained
from nearlm.store import Layout


def test_what_is_missing_or_of_another_version_is_refused(tmp_path):
    store = SimpleNamespace(path=tmp_path, layout=Layout(tmp_path))
    for name in ("a", "b"):
        files.write_json(make_folder(store.layout.gate(name)).description, {"format": 3})
    with pytest.raises(StoreError, match="has no gate 'x' \\(it has a, b\\); make one with: again"):
        check_described(store, store.layout.gate("x"), 4, "again")
    with pytest.raises(StoreError, match="gate 'a' has format 3, this nearlm reads 4; train again: again"):
        check_described(store, store.layout.gate("a"), 4, "again")
    check_described(store, store.layout.gate("a"), 3, "again")


@dataclass(frozen=True)
class Info:
    name: str
    files: dict[str, FileInfo]


def test_what_was_saved_is_read_and_other_weights_are_refused(tmp_path):
    place = Layout(tmp_path).mixture("x")
    made = torch.nn.Linear(3, 2)
    save_trained(place, made, Info("x", {}))
    assert read_trained(Info, place, "remedy") == Info("x", FileInfo.by_name([place.weights]))
    place.weights.write_bytes(save(torch.nn.Linear(3, 2).state_dict()))
    with pytest.raises(StoreError, match="checksum differs\\); remedy"):
        read_trained(Info, place, "remedy")
    for listed in ({}, {"other": FileInfo(0, "")}):
        write_record(place.description, Info("x", listed))
        with pytest.raises(StoreError, match=r"names a file .*, which it cannot have"):
            read_trained(Info, place, "remedy")


def test_no_weights_are_made_up_before_those_of_a_file_are_read(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(save(torch.nn.Linear(3, 2).state_dict()))
    before = torch.random.get_rng_state()
    load_network(lambda linear: linear(3, 2), path, "remedy")
    assert torch.equal(torch.random.get_rng_state(), before)


def make_folder(place):
    place.folder.mkdir(parents=True)
    return place


def test_weights_are_those_of_the_network_or_refused(tmp_path):
    made, path = torch.nn.Linear(3, 2), tmp_path / "weights"
    path.write_bytes(save(made.state_dict()))
    loaded = load_network(lambda linear: linear(3, 2), path, "remedy")
    torch.testing.assert_close(made.weight, loaded.weight, rtol=0, atol=0)
    assert loaded(torch.ones(1, 3)).shape == (1, 2) and not loaded.training
    wrong = [torch.nn.Linear(2, 2), torch.nn.Linear(3, 2).double(), torch.nn.Linear(3, 2, bias=False)]
    for content in (b"", b"nonsense", *(save(one.state_dict()) for one in wrong)):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"not as nearlm writes it.*remedy"):
            load_network(lambda linear: linear(3, 2), path, "remedy")
