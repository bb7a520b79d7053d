"""Train a small causal LM from scratch, or fine-tune an existing one, in a job that goes on where it stopped.

Everything is made in `NAME.training` beside the model folder `NAME`, which appears by a rename when all is done.
The windows of every step are a pure function of tokens and options: a resumed training ends in the same weights.
"""

import contextlib
import hashlib
import math
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from nearlm.base import (
    Advance,
    ArrayFile,
    Job,
    Json,
    MissingExtraError,
    ModelError,
    OptionError,
    Reporter,
    StoreError,
    TextError,
    duration,
    files,
    size,
)
from nearlm.model import ModelSpec, choose_device, hushed, load_pretrained, longest_window, tokenizer_fingerprint
from nearlm.store import difference
from nearlm.text import Corpus, Framing, Ints, Segment, Windows, check_not_empty, plan_windows, read_checksums, tokenise

DONE = "training.json"  # of a finished model folder
CHECKPOINT_SECONDS = 120.0
BOS, EOS = "<|bos|>", "<|eos|>"
_BYTES = 256  # that every byte-level vocabulary begins with
_LOGIT_BYTES = 64 << 20  # of logits at a time; a larger batch is taken in parts
_STAMP = "sound.json"  # of a checkpoint: written last
_KEPT = 2  # checkpoints
_MEASURED_SECONDS = 10.0
_CHEAP_SECONDS = 6.0  # a checkpoint that takes longer is made less often
_PROGRAM_BYTES = 500 << 20  # of memory for torch and transformers themselves
_IGNORED = -100  # the label of padding


