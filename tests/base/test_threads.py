"""Few rows take one thread, many as many as before, whatever happens in between."""

import numba
import pytest

from nearlm.base.threads import FEW, threads_for


def test_few_rows_take_one_thread():
    most = numba.config.NUMBA_NUM_THREADS
    before = numba.get_num_threads()
    with threads_for(FEW + 1):
        assert numba.get_num_threads() == before <= most
    with pytest.raises(KeyError), threads_for(FEW):
        assert numba.get_num_threads() == 1
        raise KeyError
    assert numba.get_num_threads() == before
