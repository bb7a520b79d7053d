"""Keys and statistics equal independent oracles, in every architecture, however the text is cut and batched."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from test_tap import LAST_FFN
from torch.utils._python_dispatch import TorchDispatchMode

import nearlm.model.lm
from architectures import ARCHITECTURES, VOCAB, make_mamba, make_model
from nearlm.base.errors import ModelError
from nearlm.model.lm import LM, tokenizer_fingerprint
from nearlm.text.windows import Batch, fill_batch, plan_batches, plan_windows
from tiny import make_llama, make_tokenizer

TOKENS = np.random.default_rng(0).integers(0, VOCAB, 60).astype(np.int32)
BOUNDS = np.array([0, 23, 25, 26, 50, 60])
CUTS = {  # window, stride, tokens a batch
    "one row at a time": (8, 8, 1),
    "batched and padded": (8, 8, 10**6),
    "small batches": (8, 8, 20),
    "strided": (8, 3, 10**6),
    "whole documents": (64, 64, 10**6),
}


def batches(cut: str) -> Iterator[tuple[np.ndarray, Batch]]:
    """Give every planned batch with the record numbers of its rows."""
    window, stride, batch_tokens = CUTS[cut]
    windows = plan_windows(BOUNDS, window, stride)
    for rows in plan_batches(windows, batch_tokens):
        picked = windows[rows]
        first = windows.first_record[rows]
        records = [np.arange(a, a + n) for a, n in zip(first, picked.targets, strict=True)]
        yield np.concatenate(records), fill_batch(TOKENS, picked)


def in_corpus_order(values: list[torch.Tensor], cut: str) -> np.ndarray:
    """Put what came out of the batches where it belongs."""
    order = np.concatenate([records for records, _ in batches(cut)])
    assert sorted(order) == list(range(len(order)))
    return torch.cat(values).float().numpy()[np.argsort(order)]


def all_keys(lm: LM, cut: str) -> np.ndarray:
    return in_corpus_order([lm.keys(batch) for _, batch in batches(cut)], cut)


def oracle(model: Any, path: str, cut: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return keys, full float64 log-probabilities and targets, from one unpadded window at a time."""
    window, stride, _ = CUTS[cut]
    keys, logps, targets = [], [], []

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keys.append(args[0] if args else kwargs["hidden_states"])

    handle = model.get_submodule(path).register_forward_pre_hook(hook, with_kwargs=True)
    for begin, end in pairwise(BOUNDS):
        start, target = begin, begin + 1  # the first target that no window has recorded yet
        while target < end:
            stop = min(start + window, end - 1)
            ids = torch.tensor(TOKENS[start:stop][None], dtype=torch.int64)
            with torch.no_grad():
                logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
            keys[-1] = keys[-1].reshape(stop - start, -1)[target - 1 - start :]
            logps.append(logits[target - 1 - start :].double().log_softmax(-1))
            targets.append(TOKENS[target : stop + 1])
            start, target = start + stride, stop + 1
    handle.remove()
    return torch.cat(keys).float().numpy(), torch.cat(logps).numpy(), np.concatenate(targets)


def assert_same_keys(keys: np.ndarray, want: np.ndarray) -> None:
    """To float32 rounding, and so to one unit in the last place of float16."""
    assert keys.shape == want.shape
    np.testing.assert_allclose(keys, want, rtol=0, atol=3e-6 * np.abs(want).max())
    np.testing.assert_allclose(keys.astype(np.float16), want.astype(np.float16), rtol=2**-10, atol=3e-5)


def assert_same_scores(lm: LM, model: Any, path: str, cut: str) -> None:
    scores = [lm.score(batch) for _, batch in batches(cut)]
    keys, logp, targets = oracle(model, path, cut)
    p = np.exp(logp)
    assert_same_keys(in_corpus_order([part.keys for part in scores], cut), keys)
    want = {
        "logp": logp[np.arange(len(targets)), targets],
        "conf": p.max(-1),
        "ent": -np.where(p > 0, p * np.where(p > 0, logp, 0), 0).sum(-1),
    }
    for name, values in want.items():
        got = in_corpus_order([getattr(part, name) for part in scores], cut)
        np.testing.assert_allclose(got, values, rtol=2e-5, atol=2e-5, err_msg=name)


def whole_batch() -> Batch:
    return next(batches("batched and padded"))[1]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_keys_equal_an_unpadded_float32_pass(name: str) -> None:
    model = make_model(name)
    lm = LM(model, None)
    for cut in CUTS:
        assert_same_keys(all_keys(lm, cut), oracle(model, LAST_FFN[name], cut)[0])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_scores_equal_the_models_own_logits_in_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearlm.model.lm, "SLICE_BYTES", 4 * VOCAB * 7)
    model = make_model(name)
    assert_same_scores(LM(model, None), model, LAST_FFN[name], "batched and padded")


