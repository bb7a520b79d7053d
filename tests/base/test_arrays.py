"""Arrays in several files read like one array in memory."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearlm.base.arrays import ArrayFile, ShardedArray
from nearlm.base.errors import StoreError

LENGTHS = st.lists(st.integers(0, 7), min_size=1, max_size=5)
WIDTHS = st.sampled_from([(), (3,), (2, 2)])


def make(lengths: list[int], width: tuple[int, ...]) -> tuple[ShardedArray, np.ndarray]:
    """Shards with unlike elements, and the same as one array."""
    count = sum(lengths)
    whole = np.arange(count * int(np.prod(width)), dtype=np.float32).reshape(count, *width)
    return ShardedArray(np.split(whole, np.cumsum(lengths)[:-1])), whole


@given(LENGTHS, WIDTHS)
def test_it_looks_like_the_whole(lengths, width):
    array, whole = make(lengths, width)
    assert len(array) == len(whole)
    assert array.shape == whole.shape
    assert array.dtype == whole.dtype
    np.testing.assert_array_equal(np.asarray(array), whole)
    np.testing.assert_array_equal(np.asarray(array, np.int64), whole.astype(np.int64))
    np.testing.assert_array_equal(list(array), list(whole))


INDEX = st.none() | st.integers(-40, 40)


@settings(max_examples=300)
@given(LENGTHS, WIDTHS, INDEX, INDEX, INDEX.filter(lambda step: step != 0))
def test_slices_are_those_of_the_whole(lengths, width, start, stop, step):
    array, whole = make(lengths, width)
    got = array[start:stop:step]
    assert type(got) is np.ndarray
    assert got.shape == whole[start:stop:step].shape
    np.testing.assert_array_equal(got, whole[start:stop:step])


@given(LENGTHS, WIDTHS, st.data())
def test_take_is_that_of_the_whole_with_duplicates_and_any_shape(lengths, width, data):
    array, whole = make(lengths, width)
    shape = data.draw(st.sampled_from([(), (0,), (1,), (9,), (2, 3), (2, 0), (2, 2, 2)]))
    if not len(whole) and int(np.prod(shape)):
        return
    size = int(np.prod(shape))
    ids = data.draw(st.lists(st.integers(-len(whole), len(whole) - 1), min_size=size, max_size=size)) if size else []
    ids = np.array(ids, np.int64).reshape(shape)
    np.testing.assert_array_equal(array.take(ids), whole[ids])
    assert array.take(ids).dtype == whole.dtype


@given(LENGTHS, WIDTHS, st.integers(-50, 50))
def test_one_element_is_that_of_the_whole_or_an_error(lengths, width, index):
    array, whole = make(lengths, width)
    if -len(whole) <= index < len(whole):
        np.testing.assert_array_equal(array[index], whole[index])
        np.testing.assert_array_equal(array[np.int32(index)], whole[index])
        return
    with pytest.raises(IndexError):
        array[index]
    with pytest.raises(IndexError):
        array.take([index])


def test_take_accepts_lists_and_small_integer_types():
    array, whole = make([2, 3], (3,))
    np.testing.assert_array_equal(array.take([4, 0, 4]), whole[[4, 0, 4]])
    np.testing.assert_array_equal(array.take(np.array([3, 1], np.uint8)), whole[[3, 1]])
    np.testing.assert_array_equal(array.take([]), whole[:0])


@pytest.mark.parametrize("ids", [[0.5, 1.0], [True, False, True, False, True], ["a"]])
def test_take_refuses_what_are_no_ids(ids):
    array, _ = make([2, 3], ())
    with pytest.raises(TypeError, match="expected integers"):
        array.take(ids)


def test_each_shard_is_read_once_front_to_back():
    class Spy(np.ndarray):
        def __getitem__(self, item):
            reads.append(np.asarray(item).tolist())
            return np.asarray(self)[item]

    reads: list[list[int]] = []
    array = ShardedArray([np.arange(4).view(Spy), np.arange(4, 6).view(Spy), np.arange(6, 9).view(Spy)])
    np.testing.assert_array_equal(array.take([8, 3, 0, 3, 6]), [8, 3, 0, 3, 6])
    assert reads == [[0, 3], [0, 2]]


@pytest.fixture
def file(tmp_path: Path) -> ArrayFile:
    file = ArrayFile(tmp_path / "keys-00000.npy", np.dtype("float16"), (4, 3))
    file.path.write_bytes(file.header + np.arange(12, dtype=np.float16).tobytes())
    return file


def test_an_array_file_opens_read_only(file: ArrayFile):
    file.check()
    array = file.open()
    np.testing.assert_array_equal(array, np.arange(12).reshape(4, 3))
    np.testing.assert_array_equal(np.load(file.path), array)
    assert file.bytes == file.path.stat().st_size
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_an_empty_array_file_opens(tmp_path: Path):
    file = ArrayFile(tmp_path / "a.npy", np.dtype("int64"), (0, 3))
    file.path.write_bytes(file.header)
    file.check()
    assert file.open().shape == (0, 3)


def test_check_names_a_missing_file(file: ArrayFile):
    file.path.unlink()
    with pytest.raises(StoreError, match=r"keys-00000\.npy is missing"):
        file.check()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 151, 153])
def test_check_says_both_sizes(size: int, file: ArrayFile):
    file.path.write_bytes(file.path.read_bytes().ljust(size, b"\0")[:size])
    with pytest.raises(StoreError, match=rf"keys-00000\.npy has {size} bytes, expected 152"):
        file.check()


@pytest.mark.parametrize("byte", range(0, 128, 9))
def test_check_finds_any_damage_in_the_header(byte: int, file: ArrayFile):
    data = bytearray(file.path.read_bytes())
    data[byte] ^= 1
    file.path.write_bytes(data)
    with pytest.raises(StoreError, match=r"keys-00000\.npy has a damaged header, expected float16 \[4, 3\]"):
        file.check()


def test_check_refuses_another_type_of_the_same_size(file: ArrayFile):
    with pytest.raises(StoreError, match="damaged header, expected int16"):
        ArrayFile(file.path, np.dtype("int16"), file.shape).check()


def test_ones_are_as_many_in_shards_as_long_and_take_no_memory():
    ones = ShardedArray([np.arange(3), np.arange(0), np.arange(5)]).ones()
    assert [len(shard) for shard in ones.shards] == [3, 0, 5] and ones.dtype == np.int32
    np.testing.assert_array_equal(ones[:], [1] * 8)
    assert all(shard.strides == (0,) for shard in ones.shards if len(shard) > 1)
