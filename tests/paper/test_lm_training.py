"""Small LMs learn, their folders load like any other, and a training that was interrupted ends in the same weights."""

import dataclasses
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from trainings import (
    GENTLE,
    TINY,
    TOKENS,
    Killed,
    assert_same_model,
    careful,
    checkpoints,
    contents,
    interrupt,
    mean_loss,
)

from calls import finetune, train_lm
from nearlm.base import files
from nearlm.base.errors import MissingExtraError, OptionError, StoreError, TextError
from nearlm.base.progress import Reporter
from nearlm.model.lm import LM
from nearlm.model.pretrained import ModelSpec
from nearlm.paper import lm_fitting
from nearlm.paper.lm_training import SmallLM
from tiny import make_text

pytest.importorskip("accelerate")
pytestmark = pytest.mark.usefixtures("quick_collections")


@pytest.fixture(scope="module")
def dropout_folder(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2 with dropout, whose training hangs on chance."""
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("*.safetensors", "*config.json", "training.json"))
    shutil.copy(trained / "tokenizer_config.json", folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=280, n_embd=16, n_layer=1, n_head=2, n_positions=24)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_the_loss_falls_from_chance_on_a_repetitive_text(trained: Path) -> None:
    done = files.read_stamped(trained / "training.json")
    assert done["first_loss"] == pytest.approx(np.log(280), rel=0.05)
    assert done["loss"] < 0.7 * done["first_loss"]
    assert done["tokens_seen"] == 2 * (done["tokens"] - 1)
    assert done["steps"] == -(-2 * -(-(done["tokens"] - 1) // 31) // 8)


def test_the_folder_loads_like_any_other(trained: Path) -> None:
    lm = LM.load(ModelSpec(str(trained)))
    assert (lm.dim, lm.limit, lm.vocab_size, lm.dtype) == (16, 32, 280, "float32")
    assert lm.tokenizer.is_fast
    assert (lm.tokenizer.bos_token_id, lm.tokenizer.eos_token_id) == (0, 1)
    assert lm.model.config.use_cache
    assert lm.model.lm_head.weight is lm.model.model.embed_tokens.weight
    known = mean_loss(trained, "the quick brown fox jumps over the lazy dog.\n" * 3)
    assert known < mean_loss(trained, "gold rush, bad hymn, few zinc tops, via eject book quo\n" * 3) - 1


@settings(max_examples=30)
@given(st.text(max_size=60))
def test_any_text_comes_back_from_its_tokens(trained_tokenizer: Any, text: str) -> None:
    for part in (text, f"  {text} .\r\n\t do n't  ,"):
        assert trained_tokenizer.decode(trained_tokenizer.encode(part), skip_special_tokens=True) == part


def test_steps_see_framed_documents_in_an_order_that_hangs_on_the_seed_alone(
    text: Path, trained_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, whole = [], transformers.Trainer.training_step
    monkeypatch.setattr(
        transformers.Trainer, "training_step", lambda *a: seen.append(a[2]["input_ids"].numpy()) or whole(*a)
    )
    train_lm(str(text), tmp_path / "model", dataclasses.replace(TINY, seed=3))
    stream = []
    for path in sorted(text.iterdir()):
        stream += [*trained_tokenizer.encode(path.read_text()), 1]  # which begins with BOS, 0
    rows = [stream[start : start + 32] for start in range(0, len(stream) - 1, 31)]
    rows[-1] += [0] * (32 - len(rows[-1]))
    orders = [np.random.default_rng((3, epoch)).permutation(len(rows)) for epoch in range(2)]
    np.testing.assert_array_equal(np.concatenate(seen), np.array(rows)[np.concatenate(orders)])


@pytest.mark.parametrize("step", [1, 2, 9, 20])
def test_an_interrupted_training_ends_in_the_same_weights(
    step: int, text: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        careful(patch)
        interrupt(patch, step)
        train_lm(str(text), out, TINY)
    assert not out.exists()
    assert checkpoints(out) == [f"checkpoint-{number}" for number in range(max(1, step - 2), step)]
    with monkeypatch.context() as patch:
        calls = interrupt(patch, -1)
        train_lm(str(text), out, TINY)
    assert len(calls) == files.read_stamped(out / "training.json")["steps"] - (step - 1)
    assert_same_model(out, trained)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_resumed_training_uses_as_many_threads_as_it_began_with(
    text: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen, whole = torch.get_num_threads(), set(), transformers.Trainer.training_step
    with monkeypatch.context() as patch, pytest.raises(Killed):
        careful(patch)
        interrupt(patch, 5)
        train_lm(str(text), tmp_path / "model", TINY)
    monkeypatch.setattr(
        transformers.Trainer, "training_step", lambda *a: seen.add(torch.get_num_threads()) or whole(*a)
    )
    torch.set_num_threads(before + 1)
    try:
        train_lm(str(text), tmp_path / "model", TINY)
        assert (seen, torch.get_num_threads()) == ({before}, before + 1)
    finally:
        torch.set_num_threads(before)
    assert_same_model(tmp_path / "model", trained)


@pytest.mark.parametrize("call", [1, 2, 5, 7, 8, 9])
def test_a_kill_at_any_write_outside_the_steps_does_no_harm(
    call: int, text: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        interrupt(patch, call, files, "replace")
        train_lm(str(text), out, TINY)
    assert not out.exists()
    train_lm(str(text), out, TINY)
    assert_same_model(out, trained)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_kill_after_the_rename_leaves_a_finished_model(
    text: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "model"))
    (tmp_path / "model.training" / "train.job").mkdir(parents=True)
    monkeypatch.setattr(transformers.Trainer, "train", None)
    assert train_lm(str(text), out, TINY) == out
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_finished_folder_is_not_trained_again(text: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(trained)
    monkeypatch.setattr(transformers.Trainer, "train", None)
    assert train_lm([str(text)], trained, TINY) == trained
    assert contents(trained) == before
    assert [path.name for path in trained.parent.iterdir()] == ["model"]


def test_a_finished_folder_refuses_other_options_and_texts(text: Path, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"trained with rate=0.03, expected rate=0.02; choose another folder"):
        train_lm(str(text), trained, dataclasses.replace(TINY, rate=0.02))
    with pytest.raises(StoreError, match=r"trained with max_tokens=None, expected max_tokens=99;"):
        train_lm(str(text), trained, TINY, max_tokens=99)
    other = Path(shutil.copytree(text, tmp_path / text.name))
    (other / "0.txt").write_text("something else")
    with pytest.raises(StoreError, match=r"made from a text \w{12}, which is \w{12} now; restore"):
        train_lm(str(other), trained, TINY)


def test_an_unfinished_training_refuses_other_options_and_texts(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, out = Path(shutil.copytree(text, tmp_path / "text")), tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        careful(patch)
        interrupt(patch, 4)
        train_lm(str(own), out, TINY)
    with pytest.raises(StoreError, match=r"unfinished training with dim=16, expected dim=32; resume that"):
        train_lm(str(own), out, dataclasses.replace(TINY, dim=32))
    (own / "2.txt").write_text("something else")
    with pytest.raises(StoreError, match=r"model.training was made from a text \w{12}, which is \w{12} now"):
        train_lm(str(own), out, TINY)


def test_options_may_be_changed_before_the_first_checkpoint(
    text: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        interrupt(patch, 4)
        train_lm(str(text), tmp_path / "model", dataclasses.replace(TINY, dim=32))
    assert_same_model(train_lm(str(text), tmp_path / "model", TINY), trained)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 257}, "`vocabulary` is 257, expected at least 258"),
        ({"dim": 30, "heads": 4}, "`dim` is 30, expected a multiple of twice the 4 heads"),
        ({"window": 1}, "`window` is 1, expected at least 2"),
        ({"rate": 0.0}, "`rate` is 0.0, expected a number above 0"),
        ({"warmup": 1.0}, "`warmup` is 1.0, expected a share"),
        ({"layers": 0}, "`layers` is 0, expected at least 1"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SmallLM(**options)


def test_a_folder_that_only_looks_like_a_training_is_left_alone(text: Path, tmp_path: Path) -> None:
    (tmp_path / "lm.training").mkdir()
    (tmp_path / "lm.training" / "diary.txt").write_text("dear diary")
    with pytest.raises(StoreError, match=r"lm\.training holds 'diary\.txt', not made by nearlm"):
        train_lm(str(text), tmp_path / "lm", TINY)
    assert [path.name for path in (tmp_path / "lm.training").iterdir()] == ["diary.txt"]


def test_places_and_texts_that_cannot_be_used(text: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary")
    with pytest.raises(StoreError, match=r"holds 'diary.txt' but no training.json"):
        train_lm(str(text), tmp_path / "notes", TINY)
    with pytest.raises(StoreError, match=r"diary.txt is a file"):
        train_lm(str(text), tmp_path / "notes" / "diary.txt", TINY)
    with pytest.raises(TextError, match=r"- can be read only once"):
        train_lm("-", tmp_path / "model", TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_the_callers_chance_and_terminal_are_left_alone(
    text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    careful(monkeypatch)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(12345)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    short = dataclasses.replace(TINY, epochs=1)
    train_lm(str(text), tmp_path / "quiet", short)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]
    assert capfd.readouterr() == ("", "")
    train_lm(str(text), tmp_path / "loud", short, reporter=Reporter())
    out, err = capfd.readouterr()
    assert out == ""
    assert [line.split()[0] for line in err.splitlines()] == ["training", "training", f"{tmp_path / 'loud'}:"]
    assert "of memory and" in err


def test_fine_tuning_lowers_the_loss_and_leaves_the_original_alone(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text(make_text(3000))
    original = contents(trained)
    out = finetune(
        ModelSpec(str(trained)), str(tmp_path / "other.txt"), tmp_path / "tuned", tokens=3000, options=GENTLE
    )
    done = files.read_stamped(out / "training.json")
    assert (done["tokens"], done["tokens_seen"], done["steps"]) == (3000, 2999, 25)
    assert done["first_loss"] == pytest.approx(mean_loss(trained, make_text(300)), rel=0.1)
    assert mean_loss(out, make_text(300)) < mean_loss(trained, make_text(300)) - 0.5
    assert contents(trained) == original
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer.get_vocab() == transformers.AutoTokenizer.from_pretrained(trained).get_vocab()
    assert str(tmp_path) not in (out / "config.json").read_text() + (out / "training.json").read_text()


def test_interrupted_fine_tuning_draws_the_same_dropout(
    dropout_folder: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_fitting, "_LOGIT_BYTES", 2 * 4 * 24 * 280)  # batches in parts
    tuning: dict[str, Any] = {"tokens": TOKENS, "options": GENTLE}
    want = finetune(str(dropout_folder), str(text), tmp_path / "whole", **tuning)
    assert files.read_stamped(want / "training.json")["asked"]["window"] == 24  # all that the model reads
    with monkeypatch.context() as patch, pytest.raises(Killed):
        careful(patch)
        interrupt(patch, 8)
        finetune(str(dropout_folder), str(text), tmp_path / "model", **tuning)
    assert_same_model(finetune(str(dropout_folder), str(text), tmp_path / "model", **tuning), want)


def test_fine_tuning_is_done_once_and_refuses_another_model_or_text(
    dropout_folder: Path, trained: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, tuning = Path(shutil.copytree(text, tmp_path / "text")), {"tokens": TOKENS, "options": GENTLE}
    out = finetune(str(trained), str(own), tmp_path / "tuned", **tuning)
    monkeypatch.setattr(transformers.Trainer, "train", None)
    (own / "2.txt").write_text("what stands behind the last token that was used does not matter")
    assert finetune(str(trained), str(own), out, **tuning) == out
    with pytest.raises(StoreError, match=r"was trained with model=\w+, expected model=\w+"):
        finetune(str(dropout_folder), str(own), out, **tuning)
    (own / "0.txt").write_text("something else")
    with pytest.raises(StoreError, match=r"made from a text"):
        finetune(str(trained), str(own), out, **tuning)


@pytest.mark.parametrize("kind", [{"quantization": "4bit"}, {"adapter": "some/adapter"}])
def test_only_plain_models_are_fine_tuned(kind: dict[str, str], trained: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot be fine-tuned; name a plain model"):
        finetune(ModelSpec(str(trained), **kind), "no text", tmp_path / "tuned", tokens=100)


def test_a_missing_accelerate_names_the_extra(text: Path, trained: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    for start in (
        lambda: train_lm(str(text), tmp_path / "model", TINY),
        lambda: finetune(str(trained), str(text), tmp_path / "model", tokens=100),
    ):
        with pytest.raises(MissingExtraError, match=r"pip install 'nearlm\[train\]'"):
            start()
    assert not list(tmp_path.iterdir())
