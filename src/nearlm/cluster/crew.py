"""The workers of a build: actors that load the model once and fill shards; one that dies is replaced."""

import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearlm import __version__
from nearlm.base import Advance, Floats, Int32s, Job, Json, Reporter
from nearlm.base.jobs import CHECKPOINT_SECONDS
from nearlm.cluster.remote_lm import Described
from nearlm.cluster.session import ClusterError, on_a_worker, reason
from nearlm.model import ModelSpec
from nearlm.model.lm import LM
from nearlm.store import BuildOptions, Layout
from nearlm.store.key_codes import KeyCodec
from nearlm.store.shards import Made, ShardWriter
from nearlm.text import Batch, Windows

MOST_DEATHS = 3  # of workers in a row that got nothing done
_PATIENCE = 30.0  # seconds, after which is said what is waited for


@dataclass(frozen=True)
class Loading:
    """How a worker loads its model."""

    spec: ModelSpec
    key_tap: str
    threads: int
    version: str = __version__


class Places(NamedTuple):
    """What is asked of Ray for each worker."""

    workers: int
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Shard:
    """A shard as it travels: its windows and tokens, and the plan of its build."""

    folder: str
    number: int
    windows: Windows
    tokens: Int32s
    base: int
    options: BuildOptions
    codec: KeyCodec | None
    plan: Json

    @classmethod
    def of(cls, writer: ShardWriter, plan: Json) -> "Shard":
        """Take what a worker needs of a shard."""
        own = writer.cut()
        folder = str(own.layout.folder.resolve())
        return cls(folder, own.number, own.windows, own.tokens, own.base, own.options, own.codec, plan)

    def fill(self, lm: LM) -> Made:
        """Fill the shard's files, on a worker."""
        layout = Layout(Path(self.folder))
        job = layout.build_job
        self._check(job)
        writer = ShardWriter(layout, self.number, lm, self.windows, self.tokens, self.base, self.options, self.codec)
        checked = time.monotonic()

        def advance(_: int) -> None:
            nonlocal checked
            if time.monotonic() - checked >= CHECKPOINT_SECONDS:
                self._check(job)
                checked = time.monotonic()

        return writer.fill(job, advance)

    def _check(self, job: Job) -> None:
        """Refuse to write into a folder that is not the driver's, or not any more."""
        if not job.resumes(self.plan):
            raise ClusterError(
                f"{self.folder} does not hold the build that was begun; "
                "its folder must be on a file system that all machines share, at the same path"
            )


class Worker:
    """An actor: loads the model when it is first asked, and keeps it."""

    def __init__(self, loading: Loading):
        self.loading = loading
        self._lm: LM | None = None

    def describe(self) -> Described:
        """Load the model and say what it is."""
        with on_a_worker():
            if self.loading.version != __version__:
                raise ClusterError(f"nearlm is {__version__} here and {self.loading.version} at the driver")
            torch.set_num_threads(self.loading.threads)
            self._lm = LM.load(self.loading.spec, key_tap=self.loading.key_tap)
            return Described.of(self._lm, socket.gethostname())

    def keys(self, batch: Batch) -> Floats:
        """Compute the keys of one batch."""
        with on_a_worker():
            assert self._lm is not None, "describe comes first"
            return self._lm.keys(batch).float().cpu().numpy()

    def fill(self, shard: Shard) -> Made:
        """Fill a shard's files and say what they became."""
        with on_a_worker():
            assert self._lm is not None, "describe comes first"
            return shard.fill(self._lm)


