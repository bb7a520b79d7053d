"""Train a small causal LM from scratch, or fine-tune an existing one, in a job that resumes where it stopped.

Everything is made in `NAME.training` beside the model folder `NAME`, which appears by a rename when all is done.
The windows of every step are a pure function of tokens and options: a resumed training ends in the same weights.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nearlm.base import QUIET, Int32s, Job, Json, Reporter, canonical_hash, files
from nearlm.base.errors import OptionError, StoreError, TextError, check_at_least, import_extra
from nearlm.model import ModelSpec
from nearlm.model.lm import longest_window, tokenizer_fingerprint
from nearlm.model.pretrained import load_pretrained, quiet_transformers
from nearlm.model.weights import hash_weights
from nearlm.paper.lm_fitting import Schedule, TrainingWindows, fit, sound_checkpoint
from nearlm.store import difference
from nearlm.text import (
    Corpus,
    Framing,
    Segment,
    Texts,
    TextSource,
    check_not_empty,
    finished_stream,
    plan_windows,
    read_checksums,
    tokenise,
)

DONE = "training.json"  # of a finished model folder
BOS = "<|bos|>"
EOS = "<|eos|>"
_BYTES = 256  # that every byte-level vocabulary begins with; BOS and EOS follow


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
        check_at_least(1, dim=self.dim, layers=self.layers, heads=self.heads, mlp=self.mlp)
        check_at_least(_BYTES + 2, vocabulary=self.vocabulary)
        if self.dim % (2 * self.heads):
            raise OptionError(f"`dim` is {self.dim}, expected a multiple of twice the {self.heads} heads")


FINETUNING = Schedule(batch_tokens=2048, epochs=1, rate=1e-4)


def train_lm(text: Texts, out: str | Path, options: SmallLM | None = None, *, reporter: Reporter = QUIET) -> Path:
    """Train a tokenizer and a small LM on a text, resume a training that was interrupted, or find it done.

    The tokenizer learns from the whole text, the LM from its first `max_tokens` tokens.
    """
    options = options or SmallLM()
    task = _Task(Path(out), TextSource.of(text), options, reporter)

    def start() -> tuple[Any, Any]:
        tokenizer = task.tokenizer(options.vocabulary)
        return _new_llama(options, tokenizer), tokenizer

    return task.run(task.request(), start)


def finetune(
    model: ModelSpec | str,
    text: Texts,
    out: str | Path,
    options: Schedule = FINETUNING,
    *,
    reporter: Reporter = QUIET,
) -> Path:
    """Train all weights of an existing LM on the first `max_tokens` tokens of a text, resume it, or find it done."""
    spec = ModelSpec(model) if isinstance(model, str) else model
    refused = [name for name in ("quantization", "adapter") if getattr(spec, name)]
    if refused:
        raise OptionError(f"`{refused[0]}={getattr(spec, refused[0])!r}` cannot be fine-tuned; name a plain model")
    source = TextSource.of(text)
    check_training(source.max_tokens)
    original, tokenizer = load_pretrained(replace(spec, dtype="float32"))
    limit = longest_window(original)
    options = replace(options, window=min(options.window, limit or options.window))
    task = _Task(Path(out), source, options, reporter)
    asked = task.request(model=hash_weights(original), tokenizer=tokenizer_fingerprint(tokenizer))
    return task.run(asked, lambda: (original.requires_grad_(True), tokenizer))


class _Task:
    """One training: the folder that it makes, its text, and how it is trained."""

    def __init__(self, out: Path, source: TextSource, schedule: Schedule, reporter: Reporter):
        check_training(source.max_tokens)
        self.out = out
        self.schedule = schedule
        self.reporter = reporter
        self.max_tokens = source.max_tokens
        self.corpus = source.open()
        if not self.corpus.repeatable:
            raise TextError(f"{', '.join(source.text)} can be read only once, training needs it twice; use a file")
        self.work = out.with_name(f"{out.name}.training")
        self.job = Job(self.work, "train")

    def run(self, asked: Json, start: Callable[[], tuple[Any, Any]]) -> Path:
        """Train the model and tokenizer to start from, unless that has been done, and return their folder."""
        with self.lock():
            if not self.is_finished(asked):
                self.begin(asked)
                with self.machine():
                    self.train(*start())
        return self.out

    def request(self, **more: Any) -> Json:
        """Say all that the model depends on, apart from the text itself and the machine."""
        text = {"texts": self.corpus.labels, "field": self.corpus.field, "glob": self.corpus.glob}
        return {**more, **asdict(self.schedule), "max_tokens": self.max_tokens, **text}

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only one who writes; afterwards, clear up what a finished training has left."""
        if (self.out / DONE).exists() and not self.job.folder.exists():
            yield
            return
        self._refuse_foreign()
        self.job.check_folder()
        self.work.mkdir(parents=True, exist_ok=True)
        with files.lock(self.work):
            yield
            if (self.out / DONE).exists():
                self.job.remove_folder()

    def is_finished(self, asked: Json) -> bool:
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
        """Note the plan, or resume the same one; a plan that has led to no checkpoint yet may be changed."""
        threads = self.job.plan()["threads"] if self.job.started else torch.get_num_threads()
        plan = {**asked, "torch": torch.__version__, "threads": threads}
        if self.job.started and self.job.plan() == plan:
            return
        if self.job.started and sound_checkpoint(self.job.folder):
            old, new = difference(self.job.plan(), plan)
            raise StoreError(
                f"{self.work} holds an unfinished training with {old}, expected {new}; resume that, or remove it"
            )
        self.job.begin({**plan, "threads": torch.get_num_threads()})

    @contextlib.contextmanager
    def machine(self) -> Iterator[None]:
        """Compute with as many threads as the training began with, and leave the caller's state as it was."""
        before = torch.get_num_threads()
        plain = random.getstate()
        arrays = np.random.get_state()
        torch.set_num_threads(self.job.plan()["threads"])
        try:
            with quiet_transformers(), torch.random.fork_rng():
                yield
        finally:
            torch.set_num_threads(before)
            random.setstate(plain)
            np.random.set_state(arrays)

    def tokenizer(self, vocabulary: int) -> Any:
        """Train a tokenizer on the whole text, or take the one that was."""
        from transformers import AutoTokenizer

        folder = self.job.folder / "tokenizer"
        noted = self.job.state("tokenizer")
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
        examples = TrainingWindows(tokens, windows, self.schedule)
        cached = model.config.use_cache
        losses = fit(model, examples, self.schedule, self.job.folder, self.reporter)
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

    def _read(self, tokenizer: Any) -> tuple[Int32s, Json]:
        """Tokenise the text to disk, once; return the stream, and what to compare the text with later."""
        segment = Segment(self.job.folder, 0)
        stream = finished_stream(self.job)
        framing = Framing.of(tokenizer, "eos")
        if stream is None:
            self.job.note("tokens", {})
            stream = tokenise(self.corpus, tokenizer, framing, segment, self.job, self.max_tokens, self.reporter)
            stream.warn(self.reporter)
        text = {"sha256": stream.sha256, "read": stream.read if stream.tokens == self.max_tokens else 0}
        self._check_text(text, self.work)
        check_not_empty(stream, self.corpus.texts)
        tokens, _ = segment.arrays(stream.tokens, stream.documents)
        tokens.check()
        return tokens.open(), text

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
            old, new = (canonical_hash(sums)[:12] for sums in (noted["sha256"], now))
            raise StoreError(f"{folder} was made from a text {old}, which is {new} now; restore the text or remove it")

    def _refuse_foreign(self) -> None:
        if self.out.exists() and not self.out.is_dir():
            raise StoreError(f"{self.out} is a file, expected a folder to put the model in; choose another")
        strangers = sorted(path.name for path in self.out.iterdir()) if self.out.is_dir() else []
        if strangers and DONE not in strangers:
            raise StoreError(f"{self.out} holds {strangers[0]!r} but no {DONE}; choose an empty or new folder")


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
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
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
    bpe.post_processor = processors.TemplateProcessing(f"{BOS} $A", special_tokens=[(BOS, bpe.token_to_id(BOS))])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=BOS, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def check_training(tokens: int | None) -> None:
    """Refuse, before the work, what cannot be trained on, or without."""
    import_extra("accelerate", "training a model", "train")
    if tokens is not None and tokens < 2:
        raise OptionError(f"the number of tokens is {tokens}, expected at least 2")
