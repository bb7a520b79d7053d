"""What a worker tells of its model, and an LM that is not here."""

from dataclasses import replace

import numpy as np
import pytest

from nearlm.cluster import ClusterError
from nearlm.cluster.remote_lm import Described, RemoteLM, findable
from nearlm.model import ModelSpec


def test_an_lm_that_is_not_here_tells_what_the_loaded_one_tells(lm, model_folder):
    remote = RemoteLM(ModelSpec(str(model_folder)), Described.of(lm, "there"), lambda batch: batch)
    for name in ("dim", "dtype", "limit", "device"):
        assert getattr(remote, name) == getattr(lm, name)
    assert remote.tap.path == lm.tap.path
    assert remote.fingerprint() == lm.fingerprint()
    assert remote.tokenizer_fingerprint() == lm.tokenizer_fingerprint()
    assert np.array_equal(remote.probe(), lm.probe())
    assert remote.keys(7) == 7


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "bfloat16"}, r"on a and b have another dtype \(float32, bfloat16\); use machines of one kind"),
        ({"torch": "1.0"}, "another torch"),
        ({"probe": np.zeros((32, 32), np.float32)}, "on a and b compute slightly other keys"),
    ],
)
def test_workers_whose_keys_would_differ_are_refused(lm, change, said):
    ours = Described.of(lm, "a")
    ours.check_same(replace(ours, worker="b"))
    with pytest.raises(ClusterError, match=said):
        ours.check_same(replace(ours, worker="b", **change))


def test_a_model_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    assert findable(ModelSpec("model", adapter="user/adapter")) == ModelSpec(
        str(tmp_path / "model"), adapter="user/adapter"
    )
    assert findable(ModelSpec("smollm2-135m")).model == "smollm2-135m"
