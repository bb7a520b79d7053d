"""Windows around places, repeats of what was read, and votes, against a few lines of Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearlm.knnlm.draft_votes import AHEAD, BACK, READ_BACK, repeats_of, vote, windows_of

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def ints(values):
    return np.array(values, np.int32)


def alike(before, read):
    """How many tokens at the ends of two sequences are the same, at most BACK."""
    pairs = list(zip(reversed(before), reversed(read), strict=False))[:BACK]
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


@given(st.lists(TOKENS, min_size=1, max_size=4), st.data())
def test_a_window_holds_its_document_alone(documents, data):
    text = [token for document in documents for token in document]
    bounds = np.cumsum([0, *map(len, documents)])
    place = data.draw(st.integers(0, len(text) - 1))
    document = int(np.searchsorted(bounds, place, side="right")) - 1
    inside = range(bounds[document], bounds[document + 1])
    around = range(place - BACK + 1, place + AHEAD + 1)
    windows = windows_of(ints(text), bounds, np.array([place]))
    assert windows.tolist() == [[text[at] if at in inside else -1 for at in around]]


@given(TOKENS, st.integers(1, 6))
def test_repeats_are_the_places_most_like_the_end_and_go_on_with_themselves(read, most):
    last = len(read) - 1
    places = [place for place in range(last) if read[place] == read[last]]
    places.sort(key=lambda place: (-alike(read[: place + 1], read), -place))
    expected = []
    for place in places[:most]:
        period = last - place
        row = [read[at] if at >= 0 else -1 for at in range(place - BACK + 1, place + 1)]
        row += [read[place + 1 + ahead % period] for ahead in range(AHEAD)]
        expected.append(row)
    assert repeats_of(ints(read), most).tolist() == expected


def test_repeats_are_looked_for_in_the_last_tokens_only():
    read = np.arange(READ_BACK + 10, dtype=np.int32)
    read[-1] = read[5]
    assert not len(repeats_of(read, 4))
    read[-1] = read[20]
    assert repeats_of(read, 4)[0, BACK : BACK + 3].tolist() == [21, 22, 23]


@given(TOKENS, st.lists(st.lists(st.integers(-1, 3), min_size=BACK + AHEAD, max_size=BACK + AHEAD), max_size=8))
def test_a_chain_is_what_most_votes_are_for(read, windows):
    rows = [row[: BACK + next((i for i, t in enumerate(row[BACK:]) if t < 0), AHEAD)] for row in windows]
    lengths = [alike(row[:BACK], read) for row in rows]
    live = list(range(len(rows)))
    chain = []
    for step in range(AHEAD):
        votes = {}
        live = [row for row in live if len(rows[row]) > BACK + step]
        for row in live:
            token = rows[row][BACK + step]
            votes[token] = votes.get(token, 0) + 2.0 ** min(lengths[row], 16)
        if not votes:
            break
        token = max(votes, key=votes.get)
        share = votes[token] / sum(votes.values())
        live = [row for row in live if rows[row][BACK + step] == token]
        chain.append((token, max(lengths[row] for row in live) + step, share))
    found = vote(np.array(windows, np.int32).reshape(-1, BACK + AHEAD), ints(read))
    assert len(found) == len(chain)
    assert list(zip(found.tokens.tolist(), found.alike.tolist(), found.shares.tolist(), strict=True)) == chain
