"""What is told of a token: the shares of its neighbours, and the text around them."""

import numpy as np
import pytest

from calls import load_knnlm
from nearlm.mixing import Contexts, Known
from nearlm.serve.explanation import AROUND, Found, ShownStore, Trace, trace_tokens


def test_neighbours_have_their_shares_of_p_knn(stores, served_lm):
    memory = load_knnlm(stores[0], served_lm).memory
    queries = np.asarray(stores[0].keys[5:7], np.float32) + 0.01
    prediction = memory.predict(queries, Known.of(None, None, 2))
    targets = np.asarray(stores[0].values[5:7], np.int32)
    traces = trace_tokens(memory, prediction, np.log([0.1, 0.2]), targets, None, 16)
    for trace, target in zip(traces, targets.tolist(), strict=True):
        shares = [found.weight for found in trace.neighbors]
        agreeing = sum(found.weight for found in trace.neighbors if int(stores[0].values[found.record]) == target)
        assert sum(shares) == pytest.approx(1)
        assert agreeing == pytest.approx(trace.p_memory, rel=1e-5)
        assert [found.distance for found in trace.neighbors] == sorted(found.distance for found in trace.neighbors)
        assert trace.p == pytest.approx(0.4 * trace.p_memory + 0.6 * trace.p_lm)


def test_text_around_a_neighbour_stays_in_its_document(stores, chatty):
    store = stores[0]
    bounds = store.document_bounds
    for position in (int(bounds[1]) - 1, int(bounds[1]) + 1, 40):
        record = store.record_at(position)
        trace = Trace(0.5, 0.5, neighbors=(Found(record, 1.0, 0.5),))
        shown = trace.to_json(3, [ShownStore(store)], chatty.decode)["neighbors"][0]
        begin = max(b for b in bounds if b <= position)
        end = min(b for b in bounds if b > position)
        assert shown["before"] == chatty.decode(store.tokens[max(begin, position - AROUND) : position])
        assert shown["after"] == chatty.decode(store.tokens[position + 1 : min(end, position + 1 + AROUND)])
        assert shown["match"] == (int(store.values[record]) == 3)


def test_the_longest_suffix_is_named_with_its_document(stores, served_lm, chatty):
    memory = load_knnlm(stores[1], served_lm, mixture="none").memory
    tokens = np.asarray(stores[1].tokens[20:30], np.int32)
    contexts = Contexts(tokens, np.zeros(1, np.int64), np.array([9], np.int64))
    prediction = memory.predict(np.zeros((1, 32), np.float32), Known.of(None, contexts, 1))
    trace = trace_tokens(memory, prediction, np.log([0.1]), tokens[9:], contexts, 3)[0]
    shown = trace.to_json(int(tokens[9]), [ShownStore(stores[1])], chatty.decode)
    assert shown["suffix"]["length"] == 9
    assert shown["suffix"]["document"] == stores[1].document_of(20)[0]
    assert sum(shown["weights"].values()) == pytest.approx(1)
    assert shown["p"] > 0.3
