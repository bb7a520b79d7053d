"""A build on Ray: this process plans and writes the manifest, workers fill the shards."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from nearlm.base import QUIET, OptionError, Reporter, check_at_least, files, store_folder
from nearlm.cluster.crew import Crew, Loading, Places
from nearlm.cluster.remote_lm import RemoteLM, findable
from nearlm.cluster.session import LOCAL, ClusterOptions, joined
from nearlm.model import FFN, ModelSpec
from nearlm.store import BuildOptions, Datastore, Layout
from nearlm.store.builder import build
from nearlm.store.shards import planned_threads
from nearlm.text import Texts


def build_on_ray(
    model: str | ModelSpec | None,
    text: Texts,
    out: str | Path,
    options: BuildOptions = BuildOptions(),
    cluster: ClusterOptions = ClusterOptions(),
    *,
    append: bool = False,
    restart: bool = False,
    threads: int | None = None,
    reporter: Reporter = QUIET,
) -> Datastore:
    """Build a store as `build` does, with the model on workers of a Ray cluster; its files are the same.

    Args:
        model: A hub id, a model folder, a GGUF file or `smollm2-135m`, or a `ModelSpec`, as every worker finds it.
        text: As for `build`; only this process reads it.
        out: Folder of the store, on a file system that all machines share.
        options: How the text becomes records.
        cluster: Where Ray is, and how many workers do it.
        append: As for `build`.
        restart: As for `build`.
        threads: Threads of each worker; with the same number a build without Ray gives the same bytes.
        reporter: Whom to tell of the progress.
    """
    check_at_least(1, threads=threads)
    layout = Layout(store_folder(out))
    spec, tap = _model(model, layout.folder, options, append)
    _refuse_busy(layout.folder)
    with joined(cluster.address) as ray:
        begun = None if restart else planned_threads(layout.build_job)
        places = plan_places(ray, cluster, begun or threads)
        used = begun or threads or int(places.cpus)
        with Crew(ray, Loading(loadable(spec, places), tap, used), places, reporter) as crew:
            lm = RemoteLM(spec, crew.describe(), crew.keys)
            reporter.say(f"{places.workers} workers on Ray, {used} threads each ({lm.place})")
            asked: Any = {"append": append, "restart": restart, "threads": used, "reporter": reporter}
            store = build(lm, text, layout.folder, options, fill=crew.fill, **asked)
    layout.text_job.close()  # of a build that was begun without Ray
    return store


def _model(model: str | ModelSpec | None, folder: Path, options: BuildOptions, append: bool) -> tuple[ModelSpec, str]:
    """Return which model workers load, and where its keys are taken."""
    store = Datastore.open(folder) if Layout(folder).is_store else None
    if model is None and append and store is not None:
        model = dataclasses.replace(store.model_spec(), dtype=store.manifest.model.dtype)
    spec = ModelSpec(model) if isinstance(model, str) else model
    if not isinstance(spec, ModelSpec) or spec.model is None:
        raise OptionError("on Ray every worker loads the model itself; name it with `model`")
    return spec, options.key_tap or (store.manifest.key_tap if store else FFN)


def loadable(spec: ModelSpec, places: Places) -> ModelSpec:
    """Say how a worker loads the model: without GPUs on the CPU, though it may see some that are others'."""
    found = findable(spec)
    return dataclasses.replace(found, device="cpu") if found.device == "auto" and not places.gpus else found


def _refuse_busy(folder: Path) -> None:
    """Refuse a folder that another driver writes to, before workers are asked for."""
    if folder.is_dir():
        with files.lock(folder):
            pass


def plan_places(ray: Any, cluster: ClusterOptions, threads: int | None) -> Places:
    """Say how many workers there shall be, and how much of the machines each is to have."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = sum(node.get("GPU", 0) for node in nodes)
    each = cluster.gpus_per_worker
    if each is None:
        each = 1.0 if gpus else 0.0
    if each > gpus and cluster.address == LOCAL:
        raise OptionError(f"`gpus_per_worker` is {each:g}, but this machine has {gpus:g} GPUs; leave it out")
    workers = cluster.workers or max(1, int(gpus / each) if each else len(nodes))
    cores = [int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0)] or [1]
    beside = -(-workers // len(cores))
    share = max(1, min(cores) // beside)
    if cluster.address == LOCAL:
        share = min(share, max(1, torch.get_num_threads() // workers))  # not those that share a core
    return Places(workers, min(threads or share, share), each)
