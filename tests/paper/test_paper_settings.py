"""The paper's settings, and others made from them."""

import numpy as np
import pytest

from nearlm.base.errors import OptionError
from nearlm.paper.results import ALL, NLM, VANILLA
from nearlm.paper.settings import DEMO, SETTINGS, change, find_setting, resize


def test_settings_at_the_papers_scale():
    assert set(SETTINGS) == {"domain", "standard", "wikitext103", "law-mt"}
    for name, one in SETTINGS.items():
        assert one.name == name and one.train and one.valid and one.test and one.prompt
        rows = {row.name: row for row in one.paper}
        assert set(rows) == {NLM, VANILLA, "+ AR", "+ GM", "+ DR", ALL}
        assert np.diff([rows[part].tokens_per_second for part in (VANILLA, ALL, NLM)]).min() > 0
    assert SETTINGS["wikitext103"].train == ("hf:Salesforce/wikitext/wikitext-103-raw-v1:train",)
    with pytest.raises(OptionError, match="expected one of domain, standard"):
        find_setting("nonsense")


def test_sizes_follow_the_store():
    assert resize(DEMO, None) is DEMO
    small = resize(DEMO, 8000)
    assert (small.max_tokens, small.valid_tokens, small.test_tokens, small.timed_tokens) == (8000, 1000, 1000, 1000)
    assert resize(SETTINGS["domain"], 2000).valid_tokens == 1000
    large = resize(DEMO, 10**6)
    assert (large.valid_tokens, large.test_tokens) == (DEMO.valid_tokens, DEMO.test_tokens)
    with pytest.raises(OptionError, match="`max_tokens` is 10"):
        resize(DEMO, 10)
    own = change(SETTINGS["domain"], model="mine", train=("a", "b"), valid=None, test=None)
    assert (own.model, own.train, own.valid, own.store) == ("mine", ("a", "b"), ("spdx:valid",), None)
    assert change(DEMO, model=None) is DEMO
    assert change(SETTINGS["domain"], valid=("v",)).store == SETTINGS["domain"].store