@dataclass(frozen=True)
class Schedule:
    """How an LM is trained: AdamW, windows in random order, a cosine schedule after a warm-up (a share of steps)."""

    window: int = 512
    batch_tokens: int = 4096
    epochs: int = 2
    rate: float = 2e-3
    warmup: float = 0.05
    weight_decay: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("window", 2), ("batch_tokens", 1), ("epochs", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise OptionError(f"{name} is {getattr(self, name)}, expected at least {least}")
        if not 0 < self.rate < math.inf:
            raise OptionError(f"rate is {self.rate}, expected a number above 0")
        if not 0 <= self.warmup < 1:
            raise OptionError(f"warmup is {self.warmup}, expected a share of the steps: 0 or more, below 1")


@dataclass(frozen=True)
class SmallLM(Schedule):
    """A Llama to train from scratch: 5.3 million weights, input and output embeddings tied, a tokenizer of its own."""

    vocabulary: int = 8192
    dim: int = 256
    layers: int = 4
    heads: int = 4
    mlp: int = 688

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dim", "layers", "heads", "mlp"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.vocabulary < _BYTES + 2:
            raise OptionError(f"vocabulary is {self.vocabulary}, expected at least {_BYTES + 2}: bytes, BOS, EOS")
        if self.dim % (2 * self.heads):
            raise OptionError(f"dim is {self.dim}, expected a multiple of twice the {self.heads} heads")


FINETUNING = Schedule(batch_tokens=2048, epochs=1, rate=1e-4)


def train_lm(
    texts: str | Sequence[str],
    out: str | Path,
    options: SmallLM | None = None,
    *,
    max_tokens: int | None = None,
    reporter: Reporter | None = None,
    **corpus_options: Any,
) -> Path:
    """Train a tokenizer and a small LM on a text, go on with a training that was interrupted, or find it done.

    The tokenizer learns from the whole text, the LM from its first `max_tokens` tokens.
    """
    options = options or SmallLM()
    task = _Task(Path(out), _corpus(texts, corpus_options), options, max_tokens, reporter)
    asked = task.asked()
    with task.locked():
        if not task.finished(asked):
            task.begin(asked)
            with task.machine():
                tokenizer = task.tokenizer(options.vocabulary)
                task.train(_new_llama(options, tokenizer), tokenizer)
    return task.out


def finetune(
    model: ModelSpec | str,
    texts: str | Sequence[str],
    out: str | Path,
    *,
    tokens: int,
    options: Schedule = FINETUNING,
    reporter: Reporter | None = None,
    **corpus_options: Any,
) -> Path:
    """Train all weights of an existing LM on the first `tokens` tokens of a text, go on with it, or find it done."""
    spec = ModelSpec(model) if isinstance(model, str) else model
    refused = [name for name in ("quantization", "adapter") if getattr(spec, name)]
    if refused:
        raise OptionError(f"--{refused[0]} {getattr(spec, refused[0])} cannot be fine-tuned; name a plain model")
    _need_accelerate()
    original, tokenizer = load_pretrained(replace(spec, dtype="float32"))
    limit = longest_window(original)
    options = replace(options, window=min(options.window, limit or options.window))
    task = _Task(Path(out), _corpus(texts, corpus_options), options, tokens, reporter)
    asked = task.asked(model=_weights_hash(original), tokenizer=tokenizer_fingerprint(tokenizer))
    with task.locked():
        if not task.finished(asked):
            task.begin(asked)
            with task.machine():
                task.train(original.requires_grad_(True), tokenizer)
    return task.out


class _Task:
    """One training: the folder that it makes, its text, and how it is trained."""

    def __init__(
        self, out: Path, corpus: Corpus, schedule: Schedule, max_tokens: int | None, reporter: Reporter | None
    ):
        check_training(max_tokens)
        if not corpus.repeatable:
            raise TextError(f"{', '.join(corpus.texts)} can be read only once, training needs it twice; use a file")
        self.out, self.corpus, self.schedule, self.max_tokens = out, corpus, schedule, max_tokens
        self.reporter = reporter or Reporter(quiet=True)
        self.work = out.with_name(f"{out.name}.training")
        self.job = Job(self.work, "train")

    def asked(self, **more: Any) -> Json:
        """Say all that the model depends on, apart from the text itself and the machine."""
        text = {"texts": self.corpus.labels, "field": self.corpus.field, "glob": self.corpus.glob}
        return {**more, **asdict(self.schedule), "max_tokens": self.max_tokens, **text}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one who writes; afterwards, clear up what a finished training has left."""
        if (self.out / DONE).exists() and not self.work.exists():
            yield
            return
        self._refuse_foreign()
        self.work.mkdir(parents=True, exist_ok=True)
        with files.lock(self.work):
            yield
            if (self.out / DONE).exists():
                files.remove(self.work)

    def finished(self, asked: Json) -> bool:
        """Tell whether this very training was carried out; refuse a folder that holds another."""
        if not (self.out / DONE).exists():
            return False
        done = files.read_stamped(self.out / DONE)
        if done["asked"] != asked:
            old, new = difference(done["asked"], asked)
            raise StoreError(f"{self.out} was trained with {old}, expected {new}; choose another folder or remove it")
        self._check_text(done["text"], self.out)
        self.reporter.say(f"{self.out} is trained already: loss {done['loss']:.3f}, {done['tokens_seen']:,} tokens")
        return True

    def begin(self, asked: Json) -> None:
        """Note the plan, or go on with the same one; a plan that has led to no checkpoint yet may be changed."""
        threads = self.job.plan()["threads"] if self.job.started else torch.get_num_threads()
        plan = {**asked, "torch": torch.__version__, "threads": threads}
        if self.job.started and self.job.plan() == plan:
            return
        if self.job.started and _sound_checkpoint(self.job.folder):
            old, new = difference(self.job.plan(), plan)
            raise StoreError(
                f"{self.work} holds an unfinished training with {old}, expected {new}; go on with that, or remove it"
            )
        self.job.begin({**plan, "threads": torch.get_num_threads()})

    @contextlib.contextmanager
    def machine(self) -> Iterator[None]:
        """Compute with as many threads as the training began with, and leave the caller's state as it was."""
        before, plain, arrays = torch.get_num_threads(), random.getstate(), np.random.get_state()
        torch.set_num_threads(self.job.plan()["threads"])
        try:
            with hushed(), torch.random.fork_rng():
                yield
        finally:
            torch.set_num_threads(before)
            random.setstate(plain)
            np.random.set_state(arrays)

    def tokenizer(self, vocabulary: int) -> Any:
        """Train a tokenizer on the whole text, or take the one that was."""
        from transformers import AutoTokenizer

        folder, noted = self.job.folder / "tokenizer", self.job.state("tokenizer")
        if not noted:
            self.reporter.say(f"training a tokenizer of {vocabulary:,} tokens")
            _new_tokenizer(self.corpus, vocabulary).save_pretrained(folder)
            self.job.note("tokenizer", {"sha256": self.corpus.checksums(), "read": 0})
        else:
            self._check_text(noted, self.work)
        return AutoTokenizer.from_pretrained(folder)

    def train(self, model: Any, tokenizer: Any) -> None:
        """Train on the text and put the finished folder in its place."""
        tokens, text = self._read(tokenizer)
        windows = plan_windows(np.array([0, len(tokens)]), self.schedule.window - 1, self.schedule.window - 1)
        examples = _Examples(tokens, windows, self.schedule)
        cached = model.config.use_cache
        losses = _fit(model, examples, self.schedule, self.job.folder, self.reporter)
        model.config.use_cache = cached  # the trainer turns it off
        last = losses[-max(1, len(losses) // 10) :]
        described = {
            "asked": {name: value for name, value in self.job.plan().items() if name not in ("torch", "threads")},
            "text": self.job.state("tokenizer") or text,
            "tokens": len(tokens),
            "tokens_seen": examples.predictions,
            "steps": len(losses),
            "first_loss": losses[0],
            "loss": float(np.mean(last)),
        }
        self._place(model, tokenizer, described)
        self.reporter.say(f"{self.out}: loss {described['loss']:.3f} after {examples.predictions:,} tokens")

    def _read(self, tokenizer: Any) -> tuple[npt.NDArray[np.int32], Json]:
        """Tokenise the text to disk, once; return the stream, and what to compare the text with later."""
        segment, state = Segment(self.job.folder, 0), self.job.state("tokens")
        framing = Framing.of(tokenizer, "eos")
        if not state.get("done"):
            self.job.note("tokens", {})
            state = tokenise(self.corpus, tokenizer, framing, segment, self.job, self.max_tokens, self.reporter)
            for problem, count in state["problems"].items():
                self.reporter.say(f"warning: {count:,} × {problem}, e.g. {state['examples'][problem]}")
        text = {"sha256": state["sha256"], "read": state["read"] if state["tokens"] == self.max_tokens else 0}
        self._check_text(text, self.work)
        check_not_empty(state, self.corpus.texts)
        stream = ArrayFile(segment.tokens, np.dtype("int32"), (state["tokens"],))
        stream.check()
        return stream.open(), text

    def _place(self, model: Any, tokenizer: Any, described: Json) -> None:
        """Save the model in the job's folder, and rename that into place."""
        folder = self.job.folder / "model"
        files.remove(folder)
        model.to("cpu").eval().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        files.write_stamped(folder / DONE, described)
        for path in folder.iterdir():
            files.sync_file(path)
        files.replace(folder, self.out)

    def _check_text(self, noted: Json, folder: Path) -> None:
        now = read_checksums(self.corpus, noted["read"])
        if now != noted["sha256"]:
            old, new = (files.canonical_hash(sums)[:12] for sums in (noted["sha256"], now))
            raise StoreError(f"{folder} was made from a text {old}, which is {new} now; restore the text or remove it")

    def _refuse_foreign(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise StoreError(f"{self.out} is a file, expected a folder to put the model in; choose another")
        strangers = sorted(path.name for path in self.out.iterdir()) if self.out.is_dir() else []
        if strangers and DONE not in strangers:
            raise StoreError(f"{self.out} holds {strangers[0]!r} but no {DONE}; choose an empty or new folder")


class _Examples(Dataset[dict[str, Tensor]]):
    """The windows of all epochs, each epoch in an order of its own; a window overlaps the next by one token."""

    def __init__(self, tokens: npt.NDArray[np.int32], windows: Windows, schedule: Schedule):
        self._tokens, self._windows, self._length = tokens, windows, int(windows.inputs.max()) + 1
        orders = (np.random.default_rng((schedule.seed, epoch)) for epoch in range(schedule.epochs))
        self._order: Ints = np.concatenate([order.permutation(len(windows)) for order in orders])
        self.predictions = windows.records * schedule.epochs

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        row = self._order[number]
        start, count = self._windows.start[row], self._windows.inputs[row] + 1
        ids, labels = np.zeros(self._length, np.int64), np.full(self._length, _IGNORED, np.int64)
        ids[:count] = labels[:count] = self._tokens[start : start + count]
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}

    def predicted(self, rows: slice) -> int:
        """Return how many tokens some examples predict."""
        return int(self._windows.inputs[self._order[rows]].sum())


def _fit(model: Any, examples: _Examples, schedule: Schedule, folder: Path, reporter: Reporter) -> list[float]:
    """Train with transformers' `Trainer`, from the newest sound checkpoint on; return the loss of every step."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    batch = max(1, schedule.batch_tokens // schedule.window)
    rows, steps = _rows_at_once(model, batch, schedule.window), -(-len(examples) // batch)
    gpu = choose_device("auto").type == "cuda"
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=batch // rows,
        num_train_epochs=1,
        learning_rate=schedule.rate,
        lr_scheduler_type="cosine",
        warmup_steps=round(schedule.warmup * steps),
        weight_decay=schedule.weight_decay,
        adam_beta2=0.95,
        seed=schedule.seed,
        use_cpu=not gpu,
        bf16=gpu and torch.cuda.is_bf16_supported(),
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # a batch is the same on every machine
    checkpoint = _sound_checkpoint(folder)
    done = int(checkpoint.name.partition("-")[2]) if checkpoint else 0
    _say_needs(model, examples, steps - done, rows * schedule.window, folder, reporter)
    ahead = examples.predicted(slice(0, done * batch))
    with reporter.bar("training", examples.predictions, "tokens", ahead) as advance:
        watch = _watch(examples, batch, steps, advance, reporter)
        trainer = Trainer(model, arguments, train_dataset=examples, callbacks=[watch])
        trainer.remove_callback(PrinterCallback)
        # The order is the examples' own, so that it does not hang on a state of chance.
        trainer.get_train_dataloader = lambda: trainer.accelerator.prepare(DataLoader(examples, rows))
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def _watch(examples: _Examples, batch: int, steps: int, advance: Advance, reporter: Reporter) -> Any:
    """Return the trainer's callback: progress, a forecast after the first steps, and checkpoints now and then."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.saved, self.pause = time.monotonic(), CHECKPOINT_SECONDS
            self.began, self.first, self.told = 0.0, 0, False

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            step, now = state.global_step, time.monotonic()
            advance(examples.predicted(slice((step - 1) * batch, step * batch)))
            if not self.first:  # the first step is slow and does not count
                self.began, self.first = now, step
            elif not self.told and now - self.began > _MEASURED_SECONDS:
                self.told = True
                left = (steps - step) * (now - self.began) / (step - self.first)
                reporter.say(f"training takes about {duration(left)} from here on")
            if now - self.saved >= self.pause and step < steps:
                self.saved, control.should_save = now, True

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **more: Any) -> None:
            if not math.isfinite(logs.get("loss", 0.0)):
                raise ModelError(f"the loss is {logs['loss']} at step {state.global_step}; choose a lower rate")

        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            _stamp(Path(args.output_dir) / f"checkpoint-{state.global_step}")
            cost = time.monotonic() - self.saved
            self.saved, self.pause = time.monotonic(), CHECKPOINT_SECONDS * max(1.0, cost / _CHEAP_SECONDS)

    return Watch()


def _stamp(checkpoint: Path) -> None:
    """Put a checkpoint on the disk, note its files' checksums, and let old ones go."""
    names = sorted(path.name for path in checkpoint.iterdir() if path.name != _STAMP)
    for name in names:
        files.sync_file(checkpoint / name)
    files.write_stamped(checkpoint / _STAMP, {"files": {name: files.checksum(checkpoint / name) for name in names}})
    for old in _checkpoints(checkpoint.parent)[_KEPT:]:
        files.remove(old)


def _checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints in a folder, the newest first."""
    return sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.partition("-")[2]))


def _sound_checkpoint(folder: Path) -> Path | None:
    """Return a job's newest checkpoint that is whole, and remove those that are not."""
    for checkpoint in _checkpoints(folder / "checkpoints"):
        with contextlib.suppress(StoreError, OSError):
            listed = files.read_stamped(checkpoint / _STAMP)["files"]
            if all(files.checksum(checkpoint / name) == sha256 for name, sha256 in listed.items()):
                return checkpoint
        files.remove(checkpoint)
    return None


def _rows_at_once(model: Any, batch: int, window: int) -> int:
    """Return how many rows of a batch are computed together: a divisor of it whose logits stay small."""
    most = max(1, _LOGIT_BYTES // (4 * window * model.config.get_text_config().vocab_size))
    return max(rows for rows in range(1, batch + 1) if batch % rows == 0 and rows <= most)


def _say_needs(model: Any, examples: _Examples, steps: int, at_once: int, folder: Path, reporter: Reporter) -> None:
    """Say what a training needs, and refuse a disk that is too small for its checkpoints."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    config = model.config.get_text_config()
    disk = (12 * (_KEPT + 1) + 4) * weights  # weights and two moments a checkpoint; the model
    inside = 20 * config.hidden_size * config.num_hidden_layers + 3 * config.vocab_size
    memory = _PROGRAM_BYTES + 16 * weights + 4 * at_once * inside
    reporter.say(
        f"training {weights / 1e6:,.1f} million weights in {steps:,} steps, {examples.predictions:,} tokens in all; "
        f"needs about {size(memory)} of memory and {size(disk)} of disk"
    )
    free = shutil.disk_usage(folder).free
    if free < disk:
        raise StoreError(f"{folder} has {size(free)} of free disk, training needs {size(disk)}; free some and repeat")


def _new_llama(options: SmallLM, tokenizer: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(options.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.dim,
        intermediate_size=options.mlp,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        max_position_embeddings=options.window,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config).float()  # type: ignore[no-any-return]


def _new_tokenizer(corpus: Corpus, vocabulary: int) -> Any:
    """Train a byte-level BPE tokenizer on a corpus; any text comes back from its tokens as it was."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((piece for document in corpus.documents() for piece in document.pieces), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=BOS, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def _weights_hash(model: nn.Module) -> str:
    """Return the sha256 of a model's weights, with their names."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.float().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _corpus(texts: str | Sequence[str], options: Json) -> Corpus:
    return Corpus([texts] if isinstance(texts, str) else texts, **options)


def check_training(tokens: int | None) -> None:
    """Refuse, before the work, what cannot be trained on, or without."""
    _need_accelerate()
    if tokens is not None and tokens < 2:
        raise OptionError(f"the number of tokens is {tokens}, expected at least 2")


def _need_accelerate() -> None:
    try:
        import accelerate  # noqa: F401
    except ImportError:
        raise MissingExtraError("training a model", "train") from None
