"""Explanations: how much the memory gave, and a view that lets no text break out of it."""

from html.parser import HTMLParser

import pytest

from nearlm.knnlm import Explanation, Explanations, memory_share
from nearlm.store import Context


@pytest.mark.parametrize(("p", "expected"), [(0.5, 0.25 * 0.8 / 0.5), (0.0, 0.0), (0.1, 1.0)])
def test_a_token_is_shaded_by_what_the_memory_gave(p, expected):
    token = Explanation("x", p_lm=0.4, p_knn=0.8, p=p, lam=0.25, nearest=[])
    assert memory_share(token) == pytest.approx(expected)


class Seen(HTMLParser):
    """All tags, their titles, and the text between them."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.titles, self.text = [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.titles += [value for name, value in attributes if name == "title"]

    def handle_data(self, data):
        self.text += data


def test_a_notebook_shows_the_text_and_what_is_behind_it():
    near = [(1.5, Context("MIT <b>.txt", 3, 'he said "free', " software"))]
    one = Explanation(" <script>", p_lm=0.1, p_knn=0.8, p=0.45, lam=0.5, nearest=near)
    other = Explanation("\n\x1b[2J", p_lm=0.5, p_knn=0.0, p=0.25, lam=0.5, nearest=[])
    html = Explanations([one, other])._repr_html_()
    seen = Seen(html)
    assert seen.tags == ["div", "span", "span", "br"]
    assert seen.text == " <script>⏎\\x1b[2J"
    assert "p 0.450" in seen.titles[0] and "MIT <b>.txt" in seen.titles[0] and 'he said "free' in seen.titles[0]
    assert f"{0.6 * 0.5 * 0.8 / 0.45:.2f}" in html and "rgba(0, 114, 178, 0.00)" in html
