"""Stores that are used together: of one model and tap, each once, with names of their own."""

import shutil

import pytest

from calls import build
from nearlm.base.errors import ModelError, OptionError
from nearlm.model.lm import LM
from nearlm.store import open_stores, store_names
from pairs import make_pair
from tiny import make_llama


@pytest.fixture(scope="module")
def pair(tmp_path_factory, lm):
    return make_pair(tmp_path_factory.mktemp("group"), lm)


def test_one_store_or_several_are_opened(pair):
    one, other = pair
    assert open_stores(one) == (one,)
    assert open_stores([one, other]) == pair
    assert [store.checksum for store in open_stores([one.path, str(other.path)])] == [one.checksum, other.checksum]
    with pytest.raises(OptionError, match="at least one"):
        open_stores([])
    with pytest.raises(OptionError, match="named twice"):
        open_stores([one, other, one.path])


def test_another_model_or_tap_is_refused(pair, tokenizer, model_folder, tmp_path):
    text = str(pair[0].path.parent / "manuals.txt")
    others = {
        "other weights": LM(make_llama(seed=8), tokenizer, name="other"),
        "another architecture or size": LM(make_llama(hidden_size=16), tokenizer, name="narrow"),
        "come from": LM.load(str(model_folder), key_tap="last_hidden"),
    }
    for number, (message, lm) in enumerate(others.items()):
        made = build(lm, text, tmp_path / str(number), window=64, quiet=True)
        with pytest.raises(ModelError, match=message) as error:
            open_stores([pair[0], made])
        assert str(pair[0].path) in str(error.value) and str(made.path) in str(error.value)


def test_names_differ(pair, tmp_path):
    shutil.copytree(pair[0].path, tmp_path / "licences")
    opened = open_stores([*pair, tmp_path / "licences"])
    assert store_names(opened) == ("licences", "manuals", "licences-2")
