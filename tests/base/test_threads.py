"""Work in a thread that ends with it."""

import subprocess
import sys
import threading

import pytest

from nearlm.base import StoreError
from nearlm.base.threads import apart

CREW = """
import os, time, torch
from nearlm.base.threads import apart
torch.set_num_threads(2)
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
def work():
    torch.set_num_threads(2)
    x = torch.ones(1000, 1000)
    (x @ x).exp()
    return threads()
during = apart(work)
for _ in range(1000):  # the system takes a moment to end threads
    if threads() == before:
        break
    time.sleep(0.01)
print(during > before + 1, threads() - before)
"""


def test_what_came_of_it_is_returned_or_raised():
    assert apart(threading.current_thread) is not threading.current_thread()

    def fail():
        raise StoreError("no")

    with pytest.raises(StoreError, match="no"):
        apart(fail)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the threads of a process as Linux shows them")
def test_nothing_of_openmp_is_left_over():
    said = subprocess.run([sys.executable, "-c", CREW], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", "0"]
