"""What is written about a shared store: all names that a store has, and no others."""

from pathlib import Path

import pytest

from nearlm.base import FileInfo, StoreError, write_record
from nearlm.store import Layout
from nearlm.store.inventory import Inventory, is_slim, read_inventory

NAMES = """manifest.json defaults.json optimize.json probe.npy assign.npy transform.faiss tokenizer/tokenizer.json
keys-00000.npy docs-00001.json index/default/index.json index/default/settings.json index/my-own/data-1/codes.npy
index/a/data-2-new/index.faiss gate/default/gate.safetensors mixture/default/mixture.json suffixes/order.npy
ngrams/ngrams.json""".split()


def written(folder: Path, names: list[str], slim: bool = False) -> Path:
    path = Layout(folder).shared
    write_record(path, Inventory("m", slim, {name: FileInfo(2, "0") for name in names}))
    return path


def test_all_names_of_a_store_pass(tmp_path):
    inventory = read_inventory(written(tmp_path, NAMES))
    assert list(inventory.files) == NAMES
    assert inventory.bytes == 2 * len(NAMES)


@pytest.mark.parametrize("name", ["x.py", "../manifest.json", "index/../x.json", "a/.x", "index/a/b.pkl", "a\\b"])
def test_other_names_do_not(tmp_path, name):
    with pytest.raises(StoreError, match="no store has"):
        read_inventory(written(tmp_path, [*NAMES, name]))


def test_a_manifest_is_needed(tmp_path):
    with pytest.raises(StoreError, match=r"no manifest\.json"):
        read_inventory(written(tmp_path, NAMES[1:]))


def test_slim_is_said_of_one_state_of_a_store(tmp_path):
    assert not is_slim(Layout(tmp_path), "m")
    written(tmp_path, NAMES, slim=True)
    assert is_slim(Layout(tmp_path), "m")
    assert not is_slim(Layout(tmp_path), "another")
