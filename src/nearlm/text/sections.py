"""A long document as several: cut at its headings, or else at blank lines, into blocks of about one size."""

import re

_HEADING = re.compile(
    r"""
    ^\#{1,6}[ ]\S.*$                                # Markdown
    | ^(?=.*\w).{3,}\n(=|-|~|\^|"|\*|\#|\+){4,}[ ]*$  # reStructuredText: a line and its underline
    | ^[ ]*(?:chapter|part|section)[ ]+\w+.*$       # books
    """,
    re.MULTILINE | re.VERBOSE | re.IGNORECASE,
)
_BLANK = re.compile(r"\n[ \t]*\n")
_LINE = re.compile(r"\n")
_WORD = re.compile(r"\s")
_GAP = 300  # characters


def cut(text: str, size: int) -> list[str]:
    """Cut a text into blocks of about so many characters that together are the text.

    A block ends before a heading if there is one in its last three quarters, else at a blank line, a line or a word.
    """
    blocks = []
    begin = 0
    while len(text) - begin > 1.5 * size:
        end = _end(text, begin + size // 4, begin + size)
        blocks.append(text[begin:end])
        begin = end
    return [*blocks, text[begin:]]


def _end(text: str, first: int, last: int) -> int:
    """Return where a block may end: at the last heading, blank line, line or word between two places."""
    headings = [found.start() for found in _HEADING.finditer(text, first, last) if found.start() > first]
    if headings:
        return headings[-1]
    for pattern in (_BLANK, _LINE, _WORD):
        ends = [found.end() for found in pattern.finditer(text, first, last)]
        if ends:
            return ends[-1]
    return last


def inner(block: str) -> str:
    """Return a block without some lines at both ends, so that it does not continue what stands beside it."""
    gap = min(_GAP, len(block) // 8)
    begin = block.find("\n", gap) + 1
    end = block.rfind("\n", 0, len(block) - gap)
    if not 0 < begin <= 2 * gap or not len(block) - 2 * gap <= end < len(block):  # lines are long
        return block[gap : len(block) - gap]
    return block[begin:end]
