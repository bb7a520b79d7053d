"""Made-up results of every part, of the shape that the experiments write."""

import math

from nearlm.base.files import Json
from nearlm.paper.ablation import PAPER_ROWS, SHARES, Ablation
from nearlm.paper.results import MainTable, Row
from nearlm.paper.sweep import Sweep, SweepPoint, pareto_front

RECORDS, DIM = 1_048_576, 576
_VANILLA, _NLM = 9.21, 16.89


def parts() -> dict[str, Json]:
    return {
        "about": about(),
        "baseline": baseline(),
        "main": main_table().to_json(),
        "choice": choice(),
        "adaptive": ablation().to_json(),
        "pruning": {method: keep_sweep(method).to_json() for method in ("merge", "random", "kmeans", "rank")},
        "pca": dim_sweep().to_json(),
        "k": k_sweep().to_json(),
        "continuation": continuation(),
    }


def about() -> Json:
    return {
        "setting": "domain",
        "title": "A memory of the Python documentation",
        "text": "SmolLM2-135M has seen little of the newest Python documentation. Here it gets a memory of the "
        "training part of that documentation, and is then asked to predict pages that neither it nor the memory has "
        "seen. Nothing is trained but the small adaptor that decides when to ask.",
        "model": "smollm2-135m",
        "records": RECORDS,
        "dim": DIM,
        "store_bytes": 2 * DIM * RECORDS,
        "valid_tokens": 65_536,
        "test_tokens": 65_536,
        "cores": 2,
        "machine": "x86_64, 2 cores, 8 GB",
        "versions": {"nearlm": "0.1.0", "torch": "2.8.0", "transformers": "5.0.0", "faiss-cpu": "1.12.0"},
        "command": "nearlm reproduce --setting domain --out results/domain",
        "seconds": 8130.0,
        "paper": [
            {"name": "NLM", "perplexity": 106.56, "tokens_per_second": 27800},
            {"name": "kNN-LM", "perplexity": 12.64, "tokens_per_second": 1052},
            {"name": "+ AR", "perplexity": 12.74, "tokens_per_second": 1290},
            {"name": "+ GM", "perplexity": 13.33, "tokens_per_second": 1451},
            {"name": "+ DR", "perplexity": 11.59, "tokens_per_second": 3420},
            {"name": "+ All", "perplexity": 12.29, "tokens_per_second": 5708},
        ],
    }


def baseline() -> Json:
    rows = [
        ("NLM", _NLM, 323.0, None, None, None),
        ("kNN-LM, T=1", 10.87, 257.0, 1275.0, 1.0, 0.4),
        ("kNN-LM", _VANILLA, 258.0, 1280.0, 30.0, 0.55),
        ("kNN-LM, exact", 8.97, 41.0, 47.0, 32.0, 0.6),
        ("nearlm's index", 9.13, 309.0, 7129.0, 24.0, 0.6),
        ("NLM, fine-tuned on 50,000", 8.4, 323.0, None, None, None),
    ]
    names = ("name", "perplexity", "tokens_per_second", "searches_per_second", "temperature", "lam")
    return {"tokens": 65_536, "rows": [dict(zip(names, row, strict=True)) for row in rows]}


def main_table() -> MainTable:
    def row(name: str, ppl: float, speed: float, records: int = RECORDS, dim: int = DIM, **more: object) -> Row:
        setting = {"index": "IVF1024,PQ64", "nprobe": 32, "k": 1024, "temperature": 30.0, "lam": 0.55, **more}
        extra, index = 1e6 / speed - 1e6 / 323, records * (64 if speed < 300 else 256)
        return Row(
            name, ppl, speed, extra, name in ("kNN-LM", "+ All"), records, dim, 2 * records * dim, index, **setting
        )

    return MainTable(
        65_536,
        [
            Row("NLM", _NLM, 323.0, end_to_end=True),
            row("kNN-LM", _VANILLA, 258.0),
            row("+ index", 9.13, 309.0, index="auto", nprobe=24),
            row("+ AR", 9.2, 280.0, skipped=0.41),
            row("+ GM", 9.3, 270.0, round(0.6 * RECORDS)),
            row("+ DR", 9.2, 265.0, dim=256),
            row("+ All", 9.18, 316.0, round(0.8 * RECORDS), 256, index="auto", skipped=0.38),
        ],
        {"NLM": [310.4, 323.0, 340.0], "kNN-LM": [250.0, 258.0, 270.0], "+ All": [300.0, 316.0, 333.0]},
    )


def choice() -> Json:
    points = []
    for dim in (128, 256, 384, 576):
        for keep in (0.4, 0.6, 0.8, 1.0):
            for skip in (0.0, 0.2, 0.4, 0.6):
                ppl = 9.12 + 0.25 * (1 - keep) ** 1.5 + 18 / dim**1.4 + 0.55 * skip**3
                time = (18 + 0.12 * dim) * (0.35 + 0.65 * keep) * (1 - skip) + (6 if skip else 0)
                label = f"dim {dim}, keep {keep:.0%}, skip {skip:.0%}"
                points.append({"label": label, "perplexity": ppl, "microseconds": time, "chosen": False})
                points[-1]["beyond"] = ppl - _VANILLA
    for one in points:
        one["pareto"] = not any(
            other["perplexity"] < one["perplexity"] and other["microseconds"] <= one["microseconds"] for other in points
        )
    allowed = [point for point in points if point["perplexity"] <= _VANILLA + 0.1]
    min(allowed, key=lambda point: point["microseconds"])["chosen"] = True
    paragraph = (
        "Of 64 combinations, 57 stay within 0.1 perplexity of the vanilla kNN-LM on the validation text. The fastest "
        "of them keeps 80 % of the records at 256 dimensions and leaves out 38 % of the retrievals."
    )
    return {"budget": 0.1, "paragraph": paragraph, "target": _VANILLA + 0.1, "points": points}


