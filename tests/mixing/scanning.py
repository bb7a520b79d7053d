"""What an ∞-gram must find, by looking for every suffix in every document."""

from collections import Counter

import numpy as np

from nearlm.mixing.infinigram import MAX_LENGTH

DOCUMENTS = [[1, 2, 3, 1, 2, 4], [2, 4, 5], [], [7], [1, 2]]


def longest(documents, context):
    """Return the length of the longest suffix of a context that something follows, and what does, with counts."""
    for length in range(min(len(context), MAX_LENGTH), 0, -1):
        suffix = context[len(context) - length :]
        followers = Counter(
            document[begin + length]
            for document in documents
            for begin in range(len(document) - length)
            if document[begin : begin + length] == suffix
        )
        if followers:
            return length, followers
    return 0, Counter()


def found(grams, text, begins, ends):
    matches = grams.look_up(np.array(text, np.int32), np.array(begins), np.array(ends))
    assert all((begin, end) == (0, 0) for length, begin, end in zip(*matches, strict=True) if length == 0)
    return [
        (int(length), Counter(grams.following[begin:end].tolist())) for length, begin, end in zip(*matches, strict=True)
    ]


def check(grams, documents, text):
    """Compare what is found for contexts of all lengths that end anywhere in a text."""
    ends = [end for end in range(len(text) + 1) for _ in range(3)]
    begins = [begin for end in range(len(text) + 1) for begin in (0, end // 2, max(end - 2, 0))]
    expected = [longest(documents, text[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    assert found(grams, text, begins, ends) == expected
