"""Jobs that remember their plan and steps, and fill arrays where they stopped."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from nearlm.base import ArrayFile, FileInfo, Job, files, jobs
from nearlm.base.errors import StoreError


class Boom(BaseException):
    pass


def test_a_job_remembers_its_plan_and_steps_until_it_is_closed(tmp_path: Path):
    job = Job(tmp_path, "work")
    assert not job.started
    assert job.state("a") == {}
    job.begin({"n": 1})
    job.note("a", {"done": 3})
    again = Job(tmp_path, "work")
    assert again.started
    assert again.plan() == {"n": 1}
    assert again.state("a") == {"done": 3}
    assert again.state("b") == {}
    again.begin({"n": 2})
    assert job.plan() == {"n": 2}
    assert job.state("a") == {}
    job.close()
    assert not job.started
    assert not list(tmp_path.iterdir())
    job.close()


def test_a_job_closed_half_way_is_no_job(tmp_path: Path, monkeypatch):
    job = Job(tmp_path, "work")
    job.begin({"n": 1})
    real, calls = files.remove, []

    def remove(path):
        calls.append(path)
        if len(calls) == 2:
            raise Boom
        real(path)

    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(files, "remove", remove)
        job.close()
    assert not job.started
    job.begin({"n": 2})
    assert job.plan() == {"n": 2}


@dataclass(frozen=True)
class Found:
    values: list[float]


def test_a_result_is_made_once_and_is_there_after_a_kill(tmp_path):
    made = []

    def make() -> Found:
        made.append(1)
        return Found([1.5, 2.0])

    job = Job(tmp_path, "work")
    job.begin({})
    assert job.once("step", Found, make) == Found([1.5, 2.0])
    assert Job(tmp_path, "work").once("step", Found, make) == Found([1.5, 2.0]) and len(made) == 1
    assert job.once("other", Found, make) == Found([1.5, 2.0]) and len(made) == 2
    files.write_json(job.folder / "step.json", {"result": {"values": "many"}})
    with pytest.raises(StoreError, match=r"step\.json is not as this nearlm writes it"):
        job.once("step", Found, make)


def test_a_result_that_could_not_be_made_is_not_noted(tmp_path):
    job = Job(tmp_path, "work")
    job.begin({})
    with pytest.raises(Boom):
        job.once("step", Found, lambda: (_ for _ in ()).throw(Boom))
    assert job.once("step", Found, lambda: Found([])) == Found([])


def test_the_same_plan_resumes_and_another_begins_anew(tmp_path):
    job = Job(tmp_path, "work")
    job.resume({"a": 1})
    job.note("step", {"batches": 3})
    job.resume({"a": 1})
    assert job.state("step") == {"batches": 3}
    job.resume({"a": 2})
    assert job.state("step") == {} and job.plan() == {"a": 2}
    assert job.resumes({"a": 2}) and not job.resumes({"a": 1})
    job.note("step", {"batches": 3})
    job.begin({"a": 2})
    assert job.state("step") == {}


@pytest.fixture
def columns(tmp_path):
    shapes = {"ids": ("int32", (10,)), "keys": ("float16", (10, 3))}
    return {name: ArrayFile(tmp_path / f"{name}.npy", np.dtype(kind), shape) for name, (kind, shape) in shapes.items()}


SIZES = [4, 4, 2]


def batch(number: int):
    rows = np.arange(number * 4, min(number * 4 + 4, 10))
    yield "ids", int(rows[0]), rows
    yield "keys", int(rows[0]), np.repeat(rows, 3).reshape(-1, 3)


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_filling_resumes_where_it_stopped(tmp_path, columns, monkeypatch, stop):
    monkeypatch.setattr(jobs, "CHECKPOINT_SECONDS", 0.0)
    job, done, ticked = Job(tmp_path, "work"), [], []
    job.begin({})

    def compute(number):
        if stop == number and number not in done:
            done.append(number)
            raise Boom
        done.append(number)
        return batch(number)

    with pytest.raises(Boom):
        job.fill("step", columns, SIZES, compute, ticked.append)
    assert job.state("step") == {"batches": stop} and job.count_done("step", SIZES) == sum(SIZES[:stop])
    Job(tmp_path, "work").fill("step", columns, SIZES, compute, ticked.append)
    assert done == sorted([0, 1, 2, stop]) and ticked == SIZES
    np.testing.assert_array_equal(np.load(columns["ids"].path), np.arange(10))
    np.testing.assert_array_equal(np.load(columns["keys"].path), np.repeat(np.arange(10), 3).reshape(10, 3))


def test_files_are_described_and_filled_again_only_if_one_is_gone(tmp_path, columns):
    job, filled = Job(tmp_path, "work"), []
    job.begin({})

    def fill():
        return job.fill_files("step", columns, SIZES, batch, filled.append)

    found = fill()
    assert found == {file.path.name: FileInfo.of(file.path) for file in columns.values()} == fill()
    assert filled == SIZES
    columns["keys"].path.unlink()
    assert fill() == found and filled == SIZES * 2


def test_a_folder_around_a_job_is_removed_only_if_the_job_was_there(tmp_path: Path, monkeypatch):
    around = tmp_path / "fast.optimize"
    job = Job(around, "optimize")
    job.check_folder()
    around.mkdir()
    (around / ".lock").touch()
    job.check_folder()
    (around / "diary.txt").write_text("dear diary")
    with pytest.raises(StoreError, match=r"fast\.optimize holds 'diary\.txt', not made by nearlm; move it, or choose"):
        job.check_folder()
    job.remove_folder()
    assert (around / "diary.txt").read_text() == "dear diary"
    job.begin({})
    job.check_folder()

    def boom(path):
        raise Boom

    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(files, "remove", boom)
        job.remove_folder()
    job.remove_folder()
    job.remove_folder()
    assert not around.exists()
