"""A server in a thread, on a free loopback port."""

import threading
import time
from types import SimpleNamespace

from nearlm.serve.catalog import Catalog
from nearlm.serve.limits import Limits
from nearlm.serve.metrics import Metrics
from nearlm.serve.server import listen, make_server

LIMITS = Limits(
    max_body_bytes=40_000, max_prompt_tokens=150, max_new_tokens=64, max_choices=8, max_batch=6, max_queue=8
)


def run_server(stores, lm, limits=LIMITS, key=None):
    """Start a server in a thread; return where it is, and what ends it."""
    metrics = Metrics()
    catalog = Catalog.open(stores, limits, metrics, lms=[lm])
    server = make_server(catalog, limits, metrics, key)
    for engine in catalog.engines:
        engine.start()
    bound = listen("127.0.0.1", 0)
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
