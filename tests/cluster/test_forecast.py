"""What a memory of some size will take."""

import pytest

from nearlm.base import OptionError
from nearlm.cluster.forecast import ModelSize, choose, forecast, measure_model, read_count
from nearlm.search.kinds import index_bytes


def test_bytes_and_times_follow_from_the_size():
    model = ModelSize("some", 100, 10**6)
    told = forecast(10**6, None, model, workers=4, flops=1e9)
    assert (told.dim, told.store_bytes, told.half_bytes) == (100, 216 * 10**6, 116 * 10**6)
    assert told.build_seconds == pytest.approx(10**6 * 2 * 10**6 / 1e9 / 4)
    assert told.lm_microseconds == pytest.approx(2000)
    assert told.extrapolated is not (told.measured_from <= 10**6 <= told.measured_to)
    assert "by 4 workers" in told.table() and "`ray` `workers=4`" in told.table()


def test_a_billion_records_on_paper():
    told = forecast(10**9, 4096, ram=64 * 10**9, workers=8)
    assert told.shards == 3 and told.code_bytes is None and told.extrapolated
    assert "serve-index STORE `shards=3`" in told.table()
    assert "name it with `model`" in told.table()


def test_an_index_that_does_not_fit_gets_narrower_codes():
    spec, code, parts = choose(10**8, 576, 4 * 10**9, 2)
    assert code is not None and code < 96
    assert index_bytes(spec, 10**8, 576) <= 2 * 0.8 * 4e9
    assert parts == 2
    assert choose(10**6, 576, None, 1)[1:] == (None, 1)
    with pytest.raises(OptionError, match="`ram` is"):
        choose(10**9, 576, 10**9, 1)


def test_weights_are_counted_without_embeddings(model_folder, lm):
    known = measure_model(str(model_folder))
    ends = 2 * 300 * 32
    assert known.dim == 32
    assert known.body == sum(weight.numel() for weight in lm.model.parameters()) - ends


@pytest.mark.parametrize(("text", "count"), [("1e9", 10**9), ("250M", 250 * 10**6), ("2_000", 2000), ("1.5e3", 1500)])
def test_counts_as_people_write_them(text, count):
    assert read_count("records", text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1e99", "nan", "1e-3"])
def test_what_is_no_count(text):
    with pytest.raises(OptionError, match="`records` is"):
        read_count("records", text)


def test_a_width_is_needed():
    with pytest.raises(OptionError, match="`dim` is not given"):
        forecast(1000)
