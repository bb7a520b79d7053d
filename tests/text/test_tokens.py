import io
import json
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from documents import NoSpecials

from nearlm.base import files, jobs
from nearlm.base.errors import StoreError, TextError
from nearlm.base.progress import Reporter
from nearlm.text import pieces
from nearlm.text import tokens as tokenise
from nearlm.text.corpus import Corpus
from nearlm.text.tokens import (
    Framing,
    Segment,
    TokenStream,
    check_not_empty,
    document_bounds,
    encode,
    finished_stream,
    read_checksums,
)
from tiny import make_text

QUIET = Reporter(quiet=True)


class Stopped(BaseException):
    """Stands for a kill."""


def run(out: Path, corpus: Corpus, tokenizer, max_tokens: int | None = None, separator: str = "eos") -> TokenStream:
    out.mkdir(exist_ok=True)
    job = jobs.Job(out, "build")
    if not job.started:
        job.begin({})
    framing = Framing.of(tokenizer, separator)
    return tokenise.tokenise(corpus, tokenizer, framing, Segment(out, 0), job, max_tokens, QUIET)


def written(out: Path) -> tuple[list[int], list[list[int]], list[str]]:
    segment = Segment(out, 0)
    sources = json.loads(segment.sources.read_text())["sources"]
    return np.load(segment.tokens).tolist(), np.load(segment.docs).tolist(), sources


def noted(out: Path) -> files.Json:
    return jobs.Job(out, "build").state("tokens")


def contents(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in Segment(out, 0).files]


def oracle(tokenizer, texts: list[str]) -> list[int]:
    """Encode each text at once, between <s> and </s>."""
    return [i for text in texts for i in (0, *tokenizer(text, add_special_tokens=False)["input_ids"], 1)]


@pytest.mark.parametrize("separator", ["eos", "none", "\n\n"])
@pytest.mark.parametrize("specials", [True, False])
def test_every_document_stands_between_bos_and_separator(tmp_path, text_folder, tokenizer, separator, specials):
    used = tokenizer if specials else NoSpecials(tokenizer)
    run(tmp_path / "out", Corpus([str(text_folder)]), used, separator=separator)
    tokens, docs, _ = written(tmp_path / "out")
    bounds = document_bounds(np.array(docs), len(tokens)).tolist()
    framing = Framing.of(used, separator)
    for number, path in enumerate(sorted(text_folder.iterdir())):
        document = tokens[bounds[number] : bounds[number + 1]]
        assert document == [*framing.bos, *encode(tokenizer, [path.read_text()])[0], *framing.separator]


# What is written


def test_documents_and_sources_say_where_everything_is(tmp_path, tokenizer):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("the licence")
    (folder / "b.jsonl").write_text('{"text": "a person"}\n\n{"text": " \\n"}\n{"text": "free of charge"}\n')
    (folder / "c.txt").write_text("")
    (folder / "d.txt").write_text("software")
    state = run(tmp_path / "out", Corpus([str(folder), str(folder / "a.txt")]), tokenizer)
    tokens, docs, sources = written(tmp_path / "out")
    texts = ["the licence", "a person", "free of charge", "software", "the licence"]
    assert tokens == oracle(tokenizer, texts)
    assert sources == ["in/a.txt", "in/b.jsonl", "in/d.txt", "a.txt"]
    starts = [len(oracle(tokenizer, texts[:n])) for n in range(5)]
    assert docs == [[s, *rest] for s, rest in zip(starts, [(0, -1), (1, 1), (1, 4), (2, -1), (3, -1)], strict=True)]
    assert (state.tokens, state.documents, state.read) == (len(tokens), 5, 7)
    assert state.problems == {"empty document": 2}
    assert state.examples == {"empty document": "in/b.jsonl:3"}
    assert finished_stream(jobs.Job(tmp_path / "out", "build")) == state


