"""All that must hold before a release: archives, metadata, installation, versions, pages.

    python tools/release_check.py        (`make release-check`)

Builds wheel and sdist, checks their metadata with twine, compares what they hold with the checkout, tries the wheel
alone with the lowest and the highest versions, the sdist in the environment of the latter, and checks the pages' links,
commands and the API page by their tests.
"""

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from versions import ROOT, SMOKE, call, pinned, try_wheel

PACKAGE = ROOT / "src" / "nearlm"
IN_SDIST = (
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "CITATION.cff",
    "pyproject.toml",
    "docs/results.md",
    "tests/tiny.py",
)
PAGES = ("tests/test_docs.py", "tests/test_api.py", "tests/test_release.py")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="nearlm-release-") as name:
        folder = Path(name)
        wheel, sdist = build(folder)
        check_contents(wheel, sdist)
        for kind in ("lowest", "highest"):
            (folder / kind).mkdir()
            try_wheel(wheel, kind, folder / kind)
        python = str(folder / "highest" / "venv" / "bin" / "python")
        call(python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", str(sdist))
        call(python, str(SMOKE))
    call(sys.executable, "-m", "pytest", "-n", "0", *PAGES)
    print("ready to be released")


def build(folder: Path) -> tuple[Path, Path]:
    """Build wheel and sdist in an environment of their own, and let twine check their metadata."""
    venv.create(folder / "tools", with_pip=True)
    python = str(folder / "tools" / "bin" / "python")
    call(python, "-m", "pip", "install", "--quiet", "twine", pinned("hatchling"))
    built = folder / "dist"
    done = subprocess.run([python, "-m", "hatchling", "build", "-d", str(built)], cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(1)
    archives = sorted(built.iterdir())
    call(python, "-m", "twine", "check", "--strict", *map(str, archives))
    return next(built.glob("*.whl")), next(built.glob("*.tar.gz"))


def check_contents(wheel: Path, sdist: Path) -> None:
    """Compare what the archives hold with the checkout."""
    ours = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    ours = {name for name in ours if "__pycache__" not in name}
    packed = set(zipfile.ZipFile(wheel).namelist())
    missing = sorted(ours - packed)
    foreign = sorted(name for name in packed - ours if ".dist-info/" not in name)
    if missing or foreign:
        raise SystemExit(f"the wheel lacks {missing[:5]} and holds {foreign[:5]} besides")
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    missing = [name for name in IN_SDIST if name not in names]
    missing += sorted(name for name in ours if f"src/{name}" not in names)
    if missing:
        raise SystemExit(f"the sdist lacks {missing[:5]}")
    print(f"{wheel.name}: {len(ours)} files; {sdist.name}: {len(names)} entries")


if __name__ == "__main__":
    main()
