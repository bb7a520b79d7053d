"""One OpenMP for all libraries, whatever is imported first."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CODE = """
import nearlm
import {first}
import faiss, torch
from pathlib import Path

def threads():
    return len(list(Path("/proc/self/task").iterdir()))

x = torch.rand(4096, 64)
x @ x.T
before = threads()
faiss.knn(x.numpy(), x.numpy(), 2)
print(before > 1, threads() - before)
"""


LIBRARIES = list(Path(find_spec("torch").origin).parent.glob("lib/libgomp*.so*"))


@pytest.mark.skipif(not LIBRARIES, reason="this torch has no OpenMP of its own")
@pytest.mark.parametrize("first", ["faiss", "torch", "numba"])
def test_faiss_takes_the_threads_that_torch_has(first):
    given = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", CODE.format(first=first)], env=given, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "0"], done.stderr
