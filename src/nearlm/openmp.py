"""One OpenMP for torch, FAISS and numba, whichever of them is imported first after nearlm."""

import contextlib
import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path


def share_openmp() -> None:
    """Load torch's OpenMP for all libraries that come after it, unless torch has none of its own.

    On Linux each of them brings one, or takes the system's, and keeps a crew of threads that turn in circles while they
    wait for work. Several crews are more threads than there are cores, and a pass of a model right after a search takes
    up to half as long again. Torch offers its own to all that is loaded later, but takes seconds to import; this is the
    library alone, in a millisecond.
    """
    torch = find_spec("torch") if sys.platform == "linux" and "torch" not in sys.modules else None
    if torch is None or torch.origin is None:
        return
    for path in sorted(Path(torch.origin).parent.glob("lib/libgomp*.so*")):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