def test_files_are_plain_npy_of_the_stated_types(tmp_path, text_folder, tokenizer):
    run(tmp_path / "out", Corpus([str(text_folder)]), tokenizer)
    segment = Segment(tmp_path / "out", 0)
    tokens, docs = np.load(segment.tokens, mmap_mode="r"), np.load(segment.docs, mmap_mode="r")
    assert (tokens.dtype, docs.dtype) == (np.int32, np.int64)
    assert docs.shape == (5, 3)
    assert segment.tokens.stat().st_size == files.NPY_HEADER + 4 * len(tokens)


def test_a_long_document_in_pieces_is_one_document(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE", 300)
    monkeypatch.setattr(tokenise, "_BATCH_CHARACTERS", 700)
    text = make_text(1000)
    run(tmp_path / "out", Corpus(["-"], stdin=io.BytesIO(text.encode())), tokenizer)
    assert written(tmp_path / "out") == (oracle(tokenizer, [text]), [[0, 0, -1]], ["stdin"])


@pytest.mark.parametrize("most", [2, 3, 50, 311, 312, 313, 10**30])
def test_max_tokens_cuts_exactly(tmp_path, text_folder, tokenizer, most):
    run(tmp_path / "whole", Corpus([str(text_folder)]), tokenizer)
    state = run(tmp_path / "cut", Corpus([str(text_folder)]), tokenizer, max_tokens=most)
    whole, docs, sources = written(tmp_path / "whole")
    cut = written(tmp_path / "cut")
    kept = [row for row in docs if row[0] < most]
    assert cut == (whole[:most], kept, sources[: len(kept)])
    assert state.read == len(kept)
    assert state.sha256 == read_checksums(Corpus([str(text_folder)]), len(kept))


def test_max_tokens_hides_problems_of_documents_that_were_not_used(tmp_path, text_folder, tokenizer):
    (text_folder / "zzz.txt").write_text("")
    assert run(tmp_path / "a", Corpus([str(text_folder)]), tokenizer, max_tokens=50).problems == {}
    assert run(tmp_path / "b", Corpus([str(text_folder)]), tokenizer).problems == {"empty document": 1}


def test_a_text_of_no_two_tokens_is_refused():
    with pytest.raises(TextError, match=r"a\.txt.*0 tokens.*2 × empty document"):
        check_not_empty(TokenStream(0, 0, 2, [], {"empty document": 2}, {}), ["a.txt"])
    check_not_empty(TokenStream(2, 1, 1, [], {}, {}), ["a.txt"])


# Going on after a stop


@pytest.fixture
def small_steps(monkeypatch):
    """A checkpoint after every few hundred characters, also inside documents."""
    monkeypatch.setattr(tokenise, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(tokenise, "_BATCH_CHARACTERS", 400)
    monkeypatch.setattr(pieces, "PIECE", 300)

    class Clock:
        def monotonic(self) -> float:
            return 0.0

    monkeypatch.setattr(tokenise, "time", Clock())


class StoppingTokenizer(NoSpecials):
    """Stops the program at the nth batch."""

    bos_token_id, eos_token_id = 0, 1

    def __init__(self, tokenizer, batches: int):
        super().__init__(tokenizer)
        self.left = batches

    def __call__(self, texts, **options):
        self.left -= isinstance(texts, list)
        if self.left < 0:
            raise Stopped
        return self._tokenizer(texts, **options)


def stop_after(out: Path, corpus: Corpus, tokenizer, batches: int, **options) -> bool:
    """Run until the nth batch; tell whether there was one more."""
    try:
        run(out, corpus, StoppingTokenizer(tokenizer, batches), **options)
    except Stopped:
        return True
    return False


@pytest.mark.parametrize("most", [None, 700])
def test_a_run_that_is_stopped_anywhere_ends_with_the_same_bytes(tmp_path, text_folder, tokenizer, small_steps, most):
    corpus = Corpus([str(text_folder)])
    expected_state = run(tmp_path / "whole", corpus, tokenizer, max_tokens=most)
    expected = contents(tmp_path / "whole")
    batches = 0
    while stop_after(tmp_path / f"out{batches}", corpus, tokenizer, batches, max_tokens=most):
        out = tmp_path / f"out{batches}"
        for path in Segment(out, 0).files[:2]:  # what was written after the checkpoint
            if path.exists():
                with open(path, "ab") as file:
                    file.write(b"unfinished")
        counting = StoppingTokenizer(tokenizer, 10**6)
        assert run(out, Corpus([str(text_folder)]), counting, max_tokens=most) == expected_state
        assert noted(out) == noted(tmp_path / "whole")
        assert contents(out) == expected
        # the batches before the stop are not encoded again
        assert 10**6 - counting.left + batches == number_of_batches(tmp_path, corpus, tokenizer, most)
        batches += 1
    assert batches >= 3


def number_of_batches(tmp_path: Path, corpus: Corpus, tokenizer, most: int | None) -> int:
    counting = StoppingTokenizer(tokenizer, 10**6)
    out = tmp_path / f"count{len(list(tmp_path.iterdir()))}"
    run(out, corpus, counting, max_tokens=most)
    return 10**6 - counting.left


def test_a_run_that_is_stopped_again_and_again_ends_with_the_same_bytes(tmp_path, text_folder, tokenizer, small_steps):
    corpus = Corpus([str(text_folder)])
    run(tmp_path / "whole", corpus, tokenizer)
    stops = 0
    while stop_after(tmp_path / "out", corpus, tokenizer, 1):
        stops += 1
    assert stops >= 5
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_files_lost_since_the_checkpoint_are_written_again(tmp_path, text_folder, tokenizer, small_steps):
    corpus = Corpus([str(text_folder)])
    run(tmp_path / "whole", corpus, tokenizer)
    for number, damage in enumerate((Path.unlink, lambda path: files.truncate(path, 130))):
        out = tmp_path / f"out{number}"
        assert stop_after(out, corpus, tokenizer, 4)
        damage(Segment(out, 0).tokens)
        run(out, corpus, tokenizer)
        assert contents(out) == contents(tmp_path / "whole")


def change_text(path: Path) -> None:
    path.write_text(path.read_text().replace("the", "THE", 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: change_text(folder / "doc0.txt"),
        lambda folder: (folder / "doc0.txt").unlink(),
        lambda folder: (folder / "doc0.txt").rename(folder / "aaa.txt"),
        lambda folder: (folder / "aaa.txt").write_text("new"),
        lambda folder: [(folder / f"doc{n}.txt").unlink() for n in (1, 2, 3, 4)],
    ],
)
def test_text_that_was_read_already_may_not_change(tmp_path, text_folder, tokenizer, small_steps, change):
    assert stop_after(tmp_path / "out", Corpus([str(text_folder)]), tokenizer, 5)
    assert noted(tmp_path / "out")["read"] > 1
    change(text_folder)
    with pytest.raises(StoreError, match=r"changed.*`restart=True`"):
        run(tmp_path / "out", Corpus([str(text_folder)]), tokenizer)


def test_text_that_was_not_read_yet_may_change(tmp_path, text_folder, tokenizer, small_steps):
    assert stop_after(tmp_path / "out", Corpus([str(text_folder)]), tokenizer, 2)
    change_text(text_folder / "doc4.txt")
    (text_folder / "doc5.txt").write_text("one more")
    run(tmp_path / "out", Corpus([str(text_folder)]), tokenizer)
    run(tmp_path / "whole", Corpus([str(text_folder)]), tokenizer)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("most", "name", "refused"),
    [(None, "doc4.txt", True), (None, "doc9.txt", True), (100, "doc0.txt", True), (100, "doc9.txt", False)],
)
def test_a_finished_text_may_not_change_where_it_was_used(tmp_path, text_folder, tokenizer, most, name, refused):
    first = run(tmp_path / "out", Corpus([str(text_folder)]), tokenizer, max_tokens=most)
    assert run(tmp_path / "out", Corpus([str(text_folder)]), unused(tokenizer), max_tokens=most) == first
    (text_folder / name).write_text("something else")
    again = Corpus([str(text_folder)])
    if refused:
        with pytest.raises(StoreError, match="changed"):
            run(tmp_path / "out", again, tokenizer, max_tokens=most)
    else:
        assert run(tmp_path / "out", again, tokenizer, max_tokens=most) == first


def unused(tokenizer):
    """A tokenizer that may not be asked to encode a text."""
    return StoppingTokenizer(tokenizer, 0)


def piped(text: str) -> Corpus:
    return Corpus(["-"], stdin=io.BytesIO(text.encode()))


def test_stdin_is_read_from_its_beginning_again_unless_it_was_done(tmp_path, tokenizer, small_steps):
    text = make_text(600)
    assert stop_after(tmp_path / "out", piped(make_text(600, seed=1)), tokenizer, 4)
    run(tmp_path / "out", piped(text), tokenizer)
    run(tmp_path / "whole", piped(text), tokenizer)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    state = run(tmp_path / "out", piped(""), tokenizer)
    assert state.tokens == len(written(tmp_path / "whole")[0])


def test_memory_does_not_grow_with_the_corpus(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenise, "_BATCH_CHARACTERS", 1 << 14)
    monkeypatch.setattr(pieces, "PIECE", 1 << 13)
    monkeypatch.setattr(pieces, "BLOCK", 1 << 13)
    peaks = []
    for words in (10_000, 100_000):
        path = tmp_path / f"{words}.txt"
        path.write_text(make_text(words))
        corpus = Corpus([str(path)])
        tracemalloc.start()
        run(tmp_path / str(words), corpus, tokenizer)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0] + 100_000


