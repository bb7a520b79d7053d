"""What gates and mixtures are trained for."""

import pytest

from nearlm.base.errors import OptionError, StoreError
from nearlm.mixing.trained import check_trained, lasting_hash, search_hash, search_only, tuned_settings
from nearlm.search.retriever import Retriever
from nearlm.store import SearchSettings


def test_settings_of_a_search_are_index_t_k_lists_and_distances(tuned_store):
    tuned = tuned_settings(tuned_store, "default")
    only = search_only(tuned)
    assert only.values == {"index": "default", "knn_temperature": 3.0, "k": 32, "nprobe": 8, "distances": "index"}
    with pytest.raises(StoreError, match="no tuned T and k"):
        tuned_settings(tuned_store, "flat")


def test_another_search_is_refused_by_name(tuned_store):
    here = Retriever(tuned_store, nprobe=8)
    trained = search_only(tuned_settings(tuned_store, "default"))
    check_trained("gate", trained, search_hash(here), here, trained)  # as older versions noted it
    check_trained("gate", trained, lasting_hash(here), here, trained)
    assert lasting_hash(here) != lasting_hash(Retriever(tuned_store, "flat"))
    assert lasting_hash(here) != lasting_hash(Retriever(tuned_store, nprobe=4))
    with pytest.raises(OptionError, match="the gate was trained with an earlier index"):
        check_trained("gate", trained, "other", here, trained)
    with pytest.raises(OptionError, match="k=32, here it is 8"):
        check_trained("mixture", trained, search_hash(here), here, SearchSettings(k=8).over(trained))
