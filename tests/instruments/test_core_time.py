"""The time of work is its own: other programs on its core do not add to it, and what it waits for does."""

import threading
import time

import pytest

from workbench.instruments import core_time
from workbench.instruments.core_time import core_seconds


def test_waiting_of_the_work_itself_counts():
    done = threading.Event()
    assert core_seconds(lambda: done.wait(0.05)) > 0.02


@pytest.mark.parametrize(("waited", "expected"), [(0.0, 9.0), (5.0, 4.0), (20.0, 1.0)])
def test_waiting_for_a_core_does_not(waited, expected, monkeypatch):
    """The work takes 9 seconds by the clock, of which the thread computes for 1 second."""
    clock, used, delay = iter([100.0, 109.0]), iter([50.0, 51.0]), iter([7.0, 7.0 + waited])
    monkeypatch.setattr(core_time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(core_time, "thread_time", lambda: next(used))
    monkeypatch.setattr(core_time, "_waited", lambda: next(delay))
    assert core_seconds(lambda: None) == expected


def test_it_is_at_most_the_time_by_the_clock():
    began = time.perf_counter()
    taken = core_seconds(lambda: sum(range(100_000)))
    assert 0 < taken <= time.perf_counter() - began
