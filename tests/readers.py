"""Every reader of a file that others may have written, and ways to change such files: for tests and benchmarks/fuzz.py.

A reader is given a changed file. It must return, or raise a NearLMError; anything else is a defect.
"""

import contextlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearlm.base import NearLMError, files
from nearlm.paper.results import Parts

RULES: dict[str, dict[str, float]] = {"overhead": {"overhead": 100.0}, "budget": {"budget": 5.0}}
UNFINISHED = ("begun", "counted", "derived", "built", "trained", "fitting")
PARTS = tuple(part.name for part in fields(Parts))
ODD = [-1, 0, 1, 7, 1 << 31, 1 << 62, 1 << 70, 1e308, "", "x", "../x", "default", None, [], {}, [[]], True, "\x1b[2J"]


class Stores:
    """Sound stores to take files from: one as built, one merged and reduced, both with all that a store can hold."""

    def __init__(self, folder: Path):
        from calls import build, build_index, prune_store, reduce_store, tune
        from nearlm.mixing import Gate, Mixture, Training
        from nearlm.model.lm import LM
        from nearlm.search import Retriever
        from nearlm.store.sharing import push
        from tiny import make_llama, make_text, make_tokenizer

        make_llama().save_pretrained(folder / "model")
        make_tokenizer().save_pretrained(folder / "model")
        (folder / "train.txt").write_text(make_text(150, seed=1))
        (folder / "valid.txt").write_text(make_text(100, seed=2))
        lm = LM.load(str(folder / "model"))
        store = build(lm, str(folder / "train.txt"), folder / "store", window=64, quiet=True)
        build_index(store, "IVF4,SQ8", nprobe=2, quiet=True)
        build_index(store, "IVF8_HNSW4,Flat", name="graph", nprobe=2, quiet=True)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("nearlm.search.training.GROUPED_LISTS", 7)
            build_index(store, "IVF8,SQ4", name="narrow", nprobe=2, quiet=True)
        prune_store(store, "rank", folder / "ranked", keep=0.5, k=8, quiet=True)
        merged = prune_store(store, "merge", folder / "merged", neighbors=4, quiet=True)
        small = reduce_store(merged, 16, folder / "small", quiet=True)
        build_index(small, "auto", quiet=True)
        for made in (store, small):
            tune(lm, Retriever(made), str(folder / "valid.txt"), k=16)
            Gate.train(made, str(folder / "valid.txt"), lm, Training(epochs=1, features="all"))
            Mixture.train(made, str(folder / "valid.txt"), lm)
            optimize_note(made)
            fit_note(made)
        for name in ("ranked", "merged"):
            shutil.rmtree(folder / name)
        make_edited(lm, folder)
        names = ("store", "small", "edited", "slim", "trace", "weights", "passes", "results", *UNFINISHED)
        self.folders = {name: folder / name for name in (*names, *RULES)}
        push(store, self.folders["slim"], slim=True)
        use_passes(self.folders["passes"])
        write_trace(self.folders["trace"])
        use_weights(self.folders["weights"])
        write_results(self.folders["results"])
        for name in ("begun", "counted", "trained", *(f"{rule}/source" for rule in RULES)):
            shutil.copytree(store.path, folder / name)
        stop_at("nearlm.search.index_building.measure", lambda: use_index_job(self.folders["begun"]))
        shutil.rmtree(self.folders["counted"] / "ngrams")
        stop_at("nearlm.mixing.ngrams._Counting._finish", lambda: use_ngrams_job(self.folders["counted"]))
        stop_at("nearlm.shrink.reduction.FileInfo.of", lambda: use_derive_job(self.folders["derived"]))
        stop_at("nearlm.store.builder.finish", lambda: use_build_job(self.folders["built"]))
        stop_at("nearlm.mixing.gate.save_trained", lambda: use_gate_job(self.folders["trained"]))
        stop_at("nearlm.optimizer.fitting.write_fit", lambda: use_fit_job(self.folders["fitting"]))
        for rule in RULES:
            stop_at("nearlm.optimizer.trials.Trials.begin_final", partial(optimize_quickly, self.folders[rule]))
            shutil.rmtree(self.folders[rule] / "fast.optimize" / "keep-0.4")  # a store, like any other


