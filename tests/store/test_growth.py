"""What an append adds to a manifest: its files have numbers that none has had."""

import numpy as np

from nearlm.store.compaction import compact_store
from nearlm.store.forgetting import Choice, write_tombstones
from nearlm.store.growth import add_shards
from nearlm.store.manifest import ShardInfo, stamped
from synthetic import cut_documents, make_store


def test_shards_are_numbered_on_and_say_so_only_where_they_must(tmp_path):
    store = cut_documents(make_store(tmp_path / "store", np.ones((9, 2)), np.ones(9), shard=4), [5, 5])
    grown = add_shards(store.manifest, [({}, ShardInfo(7)), ({}, ShardInfo(8))])
    assert grown.shards[3:] == [ShardInfo(7), ShardInfo(8)] and grown.shard_numbers == [0, 1, 2, 3, 4]
    write_tombstones(store.path, Choice(document="a"))
    made = compact_store(store.path, lambda old, coming: None, lambda now: None)
    numbers = made.manifest.shard_numbers
    grown = add_shards(made.manifest, [({}, ShardInfo(7))])
    assert min(numbers) > 2 and grown.shard_numbers == [*numbers, max(numbers) + 1]
    assert grown.records == len(made) + 7


def test_forgotten_documents_stay_forgotten_but_more_is_held(tmp_path):
    store = cut_documents(make_store(tmp_path / "store", np.ones((9, 2)), np.ones(9)), [5, 5])
    write_tombstones(store.path, Choice(document="a"))
    old = type(store).open(store.path).manifest
    grown = stamped(add_shards(old, [({}, ShardInfo(7))]))
    assert grown.forgotten.file == old.forgotten.file and grown.held != old.held != ""
