"""Memories as points of perplexity and time: what is estimated of those not made, which is cheapest, and a choice."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from nearlm.base import Json, size
from nearlm.mixing import SHARES


class Shape(NamedTuple):
    """What a store keeps: a share of the records, and dimensions."""

    keep: float
    dim: int

    @property
    def folder(self) -> str:
        """The name of a folder for it."""
        return f"keep-{self.keep:g}-dim-{self.dim}"

    def label(self, whole: "Shape", nprobe: int | None, k: int) -> str:
        """Return a store of this shape and how it is searched, in words."""
        said = [f"keep {self.keep:.0%}"] if self.keep < 1 else []
        said += [f"dim {self.dim}"] if self.dim < whole.dim else []
        said += [f"nprobe {nprobe}"] if nprobe else []
        return ", ".join([*said, f"k {k}"])


@dataclass(frozen=True)
class Point:
    """One memory: what it keeps, how it is searched, and what that costs on the validation text.

    `microseconds` are those of a token's search (and adaptor). With an adaptor, perplexity is that of the tokens held
    out from its training, `index_bytes` are also those of its tables, and `sure` tells whether it is within the budget
    by two standard errors, there and on the whole text. `beyond` is the difference from the vanilla kNN-LM on the same
    tokens, in every case, and `margin` two standard errors of it without an adaptor.
    """

    label: str
    keep: float
    dim: int
    nprobe: int | None
    k: int
    perplexity: float
    microseconds: float
    temperature: float
    lam: float
    records: int
    store_bytes: int
    index_bytes: int
    adaptor: bool = False
    learned: bool = False
    skip: float = 0.0
    sure: bool = False
    beyond: float = 0.0
    margin: float = 0.0
    pareto: bool = False
    chosen: bool = False

    @property
    def disk(self) -> int:
        """What it takes of a disk: records, index, and tables."""
        return self.store_bytes + self.index_bytes


@dataclass(frozen=True)
class Skipping:
    """What an adaptor does to perplexity (a ratio for every percent of searches skipped), and its own time.

    `margin` is how much better than allowed a perplexity must be to be sure of it.
    """

    ratios: list[float]
    margin: float
    microseconds: float


@dataclass(frozen=True)
class Choice:
    """All points, which of them was chosen, and why."""

    budget: float
    tokens: int
    nlm_perplexity: float
    vanilla: Point
    target: float
    held_out: Json
    points: list[Point]
    paragraph: str

    @property
    def chosen(self) -> Point:
        """The memory that was chosen."""
        return next(point for point in self.points if point.chosen)

    def to_json(self) -> Json:
        """Return everything as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Json) -> "Choice":
        """Read a choice back."""
        points = [Point(**point) for point in found["points"]]
        return cls(**{**found, "vanilla": Point(**found["vanilla"]), "points": points})

    def table(self) -> str:
        """Return the points and the choice, for people; those that no other beats have a star."""
        rows = [f"{self.tokens:,} tokens; the LM alone has perplexity {self.nlm_perplexity:.3f}"]
        rows.append(
            f"{'':42} {'perplexity':>10} {'(beyond)':>9} {'µs/token':>9} {'records':>11} {'store':>9} {'index':>9}"
        )
        for point in (self.vanilla, *self.points):
            mark = "→" if point.chosen else "*" if point.pareto else " "
            rows.append(
                f"{mark} {point.label:40} {point.perplexity:10.3f} {point.beyond:+9.3f} {point.microseconds:9.1f} "
                f"{point.records:11,} {size(point.store_bytes):>9} {size(point.index_bytes):>9}"
            )
        if any(point.adaptor for point in self.points):
            rows.append(f"with an adaptor: on the {self.held_out['tokens']:,} tokens held out from its training")
        return "\n".join([*rows, "", self.paragraph])