def stop_at(places: str | list[str], work: Callable[[], None]) -> None:
    """Stop some work where it calls something, or one of several."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        for place in [places] if isinstance(places, str) else places:
            patch.setattr(place, stop)
        work()


def make_edited(lm: Any, folder: Path) -> None:
    """Make a store that has forgotten two of its documents, one of them off the disk."""
    import nearlm
    from calls import build, build_index
    from tiny import make_text

    (folder / "several").mkdir()
    for number in range(4):
        (folder / "several" / f"{number}.txt").write_text(make_text(40, seed=number))
    build_index(build(lm, str(folder / "several"), folder / "edited", window=64, quiet=True), "IVF4,SQ8", quiet=True)
    nearlm.build_infinigram(folder / "edited")
    nearlm.forget(folder / "edited", source="*1.txt")
    nearlm.compact(folder / "edited")
    nearlm.forget(folder / "edited", source="*2.txt")


def use_forgotten(store: Path) -> None:
    """Search around forgotten documents."""
    from nearlm.mixing import InfiniGram
    from nearlm.search import Retriever
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    opened.verify()
    Retriever(opened).search(np.zeros((2, opened.query_dim), np.float32), 5)
    InfiniGram.open(opened)
    opened.summary()


def write_trace(folder: Path) -> None:
    """Write a trace as the cache holds it."""
    from nearlm.base import ArrayFile, FileInfo, write_record
    from nearlm.mixing.traces import TraceInfo

    folder.mkdir()
    column = ArrayFile(folder / "logp.npy", np.dtype("float32"), (9,))
    column.write(np.zeros(9))
    write_record(folder / "trace.json", TraceInfo(9, FileInfo.by_name([column.path])))


def write_results(folder: Path) -> None:
    """Write what `reproduce` keeps of every part, made up."""
    import measured
    from nearlm.paper.results import Results

    for part, found in vars(measured.parts()).items():
        Results(folder / "results").save(part, found)


def optimize_note(store: Any) -> None:
    """Write what `optimize` leaves in the store that it makes."""
    from nearlm.base.records import to_json
    from nearlm.optimizer.points import Choice, HeldOutTokens, Point, Setup
    from nearlm.store import SearchSettings, write_defaults

    write_defaults(store.layout, SearchSettings(index="default", gate="default", skip=0.2))
    setup = Setup(len(store), store.dim, 1, 1, "Flat", SearchSettings(index="default", k=16))
    point = Point("as it is", setup, 1.0, 3.0, 2.0, chosen=True)
    held_out = HeldOutTokens(9, 3.0, 2.0, 3.0)
    choice = Choice(10, 3.0, point, [point], "why", budget=0.1, target=2.1, held_out=held_out)
    files.write_stamped(store.layout.optimized, {"plan": {"store": "a"}, "choice": to_json(choice)})


def fit_note(store: Any) -> None:
    """Write what `fit` keeps in the store that it makes."""
    from nearlm.optimizer.continuations import Continuation
    from nearlm.optimizer.fit_record import Fit, write_fit
    from nearlm.optimizer.unseen import Quality, Unseen
    from nearlm.text import TEST, TRAIN, Split

    one = Quality(1.5, 0.1, 20.0, 2.0)
    unseen = Unseen(3, 400, 1600, one, one, 0.2, 0.03, 40.0, 2000.0)
    found = Fit("tiny", 900, 9, 12_345, 2, 300, 3, 0, "k 64", ("cut up",), unseen, Continuation("a", "b", "c", "d"))
    split = Split({b"a" * 16: TRAIN, b"b" * 16: TEST}, {5: TRAIN, -7: TEST}, 400)
    write_fit(store.layout.fit, "request", "text", split, found)


def use_records(store: Path) -> None:
    """Open a store and trace its records to their texts."""
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    for record in (0, 3, len(opened) - 1):
        opened.trace(record)
    opened.summary()
    opened.document_bounds.sum()
    opened.next_record(0)


def use_keys(store: Path) -> None:
    """Read keys, and take a query to their space."""
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    opened.project(np.zeros((2, opened.query_dim), np.float32))
    opened.keys[0:4].sum()


def use_probe(store: Path) -> None:
    """Compare the probe's keys with others."""
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    ours = opened.manifest
    opened.check_model(ours.model.fingerprint, opened._probe.open() * 1, ours.tokenizer.fingerprint, "x")


def use_index(store: Path, name: str = "default") -> None:
    """Open an index with its settings, and search in it."""
    from nearlm.search import Retriever, read_settings, verify_index
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    verify_index(opened, name)
    settings = read_settings(opened, name)
    retriever = Retriever(opened, name)
    queries = np.random.default_rng(0).normal(size=(5, opened.query_dim)).astype(np.float32)
    retriever.search(queries, (settings and settings.k and min(settings.k, 64)) or 8)


