"""What is measured of a gate: the largest share to skip within the budget."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fits import write_texts
from pointing import how, point

from calls import load_knnlm
from nearlm.base import QUIET, Job, StoreError, to_json
from nearlm.mixing.gate import Gate
from nearlm.mixing.gate_training import split_rows
from nearlm.mixing.traces import cache_text, trace_lm, trace_search
from nearlm.optimizer.optimization import optimize
from nearlm.optimizer.trials import Trials
from nearlm.search.retriever import Retriever
from nearlm.store import Datastore

pytestmark = pytest.mark.usefixtures("quick_timing")


BUDGET = 60.0


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Enough text that some share is surely within the budget, whichever store is the fastest."""
    return write_texts(tmp_path_factory.mktemp("trials"), 500, 30)


def test_the_share_to_skip_is_the_largest_within_the_budget_of_vanilla(store, lm, texts, tmp_path, small):
    choice = optimize(store, str(texts / "valid"), tmp_path / "fast", lm, budget=BUDGET)
    gated, made = [one for one in choice.points if one.gate][-1], Datastore.open(tmp_path / "fast")
    gate, vanilla, search = Gate.load(made), choice.vanilla.setup.search, gated.setup.search
    reading = store.reading()
    traced = trace_lm(lm, cache_text(str(texts / "valid"), lm.tokenizer, reading), reading)
    rows = split_rows(traced.text.documents, 0).held
    log_lm = np.asarray(traced.logp, np.float64)
    ours = trace_search(traced, Retriever.open(made, gate.settings), search.k).log_p_knn(
        search.knn_temperature, search.k
    )
    paper = trace_search(traced, Retriever(store, "measured-paper"), 1024).log_p_knn(vanilla.knn_temperature)
    log_vanilla = np.logaddexp(log_lm + np.log1p(-vanilla.lam), paper + np.log(vanilla.lam))
    documents = np.asarray(traced.text.documents)

    def margin(logp, chosen):
        blocks = documents[chosen]
        if len(set(blocks)) < 10:
            blocks = np.arange(len(blocks)) * 10 // len(blocks)
        difference = (logp - log_vanilla)[chosen]
        sums = np.array([(difference - difference.mean())[blocks == one].sum() for one in set(blocks)])
        return 2 * np.exp(-logp[chosen].mean()) * np.sqrt((sums**2).sum()) / len(difference)

    def sure(logp, chosen):
        ours, theirs = np.exp(-logp[chosen].mean()), np.exp(-log_vanilla[chosen].mean())
        return ours + margin(logp, chosen) <= theirs + BUDGET

    plain = next(one for one in choice.points if how(one) == how(gated))
    lam = plain.setup.search.lam
    mixed = np.logaddexp(log_lm + np.log1p(-lam), ours + np.log(lam))
    assert plain.margin == pytest.approx(margin(mixed, np.arange(len(mixed))), rel=0.01)  # the store was rotated
    within = []
    for percent in range(100):
        lam = gate.at(percent / 100).weights(traced.keys, traced.known())
        with np.errstate(divide="ignore"):
            logp = np.logaddexp(log_lm + np.log1p(-lam), ours + np.log(lam))
        if sure(logp, rows) and sure(logp, np.arange(len(logp))):
            within.append((percent / 100, np.exp(-logp[rows].mean())))
    assert within and (search.skip, gated.perplexity) == pytest.approx(within[-1], rel=1e-5) and gated.sure
    there = np.exp(-log_vanilla[rows].mean())
    assert choice.held_out.vanilla == pytest.approx(there)
    assert gated.beyond == pytest.approx(within[-1][1] - there, rel=1e-4)
    if gated.chosen:
        assert made.defaults.skip == search.skip
        knnlm = load_knnlm(tmp_path / "fast", lm)
        assert knnlm.gate is not None and knnlm.gate.skip == search.skip


@pytest.fixture
def trials(tmp_path):
    """Trials of a text of four tokens, which measure nothing."""
    job = Job(tmp_path, "optimize")
    job.begin({})
    return Trials(SimpleNamespace(dim=8, __len__=lambda: 9, bytes=0), np.zeros(4), tmp_path, job, QUIET)


def test_an_array_is_kept_beside_its_note(trials):
    first = trials.keep_once("a", float, lambda _: 2, lambda: (0.5, np.arange(8.0).reshape(2, 4)))
    again = trials.keep_once("a", float, lambda _: 2, lambda: pytest.fail("measured again"))
    assert first[0] == again[0] == 0.5
    np.testing.assert_array_equal(again[1], np.arange(8.0).reshape(2, 4))
    with pytest.raises(StoreError, match=r"a\.npy does not hold 3 numbers for each token"):
        trials.keep_once("a", float, lambda _: 3, lambda: pytest.fail("measured again"))
    (trials.work / "a.npy").unlink()
    with pytest.raises(StoreError, match=r"a\.npy does not hold 2 numbers for each token"):
        trials.keep_once("a", float, lambda _: 2, lambda: pytest.fail("measured again"))


def test_a_note_without_points_or_with_untuned_ones_is_refused(trials):
    tuned = point(9.0, 5.0)
    assert trials.measure_once("sound", lambda: [tuned]) == [tuned]
    untuned = replace(tuned, setup=replace(tuned.setup, search=replace(tuned.setup.search, lam=None)))
    for name, points in (("none", []), ("untuned", [tuned, untuned])):
        trials.job.note(name, {"result": to_json(points)})
        with pytest.raises(StoreError, match=rf"{name}\.json does not hold tuned points"):
            trials.measure_once(name, lambda: pytest.fail("measured again"))
