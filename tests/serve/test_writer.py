"""Text that comes token by token: whole characters, and nothing of a stop string."""

from hypothesis import given
from hypothesis import strategies as st

from nearlm.serve.writer import Writer


def decode(ids):
    return bytes(ids).decode("utf-8", "replace")


def write(data, stops=()):
    """Write bytes as tokens; return what came, and when it ended."""
    writer = Writer(decode, stops)
    parts = []
    for token in data:
        parts.append(writer.add(token))
        if writer.stopped:
            break
    return [*parts, writer.finish()], writer


@given(st.text(max_size=30))
def test_parts_are_the_whole_text_and_never_half_a_character(text):
    parts, _ = write(text.encode("utf-8", "replace"))
    assert "".join(parts) == text.encode("utf-8", "replace").decode()
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in text


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_first_stop_string(text, stops):
    parts, writer = write(text.encode(), stops)
    found = [text.index(stop) + len(stop) for stop in stops if stop in text]
    joined = "".join(parts)
    assert writer.stopped == bool(found)
    assert text.startswith(joined)
    assert not any(stop in joined for stop in stops)
    if not found:
        assert joined == text
    else:
        ended = min(found)  # the first that is complete ends it, and cuts at the earliest that is there by then
        assert joined == text[: min(text.index(stop) for stop in stops if stop in text[:ended])]


def test_what_may_become_a_stop_string_is_held_back():
    writer = Writer(decode, ["abc"])
    assert [writer.add(ord(letter)) for letter in "xabab"] == ["x", "", "", "ab", ""]
    assert writer.finish() == "ab"


def test_half_a_character_at_the_end_is_shown_as_broken():
    parts, _ = write("né".encode()[:-1])
    assert "".join(parts) == "n\ufffd"