def use_neighbors(store: Path) -> None:
    """Take the neighbours and ranks that are kept beside an index."""
    from nearlm.base import QUIET
    from nearlm.shrink import verify_neighbors
    from nearlm.shrink.neighbors import saved_neighbors
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    verify_neighbors(opened, "default")
    saved_neighbors(opened, "default", 4, QUIET)


def use_gate(store: Path) -> None:
    """Open a gate with its n-gram tables, and ask it."""
    from nearlm.mixing import Gate, verify_gate, verify_ngrams
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    verify_gate(opened, "default")
    verify_ngrams(opened)
    gate = Gate.load(opened).at("auto").at(0.5)
    count = np.random.default_rng(0)
    contexts = count.integers(-1, 300, (6, 4)).astype(np.int32)
    if gate.looked.ngrams is not None:
        gate.looked.ngrams.look_up(contexts)
    gate.warm_up()


def use_mixture(store: Path) -> None:
    """Open a mixture with its suffix array, and ask it."""
    from nearlm.mixing import Contexts, InfiniGram, Known, Mixture, verify_infinigram, verify_mixture
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    verify_infinigram(opened)
    if store.name == "edited":  # which has the suffix array alone
        InfiniGram.open(opened)
        return
    verify_mixture(opened, "default")
    mixture = Mixture.load(opened)
    tokens = np.random.default_rng(0).integers(-1, 300, 40).astype(np.int32)
    known = Known.of(None, Contexts(tokens, np.zeros(9, np.int64), np.arange(9) * 4), 9)
    mixture.weigh(known, mixture.ask(known), None, np.zeros(9, bool)).log_experts(np.zeros(9), tokens[:9])
    mixture.table()


def use_defaults(store: Path) -> None:
    """Resolve what is used when nothing is named."""
    from nearlm.mixing import Memory
    from nearlm.store import Datastore

    repr(Memory.open(Datastore.open(store)))


def use_optimized(store: Path) -> None:
    """Read how a store was chosen."""
    from nearlm.base import QUIET
    from nearlm.optimizer.optimization import read_finished
    from nearlm.store import Layout

    read_finished(Layout(store), {"store": "a"}, QUIET).table()


def use_fit(store: Path) -> None:
    """Read what `fit` found, and cut a text as it did."""
    from nearlm.optimizer.fit_record import read_fit
    from nearlm.store import Layout
    from nearlm.text import TextSource

    found = read_fit(Layout(store).fit)
    assert found is not None
    record, split = found
    record.fit.table()
    record.fit.commands(store)
    list(split.passages(TextSource.from_strings("some text\n\n" * 99).open()))


def use_shared(store: Path) -> None:
    """Open a store that was passed on, pass it on, and get it."""
    from nearlm.store import Datastore
    from nearlm.store.sharing import pull, push

    with tempfile.TemporaryDirectory() as place:
        push(Datastore.open(store), Path(place) / "pushed")
        pull(store, Path(place) / "pulled")


def use_passes(store: Path) -> None:
    """Ask for the times of passes that are in the cache, which are measured again if they are damaged."""
    from nearlm.base import write_record
    from nearlm.knnlm.pass_costs import PassCosts, _read

    path = store / "passes" / "costs.json"
    if not path.exists():
        path.parent.mkdir(parents=True)
        write_record(path, PassCosts((1, 2, 17), (0.1, 0.2, 0.3)))
    kept = _read(path)
    if kept is not None:
        kept.by_tokens(17)


