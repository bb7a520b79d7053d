"""Work in a thread that ends with it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_Made = TypeVar("_Made")


def apart(work: Callable[[], _Made]) -> _Made:
    """Do work in a thread that ends with it, and return or raise what came of it.

    OpenMP keeps a crew of threads for every thread that has used it, until that thread ends. While more of them are
    alive than there are cores, those of all crews sleep between two pieces of work instead of waiting for the next,
    and a forward pass takes twice as long. So whoever prepares a model for another thread does that in here.
    """
    made: Future[_Made] = Future()

    def run() -> None:
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    thread = threading.Thread(target=run, name="apart", daemon=True)
    thread.start()
    thread.join()
    return made.result()
