"""The paper's experiments at a tiny size: every part, going on, refusals, the page, and as a user types them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import measured as measured_results
from calls import build_index, evaluate, load_knnlm
from nearlm.base import files
from nearlm.base.errors import OptionError, StoreError, TextError
from nearlm.base.progress import Reporter
from nearlm.knnlm import KNNLM
from nearlm.mixing.traces import trace_lm
from nearlm.mixing.tuning import best_setting
from nearlm.model.lm import LM
from nearlm.optimizer import WRITING, overhead, trials
from nearlm.optimizer import optimization as optimizing
from nearlm.optimizer.fit_plan import Ways
from nearlm.paper import reproduction as reproducing
from nearlm.paper.report import write_report
from nearlm.paper.reproduction import ALL_PARTS, DEMO_PARTS, Reproduction
from nearlm.paper.results import ALL, MIXED, NLM, VANILLA, WITHIN, Parts, Results
from nearlm.paper.settings import SETTINGS, Setting, change
from nearlm.store.datastore import Datastore
from tiny import make_text

pytestmark = pytest.mark.usefixtures("quick_timing")


@pytest.fixture(scope="module")
def setting(model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    (folder / "train.txt").write_text(make_text(250, seed=1))
    for split in ("valid", "test"):
        (folder / split).mkdir()
        for number in range(12):
            (folder / split / f"{number}.txt").write_text(make_text(14, seed=len(split) + 20 * number))
    texts = {split: (str(folder / split),) for split in ("valid", "test")}
    return Setting(
        "tiny",
        "A tiny <setting>",
        "About it.",
        str(model_folder),
        (str(folder / "train.txt"),),
        **texts,
        timed_tokens=100,
        rounds=1,
        keeps=(0.5,),
        dims=(8, 999),
        ks=(16,),
        prompt="the licence grants",
    )


@pytest.fixture
def small(monkeypatch, quick_paper_index):
    monkeypatch.setattr(optimizing, "SMALL_DIMS", (8,))
    monkeypatch.setattr(optimizing, "SMALL_KEEPS", (0.7,))
    monkeypatch.setattr(trials, "NEIGHBORS_TRIED", (1024, 64))
    monkeypatch.setattr(overhead, "KS", (64,))
    monkeypatch.setattr(overhead, "NPROBES", (8,))
    monkeypatch.setattr("nearlm.mixing.mixture_training._EPOCHS", 2)
    monkeypatch.setattr(reproducing, "_NEW_TOKENS", 5)


def measured(parts):
    return {name for name, part in vars(parts).items() if part is not None}


@pytest.mark.timeout(300)
def test_every_part_is_measured_and_shown(setting, tmp_path, small, monkeypatch):
    out, quiet = tmp_path / "out", Reporter(quiet=True)
    results = Reproduction(setting, out, quiet, command="nearlm demo").run(ALL_PARTS)
    parts = results.all()
    assert measured(parts) == {*ALL_PARTS, "about"}
    main = parts.main
    assert [row.name for row in main.rows] == [NLM, VANILLA, "+ AR", "+ GM", "+ DR", "+ index", *MIXED, ALL, WITHIN]
    run = Reproduction(setting, out, quiet)
    models = {NLM: load_knnlm(out / "fast", knn=False), ALL: load_knnlm(out / "fast"), WITHIN: load_knnlm(out / "best")}
    for name, knnlm in models.items():
        assert main.row(name).perplexity == pytest.approx(evaluate(knnlm, setting.test).perplexity, rel=1e-4)
        assert main.row(name).end_to_end and main.rounds[name]
    vanilla = run.memories.tune(run.store, "paper")
    assert main.row(VANILLA).perplexity == pytest.approx(
        evaluate(KNNLM(run.lm, run.store, vanilla), setting.test).perplexity, rel=1e-4
    )
    mixed = run.memories.mix(run.memories.tune(run.store, "auto"), "knn,ngram,text")
    assert main.row("+ text so far").perplexity == pytest.approx(
        evaluate(KNNLM(run.lm, run.store, mixed), setting.test).perplexity, rel=1e-4
    )
    assert len(Datastore.open(out / "merged")) == main.row("+ GM").setup.records < main.row(VANILLA).setup.records
    assert main.row("+ DR").setup.dim == 16 and not main.row("+ GM").end_to_end
    names = [row.name for row in parts.baseline.rows]
    assert names == [NLM, "kNN-LM, T=1", VANILLA, "kNN-LM, exact", "nearlm's index"]
    assert set(parts.pruning) == {"random", "kmeans", "merge", "rank"}
    assert [point.setup.dim for point in parts.pca.points] == [32, 8]
    assert [point.setup.search.k for point in parts.k.points][1:] == [16]
    assert len(parts.continuation.tokens) == 5 and parts.about.command == "nearlm demo"
    assert (out / "main.csv").read_text().startswith("name,perplexity,")

    monkeypatch.setattr(Reproduction, "_main", lambda self: pytest.fail("measured again"))
    again = Reproduction(setting, out, quiet).run(ALL_PARTS).all()
    assert replace(again, about=None) == replace(parts, about=None)
    (out / "k.json").unlink()
    (out / "sweep" / "k.json").unlink()
    assert Reproduction(setting, out, quiet).run(ALL_PARTS).load("k") is not None
    with pytest.raises(StoreError, match="another setting or other sizes"):
        Reproduction(replace(setting, valid_tokens=99), out, quiet).run(DEMO_PARTS)
    tuned = Reproduction(setting, out, quiet, finetune_tokens=200).run(ALL_PARTS).load("baseline")
    assert [row.name for row in tuned.rows] == [*names, "NLM, fine-tuned on 200"]
    learned = LM.load(str(out / "finetuned" / "200"))
    alone = trace_lm(learned, run.memories.test.traced.text, run.store.reading()).logp
    assert tuned.rows[-1].perplexity == pytest.approx(np.exp(-np.mean(np.asarray(alone, np.float64))))
    assert tuned.rows[-1].perplexity != tuned.rows[0].perplexity
    monkeypatch.setattr("nearlm.paper.lm_training.finetune", lambda *given, **options: pytest.fail("trained again"))
    assert Reproduction(setting, out, quiet, finetune_tokens=200).run(ALL_PARTS).load("baseline") == tuned
    told = results.all().table()
    assert "of NLM" in told and "Chosen: " in told and "without:" in told
    page = write_report(results).read_text()
    assert "A tiny &lt;setting&gt;" in page


def test_a_killed_run_goes_on(setting, tmp_path, small, monkeypatch):
    out, quiet, parts = tmp_path / "out", Reporter(quiet=True), ("choice", "continuation")
    real = Reproduction._continuation

    def killed(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Reproduction, "_continuation", killed)
    with pytest.raises(KeyboardInterrupt):
        Reproduction(setting, out, quiet).run(parts)
    monkeypatch.setattr(Reproduction, "_continuation", real)
    monkeypatch.setattr(reproducing, "optimize", lambda *given, **options: pytest.fail("chosen again"))
    assert measured(Reproduction(setting, out, quiet).run(parts).all()) == {"about", *parts}


def test_the_main_table_has_the_optimized_stores_that_were_made(setting, tmp_path, monkeypatch):
    told = []
    choices = {
        "_choice": measured_results.choice(),
        "_within": measured_results.within(),
        "_fit": measured_results.fit(),
    }
    for name, made in choices.items():
        monkeypatch.setattr(Reproduction, name, lambda self, made=made: (made, []))
    monkeypatch.setattr(Reproduction, "_about", lambda *_: None)
    monkeypatch.setattr(Reproduction, "memories", None)
    monkeypatch.setattr(Datastore, "open", staticmethod(lambda path: path))
    monkeypatch.setattr(
        reproducing, "main_table", lambda _, made, **options: told.append(made) or measured_results.main_table()
    )
    for number, parts in enumerate((("choice", "main"), ("choice", "within", "main"), ("fit", "main"))):
        Reproduction(setting, tmp_path / str(number), Reporter(quiet=True)).run(parts)
    assert told == [
        {ALL: tmp_path / "0" / "fast"},
        {ALL: tmp_path / "1" / "fast", WITHIN: tmp_path / "1" / "best"},
        {WITHIN: tmp_path / "2" / "memory"},
    ]
    assert DEMO_PARTS[:2] == ("fit", "main") and ALL_PARTS[:3] == ("choice", "within", "main")


@pytest.mark.timeout(300)
def test_the_demo_fits_a_memory_and_puts_it_into_the_papers_table(setting, tmp_path, small, sketched, monkeypatch):
    monkeypatch.setattr("nearlm.optimizer.fit_plan.WAYS", (Ways((8,), (64,)),))
    monkeypatch.setitem(WRITING, "max_new_tokens", 5)
    results = Reproduction(setting, tmp_path, Reporter(quiet=True)).run(DEMO_PARTS)
    parts = results.all()
    assert measured(parts) == {*DEMO_PARTS, "about"}
    last = parts.main.rows[-1]
    assert last.name == WITHIN and last.perplexity == pytest.approx(parts.fit.unseen.memory.perplexity, rel=1e-4)
    assert parts.main.rows[0].perplexity == pytest.approx(parts.fit.unseen.alone.perplexity, rel=1e-4)
    shown = parts.fit.continuation
    if shown is not None:
        assert (parts.continuation.prompt, parts.continuation.truth) == (shown.prompt, shown.truth)
    page = write_report(results).read_text()
    assert "How well it does on unseen text" in page and "bits are saved" in page


@pytest.mark.timeout(300)
def test_wikitext103_runs_from_end_to_end(setting, model_folder, tmp_path, small, sketched):
    """The preset itself, with packed paragraphs and all tokens, but for the model, the texts and how many points."""
    texts = {}
    for number, split in enumerate(("train", "valid", "test")):
        lines = [f" = {make_text(2, seed=number)} = \n\n", *make_text(160, seed=number).splitlines(keepends=True)]
        path = tmp_path / f"{split}.jsonl"  # a row is a document there, as in the dataset
        path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines if line.strip()))
        texts[split] = (str(path),)
    preset = change(SETTINGS["wikitext103"], model=str(model_folder), **texts)
    assert preset.pack and preset.valid_tokens is preset.test_tokens is preset.sweep_tokens is None
    few = replace(preset, rounds=1, timed_tokens=200, keeps=(0.5,), dims=(8,), ks=(16,))
    results = Reproduction(few, tmp_path / "out", Reporter(quiet=True)).run(ALL_PARTS)
    assert measured(results.all()) == {*ALL_PARTS, "about"}
    store = Datastore.open(tmp_path / "out" / "store")
    assert store.manifest.pack and store.manifest.documents > 10
    assert "WikiText-103" not in write_report(results).read_text().partition("</h1>")[0]  # the user's own texts


def test_an_index_of_the_users_stays_as_it_is(setting, tmp_path, small):
    run = Reproduction(setting, tmp_path / "out", Reporter(quiet=True))
    for name, nprobe in (("default", None), ("paper", 3)):
        build_index(run.store, "paper", name=name, nprobe=nprobe, quiet=True)
    settings = {"k": 32, "knn_temperature": 3.0, "lam": 0.3, "nprobe": 32, "distances": "index"}
    files.write_stamped(run.store.path / "index" / "default" / "settings.json", settings)
    before = {path: path.read_bytes() for path in run.store.path.glob("index/*/*.json")}
    memory = run.memories.gate(run.memories.tune(run.store, "paper"), 0.1)
    assert {path: path.read_bytes() for path in before} == before
    assert run.store.gates == ["measured-paper"] and memory.retriever.index.nprobe == 32
    noted = files.read_stamped(run.store.path / "index" / "measured-paper" / "settings.json")
    trace = run.memories.valid.trace(memory.retriever, memory.settings.k)
    assert noted["perplexity"] == pytest.approx(best_setting(trace).perplexity)


def test_what_cannot_be_done_is_said_before_the_work(setting, tmp_path):
    quiet = Reporter(quiet=True)
    with pytest.raises(TextError, match="only once"):
        Reproduction(replace(setting, valid=("-",)), tmp_path / "out", quiet).run(ALL_PARTS)
    for tokens in (-5, 0):
        with pytest.raises(OptionError, match=f"tokens is {tokens}"):
            Reproduction(setting, tmp_path / "out", quiet, finetune_tokens=tokens).run(ALL_PARTS)
    assert not (tmp_path / "out").exists()


def test_as_a_user_types_it(setting, tmp_path, small, nearlm, monkeypatch):
    monkeypatch.setattr(reproducing, "ALL_PARTS", ("choice", "continuation"))
    texts = [word for split in ("train", "valid", "test") for word in (f"--{split}", getattr(setting, split)[0])]
    command = ["reproduce", "--setting", "domain", "--model", setting.model, *texts, "--out", str(tmp_path / "out")]
    code, out, err = nearlm(*command, "--quiet")
    assert code == 0, err
    assert "Chosen: " in out and out.rstrip().endswith("report.html") and (tmp_path / "out" / "report.html").exists()
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    assert about["command"].startswith("nearlm reproduce --setting domain")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<h1>tiny-llama with a memory of train.txt, tested on test</h1>" in page
    assert "SmolLM2" not in page and "Redistribution" not in page
    prompt = json.loads((tmp_path / "out" / "continuation.json").read_text())["prompt"]
    documents = [file.read_text() for file in Path(setting.test[0]).iterdir()]
    assert any(document.startswith(f"{prompt} ") for document in documents) and len(prompt.split()) > 2
    code, _, err = nearlm("reproduce", "--setting", "nonsense", "--out", str(tmp_path / "x"))
    assert code == 2 and "expected one of domain" in err and not (tmp_path / "x").exists()
    assert Results(tmp_path / "nothing").all() == Parts()