def use_fit_job(folder: Path) -> None:
    """Finish a fit; model and text stand beside the folder, which holds its store."""
    from nearlm.optimizer import FitOptions, fit
    from nearlm.store import BuildOptions

    model = str(folder.parent / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearlm.optimizer.bench._SECONDS", 0.0)
        options = FitOptions(overhead=100.0)
        fit(model, str(folder.parent / "valid.txt"), folder / "ready", options, BuildOptions(window=64))


def use_trace(store: Path) -> None:
    """Ask for a trace that is in the cache, which is made again if it is damaged."""
    from nearlm.base import QUIET, ArrayFile
    from nearlm.mixing.traces import is_sound

    columns = {"logp": ArrayFile(store / "logp.npy", np.dtype("float32"), (9,))}
    is_sound(store, columns, QUIET)


def use_weights(store: Path) -> None:
    """Ask for the hash of weights that is in the cache, which is made again if it is damaged."""
    from torch import nn

    from nearlm.model.weights import _hash_once

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARLM_CACHE", str(store))
        assert isinstance(_hash_once({"files": []}, nn.Linear(2, 2)), str)


def use_results(store: Path, part: str) -> None:
    """Read one part of what was measured, all of which would take long to draw, and write the page of it."""
    from nearlm.paper.report import write_report
    from nearlm.paper.results import Results

    results = Results(store / "results")
    for path in results.folder.glob("*.json"):
        if path.stem != part:
            path.unlink()
    results.all().table()
    write_report(results)


def use_gate_job(store: Path) -> None:
    """Finish a gate; model and text stand beside the store."""
    from nearlm.mixing import Gate, Training

    Gate.train(store, store.parent / "valid.txt", training=Training(epochs=1, features="all"), name="begun")


def use_optimize_job(folder: Path) -> None:
    """Resume an optimization, up to where the chosen store is made, or where something is measured again."""
    measures = ("bench.Bench.lm_seconds", "bench.Bench.mixing_seconds", "trials.Trials.point")
    places = [f"nearlm.optimizer.{name}" for name in (*measures, "trials.Trials.begin_final")]
    stop_at(places, partial(optimize_quickly, folder))


def optimize_quickly(folder: Path) -> None:
    """Optimize the store that a folder has; model and text stand beside the folder."""
    from nearlm.optimizer import optimize

    model = str(folder.parent / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearlm.optimizer.bench._SECONDS", 0.0)
        patch.setattr("nearlm.search.kinds.paper_code_bytes", lambda dim: "4x4")
        optimize(folder / "source", folder.parent / "valid.txt", folder / "fast", model, **RULES[folder.name])


def use_index_job(store: Path) -> None:
    """Finish an index."""
    from nearlm.search import build_index

    build_index(store, "IVF4,SQ8", name="begun")


def use_derive_job(store: Path) -> None:
    """Finish a reduced store."""
    from nearlm.shrink import ReduceOptions, reduce_store

    reduce_store(store.parent / "store", ReduceOptions(8), store)


def use_build_job(store: Path) -> None:
    """Finish a build; model and text stand beside it."""
    from calls import build

    build(str(store.parent / "model"), str(store.parent / "valid.txt"), store, window=64, quiet=True)


def use_ngrams_job(store: Path) -> None:
    """Finish n-gram tables."""
    from nearlm.mixing.ngrams import build_ngrams
    from nearlm.store import Datastore

    build_ngrams(Datastore.open(store))


READERS: dict[str, Callable[[Path], None]] = {  # the first pattern that a file's name has
    "trace.json": use_trace,
    "logp.npy": use_trace,
    "weights/*": use_weights,
    "passes/*": use_passes,
    "ready.fit/*": use_fit_job,
    **{f"results/{part}.json": partial(use_results, part=part) for part in PARTS},
    "index/begun/*": use_index_job,
    "gate/begun/*": use_gate_job,
    "fast.optimize/*": use_optimize_job,
    "derive.job/*": use_derive_job,
    "build.job/*": use_build_job,
    "ngrams/ngrams.job/*": use_ngrams_job,
    "manifest.json": use_records,
    "defaults.json": use_defaults,
    "optimize.json": use_optimized,
    "index/*/neighbors.*": use_neighbors,
    "index/*/ranks.*": use_neighbors,
    "index/graph/*": partial(use_index, name="graph"),
    "index/narrow/*": partial(use_index, name="narrow"),
    "index/*": use_index,
    "gate/*": use_gate,
    "ngrams/*": use_gate,
    "mixture/*": use_mixture,
    "suffixes/*": use_mixture,
    "forgotten-*": use_forgotten,
    "fit/*": use_fit,
    "shared.json": use_shared,
    "keys-*": use_keys,
    "transform.faiss": use_keys,
    "probe.npy": use_probe,
    "*": use_records,
}


def reader_of(name: str) -> Callable[[Path], None]:
    return next(read for pattern, read in READERS.items() if fnmatch(name, pattern))


def files_of(store: Path) -> list[str]:
    """List all files of a store, as seen from it, or those of its unfinished job."""
    found = [path for path in sorted(store.rglob("*")) if path.is_file() and path.name != ".lock"]
    names = [path.relative_to(store).as_posix() for path in found]
    return [name for name in names if any(part in name for part in (".job/", ".optimize/", ".fit/"))] or names


def change_json(data: bytes, choice: random.Random) -> bytes:
    """Change one value somewhere in a JSON file, or leave it out."""
    whole = json.loads(data)
    places = [place for place in leaves(whole) if place[1] != "checksum"]
    holder, key = choice.choice(places)
    if isinstance(holder, dict) and choice.random() < 0.2:
        del holder[key]
    else:
        holder[key] = choice.choice([*ODD, holder[key], [holder[key]], {"x": holder[key]}])
    return json.dumps(whole).encode()


def change_bytes(data: bytes, choice: random.Random) -> bytes:
    """Flip, cut out, double, overwrite or append some bytes."""
    changed = bytearray(data)
    for _ in range(choice.choice([1, 1, 2, 8])):
        at = choice.randrange(len(changed) + 1)
        near = choice.choice([at, min(at, 200)])  # headers are at the beginning
        size = choice.choice([1, 4, 8, 64])
        way = choice.randrange(5)
        if way == 0 and near < len(changed):
            changed[near] ^= 1 << choice.randrange(8)
        elif way == 1:
            del changed[near : near + size]
        elif way == 2:
            changed[near:near] = changed[near : near + size]
        elif way == 3:
            changed[near : near + size] = choice.choice([bytes(size), b"\xff" * size, choice.randbytes(size)])
        else:
            changed += choice.randbytes(size)
    return bytes(changed)


def change_numbers(data: bytes, choice: random.Random) -> bytes:
    """Change some numbers of an array, not its header."""
    array = np.frombuffer(bytearray(data[files.NPY_HEADER :]), _dtype(data))
    for _ in range(choice.choice([1, 1, 8])):
        if array.dtype.kind == "f":
            wrong = choice.choice([np.inf, -np.inf, np.nan, 6e4, 0])
        else:
            limits = np.iinfo(array.dtype)
            wrong = choice.choice(
                [limits.min, limits.max, max(-1, limits.min), 0, min(12345, limits.max), limits.max // 2]
            )
        array[choice.randrange(len(array))] = wrong
    return data[: files.NPY_HEADER] + array.tobytes()


def _dtype(data: bytes) -> np.dtype[Any]:
    header = data[: files.NPY_HEADER].decode("latin-1")
    return np.dtype(header.split("'descr': '")[1].split("'")[0])


def change(name: str, data: bytes, choice: random.Random) -> bytes:
    """Change a file in a way that its kind allows."""
    ways = [change_bytes]
    if name.endswith(".json") and data.strip().startswith(b"{"):
        ways = [change_json, change_json, change_json, change_bytes]
    elif name.endswith(".npy"):
        ways = [change_bytes, change_numbers]
    return choice.choice(ways)(data, choice)


def leaves(whole: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a JSON value: what holds it, and its name or number there."""
    items = whole.items() if isinstance(whole, dict) else enumerate(whole)
    for key, one in list(items):
        yield whole, key
        if isinstance(one, dict | list):
            yield from leaves(one)


def restamp(store: Path) -> None:
    """Make every checksum right again, as somebody would who means harm."""
    manifest = store / "manifest.json"
    found = (path for path in store.rglob("*.json") if path != manifest and path.parent.name != "tokenizer")
    others = sorted(found, key=lambda path: (path.name == "shared.json", path))  # which lists the others
    old = read(manifest).get("checksum") if isinstance(read(manifest), dict) else None
    for path in (*others, manifest, *others):
        whole = read(path)
        if not isinstance(whole, dict) or "checksum" not in whole:
            continue
        _restamp_listed(path.parent, whole)
        new = read(manifest).get("checksum") if isinstance(read(manifest), dict) else None
        text = json.dumps(whole, ensure_ascii=False)
        if isinstance(old, str) and isinstance(new, str) and path != manifest:
            text = text.replace(old, new)
        files.write_stamped(path, json.loads(text))


def _restamp_listed(folder: Path, whole: dict[str, Any]) -> None:
    listed = whole.get("files")
    described = dict(listed) if isinstance(listed, dict) else {}
    for name in ("neighbors", "ranks"):  # of which `file` tells
        if isinstance(whole.get("file"), dict) and isinstance(whole.get("of"), dict):
            described[f"{name}.npy"] = whole["file"] if ("count_self" in whole["of"]) == (name == "ranks") else None
    for name, one in described.items():
        place = folder / str(name)
        if isinstance(one, dict) and place.is_file():
            one["bytes"], one["sha256"] = place.stat().st_size, files.checksum(place)


def read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None


def attempt(store: Path, name: str, choice: random.Random, *, hostile: bool = True) -> str:
    """Change one file of a store, which stays so, and read it; return `read` or what it was refused with."""
    path = store / name
    path.write_bytes(change(name, path.read_bytes(), choice))
    if hostile:
        restamp(store)
    try:
        reader_of(name)(store)
    except NearLMError as error:
        return str(error)
    return "read"
