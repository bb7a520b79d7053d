"""One OpenMP for all libraries, whatever is imported first."""

import os
import subprocess
import sys

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


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere libraries have one OpenMP, or none")
@pytest.mark.parametrize("first", ["faiss", "torch", "numba"])
def test_faiss_takes_the_threads_that_torch_has(first):
    given = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", CODE.format(first=first)], env=given, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "0"], done.stderr
