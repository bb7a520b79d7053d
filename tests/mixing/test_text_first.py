"""A build whose text can be used while its keys are computed: the same records, also after a kill anywhere."""

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from nearlm.base import Reporter, StoreError, files
from nearlm.knnlm import KNNLM
from nearlm.mixing import build_text_first
from nearlm.store import BuildOptions, Datastore
from nearlm.store.builder import build
from tiny import make_text

OPTIONS = BuildOptions(window=8, batch_tokens=16, shard_records=44)
CHANGING = ("append", "write_at", "replace", "allocate", "remove")


class Killed(BaseException):
    """Stands for the end of the process."""


@contextlib.contextmanager
def killed_at(number: int):
    """Let the n-th change on disk be the last thing that happens; 0 is never."""
    calls = []

    def wrap(real):
        def call(*arguments):
            calls.append(real)
            if number and len(calls) >= number:
                raise Killed
            return real(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        for name in CHANGING:
            patch.setattr(files, name, wrap(getattr(files, name)))
        yield calls


@pytest.fixture
def text(tmp_path) -> Path:
    (tmp_path / "text.txt").write_text(make_text(40, seed=3))
    return tmp_path / "text.txt"


def tree(store: Path) -> dict[str, object]:
    """Return all files; a manifest by what it says."""
    found = {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}
    return {name: json.loads(data) if name == "manifest.json" else data for name, data in found.items()}


class Watching(Reporter):
    """Uses the store while its keys are computed."""

    def __init__(self, look):
        super().__init__(quiet=True)
        self.look = look

    def bar(self, label, total, unit, done=0):
        if label == "building":
            self.look()
        return super().bar(label, total, unit, done)


def test_the_text_is_used_while_keys_are_computed_and_the_records_are_those_of_a_build(lm, text, tmp_path):
    build(lm, text, tmp_path / "plain", OPTIONS)
    seen = []

    def look() -> None:
        knnlm = KNNLM.load(tmp_path / "store", lm)
        seen.append((len(knnlm.store), knnlm.score(text.read_text())))

    found = build_text_first(lm, text, tmp_path / "store", OPTIONS, reporter=Watching(look))
    ((records, scores),) = seen
    assert records == 0 and scores.logp.mean() > scores.log_lm.mean() + 0.1, "the text is in the memory already"
    assert len(found) == len(Datastore.open(tmp_path / "plain")) > 0
    made = tree(tmp_path / "store")
    assert {name: data for name, data in made.items() if "suffixes" not in name} == tree(tmp_path / "plain")
    assert any("suffixes" in name for name in made)
    before = tree(tmp_path / "store")
    assert len(build_text_first(lm, text, tmp_path / "store", OPTIONS)) == len(found)
    assert tree(tmp_path / "store") == before


def test_killed_anywhere_it_goes_on_to_the_same_bytes(lm, text, tmp_path):
    with killed_at(0) as calls:
        build_text_first(lm, text, tmp_path / "whole", OPTIONS)
    whole = tree(tmp_path / "whole")
    usable = 0
    for number in range(1, len(calls) + 1, 5):
        out = tmp_path / "store"
        with killed_at(number):
            build_text_first(lm, text, out, OPTIONS)
        if (out / "manifest.json").exists():
            Datastore.open(out).verify()
            usable += not len(Datastore.open(out))
        with killed_at(0):
            build_text_first(lm, text, out, OPTIONS)
        assert tree(out) == whole, f"killed at change {number} of {len(calls)}"
        shutil.rmtree(out)
    assert usable > 3


def test_thrown_away_it_begins_again_with_other_options_also_after_a_kill(lm, text, tmp_path):
    other = BuildOptions(window=16)
    build_text_first(lm, text, tmp_path / "whole", other)
    out = tmp_path / "begun"
    with killed_at(1 + last_change(lm, text, tmp_path)):
        build_text_first(lm, text, out, OPTIONS)
    assert not len(Datastore.open(out))
    with pytest.raises(StoreError, match="restart=True"):
        build_text_first(lm, text, out, other)
    for number in range(1, 25, 4):
        copy = Path(shutil.copytree(out, tmp_path / "copy"))
        with killed_at(number):
            build_text_first(lm, text, copy, other, restart=True)
        with killed_at(0):
            build_text_first(lm, text, copy, other, restart=True) if not done(copy, tmp_path / "whole") else None
        assert tree(copy) == tree(tmp_path / "whole"), f"killed at change {number} of throwing away"
        shutil.rmtree(copy)


def last_change(lm, text: Path, folder: Path) -> int:
    """Return how many changes there are before the keys."""
    with killed_at(0) as calls:
        counted = []
        build_text_first(lm, text, folder / "counted", OPTIONS, reporter=Watching(lambda: counted.append(len(calls))))
    return counted[0]


def done(store: Path, whole: Path) -> bool:
    return tree(store) == tree(whole)


def test_a_store_that_was_wanted_without_keys_is_not_thrown_away(lm, text, tmp_path):
    build(lm, text, tmp_path / "store", BuildOptions(window=8, keys="none"))
    before = tree(tmp_path / "store")
    with pytest.raises(StoreError, match="other options"):
        build_text_first(lm, text, tmp_path / "store", BuildOptions(window=16), restart=True)
    assert tree(tmp_path / "store") == before
    assert len(build_text_first(lm, text, tmp_path / "store", BuildOptions(window=8)))


def test_a_build_that_was_begun_with_keys_goes_on_as_it_was(lm, text, tmp_path):
    build(lm, text, tmp_path / "plain", OPTIONS)
    with killed_at(25):
        build(lm, text, tmp_path / "store", OPTIONS)
    assert (tmp_path / "store" / "build.job" / "plan.json").exists()
    build_text_first(lm, text, tmp_path / "store", OPTIONS)
    assert tree(tmp_path / "store") == tree(tmp_path / "plain")


def test_text_that_can_be_read_once_is_read_once(lm, text, tmp_path, monkeypatch):
    build(lm, text, tmp_path / "plain", OPTIONS)
    piped = io.TextIOWrapper(io.BytesIO(text.read_bytes()))
    monkeypatch.setattr(sys, "stdin", piped)
    found = build_text_first(lm, "-", tmp_path / "store", OPTIONS)
    assert len(found) == len(Datastore.open(tmp_path / "plain"))