class Crew:
    """Keeps workers busy: whoever is free takes the next shard, and a shard whose worker died is taken again."""

    def __init__(self, ray: Any, loading: Loading, places: Places, reporter: Reporter):
        self._ray = ray
        self._loading = loading
        self._places = places
        self._reporter = reporter
        self._busy: dict[Any, tuple[Any, Shard | None]] = {}  # what is waited for: the actor, and its shard
        self._free: list[Any] = []
        self._described: Described | None = None
        self._deaths = 0

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for actor in {*self._free, *(actor for actor, _ in self._busy.values())}:
            self._ray.kill(actor)

    def describe(self) -> Described:
        """Wait until one worker has loaded the model, and return what it says of it."""
        began = time.monotonic()
        while self._described is None:
            self._hire(1)
            self._wait()
            if began and time.monotonic() - began > _PATIENCE and self._described is None:
                self._say_what_is_needed()
                began = 0.0
        return self._described

    def keys(self, batch: Batch) -> Tensor:
        """Compute the keys of one batch by a worker that is free."""
        self.describe()
        try:
            return torch.from_numpy(np.array(self._ray.get(self._free[-1].keys.remote(batch))))
        except self._ray.exceptions.RayError as error:
            raise reason(error) from None

    def fill(self, writers: Sequence[ShardWriter], job: Job, advance: Advance) -> list[Made]:
        """Fill shards, as `nearlm.store.shards.fill_here` does."""
        plan = job.plan()
        known = {writer.number: writer for writer in writers}
        done = {writer.number: writer.count_done(job) for writer in writers}
        left = deque(known)
        made: dict[int, Made] = {}
        while len(made) < len(writers):
            self._hire(min(self._places.workers, len(writers) - len(made)))
            while self._free and left:
                self._start(self._free.pop(), Shard.of(known[left.popleft()], plan))
            at_work = {shard.number for _, shard in self._busy.values() if shard is not None}
            for shard, files in self._wait():
                if files is None:
                    left.appendleft(shard.number)
                else:
                    made[shard.number] = files
            for number in at_work:
                before, done[number] = done[number], max(done[number], known[number].count_done(job))
                if done[number] > before:
                    advance(done[number] - before)
        return [made[writer.number] for writer in writers]

    def _hire(self, count: int) -> None:
        """Start workers until there are so many."""
        places = self._places
        kind = self._ray.remote(Worker)
        while len(self._free) + len(self._busy) < count:
            actor = kind.options(num_cpus=places.cpus, num_gpus=places.gpus, scheduling_strategy="SPREAD").remote(
                self._loading
            )
            self._busy[actor.describe.remote()] = (actor, None)

    def _start(self, actor: Any, shard: Shard) -> None:
        self._busy[actor.fill.remote(shard)] = (actor, shard)

    def _wait(self) -> list[tuple[Shard, Made | None]]:
        """Wait a moment; return the shards that were filled, and without files those whose worker died."""
        ready, _ = self._ray.wait(list(self._busy), timeout=CHECKPOINT_SECONDS / 2)
        found: list[tuple[Shard, Made | None]] = []
        for reference in ready:
            actor, shard = self._busy.pop(reference)
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                raise reason(error) from None
            except self._ray.exceptions.RayError as error:
                self._bury(actor, error)
                answer = None
            else:
                self._free.append(actor)
            if shard is not None:
                self._deaths = 0 if answer else self._deaths
                found.append((shard, answer))
            elif answer is not None:
                self._welcome(answer)
        return found

    def _bury(self, actor: Any, error: Exception) -> None:
        """Note the death of a worker, or that it cannot be reached any more; give up if none gets anything done."""
        self._ray.kill(actor)
        self._deaths += 1
        if getattr(error, "actor_init_failed", False) or self._deaths > MOST_DEATHS + self._places.workers:
            raise reason(error) from None
        self._reporter.say("a worker died; what it had not finished is computed again by another")

    def _welcome(self, described: Described) -> None:
        if self._described is None:
            self._described = described
        self._described.check_same(described)

    def _say_what_is_needed(self) -> None:
        there = self._ray.cluster_resources()
        has = f"{there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs"
        wants = f"{self._places.cpus:g} CPUs and {self._places.gpus:g} GPUs"
        self._reporter.say(f"waiting for a worker: each is to have {wants}, and the cluster has {has} in all")
