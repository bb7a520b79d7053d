"""Whatever is in a file that others may have written, its reader returns or raises a NearLMError.

`benchmarks/fuzz.py` does the same for as long as one likes.
"""

import random
import shutil
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import readers

SEEDS = st.integers(0, 1 << 60)
KINDS = [  # each with its own reader, or its own kind of contents
    "manifest.json",
    "defaults.json",
    "optimize.json",
    "docs-00000.json",
    "index/default/index.json",
    "index/default/settings.json",
    "index/default/neighbors.json",
    "index/default/ranks.json",
    "gate/default/gate.json",
    "gate/default/gate.safetensors",
    "ngrams/ngrams.json",
    "mixture/default/mixture.json",
    "mixture/default/mixture.safetensors",
    "suffixes/suffixes.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "fit/*",
    "index/graph/data-*/index.faiss",
    "index/narrow/data-*/*",
    "index/default/data-*/index.faiss",
    "*.npy",
]
JOBS = {
    "begun": "index/begun/index.job/*",
    "counted": "ngrams/ngrams.job/*",
    "derived": "derive.job/*",
    "built": "build.job/*",
    "trained": "gate/begun/gate.job/*",
    "fitting": "ready.fit/*",
    "overhead": "fast.optimize/*",
    "budget": "fast.optimize/*",
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return readers.Stores(tmp_path_factory.mktemp("readers")).folders


def read_changed(store: Path, work: Path, pattern: str, seed: int) -> None:
    choice = random.Random(seed)
    names = [name for name in readers.files_of(store) if readers.fnmatch(name, pattern)]
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(store, work)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = readers.attempt(work, choice.choice(names), choice, hostile=choice.random() < 0.8)
    assert said == "read" or "\n" not in said


@pytest.mark.parametrize("pattern", KINDS)
@settings(max_examples=6)
@given(seed=SEEDS)
def test_a_changed_file_of_a_store_is_read_or_refused(pattern, sound, tmp_path_factory, seed):
    work = tmp_path_factory.getbasetemp() / "changed" / "store"
    read_changed(sound["store"], work, pattern, seed)


@pytest.mark.parametrize("pattern", ["manifest.json", "transform.faiss", "*.npy"])
@settings(max_examples=4)
@given(seed=SEEDS)
def test_a_changed_file_of_a_derived_store_is_read_or_refused(pattern, sound, tmp_path_factory, seed):
    work = tmp_path_factory.getbasetemp() / "changed" / "small"
    read_changed(sound["small"], work, pattern, seed)


@pytest.mark.parametrize("kind", JOBS)
@settings(max_examples=8)
@given(seed=SEEDS)
def test_a_changed_note_of_an_unfinished_job_is_read_or_refused(kind, sound, tmp_path_factory, seed):
    folder = tmp_path_factory.getbasetemp() / "unfinished"
    folder.mkdir(exist_ok=True)
    if not (folder / "store").exists():
        shutil.copytree(sound["store"], folder / "store")
        shutil.copytree(sound["store"].parent / "model", folder / "model")
        shutil.copy(sound["store"].parent / "valid.txt", folder)
    read_changed(sound[kind], folder / kind, JOBS[kind], seed)


@settings(max_examples=10)
@given(seed=SEEDS)
def test_a_changed_note_of_what_was_passed_on_is_read_or_refused(sound, tmp_path_factory, seed):
    read_changed(sound["slim"], tmp_path_factory.getbasetemp() / "changed" / "slim", "shared.json", seed)


@pytest.mark.parametrize("kind", ["trace", "weights", "passes"])
@settings(max_examples=20)
@given(seed=SEEDS)
def test_a_changed_file_of_the_cache_is_read_or_made_again(kind, sound, tmp_path_factory, seed):
    read_changed(sound[kind], tmp_path_factory.getbasetemp() / "changed" / kind, "*", seed)


@pytest.mark.parametrize("part", readers.PARTS)
@settings(max_examples=4)
@given(seed=SEEDS)
def test_a_changed_part_of_the_results_is_shown_or_refused(part, sound, tmp_path_factory, seed):
    work = tmp_path_factory.getbasetemp() / "changed" / "results"
    read_changed(sound["results"], work, f"results/{part}.json", seed)


def test_every_file_of_a_store_has_a_reader_that_reads_it(sound, tmp_path):
    for store in ("store", "small"):
        work = shutil.copytree(sound[store], tmp_path / store)
        for read in dict.fromkeys(readers.reader_of(name) for name in readers.files_of(work)):
            read(work)
