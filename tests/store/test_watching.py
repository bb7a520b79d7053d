"""A store that has changed is known for it."""

import numpy as np

from nearlm.base import files
from nearlm.store.forgetting import Choice, write_tombstones
from nearlm.store.watching import stamp_of
from synthetic import cut_documents, make_store


def test_every_change_is_seen_and_nothing_else(tmp_path):
    store = cut_documents(make_store(tmp_path / "store", np.ones((9, 2)), np.ones(9)), [5, 5])
    stamp = stamp_of(store.layout, "default")
    assert stamp == stamp_of(store.layout, "default")
    write_tombstones(store.path, Choice(document="b"))
    forgot = stamp_of(store.layout, "default")
    index = store.layout.index("default")
    index.folder.mkdir(parents=True)
    files.write_json(index.description, {})
    indexed = stamp_of(store.layout, "default")
    assert len({stamp, forgot, indexed}) == 3
    assert stamp_of(store.layout) == stamp_of(store.layout, None) != stamp
