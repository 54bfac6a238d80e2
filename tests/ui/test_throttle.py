"""The rhythm of the messages: each flush of an idle process, each two of a busy one, none that is rare or late already."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from workbench.ui import dispatcher as module
from workbench.ui.dispatcher import Throttle


def sent(
    monkeypatch: pytest.MonkeyPatch, worked: float, own: float = 0.0, device: str = "cpu"
) -> Throttle:
    """At 7.0 by the clock a message went, and one 0.1 s before; meanwhile all threads and the one that sends worked so long."""
    times = iter([(6.9, 3.0, 1.0), (7.0, 3.0 + worked, 1.0 + own)])
    monkeypatch.setattr(module, "_spent", lambda: next(times))
    pace = Throttle(0.1)
    pace.on(device)
    pace.sends()
    pace.sends()
    return pace


def test_an_idle_process_is_told_of_at_each_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent(monkeypatch, worked=0.04).goes(7.101, before=7.0)


@pytest.mark.parametrize("device", ["cpu", "2 x cpu"])
def test_of_a_busy_one_a_flush_waits_for_the_next(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = sent(monkeypatch, worked=0.1, device=device)
    assert not pace.goes(7.101, before=7.0)
    assert not pace.goes(7.13, before=7.101), "the end of an epoch comes with a flush of its own"
    assert pace.goes(7.202, before=7.101)


@pytest.mark.parametrize(("now", "left"), [(7.101, 0.109), (7.2, 0.01), (7.3, 0.0)])
def test_no_value_waits_longer_than_a_fifth_of_a_second(
    now: float, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = sent(monkeypatch, worked=0.1)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    assert pace.patience(6.99) == pytest.approx(left)


def test_flushes_that_are_rare_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent(monkeypatch, worked=0.1).goes(7.12, before=7.0)


@pytest.mark.parametrize("device", ["cuda:0", "2 x cuda"])
def test_values_that_come_late_go_at_once(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent(monkeypatch, worked=0.1, device=device).goes(7.101, before=7.0)


def test_what_the_thread_itself_works_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent(monkeypatch, worked=0.1, own=0.08).goes(7.101, before=7.0)


def test_a_thread_that_works_makes_the_process_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU times are real; the clock is the test's, since a busy machine may give a thread little CPU time."""
    now = 7.0
    monkeypatch.setattr(
        module,
        "time",
        SimpleNamespace(
            monotonic=lambda: now, process_time=time.process_time, thread_time=time.thread_time
        ),
    )

    def work() -> None:
        while time.thread_time() < 0.4:
            sum(range(1000))

    pace = Throttle(0.1)
    pace.sends()
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    for busy in (True, False):
        now += 0.5
        pace.sends()
        assert pace.goes(now, before=now) != busy
