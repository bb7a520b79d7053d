"""Hash tables of the tokens of a row, against dictionaries."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearlm.mixing.token_tables import find, place_of, table_for


@given(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 20), max_size=60))
def test_every_token_has_the_place_where_it_first_came(tokens):
    table = table_for(len(tokens))
    keys = np.empty(len(tokens), np.int64)
    seen = np.empty(len(tokens), np.int32)
    places = {}
    for token in tokens:
        place = place_of.py_func(token, table, keys, seen, len(places))
        assert place == places.setdefault(token, len(places))
    assert seen[: len(places)].tolist() == list(places)
    table[keys[: len(places)]] = -1
    assert (table == -1).all()  # ready for the next row


@given(st.lists(st.integers(0, 5), max_size=9), st.integers(0, 5))
def test_a_token_is_found_where_it_first_stands(tokens, token):
    assert find(np.array(tokens, np.int32), token) == (tokens.index(token) if token in tokens else -1)
