"""How long `nearlm --help` takes, and that it imports no torch.

python benchmarks/cli_startup.py [--runs 10] [--limit 0.5] [--json]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

HEAVY = ("torch", "transformers", "numpy", "faiss", "numba")
IMPORTED = """
import sys
sys.argv = ["nearlm", "--help"]
from nearlm.cli import main
try:
    main()
except SystemExit:
    pass
print(*sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--limit", type=float, default=0.5, help="seconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    help_seconds()  # the first run compiles and fills the page cache
    seconds = [help_seconds() for _ in range(options.runs)]
    heavy = imported()
    median = statistics.median(seconds)
    good = median < options.limit and "torch" not in heavy
    if options.json:
        print(json.dumps({"median_seconds": median, "seconds": seconds, "heavy_imports": heavy, "good": good}))
    else:
        print(
            f"nearlm --help: median {median:.3f} s of {options.runs} (min {min(seconds):.3f}, max {max(seconds):.3f})"
        )
        print(f"limit {options.limit} s; heavy imports: {', '.join(heavy) or 'none'}")
    sys.exit(0 if good else 1)


def help_seconds() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "nearlm", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def imported() -> list[str]:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    modules = done.stderr.split()
    return [name for name in HEAVY if name in modules]


if __name__ == "__main__":
    main()
