"""An LM with several stores: scored, attached and generated alike, explained by store, and drafted from all texts."""

import numpy as np
import pytest
import torch

from calls import evaluate
from nearlm.base.errors import OptionError
from nearlm.knnlm import KNNLM, attach
from nearlm.mixing import Mixture, learn_all
from nearlm.store import SearchSettings
from pairs import make_pair, write_valid

WAYS = {"learned": SearchSettings(mixture="with-manuals"), "one λ each": SearchSettings(mixture="none")}


@pytest.fixture(scope="module")
def pair(tmp_path_factory, double_lm):
    folder = tmp_path_factory.mktemp("several")
    stores = make_pair(folder, double_lm)
    valid = write_valid(folder / "valid")
    Mixture.train(stores[0], valid, double_lm, name="own")
    learn_all(stores, valid, double_lm)
    return stores


@pytest.mark.parametrize("way", WAYS)
def test_scores_are_those_of_the_attached_model_and_of_what_is_written(pair, double_lm, way):
    knnlm = KNNLM.load(list(pair), double_lm, WAYS[way])
    text = (pair[1].path.parent / "manuals.txt").read_text()[:90]
    ids = knnlm.prompt_ids(text)
    start = knnlm.prompt_ids(text[:40])
    scores = knnlm.score(text)
    assert len(ids) <= pair[0].manifest.window
    with attach(double_lm, list(pair), WAYS[way]) as model, torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        greedy = model.generate(torch.tensor([start]), max_new_tokens=12, do_sample=False, pad_token_id=1)
    np.testing.assert_allclose(logits.exp().sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(logits[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0], scores.logp, atol=1e-5)
    for draft in (True, False):
        written = knnlm.generate_ids([text[:40]], draft=draft, max_new_tokens=12, do_sample=False)[0]
        assert written == (start, greedy[0, len(start) :].tolist())


def test_the_perplexity_is_that_of_the_scores(pair, double_lm, test_text):
    knnlm = KNNLM.load(list(pair), double_lm, WAYS["learned"])
    found = evaluate(knnlm, str(test_text))
    assert found.retrievals == found.tokens and found.skipped == 0
    assert found.search.mixture == "with-manuals"


def test_explanations_name_the_store(pair, double_lm):
    knnlm = KNNLM.load(list(pair), double_lm, WAYS["learned"])
    told = knnlm.explain(np.asarray(pair[1].tokens[0:40]).tolist(), first=30)
    sources = {"licences/knn", "licences/ngram", "manuals/knn", "manuals/ngram", "text"}
    for one in told:
        assert one.sources.keys() == sources
        assert one.suffix.store == "manuals" and one.suffix.length >= 20  # it stands there
        assert {context.store for _, context in one.nearest} <= {"licences", "manuals"}
    nearest = [context.store for one in told for _, context in one.nearest]
    assert "manuals" in nearest
    assert "manuals: " in told._repr_html_()
    alone = KNNLM.load(pair[1], double_lm).explain(np.asarray(pair[1].tokens[0:20]).tolist(), first=15)
    assert {context.store for one in alone for _, context in one.nearest} == {""}


def test_drafts_come_from_every_text(pair, double_lm):
    knnlm = KNNLM.load(list(pair), double_lm, WAYS["learned"])
    for store in pair:
        read = np.asarray(store.tokens[0:60], np.int32)
        chain = knnlm.drafter.chain(read[:40], None, 0)
        assert chain.tokens[:8].tolist() == read[40:48].tolist()


def test_a_mistake_is_one_line(pair, double_lm):
    with pytest.raises(OptionError, match="named twice"):
        KNNLM.load([pair[0], pair[0].path], double_lm)
