"""What is said of a store."""

from nearlm.search import build_index
from nearlm.store.summary import summarise
from synthetic import skewed_store


def test_it_says_what_there_is(tmp_path):
    store = skewed_store(tmp_path / "store")
    build_index(store, "flat")
    said = summarise(store)
    assert (said["store"], said["records"], said["dim"], said["shards"]) == ("store", 500, 12, 3)
    assert said["indexes"] == ["default"] and said["gates"] == said["mixtures"] == []
    assert said["bytes"] == store.bytes and said["bytes_per_record"] == round(store.bytes / 500)
    assert (said["slim"], said["weighted"], said["parent"], said["made_by"]) == (False, False, None, None)
    assert said == store.summary()
