"""A real server on a free loopback port: a tiny float64 model with a memory, and one without keys."""

import httpx
import openai
import pytest
from live import run_server

from calls import build, build_index, load_knnlm
from nearlm.base import files
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.model.lm import LM
from tiny import make_llama, make_text, make_tokenizer

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(scope="session")
def chatty():
    """A tokenizer with a chat template."""
    made = make_tokenizer()
    made.chat_template = CHAT
    return made


@pytest.fixture(scope="session")
def served_lm(chatty):
    """A float64 model, so that what a row gets is the same in any batch."""
    return LM(make_llama(seed=3).double(), chatty, name="double")


@pytest.fixture(scope="session")
def stores(tmp_path_factory, served_lm):
    """A store with keys and tuned settings, and one of text alone."""
    folder = tmp_path_factory.mktemp("served")
    for number in range(3):
        (folder / f"doc{number}.txt").write_text(make_text(150, seed=number))
    made = build(served_lm, str(folder / "*.txt"), folder / "mem", window=64, key_dtype="float32", quiet=True)
    build_index(made, "flat", quiet=True)
    tuned = {"lam": 0.4, "knn_temperature": 3.0, "k": 16}
    files.write_stamped(made.path / "index" / "default" / "settings.json", tuned)
    bare = build(served_lm, str(folder / "*.txt"), folder / "bare", window=64, quiet=True, keys="none")
    build_infinigram(bare)
    return made, bare


@pytest.fixture(scope="session")
def running(stores, served_lm):
    found = run_server(stores, served_lm)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def client(running):
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def http(running):
    with httpx.Client(base_url=running.url, timeout=30) as made:
        yield made


@pytest.fixture(scope="session")
def knnlm(stores, served_lm):
    """The same memory as the library uses it."""
    return load_knnlm(stores[0], served_lm)
