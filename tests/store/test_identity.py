"""Whether a model made a store: by its architecture, its tokenizer, and its keys."""

import numpy as np
import pytest

from nearlm.base import ModelError
from nearlm.store.identity import check_identity
from synthetic import skewed_store


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return skewed_store(tmp_path_factory.mktemp("identity") / "store").manifest


def verdict(manifest, tmp_path, probe, *, fingerprint="", tokenizer=""):
    ours = np.random.default_rng(0).normal(size=(32, 12)).astype(np.float32)
    return check_identity(manifest, tmp_path, ours, (fingerprint, probe(ours), tokenizer, "theirs"))


def test_the_same_keys_pass_and_similar_ones_are_warned_of(manifest, tmp_path):
    noise = np.random.default_rng(1).normal(0, 0.05, (32, 12)).astype(np.float32)
    assert verdict(manifest, tmp_path, lambda ours: ours) is None
    assert "slightly other keys" in str(verdict(manifest, tmp_path, lambda ours: ours + noise))


@pytest.mark.parametrize("probe", [lambda ours: -ours, lambda ours: ours[:, :6], lambda ours: ours * np.nan])
def test_other_keys_are_refused(manifest, tmp_path, probe):
    with pytest.raises(ModelError, match="other weights"):
        verdict(manifest, tmp_path, probe)


def test_another_architecture_or_tokenizer_is_refused(manifest, tmp_path):
    with pytest.raises(ModelError, match="architecture"):
        verdict(manifest, tmp_path, lambda ours: ours, fingerprint="x")
    with pytest.raises(ModelError, match="tokenizer"):
        verdict(manifest, tmp_path, lambda ours: ours, tokenizer="x")
