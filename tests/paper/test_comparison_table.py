"""The comparison's table: order, the best, as text, Markdown and CSV."""

import pytest

from measured import method_row as row
from nearlm.base.errors import StoreError
from nearlm.paper.comparison_table import Comparison, in_order


def rows():
    return [row("LM alone", None, 1.2), row("LoRA", 2.0, 1.0), row("nearlm", 2.0, 0.9), row("LoRA", 8.0, 0.8)]


def test_rows_are_in_the_order_of_budgets_and_methods():
    methods = ["LM alone", "nearlm", "LoRA"]
    assert [(one.method, one.minutes) for one in in_order(rows()[::-1], methods)] == [
        ("LM alone", None),
        ("nearlm", 2.0),
        ("LoRA", 2.0),
        ("LoRA", 8.0),
    ]


def test_the_best_of_each_budget_is_in_bold():
    found = Comparison(rows())
    assert found.budgets == [2.0, 8.0] and found.methods == ["LM alone", "LoRA", "nearlm"]
    assert found.best(2.0).method == "nearlm" and found.best(8.0).method == "LoRA"
    bold = [line for line in found.markdown().splitlines() if "**" in line]
    assert len(bold) == 2 and "| **nearlm** | **2** | **0.900 ± 0.010** |" in bold[0]
    assert [one.minutes for one in found.of("LoRA")] == [2.0, 8.0]


def test_the_text_has_every_number():
    told = Comparison(rows()).table()
    for shown in ("5,000 test tokens", "0.900 ± 0.010", "25.0%", "1,234", "1.0 MB", "0.5 s", "–"):
        assert shown in told


def test_columns_have_names_of_their_own():
    flat = row("LoRA", 2.0, 0.7).flat()
    assert flat["test_bits_per_byte"] == 0.7 and flat["unrelated_bits_per_byte"] == 1.1
    assert flat["written_next20_share"] == flat["unrelated_written_rare_share"] == 0.25
    assert row("LM alone", None, unrelated=None).flat()["unrelated"] is None


def test_rows_of_other_texts_are_not_compared():
    with pytest.raises(StoreError, match="different test texts"):
        Comparison([row("LoRA", 2.0), row("nearlm", 2.0, text="other")])
