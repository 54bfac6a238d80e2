"""The dispatcher: never more than ten messages a second, never the last one missing, no error lost."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from statistics import median

import pytest

from tests.ui.fakes import flush
from workbench.events import BenchEvent, Called
from workbench.ui import dispatcher as module
from workbench.ui.dispatcher import Dispatcher, Throttle


class Ear:
    def __init__(self) -> None:
        self.heard: list[BenchEvent] = []
        self.at_flush: list[tuple[float, int]] = []
        self.failed: list[Exception] = []
        self.more = 0

    def on_event(self, event: BenchEvent) -> None:
        self.heard.append(event)

    def flush(self) -> bool:
        self.at_flush.append((time.monotonic(), len(self.heard)))
        self.more -= 1
        return self.more > 0

    def dispatcher(self, interval: float = 0.03) -> Dispatcher:
        return Dispatcher(self.on_event, self.flush, self.failed.append, interval)


def alive(pump: Dispatcher) -> bool:
    return pump._thread is not None


def test_there_are_no_more_flushes_than_intervals_and_the_last_event_is_flushed() -> None:
    ear = Ear()
    pump = ear.dispatcher()
    pump.put(Called("first"))
    assert pump.drain(60)  # so that there are two flushes at least, however late its thread goes on

    def many() -> None:
        for i in range(500):
            pump.put(Called(str(i)))
            time.sleep(1e-4)

    began = time.monotonic()
    threads = [threading.Thread(target=many) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pump.drain(60)
    assert len(ear.heard) == 1501
    assert ear.at_flush[-1][1] == 1501
    assert len(ear.at_flush) - 1 <= 1 + (time.monotonic() - began) / 0.03, (
        "no more than the intervals since then"
    )
    apart = [b - a for (a, _), (b, _) in pairwise(ear.at_flush)]
    assert median(apart) >= 0.03 * 0.9, (
        "one by one; a thread that is halted before it notes the time makes a single one look short"
    )


def test_each_threads_events_stay_in_order() -> None:
    ear = Ear()
    pump = ear.dispatcher(0.001)
    for i in range(300):
        pump.put(flush(i, 1))
    assert pump.drain(60)
    assert [event.step for event in ear.heard] == list(range(300))  # type: ignore[union-attr]


def test_what_does_not_fit_in_one_message_follows() -> None:
    ear = Ear()
    ear.more = 4
    pump = ear.dispatcher(0.005)
    pump.wake()
    assert pump.drain(60)
    assert len(ear.at_flush) == 4


def test_a_flush_that_is_kept_back_goes_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[float] = []

    def goes(self: Throttle, now: float, before: float) -> bool:
        came[:] = sorted({*came, before, now} - {0.0})
        return len(came) % 2 == 0

    monkeypatch.setattr(Throttle, "patience", lambda self, told: 60.0)
    monkeypatch.setattr(Throttle, "goes", goes)
    ear = Ear()
    pump = ear.dispatcher(0.001)
    for i in range(3):
        pump.put(flush(2 * i, 1))
        assert not pump.drain(0.05)
        pump.put(flush(2 * i + 1, 1))
        assert pump.drain(60)
    assert [heard for _, heard in ear.at_flush] == [2, 4, 6]


def test_and_no_longer_than_the_pace_has_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(Throttle, "patience", lambda self, last: told.append(last) or 0.01)
    monkeypatch.setattr(Throttle, "goes", lambda self, came, before: False)
    ear = Ear()
    pump = ear.dispatcher(0.001)
    began = time.monotonic()
    for i in range(3):
        pump.put(flush(i, 1))
        assert pump.drain(60)
    assert [heard for _, heard in ear.at_flush] == [1, 2, 3]
    assert told[0] == 0.0, "nothing was told before"
    assert began <= told[1] < told[2] <= time.monotonic()


@pytest.mark.parametrize("other", ["event", "click", "more", "close"])
def test_nothing_else_waits_for_a_flush(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Throttle, "patience", lambda self, told: 60.0)
    monkeypatch.setattr(Throttle, "goes", lambda self, came, before: False)
    ear = Ear()
    pump = ear.dispatcher(0.001)
    if other == "more":
        ear.more = 3
        pump.put(Called("first"))
        assert pump.drain(30)
        assert len(ear.at_flush) == 3
        return
    pump.put(flush(0, 1))
    {"event": lambda: pump.put(Called("second")), "click": pump.wake, "close": pump.close}[other]()
    assert pump.drain(30)
    assert len(ear.at_flush) == (0 if other == "close" else 1)


def test_putting_never_waits_for_the_view() -> None:
    gate = threading.Event()
    heard: list[BenchEvent] = []

    def slow(event: BenchEvent) -> None:
        gate.wait(60)
        heard.append(event)

    pump = Dispatcher(slow, lambda: False, lambda _: None, 0.0)
    for i in range(1000):
        pump.put(Called(str(i)))
    assert heard == [], "all are put while the view is at the first"
    assert not pump.drain(0.05)
    gate.set()
    assert pump.drain(60)
    assert len(heard) == 1000


def test_errors_are_shown_and_the_rest_goes_on() -> None:
    ear = Ear()

    def hear(event: BenchEvent) -> None:
        ear.on_event(event)
        if event == Called("bad"):
            raise ValueError("cannot draw this")

    pump = Dispatcher(hear, ear.flush, ear.failed.append, 0.001)
    for code in ("good", "bad", "good too"):
        pump.put(Called(code))
    assert pump.drain(60)
    assert len(ear.heard) == 3
    assert [str(error) for error in ear.failed] == ["cannot draw this"]
    assert ear.at_flush


def test_an_error_that_cannot_be_shown_is_kept() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("nobody to tell")

    pump = Dispatcher(fail, lambda: False, fail, 0.001)
    pump.put(Called("x"))
    assert pump.drain(60)
    assert len(pump.errors) == 2


def test_the_thread_ends_when_idle_and_comes_back() -> None:
    ear = Ear()
    pump = ear.dispatcher(0.001)
    assert not alive(pump), "making one starts nothing"
    old, module._IDLE = module._IDLE, 0.05
    try:
        pump.put(Called("one"))
        assert pump.drain(60)
        end = time.monotonic() + 60
        while alive(pump) and time.monotonic() < end:
            time.sleep(0.01)
        assert not alive(pump)
        pump.put(Called("two"))
        assert pump.drain(60)
        assert len(ear.heard) == 2
    finally:
        module._IDLE = old
