"""Made-up results of every part, of the types that the experiments write."""

import itertools
import math
from dataclasses import replace

from nearlm.knnlm import Explanation
from nearlm.optimizer import Choice, Fit, Setup, mark_front
from nearlm.optimizer.points import HeldOutTokens, Point
from nearlm.optimizer.unseen import Quality, Unseen
from nearlm.paper.comparison_table import Comparison, MethodRow
from nearlm.paper.continuation import Share, Written
from nearlm.paper.mixture_ablation import MixtureAblation, MixtureRow, Perplexities
from nearlm.paper.results import (
    Ablation,
    About,
    Continuation,
    FeatureRow,
    MainTable,
    Oracle,
    Parts,
    PartSpeed,
    Row,
    Sweep,
    SweepPoint,
)
from nearlm.paper.settings import PaperRow
from nearlm.store import Context, SearchSettings

RECORDS = 1_048_576
DIM = 576
METHODS = ("merge", "random", "kmeans", "rank")
_TOKENS = 65_536
_VANILLA = 9.21
_NLM = 16.89
_SHARES = [round(0.05 * step, 2) for step in range(21)]
_FEATURES = (
    ("keys", "conf", "ent", "freq", "fert"),
    ("keys", "conf", "ent", "fert"),
    ("keys", "conf", "ent", "freq"),
    ("keys", "freq", "fert"),
    ("conf", "ent", "freq", "fert"),
    ("keys",),
)


def parts() -> Parts:
    return Parts(
        about=about(),
        comparison=comparison(),
        fit=fit(),
        main=main_table(),
        continuation=continuation(),
        baseline=baseline(),
        choice=choice(),
        within=within(),
        mixture=mixture_ablation(),
        adaptive=ablation(),
        pruning={method: keep_sweep(method) for method in METHODS},
        pca=dim_sweep(),
        k=k_sweep(),
    )


def comparison() -> Comparison:
    gains = {"nearlm": 0.8, "LoRA": 0.7, "RAG": 0.95, "LoRA + nearlm": 0.65, "full fine-tuning": 0.75, "kNN-LM": 0.9}
    rows = [
        method_row(name, minutes, gain / minutes**0.1) for minutes in (2.0, 8.0, 32.0) for name, gain in gains.items()
    ]
    return Comparison([method_row("LM alone", None, 1.0), *rows])


def method_row(method: str, minutes: float | None, bits: float = 1.0, **more) -> MethodRow:
    share = Share(0.25, 0.01, 400)
    quality = Quality(bits, 0.01, 8 * bits, 0.1)
    given = {
        "method": method,
        "minutes": minutes,
        "seconds": 60 * (minutes or 0),
        "tokens": 1000,
        "chosen": "something <new>",
        "text": "abc",
        "test_tokens": 5000,
        "test": quality,
        "written": Written(share, share, share, share),
        "unrelated": Quality(1.1, 0.02, 9.0, 0.2),
        "unrelated_written": Written(share, share, share, share),
        "tokens_per_second": 1234.0,
        "disk": 0 if minutes is None else 1_000_000,
        "add_seconds": None if minutes is None else 0.5,
        "remove_seconds": None if minutes is None else 3600.0,
    }
    return MethodRow(**{**given, **more})


def fit() -> Fit:
    alone, memory = Quality(1.21, 0.03, 16.89, 0.7), Quality(0.93, 0.03, 8.05, 0.4)
    unseen = Unseen(24, 5000, 20_480, alone, memory, 0.231, 0.012, 44.0, 2750.0)
    notes = ("some documents are <near> to held-out and to stored ones",)
    return Fit("smollm2-135m", RECORDS, 340, 10**9, 12, 10_000, 24, 3, "nprobe 4, k 256", notes, unseen, None)


