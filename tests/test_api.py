"""The Python API as a new user meets it: names, docstrings, README's snippets, types, silence."""

import doctest
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nearlm
from tiny import make_text

ROOT = Path(__file__).parent.parent
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, model_folder):
    """A folder as README's reader has it: texts, a saved model, and a tiny model in place of SmolLM2."""
    folder = tmp_path_factory.mktemp("workplace")
    for number, name in enumerate(("docs", "valid", "test")):
        (folder / name).mkdir()
        for part in range(3):
            (folder / name / f"{part}.txt").write_text(make_text(150, seed=10 * number + part))
    (folder / "saved-model").symlink_to(model_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearlm.model.pretrained._smollm2", lambda: model_folder)
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def mystore(workplace):
    store = nearlm.build("smollm2-135m", "docs/", "mystore", nearlm.BuildOptions(window=64))
    nearlm.build_index(store)
    return store


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = (test for name in nearlm.__all__ for test in finder.find(getattr(nearlm, name), name))
    return [test for test in found if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_an_example_of_a_docstring_runs(example, mystore, quick_paper_index, quick_timing):
    example.globs = {"nearlm": nearlm}
    said = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert not failed, "".join(said)


@pytest.mark.parametrize("name", nearlm.__all__)
def test_a_public_name_is_listed_and_documented(name):
    assert name in dir(nearlm)
    assert (getattr(nearlm, name).__doc__ or "").endswith((".", "\n    ", "\n"))


def test_the_main_functions_have_an_example():
    shown = {example.name.partition(".")[0] for example in examples()}
    assert {
        "fit",
        "build",
        "build_index",
        "tune",
        "evaluate",
        "optimize",
        "KNNLM",
        "attach",
        "Gate",
        "TextSource",
    } <= shown


def test_the_page_of_the_api_is_current(monkeypatch):
    script = str(ROOT / "docs" / "make_api.py")
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    runpy.run_path(script, run_name="__main__")  # it exits if not


def test_readme_snippets_run_one_after_the_other(workplace, tmp_path, monkeypatch, capfd):
    for name in ("docs", "valid", "test", "saved-model"):
        (tmp_path / name).symlink_to(workplace / name)
    monkeypatch.chdir(tmp_path)
    names = {}
    for snippet in SNIPPETS:
        exec(compile(snippet, "README.md", "exec"), names)
    assert "Evaluation(perplexity" in capfd.readouterr().out


def test_readme_snippets_are_typed_and_a_typing_error_is_found(tmp_path):
    """It uses what `make check` left in the cache of mypy; without that it takes a minute."""
    wrong = [
        "nearlm.BuildOptions(windw=256)",
        'nearlm.build("m", "t", "o", windw=256)',
        'nearlm.tune("s", "t", nprob=2)',
        'nearlm.evaluate("s", "t").perplexty',
        'nearlm.KNNLM.load("s").generate("t", max_new_token=3)',
    ]
    (tmp_path / "snippets.py").write_text("\n".join(SNIPPETS))
    (tmp_path / "wrong.py").write_text("\n".join(["import nearlm", *wrong]))
    users = '\n[[tool.mypy.overrides]]\nmodule = ["nearlm"]\nimplicit_reexport = false\n'  # as the strict have it
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + users)
    command = [sys.executable, "-m", "mypy", "--config-file", tmp_path / "pyproject.toml", "--cache-dir", ".mypy_cache"]
    texts = [tmp_path / "snippets.py", tmp_path / "wrong.py"]
    ran = subprocess.run([*command, *texts], cwd=ROOT, capture_output=True, text=True)
    found = [line for line in ran.stdout.splitlines() if "error" in line and "Found" not in line]
    assert not [line for line in found if "snippets.py:" in line], ran.stdout
    lines = {int(line.split("wrong.py:")[1].split(":")[0]) for line in found}
    assert lines == set(range(2, len(wrong) + 2)), ran.stdout


def test_texts_in_memory_give_what_their_files_give(workplace):
    documents = [path.read_text() for path in sorted((workplace / "docs").iterdir())]
    options = nearlm.BuildOptions(window=64)
    files = nearlm.build("smollm2-135m", Path("docs"), "files", options)
    memory = nearlm.build("smollm2-135m", nearlm.TextSource.from_strings(*documents), "memory", options)
    assert np.array_equal(files.keys[:], memory.keys[:]) and np.array_equal(files.values[:], memory.values[:])
    assert memory.context_of(0).document == "memory:1" and memory.manifest.segments[0].texts == ["memory"]


def test_functions_are_silent_and_results_speak_for_themselves(mystore, capfd):
    results = [
        mystore,
        nearlm.build_index("mystore"),
        nearlm.tune("mystore", nearlm.TextSource.from_strings(make_text(120, seed=77))),
        nearlm.evaluate("mystore", "test/"),
        nearlm.KNNLM.load("mystore"),
        nearlm.KNNLM.load("mystore").score("the licence grants rights"),
        nearlm.KNNLM.load("mystore").memory,
        nearlm.attach(nearlm.LM.load("smollm2-135m"), mystore),
    ]
    assert capfd.readouterr() == ("", "")
    for result in results:
        assert 20 < len(repr(result)) < 1200 and " object at " not in repr(result), repr(result)


def test_an_evaluation_of_a_knnlm_takes_no_settings(mystore):
    knnlm = nearlm.KNNLM.load("mystore", settings=nearlm.SearchSettings(lam=0.5))
    assert nearlm.evaluate(knnlm, "test/").search.lam == 0.5
    with pytest.raises(nearlm.NearLMError, match="already; leave them out"):
        nearlm.evaluate(knnlm, "test/", settings=nearlm.SearchSettings(lam=0.1))


def test_generate_attach_and_pipeline_write_the_same_tokens(mystore):
    from transformers import pipeline

    prompt = "the licence grants"
    options = {"max_new_tokens": 8, "do_sample": False}
    knnlm = nearlm.KNNLM.load("mystore")
    written = knnlm.generate(prompt, **options)
    model = knnlm.lm.model
    with nearlm.attach(model, "mystore"):
        inputs = knnlm.lm.tokenizer(prompt, return_tensors="pt")
        ids = model.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :]
        pipe = pipeline("text-generation", model=model, tokenizer=knnlm.lm.tokenizer)
        piped = pipe(prompt, return_full_text=False, **options)[0]["generated_text"]
    assert knnlm.lm.tokenizer.decode(ids, skip_special_tokens=True) == written == piped


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'bild'"):
        _ = nearlm.bild
