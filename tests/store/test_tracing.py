"""Records lead to their text (more in test_datastore.py)."""

import numpy as np

from nearlm.store.tracing import find_positions
from synthetic import make_store


def test_a_record_of_its_own_stands_for_one_position(tmp_path):
    store = make_store(tmp_path / "store", np.ones((9, 2)), np.arange(9))
    assert [find_positions(store, record).tolist() for record in (0, 5, -1)] == [[1], [6], [9]]