def about() -> About:
    return About(
        setting="domain",
        title="A memory of the Python documentation",
        text="SmolLM2-135M has seen little of the newest Python documentation. Here it gets a memory of the "
        "training part of that documentation, and is then asked to predict pages that neither it nor the memory has "
        "seen. Nothing is trained but the small gate that decides when to ask.",
        model="smollm2-135m",
        records=RECORDS,
        dim=DIM,
        store_bytes=2 * DIM * RECORDS,
        valid_tokens=_TOKENS,
        test_tokens=_TOKENS,
        cores=2,
        machine="x86_64, 2 cores, 8 GB",
        versions={"nearlm": "0.1.0", "torch": "2.8.0", "transformers": "5.0.0", "faiss-cpu": "1.12.0"},
        command="nearlm reproduce --setting domain --out results/domain",
        seconds=8130.0,
        paper=[
            PaperRow("NLM", 106.56, 27800),
            PaperRow("kNN-LM", 12.64, 1052),
            PaperRow("+ AR", 12.74, 1290),
            PaperRow("+ GM", 13.33, 1451),
            PaperRow("+ DR", 11.59, 3420),
            PaperRow("+ All", 12.29, 5708),
        ],
    )


def setup(records: int = RECORDS, dim: int = DIM, code: int = 256, kind: str = "auto", **search: object) -> Setup:
    settings = SearchSettings(**{"nprobe": 24, "k": 1024, "knn_temperature": 24.0, "lam": 0.6, **search})
    return Setup(records, dim, 2 * records * dim, code * records, kind, settings)


def baseline() -> MainTable:
    def row(name: str, ppl: float, speed: float, searches: float, temperature: float, lam: float) -> Row:
        return Row(name, ppl, speed, searches_per_second=searches, setup=setup(knn_temperature=temperature, lam=lam))

    rows = [
        Row("NLM", _NLM, 323.0),
        row("kNN-LM, T=1", 10.87, 257.0, 1275.0, 1.0, 0.4),
        row("kNN-LM", _VANILLA, 258.0, 1280.0, 30.0, 0.55),
        row("kNN-LM, exact", 8.97, 41.0, 47.0, 32.0, 0.6),
        row("nearlm's index", 9.13, 309.0, 7129.0, 24.0, 0.6),
        Row("NLM, fine-tuned on 50,000", 8.4, 323.0),
    ]
    return MainTable(_TOKENS, rows)


def main_table() -> MainTable:
    def row(name: str, ppl: float, speed: float, *, skipped: float = 0.0, **more: object) -> Row:
        paper = {"kind": "IVF1024,PQ64", "nprobe": 32, "knn_temperature": 30.0, "lam": 0.55}
        memory = setup(**{**paper, "code": 64 if speed < 300 else 256, **more})
        extra = 1e6 / speed - 1e6 / 323
        return Row(name, ppl, speed, extra, name in ("kNN-LM", "+ All", "+ within 2 %"), skipped=skipped, setup=memory)

    rows = [
        Row("NLM", _NLM, 323.0, end_to_end=True),
        row("kNN-LM", _VANILLA, 258.0),
        row("+ index", 9.13, 309.0, kind="auto", nprobe=24),
        row("+ AR", 9.2, 280.0, skipped=0.41),
        row("+ GM", 9.3, 270.0, records=round(0.6 * RECORDS)),
        row("+ DR", 9.2, 265.0, dim=256),
        row("+ All", 9.18, 316.0, records=round(0.8 * RECORDS), dim=256, kind="auto", skipped=0.38),
        row("+ within 2 %", 7.93, 317.0, records=round(0.4 * RECORDS), kind="auto", nprobe=2, k=256, lam=None),
    ]
    rounds = {
        "NLM": [310.4, 323.0, 340.0],
        "kNN-LM": [250.0, 258.0, 270.0],
        "+ All": [300.0, 316.0, 333.0],
        "+ within 2 %": [303.0, 317.0, 333.1],
    }
    return MainTable(_TOKENS, rows, rounds)


def option(label: str, microseconds: float, beyond: float, **more: object) -> Point:
    return Point(label, setup(), 1.0, _VANILLA + beyond, microseconds, beyond=beyond, **more)


