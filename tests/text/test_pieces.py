import io
import json

import pytest
from documents import read, undecodable, write
from hypothesis import given
from hypothesis import strategies as st

from nearlm.base.errors import TextError
from nearlm.text import pieces
from nearlm.text.corpus import Corpus
from nearlm.text.pieces import PIECE
from tiny import make_text


def read_bytes(data: bytes) -> tuple[str, dict[str, int]]:
    corpus = Corpus(["-"], stdin=io.BytesIO(data))
    return read(corpus).get("stdin", ""), dict(corpus.problems)


@given(
    st.lists(
        st.sampled_from([b"a", b"\r", b"\n", b"\r\n", "é".encode(), "\ufffd".encode(), "𝄞".encode()])
        | st.binary(max_size=3).filter(lambda b: b"\0" not in b),
        max_size=12,
    ),
    st.booleans(),
    st.integers(3, 7),
)
def test_any_bytes_are_decoded_the_same_wherever_blocks_end(parts, bom, block):
    data = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "BLOCK", block)
        text, problems = read_bytes((b"\xef\xbb\xbf" if bom else b"") + data)
    if not bom:
        data = data.removeprefix(b"\xef\xbb\xbf")
    assert text == data.decode("utf-8", "replace").replace("\r\n", "\n")
    try:
        data.decode()
    except UnicodeDecodeError:
        assert undecodable(problems)
    else:
        assert not undecodable(problems)


def test_crlf_and_characters_across_the_real_block_border_survive():
    for middle in ("\r\n", "é", "𝄞", "\ufffd"):
        for shift in range(len(middle.encode()) + 1):
            data = b"a" * (pieces.BLOCK - shift) + middle.encode() + b"b"
            text, problems = read_bytes(data)
            assert text[-3:].lstrip("a") == middle.replace("\r\n", "\n") + "b"
            assert problems == {}


def test_crlf_is_one_line_end_in_files_and_rows_alike(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\rthree\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "one\r\ntwo\rthree\n"}))
    assert set(read(Corpus([str(tmp_path)])).values()) == {"one\ntwo\rthree\n"}


@pytest.mark.parametrize("data", [b"a\0b", "text".encode("utf-16"), b"\0"])
def test_binary_files_are_counted(data):
    text, problems = read_bytes(data)
    assert text == ""
    assert list(problems) == ["binary file (it holds NUL bytes, expected UTF-8 text)"]


@pytest.mark.parametrize("data", [b"", b" \n\t ", b"\xef\xbb\xbf", b"\r\n"])
def test_empty_documents_are_counted(data):
    assert read_bytes(data)[1] == {"empty document": 1}


def test_a_file_that_fails_halfway_is_refused():
    class Failing(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > 0:
                raise OSError(5, "Input/output error")
            return super().read(size)

    with pytest.raises(TextError, match="only in part"):
        read(Corpus(["-"], stdin=Failing(b"x" * (2 * pieces.BLOCK))))


def test_half_a_character_in_json_is_replaced_and_counted(tmp_path):
    corpus = Corpus([write(tmp_path / "a.jsonl", '{"text": "x\\ud83d\\ude00y\\ud800"}')])
    assert list(read(corpus).values()) == ["x😀y\ufffd"]
    assert undecodable(corpus.problems)


def pieces_of(corpus: Corpus) -> list[str]:
    return [piece for document in corpus.documents() for piece in document.pieces]


def test_long_documents_come_in_pieces_that_make_up_the_text(tmp_path):
    texts = {
        "lines": make_text(200_000),
        "one-line": make_text(120_000).replace("\n", " "),
        "no-space": "x" * (3 * PIECE + 17),
        "spaces": " " * PIECE + "x" + "\n" * PIECE,
        "cjk": "知己知彼百战不殆。" * 80_000,
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
        write(tmp_path / f"{name}.jsonl", {"text": text})
        for suffix in ("txt", "jsonl"):
            pieces = pieces_of(Corpus([str(tmp_path / f"{name}.{suffix}")]))
            assert "".join(pieces) == text
            assert len(pieces) > 1
            assert all(0 < len(piece) <= PIECE for piece in pieces)
            if suffix == "txt":
                first = pieces
        assert pieces == first


@pytest.mark.parametrize("lines", [True, False])
def test_pieces_are_tokenised_like_the_whole(tokenizer, monkeypatch, lines):
    monkeypatch.setattr(pieces, "PIECE", 500)
    text = make_text(8000)
    if not lines:
        text = text.replace("\n", "  ")
    cut = pieces_of(Corpus(["-"], stdin=io.BytesIO(text.encode())))
    assert len(cut) > 50
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    assert [i for piece in cut for i in encode(piece)] == encode(text)
