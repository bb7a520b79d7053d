"""Time adding a page to a copy of a store, forgetting a document, and taking it off the disk.

    python benchmarks/edit_speed.py STORE PAGE [--folder FOLDER] [--index auto] [--json]

The store is copied first (keys as hard links, which are never changed), indexed if it has no index, and gets a suffix
array. Shown are seconds of `add` after the last forward pass, of `forget`, of opening the memory again, and of
`compact`, each with what it changed.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import nearlm
from nearlm.base import Reporter, store_folder
from nearlm.mixing import Memory
from nearlm.store import Datastore, builder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("page", help="a text to add")
    parser.add_argument("--folder", help="where the copy is made")
    parser.add_argument("--index", default="auto", help="kind of the index, if there is none")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        copy = copied(store_folder(options.store), Path(folder) / "copy")
        found = measure(copy, options.page, options.index)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:28} {value:,.3f}" if isinstance(value, float) else f"{name:28} {value}")


def copied(store: Path, target: Path) -> Path:
    """Copy a store; keys are linked, since nothing changes a file that is there."""

    def copy(source: str, to: str) -> None:
        if Path(source).name.startswith("keys-"):
            os.link(source, to)
        else:
            shutil.copy2(source, to)

    shutil.copytree(store, target, copy_function=copy, ignore=shutil.ignore_patterns(".lock"))
    return target


def measure(store: Path, page: str, kind: str) -> dict[str, Any]:
    opened = Datastore.open(store)
    if not opened.indexes:
        nearlm.build_index(opened, kind, reporter=Reporter())
    nearlm.build_infinigram(store)
    Memory.open(Datastore.open(store)).warm_up()
    found: dict[str, Any] = {"records": len(opened), "documents": opened.manifest.documents}
    lm = nearlm.LM.load(opened.model_spec())
    began: list[float] = []
    finish = builder._Builder._finish

    def noted(*given: Any) -> Datastore:
        began.append(time.perf_counter())
        return finish(*given)

    builder._Builder._finish = noted  # type: ignore[method-assign]
    added = nearlm.add(store, page, lm, reporter=Reporter())
    found["add, after the LM's pass (s)"] = time.perf_counter() - began[0]
    found["records added"] = len(added) - len(opened)
    found["open the memory again (s)"] = timed(lambda: Memory.open(Datastore.open(store)))
    name = added.document_names()[added.manifest.documents // 2]
    found["forget one document (s)"] = timed(lambda: nearlm.forget(store, document=name))
    found["records forgotten"] = Datastore.open(store).forgotten.records  # type: ignore[union-attr]
    found["open the memory again, (s)"] = timed(lambda: Memory.open(Datastore.open(store)))
    found["compact (s)"] = timed(lambda: nearlm.compact(store, reporter=Reporter()))
    found["records left"] = len(Datastore.open(store))
    return found


def timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
