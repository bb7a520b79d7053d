"""Time the opening of a store with its index: the first on a machine, which reads every byte, and those that follow.

    python benchmarks/open_speed.py [--records 850000] [--dim 64] [--times 40] [--against OTHER/src] [--json]

The store is made up: random keys, an IVF index of 8-bit codes, and settings. `--against` names the source folder of
another version, which opens the same store in turn with this one, in processes of its own. Times are milliseconds;
`again` is another opening in the same process, `process` the first one of a process whose files are known to be sound.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
AGAIN = 10  # openings in one process


def main() -> None:
    options = parse()
    if options.time:
        print(json.dumps(time_openings(Path(options.time))))
        return
    with tempfile.TemporaryDirectory(prefix="nearlm-open-") as name:
        os.environ["NEARLM_CACHE"] = str(Path(name) / "cache")
        make(Path(name) / "store", options.records, options.dim)
        time.sleep(3)  # what is younger is not remembered as sound
        versions = {"this": str(ROOT / "src")} | ({"other": options.against} if options.against else {})
        found = compare(Path(name) / "store", versions, options.times)
    print(json.dumps(found) if options.json else table(found))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=850_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--against", help="source folder of another version")
    parser.add_argument("--time", help=argparse.SUPPRESS)  # open this store; in a process of its own
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def make(folder: Path, records: int, dim: int) -> None:
    import numpy as np

    from nearlm.search import build_index
    from synthetic import make_store

    def keys(rows: slice) -> "np.ndarray":
        return np.random.default_rng(rows.start).normal(size=(rows.stop - rows.start, dim))

    store = make_store(folder, keys, np.random.default_rng(0).integers(0, 5000, records), dim=dim)
    build_index(store, "IVF256,SQ8", nprobe=8)


def time_openings(folder: Path) -> list[float]:
    """Return the milliseconds of some openings in this process, from which modules have been imported."""
    from nearlm.search import Retriever
    from nearlm.store import Datastore

    took = []
    for _ in range(AGAIN):
        begin = time.perf_counter()
        Retriever(Datastore.open(folder))
        took.append(1000 * (time.perf_counter() - begin))
    return took


def compare(folder: Path, versions: dict[str, str], times: int) -> dict[str, dict[str, float]]:
    """Open a store by all versions in turn."""
    first = {name: run(folder, source)[0] for name, source in versions.items()}
    took: dict[str, list[list[float]]] = {name: [] for name in versions}
    for _ in range(times):
        for name, source in versions.items():
            took[name].append(run(folder, source))
    return {
        name: {
            "first": first[name],
            "process": statistics.median(each[0] for each in runs),
            "again": statistics.median(one for each in runs for one in each[1:]),
        }
        for name, runs in took.items()
    }


def run(folder: Path, source: str) -> list[float]:
    command = [sys.executable, __file__, "--time", str(folder)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": source}, check=True, capture_output=True)
    return json.loads(done.stdout)


def table(found: dict[str, dict[str, float]]) -> str:
    lines = [f"{'':8}{'first':>10}{'process':>10}{'again':>10}"]
    return "\n".join(
        [*lines, *(f"{name:8}" + "".join(f"{ms:10.1f}" for ms in row.values()) for name, row in found.items())]
    )


if __name__ == "__main__":
    main()