# What was skipped


class Heard(Reporter):
    """Keeps what is said."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def warnings_of(stream: TokenStream) -> list[str]:
    heard = Heard()
    stream.warn(heard)
    return heard.lines


def test_skipped_files_are_one_warning_the_most_frequent_kinds_first(tmp_path, text_folder, tokenizer):
    folder = tmp_path / "in"
    shutil.copytree(text_folder, folder)
    for name in ("a.pdf", "b.pdf", "c.ipynb", "Makefile"):
        (folder / name).touch()
    stream = run(tmp_path / "out", Corpus([str(folder)], strict=True), tokenizer)
    expected = "warning: skipped 4 files of other kinds (2 × .pdf, 1 × .ipynb, 1 × no suffix); choose files with `glob`"
    assert warnings_of(stream) == [expected]
    for number in range(9):
        (folder / f"x.kind{number}").touch()
    assert warnings_of(run(tmp_path / "out", Corpus([str(folder)]), tokenizer)) == [expected]  # it was finished
    more = warnings_of(run(tmp_path / "anew", Corpus([str(folder)]), tokenizer))
    assert more[0].startswith("warning: skipped 13 files") and ", …);" in more[0]
    assert contents(tmp_path / "out") == contents(tmp_path / "anew")
    assert noted(tmp_path / "out")["sha256"] == noted(tmp_path / "anew")["sha256"]


def test_a_resumed_stream_warns_as_it_would_have(tmp_path, text_folder, tokenizer, monkeypatch):
    folder = tmp_path / "in"
    shutil.copytree(text_folder, folder)
    (folder / "a.pdf").touch()
    monkeypatch.setattr(tokenise, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(tokenise, "_BATCH_CHARACTERS", 1)
    encoded = []

    def stop(*arguments):
        encoded.append(arguments)
        if len(encoded) > 2:
            raise Stopped
        return encode(*arguments)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(tokenise, "encode", stop)
        run(tmp_path / "out", Corpus([str(folder)]), tokenizer)
    assert noted(tmp_path / "out")["pieces"]
    (folder / "keys-00000.npy").touch()  # as a store's own files in its text's folder
    stream = run(tmp_path / "out", Corpus([str(folder)]), tokenizer)
    assert warnings_of(stream) == ["warning: skipped 1 file of other kinds (1 × .pdf); choose files with `glob`"]
