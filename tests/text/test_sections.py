"""Blocks of long documents: nothing is lost, headings stay with what follows them."""

from hypothesis import given
from hypothesis import strategies as st

from nearlm.text.sections import cut, inner
from tiny import make_text

TEXTS = st.text(st.sampled_from("ab .\n#=-"), max_size=600)


@given(TEXTS, st.integers(8, 200))
def test_blocks_are_the_text_and_of_about_one_size(text, size):
    blocks = cut(text, size)
    assert "".join(blocks) == text
    assert all(size // 4 < len(block) <= 1.5 * size for block in blocks[:-1]) and len(blocks[-1]) <= 1.5 * size


def test_blocks_end_before_headings_or_at_blank_lines():
    rst = "\n\n".join(f"Title {i}\n{'=' * 7}\n\n{make_text(60, seed=i)}" for i in range(12))
    assert all(block.startswith("Title") for block in cut(rst, 700))
    markdown = "\n\n".join(f"## Title {i}\n\n{make_text(60, seed=i)}" for i in range(12))
    assert all(block.startswith("## Title") for block in cut(markdown, 700))
    plain = make_text(900)
    assert all(block.endswith("\n\n") for block in cut(plain, 900)[:-1])


@given(TEXTS)
def test_what_is_inside_lacks_both_ends(text):
    found = inner(text)
    assert found in text and len(found) <= len(text)
    lines = make_text(400)
    assert inner(lines) in lines and not lines.startswith(inner(lines)[:20]) and len(inner(lines)) > len(lines) // 2
