"""A text, tokenised on disk and cut into windows: what is scored, traced and evaluated."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from nearlm.base import QUIET, Int32s, Job, Reporter, files
from nearlm.text.segments import Framing, Segment
from nearlm.text.source import Texts, TextSource
from nearlm.text.tokens import check_not_empty, check_predictable, document_bounds, tokenise
from nearlm.text.windows import Ints, Windows, check_window, plan_windows

SCORE_BATCH_TOKENS = 2048  # of a batch of windows


@dataclass(frozen=True)
class Reading:
    """How a text is cut up: what frames its documents, the window, and the stride from window to window."""

    framing: Framing
    window: int
    stride: int
    pack: bool = False

    def __post_init__(self) -> None:
        check_window(self.window, self.stride)


@dataclass(frozen=True)
class TokenText:
    """A tokenised text on disk: its tokens, where documents begin, its windows, and a hash of the tokens."""

    tokens: Int32s
    bounds: Ints
    windows: Windows
    sha256: str

    @property
    def targets(self) -> Int32s:
        """The tokens that are predicted, in corpus order."""
        return np.asarray(self.tokens[self.windows.target_positions])

    @property
    def documents(self) -> Ints:
        """The number of each target's document."""
        return np.searchsorted(self.bounds, self.windows.target_positions, side="right") - 1


def read_text(texts: Texts, tokenizer: Any, reading: Reading, folder: Path, reporter: Reporter = QUIET) -> TokenText:
    """Tokenise a text into a folder and lay its windows; a folder that was filled before is overwritten."""
    source = TextSource.of(texts)
    corpus = source.open()
    segment = Segment(folder, 0)
    job = Job(folder, "read")
    job.begin({})
    stream = tokenise(corpus, tokenizer, reading.framing, segment, job, source.max_tokens, reporter)
    check_not_empty(stream, corpus.texts)
    stream.warn(reporter)
    digest = files.canonical_hash([files.checksum(segment.tokens), files.checksum(segment.docs)])
    job.close()
    tokens, docs = segment.arrays(stream.tokens, stream.documents)
    bounds = document_bounds(docs.open(), stream.tokens)
    windows = plan_windows(bounds, reading.window, reading.stride, reading.pack)
    check_predictable(windows, corpus.texts)
    return TokenText(tokens.open(), bounds, windows, digest)


@contextmanager
def read_once(texts: Texts, tokenizer: Any, reading: Reading, reporter: Reporter = QUIET) -> Iterator[TokenText]:
    """Tokenise a text into a temporary folder, which is gone when the context ends."""
    with TemporaryDirectory(prefix="nearlm-") as folder:
        yield read_text(texts, tokenizer, reading, Path(folder), reporter)
