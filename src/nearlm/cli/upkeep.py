"""Commands that look after an installation: what is there, what is missing, what the cache holds."""

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, Any

from nearlm.base import NearLMError, size
from nearlm.cli.help import OUTPUT
from nearlm.cli.options import PLAIN, Shown, option

_SHOWN = "torch transformers tokenizers faiss-cpu numba numpy huggingface_hub".split()
_NOT_FOR_USERS = ("dev", "all")


def cache_command(
    *,
    clear: Annotated[
        tuple[str, ...], option(OUTPUT, "Remove all of a kind (traces, models, …), or one store (cache:NAME).")
    ] = (),
    output: Shown = PLAIN,
) -> None:
    """Show what the cache holds, or clear it."""
    from nearlm.base.cache import cache_dir
    from nearlm.base.upkeep import clear_cache, list_cache

    freed = sum(clear_cache(what) for what in clear)
    kept = list_cache()
    if output.as_json:
        rows = [{"kind": one.kind, "entries": one.entries, "bytes": one.bytes} for one in kept]
        output.show({"folder": str(cache_dir()), "freed": freed, "kept": rows})
        return
    if clear:
        print(f"removed {size(freed)}")
    print(f"{cache_dir()}: {size(sum(one.bytes for one in kept))}")
    for one in kept:
        print(f"  {one.kind:10} {size(one.bytes):>9}  {one.entries:6,}  {one.holds}")


def doctor_command(*, output: Shown = PLAIN) -> None:
    """Show versions, devices and sizes, and what is missing."""
    from nearlm import __version__

    found = {"nearlm": __version__, **_versions(), **_machine(), **_cache(), "kernels": _kernels(), **_extras()}
    output.show(found)


def _versions() -> dict[str, Any]:
    import platform

    return {"python": platform.python_version(), **{name: version(name) for name in _SHOWN}}


def _machine() -> dict[str, Any]:
    import platform

    import numba
    import torch

    from nearlm.base.ram import available_ram

    ram = available_ram()
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    if getattr(torch.backends, "mps", None) and torch.backends.mps.is_available():
        gpus.append("mps")
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "gpus": gpus,
        "torch_threads": torch.get_num_threads(),
        "numba_threads": f"{numba.get_num_threads()} ({_layer()})",
        "cpu_instructions": torch.backends.cpu.get_cpu_capability(),
        "free_ram": None if ram is None else size(ram),
    }


def _layer() -> str:
    """Return how numba runs threads; the simplest layer must not be used by several threads at once."""
    import numba

    @numba.njit(parallel=True)  # type: ignore[untyped-decorator]
    def count(n: int) -> int:
        total = 0
        for _ in numba.prange(n):
            total += 1
        return total

    count(2)
    return str(numba.threading_layer())


def _cache() -> dict[str, Any]:
    import shutil

    from nearlm.base.cache import cache_dir, cache_lock
    from nearlm.base.upkeep import list_cache
    from nearlm.base.verification import verify_mode

    folder = cache_dir()
    try:
        with cache_lock(folder):
            state = f"{size(shutil.disk_usage(folder).free)} free"
    except NearLMError as error:
        state = str(error)
    used = size(sum(one.bytes for one in list_cache()))
    return {"cache": f"{folder}: {used}, {state}", "files_are_verified": verify_mode()}


def _kernels() -> str:
    """Compile, or load, and run the kernels that mixing needs."""
    from nearlm.mixing.equations import warm_up

    try:
        warm_up()
    except Exception as error:  # numba and LLVM raise what they like
        return f"do not work ({type(error).__name__}: {error})"
    return "work"


def _extras() -> dict[str, Any]:
    """Say for each extra whether all its packages are there, or how to get them."""
    missing: dict[str, list[str]] = {}
    for extra, package in _needed():
        missing.setdefault(extra, [])
        try:
            version(package)
        except PackageNotFoundError:
            missing[extra].append(package)
    said = {
        extra: f"missing {', '.join(names)}: pip install 'nearlm[{extra}]'" if names else "installed"
        for extra, names in missing.items()
    }
    return {f"extra_{extra}": text for extra, text in sorted(said.items())}


def _needed() -> Iterator[tuple[str, str]]:
    """Yield the packages of each extra."""
    for line in requires("nearlm") or ():
        found = re.fullmatch(r"""([\w.-]+).*extra == ['"]([\w-]+)['"].*""", line)
        if found and found[2] not in _NOT_FOR_USERS and found[1] != "nearlm":
            yield found[2], found[1]
