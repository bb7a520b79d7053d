"""Adding and forgetting: a store with its index, suffix array and tables is as one built without the document."""

import numpy as np
import pytest

import nearlm
from calls import build, evaluate, load_knnlm
from nearlm.base import StoreError, files
from nearlm.mixing.infinigram import InfiniGram
from nearlm.mixing.ngrams import NGrams, build_ngrams
from nearlm.search import Retriever, build_index
from nearlm.store import Datastore
from tiny import make_text

OPTIONS = {"window": 32, "shard_records": 200, "quiet": True}
TUNED = {"lam": 0.4, "knn_temperature": 20.0, "k": 16}


def write_texts(folder, names):
    folder.mkdir()
    for name in names:
        (folder / f"{name}.txt").write_text(make_text(60, seed=ord(name)))
    return str(folder)


def furnish(store):
    """Make all that a store can have: a flat index and one of lists, a suffix array, n-gram tables."""
    build_index(store, "flat")
    build_index(store, "IVF4,SQ8", name="lists", nprobe=4)
    nearlm.build_infinigram(store)
    build_ngrams(store)
    files.write_stamped(store.layout.index("default").settings, TUNED)
    return Datastore.open(store.path)


@pytest.fixture
def texts(tmp_path):
    """The same documents under the same names, all of them or all but one."""
    (tmp_path / "some").mkdir()
    (tmp_path / "all").mkdir()
    return write_texts(tmp_path / "all" / "texts", "abcd"), write_texts(tmp_path / "some" / "texts", "abd")


@pytest.fixture
def both(lm, texts, tmp_path):
    """A furnished store of four documents, and one that never had the third."""
    whole = furnish(build(lm, texts[0], tmp_path / "store", **OPTIONS))
    return whole, furnish(build(lm, texts[1], tmp_path / "other", **OPTIONS))


def name_of(store, letter):
    return next(name for name in store.document_names() if name.endswith(f"{letter}.txt"))


def check_alike(store, other, lm, text):
    """Compare what two stores say: perplexity, the ∞-gram, n-gram counts, neighbours."""
    found = [evaluate(load_knnlm(one, lm), text).perplexity for one in (store, other)]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    queries = other.keys[::7].astype(np.float32)
    for index in ("default", "lists"):
        near = [Retriever(one, index).search(queries, 30) for one in (store, other)]
        if index == "default":
            assert np.allclose(near[0].distances, near[1].distances, rtol=1e-3, atol=1e-2)
        assert (near[0].ids >= 0).all()
    tokens = other.tokens[:]
    ends = np.arange(3, len(tokens), 5)
    grams = [InfiniGram.open(one) for one in (store, other)]
    looked = [gram.look_up(tokens, np.maximum(ends - 40, 0), ends) for gram in grams]
    assert np.array_equal(looked[0].length, looked[1].length)
    assert np.array_equal(looked[0].end - looked[0].begin, looked[1].end - looked[1].begin)
    follow = [gram.following[found.begin[9] : found.end[9]] for gram, found in zip(grams, looked, strict=True)]
    assert np.array_equal(np.sort(follow[0]), np.sort(follow[1]))
    contexts = np.stack([tokens[at - 3 : at + 1] for at in ends[1:-1]])
    counts = [NGrams.open(one).look_up(contexts) for one in (store, other)]
    assert np.array_equal(counts[0].frequency, counts[1].frequency)
    assert np.array_equal(counts[0].fertility, counts[1].fertility)


def test_a_forgotten_document_is_as_if_it_had_never_been_there_before_and_after_compaction(both, lm, texts, tmp_path):
    store, other = both
    text = write_texts(tmp_path / "valid", "xy")
    third = name_of(store, "c")
    held = [array.tobytes() for array in document(store, third)]
    held_by_others = other.tokens[:].tobytes() + other.keys[:].tobytes()
    assert len(find_bytes(store.path, held, held_by_others)) >= 3  # tokens, keys, a flat index
    gone = nearlm.forget(store.path, document=third)
    assert gone.documents == [third] and gone.records == len(store) - len(other)
    forgot = Datastore.open(store.path)
    check_alike(forgot, other, lm, text)
    made = nearlm.compact(store.path)
    check_alike(made, other, lm, text)
    assert np.array_equal(made.tokens[:], other.tokens[:]) and len(made) == len(other)
    assert find_bytes(made.path, [*held, third.encode()], held_by_others) == []
    assert not [path for path in made.path.rglob("*") if path.name == "next.json" or path.suffix == ".job"]


