"""What every test can share: a tiny model with its tokenizer, some texts, a cache of its own, the command line."""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

from pathlib import Path

import pytest
from hypothesis import settings

from tiny import make_llama, make_text, make_tokenizer

settings.register_profile("nearlm", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("nearlm")


def pytest_configure(config):
    """Forget compiled kernels that are older than a module beside them: numba looks at a kernel's own file only."""
    if hasattr(config, "workerinput"):
        return
    for index in (Path(__file__).parent.parent / "src").rglob("__pycache__/*.nbi"):
        if index.stat().st_mtime < max(path.stat().st_mtime for path in index.parent.parent.glob("*.py")):
            index.unlink()


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:
    """A saved tiny Llama with its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    make_llama().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def lm(model_folder: Path):
    from nearlm.model.lm import LM

    return LM.load(str(model_folder))


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Five documents of unlike lengths."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, words in enumerate((300, 20, 5, 150, 61)):
        (folder / f"doc{number}.txt").write_text(make_text(words, seed=number))
    return folder


@pytest.fixture(autouse=True, scope="session")
def _users_cache(tmp_path_factory: pytest.TempPathFactory):
    """Keep tests and what they share out of the user's cache; return where that is."""
    users = os.environ.get("NEARLM_CACHE")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARLM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield users


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk():
    """Tests kill processes, not machines: what the kernel was told is enough. Processes of their own do wait."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _few_searches_to_measure():
    """Measure what is indexed with fewer searches, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearlm.search.exact._QUERIES", 32)
        yield


@pytest.fixture(autouse=True)
def _cache_of_network_tests(_users_cache: str | None, monkeypatch: pytest.MonkeyPatch, request) -> None:
    """Let tests that use the network use the user's cache too."""
    if "network" in request.keywords:
        monkeypatch.delenv("NEARLM_CACHE")
        if _users_cache is not None:
            monkeypatch.setenv("NEARLM_CACHE", _users_cache)


_MODEL_ELSEWHERE = "nearlm: warning: loading the model from "  # tests keep it away from their stores


@pytest.fixture
def nearlm(monkeypatch, capfd):
    """Run a command in this process; return exit code, stdout and stderr, but for where the model comes from."""
    from nearlm import cli

    monkeypatch.delenv("NEARLM_DEBUG", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nearlm", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        out, err = capfd.readouterr()
        spoken = [line for line in err.splitlines(keepends=True) if not line.startswith(_MODEL_ELSEWHERE)]
        return exit.value.code, out, "".join(spoken)

    return run


@pytest.fixture
def quick_paper_index(monkeypatch):
    """Give the paper's index codes of 4 bits, which are trained at once."""
    monkeypatch.setattr("nearlm.search.kinds.paper_code_bytes", lambda dim: "4x4")


@pytest.fixture
def quick_timing(monkeypatch):
    """Let experiments time no longer than they must."""
    for name, value in {"_SECONDS": 0.0, "_PASSES": 1, "_WARM": 32, "_TIMED": 64}.items():
        monkeypatch.setattr(f"nearlm.optimizer.bench.{name}", value)
