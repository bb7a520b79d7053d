"""The keys of a shard: whatever the batches are, and refused where they are not finite or too large."""

import numpy as np
import pytest
import torch

from nearlm.base.errors import ModelError
from nearlm.model.lm import LM
from tiny import make_llama


def scaled(factor: float, tokenizer) -> LM:
    """A tiny model whose keys are larger by a factor."""
    lm = LM(make_llama(), tokenizer, name="huge")
    with torch.no_grad():
        lm.model.model.layers[-1].post_attention_layernorm.weight.mul_(factor)
    return lm


def test_keys_too_large_for_float16_are_refused_and_fit_float32(make, tokenizer):
    with pytest.raises(ModelError, match=r"a key of huge reaches \d+, more than float16's 65504; use `key_dtype="):
        make(model=scaled(1e5, tokenizer))
    store = make("wide", model=scaled(1e5, tokenizer), key_dtype="float32")
    assert np.abs(store.keys[:]).max() > 65504
    assert np.isfinite(store.keys[:]).all()


@pytest.mark.parametrize("key_dtype", ["float16", "float32"])
def test_keys_that_are_not_finite_are_refused(key_dtype, make, tokenizer):
    lm = scaled(1, tokenizer)
    token = tokenizer("charge", add_special_tokens=False)["input_ids"][-1]
    with torch.no_grad():
        lm.model.model.embed_tokens.weight[token] = float("nan")
    with pytest.raises(ModelError, match=r"huge gives non-finite keys \(near token \d+ of the text, .*float32\)"):
        make(model=lm, key_dtype=key_dtype)


def test_keys_do_not_depend_on_batches_or_shards(make):
    one = make("one", batch_tokens=1, shard_records=50, key_dtype="float32")
    many = make("many", batch_tokens=5000, key_dtype="float32")
    np.testing.assert_allclose(one.keys[:], many.keys[:], rtol=1e-4, atol=1e-5)
    for name in ("values", "origin", "tokens"):
        np.testing.assert_array_equal(getattr(one, name)[:], getattr(many, name)[:])
    assert len(one.manifest.shards) > len(many.manifest.shards) == 1