def choice() -> Choice:
    points = []
    for dim, keep, skip in itertools.product((128, 256, 384, 576), (0.4, 0.6, 0.8, 1.0), (0.0, 0.2, 0.4, 0.6)):
        ppl = 9.12 + 0.25 * (1 - keep) ** 1.5 + 18 / dim**1.4 + 0.55 * skip**3
        time = (18 + 0.12 * dim) * (0.35 + 0.65 * keep) * (1 - skip) + (6 if skip else 0)
        points.append(option(f"dim {dim}, keep {keep:.0%}, skip {skip:.0%}", time, ppl - _VANILLA))
    front = mark_front([(point.beyond, point.microseconds) for point in points])
    fastest = min((point for point in points if point.beyond <= 0.1), key=lambda point: point.microseconds)
    marked = [replace(one, pareto=best, chosen=one is fastest) for one, best in zip(points, front, strict=True)]
    paragraph = (
        "Of 64 combinations, 57 stay within 0.1 perplexity of the vanilla kNN-LM on the validation text. The fastest "
        "of them keeps 80 % of the records at 256 dimensions and leaves out 38 % of the retrievals."
    )
    held_out = HeldOutTokens(_TOKENS // 10, _VANILLA, _VANILLA, _NLM)
    return Choice(
        _TOKENS,
        _NLM,
        option("vanilla", 781.0, 0.0),
        marked,
        paragraph,
        budget=0.1,
        target=_VANILLA + 0.1,
        held_out=held_out,
    )


def within() -> Choice:
    points = [option("no search", 3.1, 0.31)]
    for (nprobe, faster), k, skip in itertools.product(enumerate((1.0, 0.6, 0.4)), (1024, 256, 64), (0.0, 0.4)):
        label = f"nprobe {8 >> nprobe}, k {k}" + (f", skip {skip:.0%}" if skip else "")
        time = 12 + faster * (30 + k / 25) * (1 - skip) + 3 * bool(skip)
        points.append(option(label, time, -2.1 + 0.1 * nprobe + 12 / k + 1.3 * skip**2))
    limit = 61.9
    best = min((point for point in points if point.microseconds <= limit), key=lambda point: point.beyond)
    front = mark_front([(point.beyond, point.microseconds) for point in points])
    marked = [replace(one, pareto=mark, chosen=one is best) for one, mark in zip(points, front, strict=True)]
    paragraph = f"Chosen: {best.label}. The next best is 0.03 worse (3.1 standard errors)."
    vanilla = option("vanilla", 781.0, 0.0)
    return Choice(_TOKENS, _NLM, vanilla, marked, paragraph, overhead=0.02, limit=limit)


def mixture_ablation() -> MixtureAblation:
    def row(sources: str, ppl: float, microseconds: float | None = None, left_out: str = "", spread: float = 0.02):
        perplexities = Perplexities(0.8 * ppl, ppl, 1.3 * ppl, 15.2)
        return MixtureRow(tuple(sources.split(",")), left_out, perplexities, spread, microseconds)

    return MixtureAblation(
        tokens=_TOKENS,
        seeds=3,
        search=setup().search,
        search_microseconds=74.2,
        nlm=Perplexities(17.2, _NLM, _NLM, 16.5),
        constant=Perplexities(9.4, _VANILLA, _NLM, 22.9),
        sources=[
            row("knn", 8.66, 9.1),
            row("ngram", 10.89, 1.9),
            row("text", 15.12, 2.2),
            row("knn,ngram", 8.33, 10.4),
            row("knn,text", 8.35, 11.3),
            row("ngram,text", 10.24, 3.6),
            row("knn,ngram,text", 8.01, 12.7),
        ],
        features=[
            row("knn,ngram,text", ppl, None, group)
            for group, ppl in {"lm": 8.2, "measures": 8.1, "largest": 8.05, "top": 8.012, "agreement": 8.0}.items()
        ],
    )


def ablation() -> Ablation:
    def curve(start: float, power: float, dip: float = 0.0) -> list[float]:
        rise = math.log(_NLM / start)
        return [start * math.exp(rise * share**power) - dip * share * (1 - share) for share in _SHARES]

    features = [
        FeatureRow(list(names), curve(8.95 + 0.04 * number, 3.3), epochs=7) for number, names in enumerate(_FEATURES)
    ]
    return Ablation(
        tokens=_TOKENS,
        nlm_perplexity=_NLM,
        lam=0.55,
        vanilla_perplexity=_VANILLA,
        best_lam=0.55,
        best_constant_perplexity=_VANILLA,
        shares=_SHARES,
        curves={
            "random mask, constant λ": curve(_VANILLA, 1),
            "learned mask, constant λ": curve(_VANILLA, 3.2, 0.4),
            "random mask, learned λ": curve(8.95, 1),
            "learned mask, learned λ": curve(8.95, 3.4, 0.2),
        },
        skipped=_SHARES,
        equal_share=0.44,
        oracle=Oracle(skipped=0.52, constant=8.1, best=6.9),
        features=features,
        objectives={"classification": curve(_VANILLA, 2.6)},
        speed=PartSpeed(
            seconds_per_token={"lm": 0.0031, "search": 0.00078, "gate": 2e-5},
            tokens_per_second=[1 / (0.00312 + (1 - share) * 0.00078) for share in _SHARES],
        ),
    )


def point(value: float | None, ppl: float, speed: float, **more: object) -> SweepPoint:
    return SweepPoint(value, setup(**{"kind": "IVF2048,SQ8", **more}), speed, ppl)


def sweep(over: str, points: list[SweepPoint], method: str | None = None, **left_out: str) -> Sweep:
    front = mark_front([(point.perplexity, -point.searches_per_second) for point in points])
    marked = [replace(point, pareto=best) for point, best in zip(points, front, strict=True)]
    return Sweep(over, method, "auto", _TOKENS, _NLM, marked, left_out)


def keep_sweep(method: str, values: tuple[float, ...] = (0.8, 0.6, 0.4, 0.2)) -> Sweep:
    loss = {"merge": 0.5, "random": 1.9, "kmeans": 0.9, "rank": 1.4}.get(method, 1.0)
    points = [point(None, 9.13, 7129.0)]
    for value in values:
        speed = 7129 * (1 + 0.9 * (1 - value)) * (1 + 0.02 * loss)
        points.append(point(value, 9.13 + loss * (1 - value) ** 1.7, speed, records=round(value * RECORDS)))
    return sweep("keep", points, method)


def dim_sweep(values: tuple[int, ...] = (64, 128, 256, 384)) -> Sweep:
    points = [point(value, 9.13 + 60 / value**1.4, 9800 - 4.2 * value, dim=value) for value in values]
    return sweep("dim", [point(None, 9.13, 7129.0), *points], **{"800": "the keys are narrower"})


def k_sweep(values: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)) -> Sweep:
    points = [point(k, 9.13 + 2.4 * (1 / k**0.5 - 1 / 32), 7129 + 900 * (1 - k / 1024), k=k) for k in values]
    return sweep("k", [point(None, 9.13, 7129.0), *points])


def continuation() -> Continuation:
    written = (
        " with ``object.__new__(cls)`` and then calls\n``__init__``. <script>alert(1)</script> Changed in version "
        "3.14: free-threaded builds share one interpreter & its locks."
    )
    words = written.replace(" ", "\0 ").split("\0")
    return Continuation(
        prompt="The method ``__new__`` makes the instance",
        without=" of the class, and returns it.\n\nThe method is called by the constructor of the class, which is "
        "the constructor of the class.",
        written=written,
        tokens=[explanation(number, word) for number, word in enumerate(words) if word],
    )


def explanation(number: int, word: str) -> Explanation:
    share = (math.sin(2.3 * number) + 1) / 2
    p = 0.1 + 0.35 * ((5 * number) % 7) / 7
    nearest = []
    for rank in range(3):
        text = f"the class is made with {rank} <b>arguments</b> & a name, which may be long enough to wrap"
        nearest.append((31.25 + 12.5 * rank, Context(f"reference/datamodel_{rank}.rst", 7, text, word)))
    return Explanation(word, p * (1 - share) / 0.45, p * share / 0.55, p, 0.55, nearest)
