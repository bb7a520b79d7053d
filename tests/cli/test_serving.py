"""Commands that keep a model loaded."""

import io
import sys

import pytest

from calls import build, build_index
from nearlm.cli import serving
from tiny import make_text


@pytest.fixture(scope="module")
def store(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("serving")
    (folder / "a.txt").write_text(make_text(200))
    made = build(str(model_folder), str(folder / "a.txt"), folder / "mem", window=64, quiet=True)
    build_index(made, "flat", quiet=True)
    return made.path


def test_chat_continues_lines_of_a_pipe_as_generate_does(nearlm, store, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("the licence\n/explain\n/memory off\nthe licence\n"))
    code, out, err = nearlm("chat", store, "--max-new-tokens", 6, "--lam", 0.9, "-q")
    assert code == 0
    assert "no chat template" in err and "the memory is off" in err
    with_memory = nearlm("generate", store, "the licence", "--max-new-tokens", 6, "--lam", 0.9, "-q")[1]
    alone = nearlm("generate", store, "the licence", "--max-new-tokens", 6, "--no-knn", "-q")[1]
    assert out.startswith(with_memory) and out.endswith(alone)
    assert "p_kNN" in out


def test_serving_elsewhere_needs_a_key(nearlm, store):
    code, _, err = nearlm("serve", store, "--host", "0.0.0.0")
    assert code == 2
    assert "--api-key-file" in err and len(err.splitlines()) == 1


def test_a_bad_key_file_and_a_bad_limit_are_one_line(nearlm, store, tmp_path):
    (tmp_path / "key").write_text("short")
    for arguments in (("--api-key-file", tmp_path / "key"), ("--max-batch", 0), ("--port", 99999)):
        code, _, err = nearlm("serve", store, *arguments)
        assert code == 2 and len(err.splitlines()) == 1


def test_a_missing_extra_is_named(nearlm, store, monkeypatch):
    def missing(module, what, extra):
        from nearlm.base import MissingExtraError

        raise MissingExtraError(what, extra)

    monkeypatch.setattr(serving, "import_extra", missing)
    code, _, err = nearlm("serve", store)
    assert code == 2 and "nearlm[serve]" in err


def test_drafts_can_be_turned_off(nearlm, store, monkeypatch):
    asked = []
    monkeypatch.setattr("nearlm.serve.server.serve", lambda *_, **options: asked.append(options["draft"]))
    for flags in ((), ("--no-draft",)):
        assert nearlm("serve", store, *flags)[0] == 0
    assert asked == [True, False]


def test_what_is_said_of_the_model_reaches_the_server(nearlm, store, monkeypatch):
    from nearlm.serve import server

    given = {}
    monkeypatch.setattr(server, "serve", lambda *args, **options: given.update(options))
    assert nearlm("serve", store, "--weights", "plain", "--device", "cpu", "--dtype", "float32")[0] == 0
    assert (given["weights"], given["device"], given["dtype"]) == ("plain", "cpu", "float32")
