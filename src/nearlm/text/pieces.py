"""A document's text in pieces that a tokenizer takes: decoded from UTF-8, lines ended by LF, none too long."""

import codecs
import itertools
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from nearlm.base import TextError

PIECE = 1 << 16  # characters
BLOCK = 1 << 20
UNDECODABLE = "document with undecodable bytes (replaced by U+FFFD)"
_SURROGATE = re.compile("[\ud800-\udfff]")
_LAST_LINE_END = re.compile(r"(?s:.*)\S\n(?=\S)")
_LAST_WORD_END = re.compile(r"(?s:.*)\S(?= \S)")

Note = Callable[[str, str], None]  # is told of a problem, and of an example of it


def file_pieces(file: BinaryIO, name: str, note: Note) -> Iterator[str] | None:
    """Return the pieces of a file; one that is not text is noted instead."""
    head = file.read(BLOCK)
    if b"\0" in head[:4096]:
        note("binary file (it holds NUL bytes, expected UTF-8 text)", name)
        return None
    blocks = itertools.chain([head.removeprefix(codecs.BOM_UTF8)], _read_blocks(file, name))
    return _pieces(_decode(blocks, name, note))


def text_pieces(text: str, place: str, note: Note) -> Iterator[str]:
    """Yield the pieces of a text that is in memory already."""
    if _SURROGATE.search(text):  # half a character, which JSON can write as \\ud800
        note(UNDECODABLE, place)
    blocks = (text[begin : begin + BLOCK] for begin in range(0, len(text), BLOCK))
    yield from _pieces(_SURROGATE.sub("\ufffd", block) for block in blocks)


def replacements(text: str, data: bytes) -> int:
    """Count the U+FFFD of a decoded text that its bytes do not hold."""
    return text.count("\ufffd") - data.count("\ufffd".encode())


def _read_blocks(file: BinaryIO, name: str) -> Iterator[bytes]:
    try:
        while block := file.read(BLOCK):
            yield block
    except OSError as error:
        raise TextError(f"{name} can be read only in part ({error.strerror or error}); mend or remove it") from error


def _decode(blocks: Iterator[bytes], name: str, note: Note) -> Iterator[str]:
    """Decode UTF-8 block by block; bytes that are not UTF-8 become U+FFFD and are counted."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    tail = b""
    replaced = 0
    for block in blocks:
        text = decoder.decode(block)
        replaced += replacements(text, tail + block)
        yield text
        tail = (tail + block)[-2:]
    rest = decoder.decode(b"", final=True)
    yield rest
    if replaced + replacements(rest, b"") > 0:
        note(UNDECODABLE, name)


def _pieces(blocks: Iterator[str]) -> Iterator[str]:
    """Cut text into pieces of at most `PIECE` characters, at line ends where there are some."""
    rest = ""
    for block in _unix_lines(blocks):
        rest += block
        while len(rest) > PIECE:
            cut = _cut(rest)
            yield rest[:cut]
            rest = rest[cut:]
    yield rest


def _unix_lines(blocks: Iterator[str]) -> Iterator[str]:
    """Make every CR LF one LF, also one that stands across two blocks."""
    held = ""
    for block in blocks:
        text = held + block
        held = "\r" if text.endswith("\r") else ""
        yield text.removesuffix(held).replace("\r\n", "\n")
    yield held


def _cut(text: str) -> int:
    """Find where a long text may be cut without changing how it is tokenised, if there is such a place."""
    for place in (_LAST_LINE_END, _LAST_WORD_END):
        if found := place.match(text, PIECE // 2, PIECE):
            return found.end()
    return PIECE
