import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearlm.base.errors import OptionError
from nearlm.text.windows import Windows, check_window, fill_batch, plan_batches, plan_shards, plan_windows

lengths = st.lists(st.integers(0, 40), min_size=1, max_size=8)
window_and_stride = st.integers(1, 12).flatmap(lambda w: st.tuples(st.just(w), st.integers(1, w)))


def bounds_of(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths])


def oracle(lengths: list[int], window: int, stride: int) -> list[tuple[int, int, int]]:
    """Slide over each document as DESIGN.md says; return (start, inputs, owned targets)."""
    rows, begin = [], 0
    for length in lengths:
        end, owned, start = begin + length, begin, begin  # the document's first token is nobody's target
        while owned < end - 1:
            stop = min(start + window, end - 1)  # inputs t[start:stop], targets t[start+1:stop+1]
            rows.append((start, stop - start, stop - owned))
            owned, start = stop, start + stride
        begin = end
    return rows


@given(lengths, window_and_stride)
def test_windows_are_those_of_a_plain_loop(lengths, options):
    windows = plan_windows(bounds_of(lengths), *options)
    rows = zip(windows.start.tolist(), windows.inputs.tolist(), windows.targets.tolist(), strict=True)
    assert list(rows) == oracle(lengths, *options)


@given(lengths, window_and_stride)
def test_every_target_but_a_documents_first_token_is_owned_once_and_in_order(lengths, options):
    bounds = bounds_of(lengths)
    windows = plan_windows(bounds, *options)
    expected = [p for a, b in itertools.pairwise(bounds) for p in range(a + 1, b)]
    assert windows.target_positions.tolist() == expected
    assert windows.records == len(expected)


@given(lengths, window_and_stride)
def test_windows_keep_their_length_stride_and_document(lengths, options):
    window, stride = options
    bounds = bounds_of(lengths)
    windows = plan_windows(bounds, window, stride)
    document = np.searchsorted(bounds, windows.start, side="right") - 1
    assert ((windows.inputs >= 1) & (windows.inputs <= window)).all()
    assert (windows.start + windows.inputs < bounds[document + 1]).all()  # the last target is inside, too
    first = np.isin(windows.start, bounds)
    assert (windows.targets[first] == windows.inputs[first]).all()
    assert ((windows.targets[~first] >= 1) & (windows.targets[~first] <= stride)).all()
    # a later target is seen with at least window - stride tokens before its window's own ones
    assert (windows.inputs[~first] - windows.targets[~first] == window - stride).all()


@given(lengths, window_and_stride)
def test_pack_treats_the_stream_as_one_document(lengths, options):
    packed = plan_windows(bounds_of(lengths), *options, pack=True)
    whole = plan_windows(bounds_of([sum(lengths)]), *options)
    assert packed.start.tolist() == whole.start.tolist()
    assert packed.target_positions.tolist() == list(range(1, sum(lengths)))


def test_documents_without_a_target_have_no_window():
    windows = plan_windows(bounds_of([0, 1, 0, 1]), 4, 4)
    assert len(windows) == 0
    assert windows.records == 0
    assert plan_shards(windows, 10) == []
    assert plan_batches(windows, 10) == []


@pytest.mark.parametrize(("window", "stride"), [(0, 1), (-1, 1), (4, 0), (4, -2), (4, 5)])
def test_absurd_windows_are_refused(window, stride):
    with pytest.raises(OptionError, match="expected"):
        check_window(window, stride)
    with pytest.raises(OptionError):
        plan_windows(bounds_of([5]), window, stride)


@given(lengths, window_and_stride, st.integers(1, 60))
def test_shards_are_consecutive_as_full_as_may_be_and_not_fuller(lengths, options, most):
    windows = plan_windows(bounds_of(lengths), *options)
    runs = plan_shards(windows, most)
    assert [i for run in runs for i in range(len(windows))[run]] == list(range(len(windows)))
    for run in runs:
        records = windows[run].records
        assert records <= most or run.stop - run.start == 1
        if run.stop < len(windows):
            assert records + windows.targets[run.stop] > most


def test_a_shard_may_be_larger_than_any_number_of_64_bits():
    windows = plan_windows(bounds_of([9, 9]), 4, 4)
    assert plan_shards(windows, 10**30) == [slice(0, len(windows))]


@given(lengths, window_and_stride, st.integers(1, 50))
def test_batches_hold_each_window_once_and_keep_to_the_budget(lengths, options, budget):
    windows = plan_windows(bounds_of(lengths), *options)
    batches = plan_batches(windows, budget)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(windows)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * windows.inputs[batch].max() <= budget


def test_batches_have_little_padding():
    lengths = np.random.default_rng(0).integers(2, 2000, 300)
    windows = plan_windows(bounds_of(lengths.tolist()), 512, 512)
    padded = sum(len(batch) * windows.inputs[batch].max() for batch in plan_batches(windows, 4096))
    assert padded < 1.02 * windows.inputs.sum()


def test_the_batch_plan_is_the_same_each_time_and_stable():
    windows = plan_windows(bounds_of([7] * 6), 3, 3)
    one, two = plan_batches(windows, 6), plan_batches(windows, 6)
    assert [batch.tolist() for batch in one] == [batch.tolist() for batch in two]
    assert [batch.tolist() for batch in one] == [[i, i + 1] for i in range(0, 12, 2)]


@given(lengths, window_and_stride, st.data())
def test_a_batch_reads_inputs_and_targets_whatever_their_ids(lengths, options, data):
    windows = plan_windows(bounds_of(lengths), *options)
    if not len(windows):
        return
    # ids 0 and 1 only: whatever is used to pad also stands in the text
    tokens = np.array(data.draw(st.lists(st.integers(0, 1), min_size=sum(lengths), max_size=sum(lengths))), np.int32)
    rows = np.array(data.draw(st.lists(st.integers(0, len(windows) - 1), min_size=1, max_size=5)))
    chosen = windows[rows]
    batch = fill_batch(tokens, chosen)
    assert batch.ids.shape == batch.recorded.shape == (len(rows), chosen.inputs.max())
    targets = []
    for row, (start, inputs, owned) in enumerate(zip(chosen.start, chosen.inputs, chosen.targets, strict=True)):
        assert batch.ids[row, :inputs].tolist() == tokens[start : start + inputs].tolist()
        assert np.flatnonzero(batch.recorded[row]).tolist() == list(range(inputs - owned, inputs))
        targets += tokens[start + inputs - owned + 1 : start + inputs + 1].tolist()
    assert batch.targets.tolist() == targets
    assert batch.targets.dtype == np.int32


def test_slices_and_lists_of_windows_keep_their_rows():
    windows = plan_windows(bounds_of([10, 3]), 4, 2)
    assert isinstance(windows[1:3], Windows)
    assert windows[np.array([2, 0])].start.tolist() == [windows.start[2], windows.start[0]]
    assert windows[1:].first_record.tolist() == (windows.first_record[1:] - windows.targets[0]).tolist()
