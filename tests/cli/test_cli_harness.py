"""lm-eval as a user types it: what reaches the harness, and what is said if it is not there."""

import json
import sys

from refusals import is_refusal


def test_options_reach_the_harness(nearlm, store, monkeypatch):
    from nearlm.knnlm import harness

    seen = {}

    def run(opened, tasks, **options):
        seen.update(options, tasks=tasks)
        return {"results": {"a": {"acc,none": 0.5}}}

    monkeypatch.setattr(harness, "run_harness", run)
    command = ("lm-eval", store, "--tasks", "a,b", "c", "--limit", 5, "--num-fewshot", 2, "--batch-size", 4)
    code, out, _ = nearlm(*command, "--include-path", "mine", "--no-knn", "--json")
    assert code == 0 and json.loads(out) == {"memory": False, "results": {"a": {"acc,none": 0.5}}}
    assert seen["tasks"] == ["a", "b", "c"] and seen["memory"] == "off" and seen["include_path"] == "mine"
    assert (seen["limit"], seen["num_fewshot"], seen["batch_size"]) == (5, 2, 4)


def test_without_the_harness_the_extra_is_named(nearlm, store, monkeypatch):
    monkeypatch.delitem(sys.modules, "nearlm.knnlm.harness", raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval.api.registry", None)
    found = nearlm("lm-eval", store, "--tasks", "a")
    assert is_refusal(found) and "pip install 'nearlm[lm-eval]'" in found[2]
