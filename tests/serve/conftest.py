"""A real server on a free loopback port: a tiny float64 model with a memory, and one without keys."""

import threading
import time
from types import SimpleNamespace

import httpx
import openai
import pytest

from calls import build, build_index, load_knnlm
from nearlm.base import files
from nearlm.mixing.infinigram import build_infinigram
from nearlm.model.lm import LM
from nearlm.serve.catalog import Catalog
from nearlm.serve.limits import Limits
from nearlm.serve.metrics import Metrics
from nearlm.serve.server import _bind, make_server
from tiny import make_llama, make_text, make_tokenizer

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
LIMITS = Limits(max_body_bytes=40_000, max_prompt_tokens=150, max_new_tokens=64, max_choices=8, max_batch=6, max_queue=8)


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


def run_server(stores, lm, limits=LIMITS, key=None):
    """Start a server in a thread; return where it is, and what ends it."""
    metrics = Metrics()
    catalog = Catalog.open(stores, limits, metrics, lms=[lm])
    server = make_server(catalog, limits, metrics, key)
    for engine in catalog.engines:
        engine.start()
    bound = _bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"

    def stop():
        server.should_exit = True
        thread.join()
        for engine in catalog.engines:
            engine.close(2)

    return SimpleNamespace(url=url, catalog=catalog, server=server, stop=stop, metrics=metrics)


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
