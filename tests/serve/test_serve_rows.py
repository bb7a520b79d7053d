"""One continuation, from token to token."""

import numpy as np

from nearlm.knnlm.drafting import Drafter
from nearlm.serve.explanation import Trace
from nearlm.serve.rows import Row, contexts_of
from nearlm.serve.sampling import Sampling
from nearlm.serve.tasks import Task, Token, Wish


def row(told, **wish):
    given = {"prompt": [5, 6], "memory": None, "max_new_tokens": 4, "sampling": Sampling(0.0), **wish}
    return Row(Task(Wish(**given), told.append, 1e18), 0, lambda ids: bytes(ids).decode(), frozenset([0]))


def write(made, text):
    for letter in text:
        made.append(Token(ord(letter) if letter != "$" else 0, -1.0))


def test_a_row_tells_its_text_and_ends_at_its_length():
    told = []
    made = row(told)
    write(made, "abcd")
    assert [(delta.text, delta.finish) for delta in told] == [("a", None), ("b", None), ("c", None), ("d", "length")]
    assert [token.offset for delta in told for token in delta.tokens] == [0, 1, 2, 3]
    assert (made.finished, told[-1].count) == (True, 4)


def test_an_end_token_ends_it_and_is_not_told():
    told = []
    write(row(told), "a$")
    assert [(delta.text, delta.finish, len(delta.tokens)) for delta in told] == [("a", None, 1), ("", "stop", 0)]
    assert told[-1].count == 2


def test_tokens_of_a_stop_string_are_not_told():
    told = []
    write(row(told, stop=("bc",)), "abc")
    assert [(delta.text, delta.finish, len(delta.tokens)) for delta in told] == [("a", None, 1), ("", "stop", 0)]


def test_contexts_are_all_that_was_read_and_written():
    rows = [row([]), row([], prompt=[9])]
    write(rows[0], "a")
    found = contexts_of(rows)
    assert [found.tokens[b:e].tolist() for b, e in zip(found.begins, found.ends, strict=True)] == [[5, 6, 97], [9]]
    assert found.tokens.dtype == np.int32


def test_contexts_go_on_with_drafts():
    rows = [row([]), row([], prompt=[9])]
    found = contexts_of(rows, [np.array([7, 8], np.int32), np.array([], np.int32)])
    texts = [found.tokens[b:e].tolist() for b, e in zip(found.begins, found.ends, strict=True)]
    assert texts == [[5, 6], [5, 6, 7], [5, 6, 7, 8], [9], [9], [9]], "what stands after a draft's end is not used"


def test_drafted_tokens_are_written_up_to_the_first_other_one_or_the_end():
    draft = np.array([97, 98, 99], np.int32)
    tokens = [Token(ord(letter), -1.0, trace=Trace(0.5, 0.5)) for letter in "abxd"]
    told = []
    assert row(told).write(tokens, draft) == 3
    marks = [(chr(token.id), token.trace.drafted) for delta in told for token in delta.tokens]
    assert marks == [("a", True), ("b", True), ("x", False)]
    assert row([], stop=("b",)).write(tokens, draft) == 2
    assert row([]).write(tokens[2:], draft[:0]) == 1


def test_a_draft_leaves_room_for_a_token_after_it(served_lm, stores):
    made = row([], prompt=stores[1].tokens[:20].tolist(), drafter=Drafter.of(stores[1], None))
    assert not len(made.draft(8)) and not len(made.rates)
    made.look_ahead(None, 0)
    assert len(made.rates) >= 8 and len(made.draft(8)) == 3 and not len(made.draft(0))
