"""How a launched process ends."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from workbench.launch.accelerate.worker import _leave
from workbench.launch.process import run_in_child as child
from workbench.launch.process.run_in_child import run_in_child

pytestmark = pytest.mark.skipif(not child.FORK, reason="needs a fork server")


def _with_an_idle_thread() -> None:
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()
    _leave(7)  # the pool is there still, as one of a data set of the user's would be


@pytest.mark.slow  # a fork server of its own
def test_an_idle_thread_of_an_executor_does_not_keep_it() -> None:
    until = time.monotonic() + 200
    assert (
        run_in_child(_with_an_idle_thread, threads=1, stop=lambda: time.monotonic() > until).code
        == 7
    )
