"""How much memory a build takes beyond its model, and that it does not grow with the text.

    python benchmarks/build_memory.py [--model smollm2-135m] [--text spdx:train] [--tokens 30000] [--json]

1. The peak of RssAnon during `nearlm.build`, less RssAnon once the model is loaded.
2. The same peak for 10k and 200k tokens of a made-up text with a tiny random Llama.

Each is measured in a process of its own, by a thread that reads /proc/self/status.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

SMALL, LARGE = 10_000, 200_000
GROWTH_MB = 30  # what may differ between two runs of the same build
MEASURE = "--measure"


def main() -> None:
    if sys.argv[1:2] == [MEASURE]:
        print(json.dumps(measure(**json.loads(sys.argv[2]))))
        return
    options = parse()
    with tempfile.TemporaryDirectory(prefix="nearlm-memory-") as name:
        folder = Path(name)
        make_tiny(folder)
        tiny = {"model": str(folder / "model"), "text": str(folder / "text.txt"), "window": 128}
        result = {
            "model": in_a_process(model=options.model, text=options.text, tokens=options.tokens),
            "small": in_a_process(tokens=SMALL, **tiny),
            "large": in_a_process(tokens=LARGE, **tiny),
        }
    beyond, small, large = (row["peak_mb"] - row["loaded_mb"] for row in result.values())
    growth = large - small
    good = beyond <= options.limit_mb and growth <= GROWTH_MB
    if options.json:
        print(json.dumps({**result, "beyond_model_mb": beyond, "growth_mb": growth, "good": good}))
    else:
        show(options, result, beyond, growth)
    sys.exit(0 if good else 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", default="spdx:train")
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--limit-mb", type=float, default=500)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def show(options: argparse.Namespace, result: dict[str, dict[str, float]], beyond: float, growth: float) -> None:
    names = {"model": f"{options.model}, {options.tokens:,} tokens"}
    names |= {"small": f"tiny Llama, {SMALL:,} tokens", "large": f"tiny Llama, {LARGE:,} tokens"}
    print("| build | records | RssAnon, model loaded | peak | beyond |")
    print("|---|---:|---:|---:|---:|")
    for key, name in names.items():
        row = result[key]
        loaded, peak = row["loaded_mb"], row["peak_mb"]
        print(f"| {name} | {row['records']:,} | {loaded:,.0f} MB | {peak:,.0f} MB | {peak - loaded:,.0f} MB |")
    print(f"\nbeyond {options.model}: {beyond:,.0f} MB (limit {options.limit_mb:,.0f})")
    print(f"growth from {SMALL:,} to {LARGE:,} tokens: {growth:,.1f} MB (limit {GROWTH_MB})")


def make_tiny(folder: Path) -> None:
    """Save a tiny model and a text of at least the larger number of tokens."""
    from tiny import make_llama, make_text, make_tokenizer

    make_llama().save_pretrained(folder / "model")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder / "model")
    text = make_text(5000)
    copies = 1 + LARGE // len(tokenizer(text)["input_ids"])
    (folder / "text.txt").write_text("\n\n".join(make_text(5000, seed=seed) for seed in range(copies + 1)))


def in_a_process(**arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, MEASURE, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def measure(model: str, text: str, tokens: int, window: int | None = None) -> dict[str, float]:
    """Build a store, watching this process's own memory."""
    from calls import build
    from nearlm.model.lm import LM

    lm = LM.load(model)
    loaded = rss_anon()
    with tempfile.TemporaryDirectory(prefix="nearlm-memory-") as folder, Watch() as watch:
        store = build(lm, text, Path(folder) / "store", quiet=True, max_tokens=tokens, window=window)
        records = len(store)
    return {"loaded_mb": loaded / 1e6, "peak_mb": watch.peak / 1e6, "records": records}


class Watch:
    """Remembers the largest RssAnon while it is open."""

    def __init__(self) -> None:
        self.peak = rss_anon()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._end.wait(0.005):
            self.peak = max(self.peak, rss_anon())


def rss_anon() -> int:
    """Return how many bytes of this process's memory no file stands behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/status has no RssAnon; this benchmark needs Linux")


if __name__ == "__main__":
    main()