def document(store, name):
    """Return the tokens of a document, and the keys of its records."""
    number = store.document_names().index(name)
    begin, end = store.document_bounds[number : number + 2]
    inside = (store.origin[:] >= begin) & (store.origin[:] < end)
    return store.tokens[int(begin) : int(end)], store.keys[:][inside]


def find_bytes(folder, wanted, of_others, width=32):
    """Return the files that hold any run of so many bytes of some data, but for what other documents have as well."""
    runs = {what[at : at + width] for what in wanted for at in range(0, max(1, len(what) - width), 4)}
    own = [run for run in runs if run not in of_others]
    assert len(own) > len(runs) // 4
    paths = [path for path in folder.rglob("*") if path.is_file()]
    contents = ((path, path.read_bytes()) for path in paths)
    return [path for path, data in contents if any(run in data for run in own)]


def test_added_text_is_found_with_all_that_belongs_to_it(both, lm, texts, tmp_path):
    whole, store = both
    made = nearlm.add(store.path, str(tmp_path / "all" / "texts" / "c.txt"), lm)
    assert len(made) == len(whole) and len(made.document_names()) == 4
    for index in ("default", "lists"):
        found = Retriever(made, index).search(document(made, made.document_names()[-1])[1].astype(np.float32), 1)
        assert (found.distances < 1).mean() > 0.9 and (found.ids >= len(store)).mean() > 0.9
    assert len(InfiniGram.open(made).tokens) == len(made.tokens)
    assert NGrams.open(made).tables["counts-1"].sum() == len(made.tokens)
    assert nearlm.add(made.path, str(tmp_path / "all" / "texts" / "c.txt"), lm).checksum == made.checksum


def test_text_can_be_added_after_forgetting_also_what_was_forgotten(both, lm, tmp_path):
    store, _ = both
    more = tmp_path / "e.txt"
    more.write_text(make_text(40, seed=9))
    nearlm.add(store.path, str(more), lm)
    nearlm.forget(store.path, source="*e.txt")
    with pytest.raises(StoreError, match="forgotten"):
        Datastore.open(store.path).context_of(-1)
    again = nearlm.add(store.path, str(more), lm)
    assert sum(name.endswith("e.txt") for name in again.document_names()) == 2
    assert again.context_of(-1).document.endswith("e.txt")
    assert Retriever(again).max_k == len(again) - again.forgotten.records
    made = nearlm.compact(store.path)
    assert sum(name.endswith("e.txt") for name in made.document_names()) == 1
    assert Retriever(made).search(made.keys[-3:].astype(np.float32), 1).ids.ravel().tolist()[-1] >= 0


def test_matching_looks_into_the_text(both):
    store, _ = both
    text = store.tokenizer.decode(document(store, name_of(store, "b"))[0], skip_special_tokens=True)
    gone = nearlm.forget(store.path, matching=text[10:60].replace(".", r"\."), dry_run=True)
    assert gone.documents == [name_of(store, "b")]


def test_the_example_that_fit_wrote_goes_with_a_compaction(both):
    store, _ = both
    place = store.layout.fit.description
    place.parent.mkdir()
    files.write_stamped(place, {"fit": {"continuation": {"prompt": "a secret"}, "records": 1}})
    nearlm.forget(store.path, document=name_of(store, "c"))
    nearlm.compact(store.path)
    assert files.read_stamped(place)["fit"] == {"continuation": None, "records": 1}


def test_a_memory_that_is_open_takes_up_what_has_changed_when_it_is_told_to(both, lm, tmp_path):
    store, other = both
    knnlm = load_knnlm(store, lm)
    text = (tmp_path / "all" / "texts" / "c.txt").read_text()
    before = knnlm.score(text).logp
    assert not knnlm.refresh()
    nearlm.forget(store.path, document=name_of(store, "c"))
    assert knnlm.refresh() and not knnlm.refresh()
    expected = load_knnlm(other, lm).score(text).logp
    assert np.allclose(knnlm.score(text).logp, expected, atol=1e-4) and not np.allclose(before, expected, atol=0.1)
