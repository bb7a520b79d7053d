"""Ablations against adding up by hand, and as a user types them."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from calls import build, build_index, evaluate, load_knnlm
from nearlm.base import files
from nearlm.base.errors import MissingExtraError, OptionError
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.gate import Gate
from nearlm.mixing.gate_training import Training
from nearlm.paper import ablation as ablating
from nearlm.paper import report
from nearlm.paper.ablation import PAPER_ROWS, SKIPPED, ablate, equal_share, masks_and_weights, oracle
from nearlm.paper.results import LEARNED, RANDOM
from tiny import make_text

pytestmark = pytest.mark.usefixtures("quick_timing")


def made_up(count=4000, seed=0):
    rng = np.random.default_rng(seed)
    log_lm = np.log(rng.uniform(0.01, 0.9, count))
    log_knn = np.where(rng.uniform(size=count) < 0.4, -np.inf, np.log(rng.uniform(0.1, 1, count)))
    return log_lm, log_knn, np.log(rng.uniform(0.05, 0.95, count))


def test_masks_and_weights_equal_adding_up_by_hand():
    log_lm, log_knn, log_lam = made_up()
    curves = masks_and_weights(log_lm, log_knn, log_lam, 0.3)
    p_lm, p_knn = np.exp(log_lm), np.exp(log_knn)
    for name, lam in (("constant", np.full(4000, 0.3)), ("learned", np.exp(log_lam))):
        for number, share in enumerate(SKIPPED):
            kept = np.argsort(log_lam)[round(share * 4000) :]
            p = p_lm.copy()
            p[kept] = (lam * p_knn + (1 - lam) * p_lm)[kept]
            assert curves[f"learned mask, {name} λ"][number] == pytest.approx(np.exp(-np.log(p).mean()), rel=1e-9)
            drawn = []
            for seed in range(20):
                kept = np.random.default_rng(seed).permutation(4000)[round(share * 4000) :]
                p = p_lm.copy()
                p[kept] = (lam * p_knn + (1 - lam) * p_lm)[kept]
                drawn.append(np.exp(-np.log(p).mean()))
            assert curves[f"random mask, {name} λ"][number] == pytest.approx(np.mean(drawn), rel=0.01)
    assert all(values[-1] == pytest.approx(perplexity(log_lm)) for values in curves.values())


def test_a_network_that_is_too_sure_leaves_every_token_some_probability():
    log_lm = made_up()[0]
    curves = masks_and_weights(log_lm, np.full(4000, -np.inf), np.zeros(4000), 0.3)
    assert np.isfinite(list(curves.values())).all()
    assert curves[LEARNED][0] == pytest.approx(1000 * perplexity(log_lm))


def test_the_oracle_asks_where_the_memory_is_at_least_as_good():
    log_lm, log_knn, _ = made_up()
    found = oracle(log_lm, log_knn, 0.3)
    wins = np.exp(log_knn) >= np.exp(log_lm)
    p = np.where(wins, 0.3 * np.exp(log_knn) + 0.7 * np.exp(log_lm), np.exp(log_lm))
    assert found.skipped == pytest.approx(1 - wins.mean())
    assert found.constant == pytest.approx(np.exp(-np.log(p).mean()))
    assert found.best <= found.constant <= perplexity(mix(log_lm, log_knn, 0.3))


def test_the_share_at_which_a_curve_crosses_vanilla():
    rising = [10 + 10 * share for share in SKIPPED]
    assert equal_share(rising, 13.3) == pytest.approx(0.33)
    assert equal_share(rising, 9.0) == 0.0 and equal_share(rising, 30.0) == 1.0


def test_the_papers_six_rows():
    left_out = [set(PAPER_ROWS[0]) - set(row) for row in PAPER_ROWS]
    assert left_out[:5] == [set(), {"freq"}, {"fert"}, {"conf", "ent"}, {"keys"}] and PAPER_ROWS[5] == ("keys",)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ablate")
    for part, count, first in (("train", 2, 0), ("valid", 11, 100), ("test", 2, 200)):
        (folder / part).mkdir()
        for number in range(count):
            (folder / part / f"{number}.txt").write_text(make_text(60, seed=first + number))
    return folder


@pytest.fixture(scope="module")
def store(texts, model_folder, lm):
    made = build(str(model_folder), str(texts / "train"), texts / "store", window=64, quiet=True)
    build_index(made, "flat", quiet=True)
    settings = {"k": 32, "knn_temperature": 3.0, "lam": 0.3, "nprobe": None, "distances": "index"}
    files.write_stamped(made.path / "index" / "default" / "settings.json", settings)
    Gate.train(made, str(texts / "valid"), lm, Training(epochs=2))
    return made


def test_curves_are_those_of_evaluation(lm, store, texts):
    found = ablate(lm, store, str(texts / "test"))
    evaluated = evaluate(load_knnlm(store, lm, lam=found.lam), str(texts / "test"))
    assert found.vanilla_perplexity == pytest.approx(evaluated.perplexity, rel=1e-5)
    assert found.curves[RANDOM][0] == pytest.approx(evaluated.perplexity, rel=1e-5)
    assert found.nlm_perplexity == pytest.approx(evaluated.nlm_perplexity, rel=1e-5)
    assert found.best_constant_perplexity <= found.vanilla_perplexity
    at_half = evaluate(load_knnlm(store, lm, gate="default", skip=0.5), str(texts / "test"))
    assert found.skipped[10] == pytest.approx(at_half.skipped, abs=1e-9)
    weight = "learned" if Gate.load(store).learned else "constant"
    assert found.curves[f"learned mask, {weight} λ"][0] == pytest.approx(
        evaluate(load_knnlm(store, lm, gate="default", skip=0), str(texts / "test")).perplexity, rel=1e-5
    )
    assert not found.features and LEARNED in found.table()


def test_the_command_trains_variants_and_draws(nearlm, store, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(ablating, "Training", lambda **given: Training(**given, epochs=1))
    figure = tmp_path / "ablation.svg"
    code, out, err = nearlm(
        "ablate", store.path, "--text", texts / "test", "--valid", texts / "valid", "--figure", figure, "--json", "-q"
    )
    found = json.loads(out)
    assert code == 0, err
    assert [row["features"] for row in found["features"]] == [list(row) for row in PAPER_ROWS]
    assert len(found["objectives"]["classification"]) == len(found["shares"]) == 21
    speeds = found["speed"]["tokens_per_second"]
    assert speeds == sorted(speeds) and speeds[0] > 0
    assert figure.read_text().startswith("<?xml")


def test_trained_variants_outlast_a_kill(lm, store, texts, monkeypatch):
    monkeypatch.setattr(ablating, "Training", lambda **given: Training(**given, epochs=1))
    real, trained = ablating.train_network, []

    def killed(shape, *given):
        if len(trained) == 4:
            raise KeyboardInterrupt
        trained.append(shape.features)
        return real(shape, *given)

    monkeypatch.setattr(ablating, "train_network", killed)
    with pytest.raises(KeyboardInterrupt):
        ablate(lm, store, str(texts / "test"), valid=[str(texts / "valid")])
    monkeypatch.setattr(ablating, "train_network", lambda *given: trained.append(given[0].features) or real(*given))
    found = ablate(lm, store, str(texts / "test"), valid=[str(texts / "valid")])
    assert trained == [*PAPER_ROWS, Gate.load(store).inputs.features]
    assert len(found.features) == 6 and not list((store.path / "gate" / "default").glob("*.job"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--gate", "none"), "no gate at all"),
        (("--gate", "nothing"), "no gate 'nothing'"),
        (("--figure", "plot.gif"), "--figure"),
        (("--figure", "no/such/folder/plot.png"), "no folder"),
        (("--valid", "missing.txt"), "does not exist"),
        (("--valid-tokens", "100"), "name it with --valid"),
    ],
)
def test_nonsense_gets_one_line(nearlm, store, texts, arguments, expected):
    code, _, err = nearlm("ablate", store.path, "--text", texts / "test", "-q", *arguments)
    assert code == 2 and expected in err and err.count("\n") == 1


def test_a_missing_matplotlib_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"nearlm\[report\]"):
        report.check_figure(tmp_path / "plot.png")
    with pytest.raises(OptionError):
        report.check_figure(SimpleNamespace(suffix=".bmp", name="plot.bmp"))
