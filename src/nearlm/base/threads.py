"""How many threads numba's kernels run on: one where there is little to do."""

from collections.abc import Iterator
from contextlib import contextmanager

FEW = 32  # rows


@contextmanager
def threads_for(rows: int) -> Iterator[None]:
    """Let kernels run on one thread for a few rows: to wait for others takes longer than the rows do."""
    import numba  # here, since it takes a while and most commands do without

    before = numba.get_num_threads()
    numba.set_num_threads(1 if rows <= FEW else before)
    try:
        yield
    finally:
        numba.set_num_threads(before)
