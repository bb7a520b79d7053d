"""The evaluation harness on a store's LM: its log-likelihoods are our scores, with memory and without."""

import json

import numpy as np
import pytest

pytest.importorskip("lm_eval", reason="needs the extra lm-eval")

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from nearlm.base import NearLMError
from nearlm.knnlm import KNNLM
from nearlm.knnlm.harness import HarnessLM, run_harness
from tiny import make_text

TEXT = make_text(30, seed=91)


@pytest.fixture(params=["on", "off"])
def harness(request, store, double_lm):
    lm = HarnessLM(store, request.param, double_lm)
    yield request.param, lm
    lm.close()


def ask(kind: str, *arguments) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=arguments, idx=0)]


def test_it_is_registered():
    assert get_model("nearlm") is HarnessLM


def test_rolling_and_continuations_are_our_scores(harness, store, double_lm):
    memory, lm = harness
    ours = KNNLM.load(store, double_lm, knn=memory == "on").score(TEXT)
    rolling = lm.loglikelihood_rolling(ask("loglikelihood_rolling", TEXT), disable_tqdm=True)[0]
    assert rolling == pytest.approx(ours.logp.sum(), abs=1e-4)
    before, after = TEXT[:60], TEXT[60:]
    given = len(double_lm.tokenizer(before, add_special_tokens=False)["input_ids"])
    logp, greedy = lm.loglikelihood(ask("loglikelihood", before, after), disable_tqdm=True)[0]
    whole = double_lm.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert double_lm.tokenizer(before, add_special_tokens=False)["input_ids"] == whole[:given]
    assert logp == pytest.approx(ours.logp[given:].sum(), abs=1e-4) and not greedy


def test_what_is_generated_is_ours(harness, store, double_lm):
    memory, lm = harness
    asked = {"until": [], "max_gen_toks": 8, "do_sample": False}
    written = lm.generate_until(ask("generate_until", TEXT[:60], asked), disable_tqdm=True)[0]
    ours = KNNLM.load(store, double_lm, knn=memory == "on").generate(TEXT[:60], max_new_tokens=8)
    assert written == ours


def test_the_memory_is_taken_away_again(store, double_lm):
    lm = HarnessLM(store, "on", double_lm)
    assert "forward" in vars(double_lm.model)
    lm.close()
    assert "forward" not in vars(double_lm.model)


@pytest.fixture
def own_task(tmp_path):
    """A cloze task from a local file: which word follows."""
    words = TEXT.split()
    rows = [{"context": " ".join(words[:n]), "target": f" {words[n]}"} for n in range(5, 15)]
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


def test_mistakes_are_one_line(store, double_lm):
    with pytest.raises(NearLMError, match="no task"):
        run_harness(store, ["no_such_task"], model=double_lm)
    with pytest.raises(NearLMError, match="expected one of on, off"):
        HarnessLM(store, "maybe", double_lm)
