"""A reduction or pruning that is stopped anywhere goes on, and ends byte-identical to one that was not."""

import contextlib
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_build_crash import CHANGING, Doom, Killed, points, tree

from calls import build_index, prune_store, reduce_store
from nearlm.base import files, jobs
from nearlm.base.errors import StoreError
from nearlm.shrink import neighbors, pruning
from nearlm.shrink import ranking as rank
from nearlm.shrink import reduction as reduce
from nearlm.store import derivation as derive
from nearlm.store.datastore import Datastore
from synthetic import make_store

STEPS = {
    "reduce": lambda store, out: reduce_store(store, 3, out, quiet=True),
    "random": lambda store, out: prune_store(store, "random", out, keep=0.5, quiet=True),
    "kmeans": lambda store, out: prune_store(store, "kmeans", out, ratio=4, quiet=True),
    "merge": lambda store, out: prune_store(store, "merge", out, keep=0.7, quiet=True),
    "rank": lambda store, out: prune_store(store, "rank", out, keep=0.5, k=8, quiet=True),
}
SIBLINGS = ("values-N.npy", "origin-N.npy", "weights-N.npy")  # written beside the keys, in the same way by each pruning


@contextlib.contextmanager
def doomed(at: int, torn: bool = False):
    """Run something with its end appointed; every block is a checkpoint."""
    doom, clock = Doom(at, torn), SimpleNamespace(monotonic=lambda: 0.0, perf_counter=lambda: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        for module, seconds in ((jobs, "CHECKPOINT_SECONDS"), (rank, "RANKS_SAVE_SECONDS")):
            patch.setattr(module, seconds, 0)
            patch.setattr(module, "time", clock)
        for module, name, value in (
            (derive, "BLOCK", 10),
            (reduce, "BLOCK", 10),
            (neighbors, "SEARCH_BLOCK", 20),
            (pruning, "SHARD_RECORDS", 14),
        ):
            patch.setattr(module, name, value)
        for name in (*CHANGING, "link"):
            patch.setattr(files, name, doom.wrap(name, getattr(files, name)))
        with contextlib.suppress(Killed):
            yield doom


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> Path:
    """A small weighted store whose index is ready."""
    folder, rng = tmp_path_factory.mktemp("parent"), np.random.default_rng(0)
    keys = rng.normal(0, 1, (44, 4)).astype(np.float16)
    store = make_store(folder / "0", keys, rng.integers(0, 3, 44), shard=25)
    made = prune_store(store, "merge", folder / "parent", neighbors=3, quiet=True)
    assert made.weighted and len(made) < 44
    build_index(made, "flat", quiet=True)
    return made.path


@pytest.mark.parametrize("step", STEPS)
def test_a_step_goes_on_from_every_point(parent, tmp_path, step):
    with doomed(0) as whole:
        STEPS[step](Datastore.open(shutil.copytree(parent, tmp_path / "parent")), tmp_path / "whole")
    expected = tree(tmp_path / "whole")
    assert whole.calls.count("write_at") >= 3 and "link" in whole.calls
    for at, torn in points(whole, (0, 1)):
        if step in ("kmeans", "merge", "rank") and whole.files[at - 1].split("/")[1] in SIBLINGS:
            continue
        shutil.rmtree(tmp_path / "parent")
        store = Datastore.open(shutil.copytree(parent, tmp_path / "parent"))
        out = tmp_path / "made"
        with doomed(at, torn) as doom:
            STEPS[step](store, out)
        where = f"stopped at change {at} ({doom.calls[at - 1]}, torn: {torn})"
        if not (out / "manifest.json").exists():
            with pytest.raises(StoreError):
                Datastore.open(out)
        store.verify()
        with doomed(0):
            STEPS[step](store, out)
        assert tree(out) == expected, where
        Datastore.open(out).verify()
        shutil.rmtree(out)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_goes_on_after_many_stops(parent, tmp_path, step):
    """Stop every run after a few changes, so that also those that only a resumed run makes are the last ones once."""
    store = Datastore.open(shutil.copytree(parent, tmp_path / "parent"))
    with doomed(0):
        STEPS[step](store, tmp_path / "whole")
    shutil.rmtree(tmp_path / "parent")
    store, rng = Datastore.open(shutil.copytree(parent, tmp_path / "parent")), np.random.default_rng(1)
    stops, done = 0, False
    while not done:
        with doomed(int(rng.integers(8, 30)), bool(rng.integers(2))):
            STEPS[step](store, tmp_path / "made")
            done = True
        stops += not done
        assert stops < 200, "it does not get on"
    assert stops >= 2
    assert tree(tmp_path / "made") == tree(tmp_path / "whole")


def test_after_an_index_of_another_kind_an_unfinished_merge_is_refused(parent, tmp_path):
    store = Datastore.open(shutil.copytree(parent, tmp_path / "parent"))
    with doomed(40):
        STEPS["merge"](store, tmp_path / "made")
    assert not (tmp_path / "made" / "manifest.json").exists()
    build_index(store, "SQ8", quiet=True)
    with pytest.raises(StoreError, match=r"parent or index has changed.*`restart=True`"):
        STEPS["merge"](store, tmp_path / "made")
    assert len(prune_store(store, "merge", tmp_path / "made", keep=0.7, restart=True, quiet=True))
