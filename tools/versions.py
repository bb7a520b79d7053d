"""Install the wheel alone in a fresh environment, with the lowest or the highest versions it allows, and try it.

    python tools/versions.py lowest|highest [--wheel dist/nearlm-….whl] [--keep FOLDER]

"Lowest" takes every lower bound of pyproject.toml at its word. torch is left out: the registry has old releases of it
only with gigabytes of CUDA; its version is that of constraints.txt, and its lower bound is not tested here.
"Highest" takes whatever pip finds, but for torch.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMOKE = ROOT / "tools" / "smoke.py"
UNTESTED = "torch"


def lowest() -> list[str]:
    """Return the lower bounds of all dependencies as exact versions."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = [re.fullmatch(r"([\w.-]+)>=([\w.]+)", one) for one in needed]
    if not all(bounds):
        raise SystemExit(f"a dependency has no lower bound: {', '.join(needed)}")
    return [f"{found[1]}=={found[2]}" for found in bounds if found and found[1] != UNTESTED]


def pinned(name: str) -> str:
    """Return a line of constraints.txt."""
    return next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith(f"{name}=="))


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("nearlm-*.whl"))


def try_wheel(wheel: Path, kind: str, folder: Path) -> None:
    """Install a wheel with some versions and run the smoke test with it."""
    constraints = folder / "constraints.txt"
    chosen = [pinned(UNTESTED), *(lowest() if kind == "lowest" else [])]
    constraints.write_text("\n".join(chosen) + "\n")
    venv.create(folder / "venv", with_pip=True, clear=True)
    python = folder / "venv" / "bin" / "python"
    call(str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints), str(wheel))
    call(str(python), "-m", "pip", "check")
    call(str(python), str(SMOKE))


def call(*command: str) -> None:
    print("$", " ".join(Path(part).name if part.startswith("/") else part for part in command), flush=True)
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("lowest", "highest"))
    parser.add_argument("--wheel", type=Path, help="by default built from this checkout")
    parser.add_argument("--keep", type=Path, help="a folder for the environment, which is then not removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nearlm-versions-") as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        try_wheel(options.wheel or build_wheel(folder), options.kind, folder)


if __name__ == "__main__":
    main()
