"""How much memory reducing and pruning take on a large store.

    python benchmarks/prune_memory.py [--records 2000000] [--dim 576] [--json]

The store is made up; each step runs in a process of its own, and a thread there reads RssAnon from
/proc/self/status. The steps that need an index share one that is made first (and watched as well). To keep the
run short the index is a small one and looks at few lists: what is held does not depend on that.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from build_memory import Watch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

MEASURE = "--measure"
STEPS = {
    "index": {},
    "reduce": {"dim": 64},
    "random": {"keep": 0.6},
    "kmeans": {"ratio": 20.0},
    "merge": {"neighbors": 100},
    "rank": {"keep": 0.6, "k": 1024},
}


def main() -> None:
    if sys.argv[1:2] == [MEASURE]:
        print(json.dumps(measure(**json.loads(sys.argv[2]))))
        return
    options = parse()
    with tempfile.TemporaryDirectory(prefix="nearlm-prune-", dir=options.folder) as name:
        in_a_process(step="make", folder=name, records=options.records, dim=options.dim)
        rows = {step: in_a_process(step=step, folder=name) for step in options.steps.split(",")}
    good = all(row["peak_gb"] < options.limit_gb for row in rows.values())
    if options.json:
        print(json.dumps({**rows, "good": good}))
    else:
        print(f"{options.records:,} × {options.dim}, RssAnon limit {options.limit_gb} GB\n")
        print("| step | records left | peak RssAnon | seconds |\n|---|---:|---:|---:|")
        for step, row in rows.items():
            print(f"| {step} | {row['records']:,} | {row['peak_gb']:.2f} GB | {row['seconds']:.0f} |")
    sys.exit(0 if good else 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=576)
    parser.add_argument("--limit-gb", type=float, default=4.0)
    parser.add_argument("--steps", default=",".join(STEPS), help="which steps, with commas between them")
    parser.add_argument("--folder", default=None, help="where to put the stores: 2.3 GB and more at full size")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def in_a_process(**arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, MEASURE, json.dumps(arguments)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def measure(step: str, folder: str, **options: int) -> dict[str, float]:
    """Do one step, watching this process's own memory."""
    from calls import build_index, prune_store, reduce_store
    from nearlm.base.files import remove
    from nearlm.store.datastore import Datastore

    path, out = Path(folder) / "store", Path(folder) / step
    started = time.monotonic()
    with Watch() as watch:
        if step == "make":
            made = make(path, **options)
        elif step == "index":
            made = Datastore.open(path)
            build_index(made, "IVF1024,PQ16", nprobe=1)
        elif step == "reduce":
            made = reduce_store(path, out=out, **STEPS[step])
        else:
            made = prune_store(path, step, out, **STEPS[step])
        records = len(made)
    if step not in ("make", "index"):
        remove(out)
    return {"records": records, "peak_gb": watch.peak / 1e9, "seconds": time.monotonic() - started}


def make(path: Path, records: int, dim: int):
    """Write a store of random keys around a few places; one token has a fiftieth of the records."""
    from synthetic import make_store

    rng = np.random.default_rng(0)
    places = rng.standard_normal((1000, dim), dtype=np.float32) * 3
    values = rng.integers(1, 8000, records)
    values[rng.random(records) < 0.02] = 0

    def keys(rows: slice) -> np.ndarray:
        rng, out = np.random.default_rng(rows.start), np.empty((rows.stop - rows.start, dim), np.float16)
        for start in range(0, len(out), 1 << 14):
            part = out[start : start + (1 << 14)]
            part[:] = rng.standard_normal(part.shape, dtype=np.float32) + places[rng.integers(0, 1000, len(part))]
        return out

    return make_store(path, keys, values, dim)


if __name__ == "__main__":
    main()
