"""Tasks know their time."""

import time

from nearlm.serve.tasks import Task, Wish


def test_a_task_expires_at_its_deadline():
    wish = Wish([1], None, 1)
    assert Task(wish, print, time.monotonic() - 1).expired
    assert not Task(wish, print, time.monotonic() + 60).expired
