"""The paper's settings, and others made from them."""

import numpy as np
import pytest

from nearlm.base.errors import OptionError
from nearlm.paper.results import ALL, NLM, VANILLA
from nearlm.paper.settings import DEMO, SETTINGS, change, find_setting, give_budgets, resize


def test_settings_at_the_papers_scale():
    compared = {name: one for name, one in SETTINGS.items() if one.budgets}
    assert set(compared) == {"comparison", "comparison-standard"}
    assert set(SETTINGS) - set(compared) == {"domain", "standard", "wikitext103", "law-mt"}
    for name, one in SETTINGS.items():
        if one.budgets:
            assert one.name == name and one.unrelated and one.budgets == (2.0, 8.0, 32.0) and not one.paper
            continue
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
    assert resize(DEMO, 8000).title == DEMO.title
    assert change(SETTINGS["domain"], valid=("v",)).store == SETTINGS["domain"].store


def test_words_are_those_of_the_given_model_and_texts():
    texts = {"train": ("notes/a.txt", "notes/b.txt"), "valid": ("v.txt",), "test": ("w.txt",)}
    own = change(SETTINGS["domain"], model="org/mine", **texts)
    assert own.title == "mine with a memory of a.txt, b.txt, tested on w.txt"
    for name in ("org/mine", "notes/a.txt, notes/b.txt", "v.txt", "w.txt"):
        assert name in own.text
    assert own.prompt == ""
    trained = change(SETTINGS["standard"], train=("notes/a.txt",))
    assert trained.title == "A small LM with a memory of a.txt, tested on pydocs:test" and "trained on" in trained.text
    for part in ("licence", "SmolLM2", "Django"):
        assert part not in own.title + own.text + trained.title + trained.text
    assert "memory of ., tested on" in change(SETTINGS["domain"], train=(".",)).title
    another = change(SETTINGS["domain"], model="org/mine")
    assert another.title == "mine with a memory of spdx:train, tested on spdx:test"
    assert another.prompt == SETTINGS["domain"].prompt


def test_budgets_are_for_comparisons():
    compared = SETTINGS["comparison"]
    assert give_budgets(compared, (), ()) is compared and give_budgets(compared, (), ("LoRA",)) == compared
    assert give_budgets(compared, (8.0, 0.5, 8.0), ()).budgets == (0.5, 8.0)
    for budgets in ((0.0,), (-1.0,), (float("nan"),), (float("inf"),)):
        with pytest.raises(OptionError, match="expected minutes above 0"):
            give_budgets(compared, budgets, ())
    with pytest.raises(OptionError, match="`methods` is for comparisons, but `setting` is 'domain'"):
        give_budgets(SETTINGS["domain"], (), ("LoRA",))
    own = change(compared, model="org/mine", train=("notes",), valid=("v",), test=("w",), unrelated=("u",))
    assert own.title == "Equal time, equal text: mine on notes, tested on w" and "learn notes" in own.text
    assert own.unrelated == ("u",) and change(compared, train=("notes",)).unrelated == ()
