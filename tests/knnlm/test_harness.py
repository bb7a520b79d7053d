"""The evaluation harness on a store's LM: its log-likelihoods are our scores, with memory and without."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("lm_eval", reason="needs the extra lm-eval")

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from nearlm.base import NearLMError
from nearlm.knnlm import KNNLM
from nearlm.knnlm.harness import HarnessLM, run_harness
from nearlm.store import SearchSettings
from pairs import make_pair
from tiny import make_text

TEXT = make_text(30, seed=91)  # longer than a window of the store
SHORT = " ".join(TEXT.split()[:5])  # and shorter


def ask(kind: str, *arguments) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=arguments, idx=0)]


def test_it_is_registered():
    assert get_model("nearlm") is HarnessLM


@pytest.mark.parametrize("memory", ["on", "off"])
def test_what_it_gives_and_writes_is_ours(store, double_lm, memory):
    ours = KNNLM.load(store, double_lm, knn=memory == "on")
    scores = ours.score(SHORT)
    assert len(scores.tokens) < store.manifest.window
    text = ours.generate(TEXT[:60], max_new_tokens=8)
    encode = partial(double_lm.tokenizer, add_special_tokens=False)
    given = len(encode(SHORT[:20])["input_ids"])
    assert encode(SHORT[:20])["input_ids"] == encode(SHORT)["input_ids"][:given], "it is divided between two tokens"
    lm = HarnessLM(store, memory, double_lm)
    try:
        rolling = lm.loglikelihood_rolling(ask("loglikelihood_rolling", SHORT), disable_tqdm=True)[0]
        logp, _ = lm.loglikelihood(ask("loglikelihood", SHORT[:20], SHORT[20:]), disable_tqdm=True)[0]
        asked = {"until": [], "max_gen_toks": 8, "do_sample": False}
        written = lm.generate_until(ask("generate_until", TEXT[:60], asked), disable_tqdm=True)[0]
    finally:
        lm.close()
    assert rolling == pytest.approx(scores.logp.sum(), abs=1e-4)
    assert logp == pytest.approx(scores.logp[given:].sum(), abs=1e-4)
    assert written == text


def test_the_memory_is_taken_away_again(store, double_lm):
    lm = HarnessLM(store, "on", double_lm)
    assert "forward" in vars(double_lm.model)
    lm.close()
    assert "forward" not in vars(double_lm.model)


@pytest.fixture
def own_task(tmp_path):
    """A cloze task from a local file: which word follows."""
    words = TEXT.split()
    rows = [{"context": " ".join(words[n : n + 3]), "target": f" {words[n + 3]}"} for n in range(10)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "cloze.yaml").write_text(
        f"""task: own_cloze
dataset_path: json
dataset_kwargs:
  data_files: {{test: "{tmp_path / "rows.jsonl"}"}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{target}}}}"
metric_list:
  - metric: perplexity
  - metric: acc
"""
    )
    return tmp_path


def test_a_task_from_a_local_file(own_task, store, double_lm):
    found = run_harness(store, ["own_cloze"], model=double_lm, include_path=str(own_task), limit=6)
    knnlm = KNNLM.load(store, double_lm)
    encode = lambda text: double_lm.tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    logs = []
    for line in (own_task / "rows.jsonl").read_text().splitlines()[:6]:
        row = json.loads(line)
        given = len(encode(row["context"]))
        logs.append(knnlm.score(row["context"] + row["target"]).logp[given:].sum())
    assert found["results"]["own_cloze"]["perplexity,none"] == pytest.approx(np.exp(-np.mean(logs)), rel=1e-4)
    assert "forward" not in vars(double_lm.model)


def test_mistakes_are_one_line(store, double_lm, monkeypatch):
    monkeypatch.setattr("lm_eval.tasks.TaskManager", lambda **options: SimpleNamespace(all_tasks=["known"]))
    with pytest.raises(NearLMError, match="no task 'unknown'"):
        run_harness(store, ["known", "unknown"], model=double_lm)
    with pytest.raises(NearLMError, match="expected one of on, off"):
        HarnessLM(store, "maybe", double_lm)


def test_several_stores_are_one_model(tmp_path, double_lm):
    stores = make_pair(tmp_path, double_lm)
    ours = KNNLM.load(stores, double_lm, SearchSettings(mixture="none")).score(SHORT)
    lm = HarnessLM(list(stores), "on", double_lm, SearchSettings(mixture="none"))
    try:
        found = lm.loglikelihood_rolling(ask("loglikelihood_rolling", SHORT), disable_tqdm=True)[0]
    finally:
        lm.close()
    assert found == pytest.approx(ours.logp.sum(), abs=1e-4)