@dataclass(frozen=True)
class Goal:
    """The perplexity that a memory may have, and what an adaptor is known to do."""

    target: float
    skipping: Skipping | None = None

    @property
    def alone(self) -> "Goal":
        """The same without an adaptor."""
        return Goal(self.target)

    def price(self, perplexity: float, microseconds: float, margin: float = 0.0) -> float:
        """Return the least time of a memory surely within the target, with an adaptor or without, or else infinity.

        `margin` is how much better than allowed the perplexity must be without an adaptor.
        """
        prices = [microseconds] if perplexity + margin <= self.target else []
        if self.skipping is not None:
            ratios = zip(SHARES, self.skipping.ratios, strict=True)
            within = [share for share, ratio in ratios if perplexity * ratio + self.skipping.margin <= self.target]
            prices += [self.skipping.microseconds + (1 - max(within)) * microseconds] if within else []
        return min(prices, default=float("inf"))


def cheapest(points: Sequence[Point], goal: Goal) -> Point:
    """Return the point of least price within the target, or, if there is none, the one with the best perplexity."""
    return min(points, key=lambda one: (goal.price(one.perplexity, one.microseconds, one.margin), one.perplexity))


def preferred(gated: Point, plain: Point, target: float) -> bool:
    """Tell whether to take a memory with an adaptor: surely within the budget, and faster than one without that is."""
    return gated.sure and (plain.perplexity + plain.margin > target or gated.microseconds < plain.microseconds)


def estimates(
    whole: Sequence[Point], alone: dict[Shape, Point], base: Shape
) -> list[tuple[float, float, Shape, Point]]:
    """Estimate (time, perplexity) of every store shape with every way to search, from each measured alone."""
    first = alone[base]
    found = []
    for keep, dim in itertools.product(
        {shape.keep for shape in alone if shape.dim == base.dim}, {shape.dim for shape in alone if shape.keep == 1}
    ):
        parts = alone[Shape(keep, base.dim)], alone[Shape(1.0, dim)]
        for search in whole:
            worse = sum(part.perplexity - first.perplexity for part in parts)
            faster = float(np.prod([part.microseconds / first.microseconds for part in parts]))
            found.append((search.microseconds * faster, search.perplexity + worse, Shape(keep, dim), search))
    return sorted(found, key=lambda one: one[:2])


def explained(vanilla: Point, chosen: Point, budget: float, held_out: Json) -> str:
    """Explain a choice in words."""
    records = (
        f"{chosen.records:,} of {vanilla.records:,} records" if chosen.keep < 1 else f"all {vanilla.records:,} records"
    )
    lists = f" in {chosen.nprobe} lists" if chosen.nprobe else ""
    said = [
        f"Chosen: {records}, keys of {chosen.dim} dimensions, {chosen.k} neighbours{lists}, T={chosen.temperature:g}"
        + (
            f", {'λ(c)' if chosen.learned else 'one λ'} and an adaptor that skips {chosen.skip:.0%} of the searches."
            if chosen.adaptor
            else f", λ={chosen.lam:g}."
        )
    ]
    if chosen.adaptor:
        said.append(
            f"On the {held_out['tokens']:,} held-out tokens its perplexity is {chosen.perplexity:.3f}, the vanilla "
            f"kNN-LM's {held_out['vanilla']:.3f}, so it stays within the budget of {budget:g}."
        )
    elif chosen.beyond + chosen.margin <= budget:
        said.append(
            f"Perplexity is {chosen.perplexity:.3f}, the vanilla kNN-LM's {vanilla.perplexity:.3f}, the budget "
            f"{budget:g}, of which {chosen.margin:.3f} are kept to be sure."
        )
    else:
        said.append(
            f"No smaller or faster memory that was measured surely stays within {budget:g} of the vanilla kNN-LM's "
            f"{vanilla.perplexity:.3f}; this has the best perplexity, {chosen.perplexity:.3f}."
        )
    less = vanilla.microseconds / chosen.microseconds
    said.append(
        f"The memory takes {chosen.microseconds:.0f} µs a token instead of {vanilla.microseconds:.0f} ({less:.1f} "
        f"times less), and {size(chosen.disk)} of disk instead of {size(vanilla.disk)}, with all that is searched."
    )
    return " ".join(said)