@pytest.mark.parametrize("cut", CUTS)
def test_scores_do_not_depend_on_the_cut_into_batches(cut: str) -> None:
    model = make_model("gemma2")
    assert_same_scores(LM(model, None), model, LAST_FFN["gemma2"], cut)


@pytest.mark.parametrize("name", ["llama", "opt_post_norm_projected", "cohere", "mamba"])
def test_last_hidden_is_the_heads_input_for_keys_and_for_scores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearlm.model.lm, "SLICE_BYTES", 4 * VOCAB * 7)
    model = make_mamba() if name == "mamba" else make_model(name)
    lm = LM(model, None, key_tap="last_hidden")
    assert_same_scores(lm, model, "lm_head", "strided")
    assert_same_keys(all_keys(lm, "strided"), oracle(model, "lm_head", "strided")[0])


def test_what_stands_between_body_and_head_counts() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_outputs import CausalLMOutputWithPast

    class Scaled(LlamaForCausalLM):
        def forward(self, input_ids: Any, attention_mask: Any = None, **options: Any) -> Any:
            hidden = self.model(input_ids, attention_mask=attention_mask, **options)[0]
            return CausalLMOutputWithPast(logits=self.lm_head(hidden / 3) + 1)

    torch.manual_seed(0)
    model = Scaled(LlamaConfig(**ARCHITECTURES["llama"][1])).eval()
    for wish, path in (("ffn", LAST_FFN["llama"]), ("last_hidden", "lm_head")):
        assert_same_scores(LM(model, None, key_tap=wish), model, path, "strided")


def test_a_head_that_cannot_be_run_apart_is_refused() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_outputs import CausalLMOutputWithPast

    class Copying(LlamaForCausalLM):
        def forward(self, input_ids: Any, **options: Any) -> Any:
            hidden = self.model(input_ids, **options)[0]
            return CausalLMOutputWithPast(logits=self.lm_head(hidden + self.model.embed_tokens(input_ids)))

    torch.manual_seed(0)
    lm = LM(Copying(LlamaConfig(**ARCHITECTURES["llama"][1])), None)
    with pytest.raises(ModelError, match="Copying cannot be scored"):
        lm.score(whole_batch())


def test_forbidden_tokens_leave_the_entropy_finite() -> None:
    model = make_model("llama")
    never = torch.tensor([token for token in range(VOCAB) if token not in TOKENS][:5])
    assert len(never) == 5
    model.lm_head.register_forward_hook(lambda _, __, logits: logits.index_fill(-1, never, -torch.inf))
    lm = LM(model, None)
    assert torch.isfinite(lm.score(whole_batch()).ent).all()
    assert_same_scores(lm, model, LAST_FFN["llama"], "strided")


def test_an_impossible_target_has_log_probability_minus_infinity() -> None:
    model = make_model("llama")
    model.lm_head.register_forward_hook(lambda _, __, logits: logits.index_fill(-1, torch.tensor(5), -torch.inf))
    batch = whole_batch()
    scores = LM(model, None).score(Batch(batch.ids, batch.recorded, np.full_like(batch.targets, 5)))
    assert (scores.logp == -torch.inf).all()
    assert torch.isfinite(scores.ent).all()


@pytest.mark.parametrize("name", [*ARCHITECTURES, "mamba"])
def test_keys_run_no_head_and_keep_no_cache(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.cache_utils import Cache

    model = make_mamba() if name == "mamba" else make_model(name)
    lm = LM(model, None, key_tap="last_hidden" if name == "mamba" else "ffn")
    used = []

    def note(cache: Cache, *_: Any, **__: Any) -> None:
        used.append(type(cache).__name__)
        raise ZeroDivisionError

    for method in ("__init__", "update", "update_conv_state", "update_recurrent_state"):
        monkeypatch.setattr(Cache, method, note, raising=False)
    monkeypatch.setattr(model.get_output_embeddings(), "forward", lambda *_: used.append("head"))
    lm.keys(whole_batch())
    assert used == []
    with pytest.raises(ZeroDivisionError):  # that is how a cache would be seen
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=True)


class Watch(TorchDispatchMode):
    """Notes how many rows of the whole vocabulary the largest tensor has."""

    rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        weights = func in (torch.ops.aten.t.default, torch.ops.aten.transpose.int)  # the head's own matrix
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.shape[-1:] == (VOCAB,) and not weights:
                self.rows = max(self.rows, tensor.numel() // VOCAB)
        return result


@pytest.mark.parametrize("name", ["gpt2", "opt", "mpt", "llama", "gemma2", "cohere", "mixtral"])
def test_scores_hold_the_logits_of_one_slice_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = LM(make_model(name), None)
    batch = whole_batch()
    want = lm.score(batch)
    monkeypatch.setattr(nearlm.model.lm, "SLICE_BYTES", 4 * VOCAB * 5 + 3)
    with Watch() as watch:
        got = lm.score(batch)
    assert watch.rows == 5 < batch.recorded.sum()
    for name in ("logp", "conf", "ent"):
        torch.testing.assert_close(getattr(got, name), getattr(want, name))


def test_a_slice_is_at_least_one_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearlm.model.lm, "SLICE_BYTES", 1)
    model = make_model("llama")
    assert_same_scores(LM(model, None), model, LAST_FFN["llama"], "small batches")


