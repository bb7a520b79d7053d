"""Tables for people."""

from nearlm.base.tables import line_up


def test_columns_line_up_the_first_to_the_left_the_others_to_the_right():
    rows = [("", "perplexity", "µs"), ("a long name", "9.2", "781"), ("b", "10,000")]
    assert line_up(rows) == [
        "             perplexity   µs",
        "a long name         9.2  781",
        "b                10,000",
    ]