def ablation() -> Ablation:
    def curve(start: float, power: float, dip: float = 0.0) -> list[float]:
        rise = math.log(_NLM / start)
        return [start * math.exp(rise * share**power) - dip * share * (1 - share) for share in SHARES]

    return Ablation(
        tokens=65_536,
        nlm_perplexity=_NLM,
        lam=0.55,
        vanilla_perplexity=_VANILLA,
        best_lam=0.55,
        best_constant_perplexity=_VANILLA,
        shares=SHARES,
        curves={
            "random mask, constant λ": curve(_VANILLA, 1),
            "learned mask, constant λ": curve(_VANILLA, 3.2, 0.4),
            "random mask, learned λ": curve(8.95, 1),
            "learned mask, learned λ": curve(8.95, 3.4, 0.2),
        },
        skipped=list(SHARES),
        equal_share=0.44,
        oracle={"skipped": 0.52, "constant": 8.1, "best": 6.9},
        features=[
            {"features": list(names), "perplexity": curve(8.95 + 0.04 * number, 3.3), "epochs": 7}
            for number, names in enumerate(PAPER_ROWS)
        ],
        objectives={"classification": curve(_VANILLA, 2.6)},
        speed={
            "seconds_per_token": {"lm": 0.0031, "search": 0.00078, "adaptor": 2e-5},
            "tokens_per_second": [1 / (0.00312 + (1 - share) * 0.00078) for share in SHARES],
        },
    )


def point(over: str, value: float | None, ppl: float, speed: float, **more: object) -> SweepPoint:
    setting = {"records": RECORDS, "dim": DIM, "k": 1024, "nprobe": 24, **more}
    return SweepPoint(
        over=over,
        value=value,
        store_bytes=2 * setting["records"] * setting["dim"],
        index_bytes=256 * setting["records"],
        retrievals_per_second=speed,
        perplexity=ppl,
        temperature=24.0,
        lam=0.6,
        index="IVF2048,SQ8",
        **setting,
    )


def keep_sweep(method: str, values: tuple[float, ...] = (0.8, 0.6, 0.4, 0.2)) -> Sweep:
    loss = {"merge": 0.5, "random": 1.9, "kmeans": 0.9, "rank": 1.4}.get(method, 1.0)
    points = [point("keep", None, 9.13, 7129.0)]
    for value in values:
        speed = 7129 * (1 + 0.9 * (1 - value)) * (1 + 0.02 * loss)
        points.append(point("keep", value, 9.13 + loss * (1 - value) ** 1.7, speed, records=round(value * RECORDS)))
    return Sweep("keep", method, "auto", 65_536, _NLM, pareto_front(points), {})


def dim_sweep(values: tuple[int, ...] = (64, 128, 256, 384)) -> Sweep:
    points = [point("dim", None, 9.13, 7129.0)]
    points += [point("dim", value, 9.13 + 60 / value**1.4, 9800 - 4.2 * value, dim=value) for value in values]
    return Sweep("dim", None, "auto", 65_536, _NLM, pareto_front(points), {"800": "the keys are narrower"})


def k_sweep(values: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)) -> Sweep:
    points = [point("k", None, 9.13, 7129.0)]
    points += [point("k", k, 9.13 + 2.4 * (1 / k**0.5 - 1 / 32), 7129 + 900 * (1 - k / 1024), k=k) for k in values]
    return Sweep("k", None, "auto", 65_536, _NLM, pareto_front(points), {})


def continuation(sentence: str | None = None) -> Json:
    written = sentence or (
        " with ``object.__new__(cls)`` and then calls\n``__init__``. <script>alert(1)</script> Changed in version "
        "3.14: free-threaded builds share one interpreter & its locks."
    )
    tokens = []
    for number, word in enumerate(written.replace(" ", "\0 ").split("\0")):
        if not word:
            continue
        share = (math.sin(2.3 * number) + 1) / 2
        p = 0.1 + 0.35 * ((5 * number) % 7) / 7
        nearest = [
            {
                "text": f"the class is made with {rank} <b>arguments</b> & a name, which may be long enough to wrap",
                "token": word,
                "source": f"reference/datamodel_{rank}.rst",
                "distance": 31.25 + 12.5 * rank,
            }
            for rank in range(3)
        ]
        tokens.append(
            {
                "token": word,
                "p_lm": p * (1 - share) / 0.45,
                "p_knn": p * share / 0.55,
                "p": p,
                "lam": 0.55,
                "nearest": nearest,
            }
        )
    return {
        "prompt": "The method ``__new__`` makes the instance",
        "without": " of the class, and returns it.\n\nThe method is called by the constructor of the class, which is "
        "the constructor of the class.",
        "with": written,
        "tokens": tokens,
    }
