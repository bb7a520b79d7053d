"""Time the opening of a memory with index and gate: the first on a machine, which reads every byte, and later ones.

    python benchmarks/open_speed.py [--store cache:NAME] [--times 30] [--against OTHER/src] [--json]

Without `--store` one is made up: random keys, an IVF index of 8-bit codes, and a mixture with a suffix array. A store
of one's own must have an index and, for a row more, a mixture, both called `default`. It is not changed: what is
opened is a folder of other names for its files, beside it. The gate is one that nobody trained, with the paper's
features.

`--against` names the source folder of another version, which opens the same store in turn with this one, in processes
of its own. Times are milliseconds; `process` is the first opening of a process whose files are known to be sound,
`again` another one in the same process. The mixture is opened by this version alone.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "knnlm")]
AGAIN = 10  # openings in one process
OWN = "timed"  # names of the gate, and of its copy that another version reads
OTHERS = "other"
VERSION = "from nearlm.mixing.gate_learning import FORMAT; print(FORMAT)"


def main() -> None:
    options = parse()
    if options.time:
        print(json.dumps(time_openings(Path(options.time), json.loads(options.settings))))
        return
    given = find(options.store)
    with tempfile.TemporaryDirectory(prefix="nearlm-open-", dir=given and given.parent) as name:
        os.environ["NEARLM_CACHE"] = str(Path(name) / "cache")
        folder = Path(name) / "store"
        if given:
            shutil.copytree(given, folder, copy_function=os.link, ignore=shutil.ignore_patterns(".lock"))
        else:
            make(folder, options.records, options.dim)
        make_gate(folder)
        rows = rows_of(folder, options.against)
        time.sleep(3)  # what is younger is not remembered as sound
        found = compare(folder, rows, options.times)
    print(json.dumps(found) if options.json else table(found))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="folder or cache:NAME, instead of a store that is made up")
    parser.add_argument("--records", type=int, default=850_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--against", help="source folder of another version")
    parser.add_argument("--time", help=argparse.SUPPRESS)  # open this store; in a process of its own
    parser.add_argument("--settings", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def find(store: str | None) -> Path | None:
    from nearlm.base import store_folder

    return store_folder(store) if store else None


def make(folder: Path, records: int, dim: int) -> None:
    """Write a store with an index, and a mixture that nobody trained."""
    from dataclasses import replace

    import numpy as np

    from nearlm.mixing import build_infinigram
    from nearlm.mixing.mixture import untrained_mixture
    from nearlm.mixing.network_files import save_trained
    from nearlm.search import build_index, write_settings
    from nearlm.store import SearchSettings, Tuned
    from synthetic import make_store

    def keys(rows: slice) -> "np.ndarray":
        return np.random.default_rng(rows.start).normal(size=(rows.stop - rows.start, dim))

    store = make_store(folder, keys, np.random.default_rng(0).integers(0, 5000, records), dim=dim)
    index = build_index(store, "IVF256,SQ8", nprobe=8)
    write_settings(store, Tuned("default", lam=0.25, knn_temperature=1.0, k=1024, nprobe=8, index_hash=index.hash))
    mixture = untrained_mixture(("knn", "ngram", "text"), build_infinigram(store), SearchSettings("default"))
    known = replace(mixture.info, store=store.checksum, better=True)
    save_trained(store.layout.mixture("default"), mixture.network, known)


def make_gate(folder: Path) -> None:
    """Write a gate that nobody trained, with the n-gram tables that it looks up."""
    from gated import untrained

    from nearlm.mixing.gate_network import PAPER_FEATURES
    from nearlm.mixing.network_files import save_trained
    from nearlm.mixing.ngrams import build_ngrams
    from nearlm.store import Datastore

    store = Datastore.open(folder)
    build_ngrams(store)
    model = SimpleNamespace(fingerprint=lambda: "")
    network, info = untrained(store, model, "learned", PAPER_FEATURES, every=len(store) // 1000 + 1)
    save_trained(store.layout.gate(OWN), network.float(), info)


def rows_of(folder: Path, other: str | None) -> dict[str, tuple[str, dict[str, str]]]:
    """Return what is timed: by name the version's source folder, and settings."""
    own = str(ROOT / "src")
    rows = {"this": (own, {"gate": OWN, "mixture": "none"})}
    if other:
        write_gate_for(other, folder)
        rows["other"] = (other, {"gate": OTHERS})
    if (folder / "mixture" / "default").exists():
        rows["with mixture"] = (own, {"gate": OWN, "mixture": "default"})
    return rows


def write_gate_for(source: str, folder: Path) -> None:
    """Copy the gate, and say that it has the format that another version reads; what it knows has not changed."""
    from nearlm.base import files

    gate = shutil.copytree(folder / "gate" / OWN, folder / "gate" / OTHERS)
    known = files.read_json(gate / "gate.json")
    files.write_stamped(gate / "gate.json", {**known, "format": int(python(source, "-c", VERSION))})


def time_openings(folder: Path, settings: dict[str, str]) -> list[float]:
    """Return the milliseconds of some openings in this process, from which modules have been imported."""
    from nearlm.mixing import Memory
    from nearlm.store import Datastore, SearchSettings

    chosen = SearchSettings(**settings)
    took = []
    for _ in range(AGAIN):
        begin = time.perf_counter()
        Memory.open(Datastore.open(folder), chosen)
        took.append(1000 * (time.perf_counter() - begin))
    return took


def compare(folder: Path, rows: dict[str, tuple[str, dict[str, str]]], times: int) -> dict[str, dict[str, float]]:
    """Open a store in all ways in turn, first as on a machine that has not seen it."""
    first = {}
    for name, row in rows.items():
        shutil.rmtree(Path(os.environ["NEARLM_CACHE"]) / "verified", ignore_errors=True)
        first[name] = run(folder, *row)[0]
    for row in rows.values():
        run(folder, *row)
    took: dict[str, list[list[float]]] = {name: [] for name in rows}
    for _ in range(times):
        for name, row in rows.items():
            took[name].append(run(folder, *row))
    return {
        name: {
            "first": first[name],
            "process": statistics.median(each[0] for each in runs),
            "again": statistics.median(one for each in runs for one in each[1:]),
        }
        for name, runs in took.items()
    }


def run(folder: Path, source: str, settings: dict[str, str]) -> list[float]:
    return json.loads(python(source, __file__, "--time", str(folder), "--settings", json.dumps(settings)))


def python(source: str, *arguments: str) -> bytes:
    environment = {**os.environ, "PYTHONPATH": source}
    return subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.PIPE).stdout


def table(found: dict[str, dict[str, float]]) -> str:
    lines = [f"{'':14}{'first':>10}{'process':>10}{'again':>10}"]
    return "\n".join(
        [*lines, *(f"{name:14}" + "".join(f"{ms:10.1f}" for ms in row.values()) for name, row in found.items())]
    )


if __name__ == "__main__":
    main()
