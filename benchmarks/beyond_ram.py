"""How slow a search gets when the index, or the store, does not fit into RAM.

    python benchmarks/beyond_ram.py STORE [--shares 1.2 0.75 0.5 0.25] [--queries 2048] [--distances store]

Each share is measured in a process of its own whose memory, page cache included, is limited by a cgroup (version 1 or
2, which needs root) to what it needs for itself plus so much of the index's lists, or with `--distances store` of the
store's keys. Files are dropped from the page cache before. Queries are near the store's own keys, in random order;
µs per query in batches of 1024 and one at a time, after a first pass over other queries.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from nearlm.search import Retriever
from nearlm.store import Datastore

K = 1024
PAGE_SLACK = 24 << 20  # bytes beside what is measured that a process needs to run at all


def main() -> None:
    options = parse()
    if options.child:
        measure(options)
        return
    store = Datastore.open(options.store)
    mapped = keys_bytes(store) if options.distances == "store" else index_bytes(store)
    print(f"{len(store):,} records, {mapped / 1e6:,.0f} MB of {'keys' if options.distances == 'store' else 'lists'}")
    base = run(options, store, None)
    print("| RAM for it | batches of 1024, µs a query | one at a time | read from disk, MB |\n|---:|---:|---:|---:|")
    show("all", base)
    for share in options.shares:
        found = run(options, store, base["anonymous"] + PAGE_SLACK + int(share * mapped))
        show(f"{share:.0%}", found)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--shares", type=float, nargs="*", default=[1.2, 0.75, 0.5, 0.25])
    parser.add_argument("--queries", type=int, default=2048)
    parser.add_argument("--distances", default="index", choices=["index", "store"])
    parser.add_argument("--child", action="store_true")
    return parser.parse_args()


def show(name: str, found: dict[str, float]) -> None:
    print(f"| {name} | {found['batch']:,.0f} | {found['alone']:,.0f} | {found['read'] / 1e6:,.0f} |", flush=True)


def index_bytes(store: Datastore) -> int:
    data = Retriever(store).info.files
    return sum(file.bytes for name, file in data.items() if name.endswith((".npy",)))


def keys_bytes(store: Datastore) -> int:
    return sum(file.bytes for name, file in store.manifest.files.items() if name.startswith("keys-"))


def run(options: argparse.Namespace, store: Datastore, limit: int | None) -> dict[str, float]:
    """Measure in a process of its own, within a limit."""
    drop(store)
    group = None if limit is None else Group(limit)
    command = [sys.executable, __file__, str(options.store), "--child", "--distances", options.distances]
    try:
        done = subprocess.run(
            [*command, "--queries", str(options.queries)],
            stdout=subprocess.PIPE,
            check=True,
            preexec_fn=group.enter if group else None,
            env={**os.environ, "NEARLM_VERIFY": "never"},
        )
    finally:
        if group:
            group.remove()
    return json.loads(done.stdout)  # type: ignore[no-any-return]


class Group:
    """A cgroup below this process's own, with a limit of memory."""

    def __init__(self, limit: int):
        lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
        places = {kind: path for _, kind, path in lines}
        first = "memory" in places
        root = Path("/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup")
        self.folder = Path(f"{root}{places['memory' if first else '']}") / f"nearlm-{os.getpid()}"
        self.folder.mkdir()
        (self.folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))

    def enter(self) -> None:
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        self.folder.rmdir()


def drop(store: Datastore) -> None:
    """Drop the store's files from the page cache."""
    for path in store.path.rglob("*.npy"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(options: argparse.Namespace) -> None:
    """Search, in the limited process, and print what it took."""
    store = Datastore.open(options.store)
    retriever = Retriever(store, distances=options.distances)
    rng = np.random.default_rng(0)
    width = store.dim
    queries = made_up(store, rng, 2 * options.queries, width)
    for first in range(0, options.queries, 1024):
        retriever.search(queries[first : first + 1024], K, ordered=False)
    retriever.search(queries[:1], K, ordered=False)  # kernels for one query are loaded
    before = read_bytes()
    began = time.perf_counter()
    for first in range(options.queries, 2 * options.queries, 1024):
        retriever.search(queries[first : first + 1024], K, ordered=False)
    batch = time.perf_counter() - began
    count = min(200, options.queries)
    began = time.perf_counter()
    for one in range(count):
        retriever.search(queries[one : one + 1], K, ordered=False)
    alone = time.perf_counter() - began
    found = {"batch": 1e6 * batch / options.queries, "alone": 1e6 * alone / count}
    print(json.dumps({**found, "read": read_bytes() - before, "anonymous": anonymous()}))


def made_up(store: Datastore, rng: np.random.Generator, count: int, width: int) -> np.ndarray:
    """Return queries around some of the store's keys, of which few pages are read."""
    first = rng.integers(0, len(store) - 64, max(1, count // 64))
    near = np.concatenate([store.keys[int(at) : int(at) + 64] for at in first]).astype(np.float32)
    near += rng.normal(0, 0.05 * near.std(), near.shape).astype(np.float32)
    return near[rng.permutation(len(near))][:count]


def read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