@pytest.mark.parametrize("name", ["gpt2", "opt", "llama", "gemma3", "qwen3_moe"])
def test_the_model_is_left_as_it_was(name: str) -> None:
    model, ids = make_model(name), torch.tensor(TOKENS[None, :20], dtype=torch.int64)
    with torch.no_grad():
        before = model(input_ids=ids, output_hidden_states=True)
    hooks = count_hooks(model)  # transformers keeps some of its own
    lm = LM(model, None)
    lm.keys(whole_batch())
    lm.score(whole_batch())
    assert count_hooks(model) == hooks
    with torch.no_grad():
        after = model(input_ids=ids, output_hidden_states=True)
    assert torch.equal(before.logits, after.logits)
    assert all(map(torch.equal, before.hidden_states, after.hidden_states))
    assert not any("forward" in vars(module) for module in model.modules())


def count_hooks(model: torch.nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("preload", [None, ["LlamaDecoderLayer"]], ids=["by module", "by layer"])
@pytest.mark.parametrize("wish", ["ffn", "last_hidden"])
def test_a_model_that_accelerate_offloads(preload: list[str] | None, wish: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    path = LAST_FFN["llama"] if wish == "ffn" else "lm_head"
    model = accelerate.cpu_offload(make_model("llama"), torch.device("cpu"), preload_module_classes=preload)
    lm = LM(model, None, key_tap=wish)
    plain = make_model("llama")
    assert_same_keys(all_keys(lm, "strided"), oracle(plain, path, "strided")[0])
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}  # nothing is left in memory
    assert_same_scores(lm, plain, path, "strided")
    heads = []
    model.lm_head.register_forward_hook(lambda *_: heads.append(1))
    lm.keys(whole_batch())
    assert heads == []


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "mixtral"])
def test_the_fingerprint_is_the_models_shape(name: str, tmp_path: Any) -> None:
    from transformers import AutoModelForCausalLM

    model = make_model(name)
    lm = LM(model, None)
    model.save_pretrained(tmp_path / "saved")
    same, half = (
        LM(AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=dtype), None, name="another name")
        for dtype in (torch.float32, torch.bfloat16)
    )
    other = LM(make_model(name, seed=1), None)
    assert lm.fingerprint() == same.fingerprint() == half.fingerprint() == other.fingerprint()
    assert np.array_equal(lm.probe(), same.probe())
    assert lm.probe().shape == (32, lm.dim)
    assert lm.probe().dtype == np.float32
    assert median_cosine(lm, half) > 0.99
    assert median_cosine(lm, other) < 0.9


def median_cosine(a: LM, b: LM) -> float:
    x, y = a.probe(), b.probe()
    return float(np.median((x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)))


def test_the_fingerprint_tells_sizes_and_settings_apart() -> None:
    models = [
        make_llama(),
        make_llama(num_hidden_layers=3),
        make_llama(intermediate_size=48),
        make_llama(rms_norm_eps=1e-3),
        make_llama(rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
    ]
    assert len({LM(model, None).fingerprint() for model in models}) == len(models)


def test_special_tokens_and_dtypes_inside_the_config_are_no_part_of_the_fingerprint() -> None:
    lm = LM(make_llama(), None)
    before = lm.fingerprint()
    lm.model.config.eos_token_id, lm.model.config.use_cache = 7, False
    assert lm.fingerprint() == before
    lm.model.config.vision = {"dtype": "float32", "width": 3}
    nested = lm.fingerprint()
    lm.model.config.vision = {"dtype": "bfloat16", "width": 3}
    assert lm.fingerprint() == nested != before


def test_another_tokenizer_has_another_fingerprint() -> None:
    same, other, spoken = make_tokenizer(), make_tokenizer(vocab_size=290), make_tokenizer()
    assert tokenizer_fingerprint(make_tokenizer()) == tokenizer_fingerprint(same)
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(same)
    spoken.add_special_tokens({"additional_special_tokens": ["<extra>"]})
    assert tokenizer_fingerprint(spoken) != tokenizer_fingerprint(same)
    assert LM(make_llama(), same).tokenizer_fingerprint() == tokenizer_fingerprint(same)


def test_the_limit_is_what_the_config_says() -> None:
    assert LM(make_model("llama"), None).limit == 64
    assert LM(make_model("gpt2"), None).limit == 64
    assert LM(make_model("mpt"), None).limit == 64
    assert LM(make_model("bloom"), None).limit is None


def test_what_is_no_language_model_is_refused() -> None:
    class Config:
        vocab_size = 10

    model = torch.nn.Linear(3, 3)
    model.config = Config()
    with pytest.raises(ModelError, match="no hidden_size; expected a Hugging Face causal LM"):
        LM(model, None)
