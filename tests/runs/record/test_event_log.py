"""Events that lie in a record are a sequence as a list is, and memory holds the newest alone."""

from __future__ import annotations

import copy
import gc
import pickle
import shutil
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import workbench as wb
import workbench.runs.read as read_module
import workbench.runs.record.event_log as module
from tests.runs.record.test_thin import a_long_run, flush, folder
from workbench.events import BY_LAYER, Event, Message, StepsDone
from workbench.runs.folder.delete import remove_folder
from workbench.runs.record.event_log import EventLog, Recorded, RecordGone, newest, now, since
from workbench.runs.run import Run
from workbench.ui.panel import Panel


@pytest.fixture(params=["recorded", "thinned", "not recorded", "in part"])
def both(
    request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[EventLog, list[Event]]:
    """A log most of which is put away, and the same events as a list."""
    monkeypatch.setattr(module, "HELD", 100_000)
    made = folder(tmp_path, 1 if request.param == "thinned" else None)
    log = EventLog(record=made.path)
    events: list[Event] = []
    for number, event in enumerate(a_long_run(1200)):
        recorded = request.param in ("recorded", "thinned") or (
            request.param == "in part" and number % 5 < 3
        )
        log.add(event, made.append(event) if recorded else None)
        events.append(event)
    made.close()
    assert len(log.recent) < len(events) / 2
    if request.param == "thinned":
        events = [*log.stream()]
        assert any(isinstance(event, StepsDone) and event.layers_every > 1 for event in events)
    return log, events


def test_it_is_as_a_list(both: tuple[EventLog, list[Event]]) -> None:
    log, events = both
    assert len(log) == len(events)
    assert [*log] == events
    assert [*reversed(log)] == events[::-1]
    for place in (0, 3, 20, -1, -2, -40):
        assert log[place] == events[place]
    for part in (slice(3, 9), slice(-4, None), slice(None, 5), slice(None, None, 7), slice(50, 10)):
        assert log[part] == events[part]
    with pytest.raises(IndexError):
        log[len(events)]
    assert [*since(log, 17)] == events[17:]
    assert [*since(log, len(events))] == []
    assert newest(log)[-1] is log[-1]
    assert log == events
    losses = [event for event in log.stream(("loss",)) if isinstance(event, StepsDone)]
    assert [event.step for event in losses] == [
        event.step for event in events if isinstance(event, StepsDone)
    ]


def test_what_is_taken_now_does_not_grow(both: tuple[EventLog, list[Event]]) -> None:
    log, events = both
    taken = now(log)
    log.add(Message("later"))
    assert [*taken] == events
    assert len(log) == len(events) + 1


@pytest.mark.slow  # a long record
def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    made = folder(tmp_path, None)
    log = EventLog(record=made.path)
    tracemalloc.start()
    try:
        sizes = []
        for step in range(0, 24_000, 20):
            log.add(event := flush(step), made.append(event))
            if step % 6000 == 5980:
                del event
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        made.close()
    assert sizes[-1] < 1.1 * sizes[0]
    assert sizes[-1] < 2 * module.HELD
    assert len(log) == 1200


def test_what_is_in_no_record_has_a_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD", 100_000)
    monkeypatch.setattr(module, "UNRECORDED", 1_000_000)
    log = EventLog(a_long_run(8000))
    held = sum(
        len(event.columns.get(name, b""))
        for event in log
        for name in BY_LAYER
        if isinstance(event, StepsDone)
    )
    assert held < 1_000_000 + 100_000 + module.FEWEST * 20 * 1000
    run = Run.from_events(log)
    np.testing.assert_array_equal(run.history["loss"], np.arange(8000))


def test_a_recorded_run_is_read_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD", 0)
    with folder(tmp_path, None) as made:
        for event in a_long_run(400):
            made.append(event)
    read: list[int] = []
    real = read_module.event_of
    monkeypatch.setattr(
        read_module, "event_of", lambda *arguments: (read.append(1), real(*arguments))[1]
    )
    run = Run.open(made.path)
    assert (run.status, run.step, run.id, len(read)) == ("finished", 400, "a", 1)  # its end
    assert run.metrics["loss"] == 399
    assert run.events == [*a_long_run(400)]
    assert run == Run.from_events(a_long_run(400), made.path)
    other = Run.open(made.path)
    remove_folder(made.path)
    assert len(run.history["loss"]) == 400 if "_whole" in vars(run) else run.metrics["loss"] == 399
    with pytest.raises(RecordGone, match="run a was deleted"):
        _ = other.history


def test_a_run_that_goes_on_is_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    with folder(tmp_path, None) as made:
        events = [*a_long_run(400)]
        for event in events[:10]:
            made.append(event)
        run = Run.open(made.path)
        for event in events[10:]:
            made.append(event)
        assert run.events == events[:10]
        assert len(Recorded(made.path, True)) == len(events)


def a_fit(root: Path, **settings: Any) -> wb.Workbench:
    x = torch.arange(64.0).reshape(16, 4) / 64
    return wb.Workbench(
        nn.Linear(4, 2), train=(x, torch.arange(16) % 2), loss=nn.functional.cross_entropy, root=root, batch_size=4,
        accelerator="cpu", strategy="thread", **settings,
    )  # fmt: skip


def test_a_deleted_run_is_still_known_and_no_other_run_is_read_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD", 2000)
    bench = a_fit(tmp_path, max_epochs=30)
    job = bench.fit()
    job.result()
    run, listed = Run.from_events(job.events, job.folder.path), bench.runs[-1]
    bench.delete(run.id)
    panel = Panel(bench)
    assert any("was deleted" in text for _, text in panel.notice.lines)
    panel.close()
    for known in (run, listed, job.result()):
        assert (known.status, known.step) == ("finished", 120)
        assert "record deleted" in repr(known)
        assert "record" in known._repr_html_()
        with pytest.raises(RecordGone, match=f"run {run.id} was deleted"):
            _ = known.history
    after = bench.fit(start="continue", max_epochs=1).result()
    assert after.id != run.id
    for known in (run, listed):
        with pytest.raises(RecordGone, match=f"run {run.id} was deleted"):
            _ = known.history
        with pytest.raises(RecordGone):
            next(reversed(known.events[:5]))
    assert len(after.history["loss"]) == 4


def test_a_run_can_be_pickled_and_copied_whatever_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD", 2000)
    run = a_fit(tmp_path, max_epochs=30).fit().result()
    assert isinstance(run.events, EventLog)
    for other in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
        assert other == run
        np.testing.assert_array_equal(other.history["loss"], run.history["loss"])


def test_who_asks_for_the_newest_reads_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD", 2000)
    reads: list[Path] = []
    real = module.recorded
    monkeypatch.setattr(
        module, "recorded", lambda path, *rest: (reads.append(path), real(path, *rest))[1]
    )
    made, log, seen = folder(tmp_path, None), EventLog(record=tmp_path / "runs" / "a"), 0
    for event in a_long_run(2000):
        log.add(event, made.append(event))
        seen += len([*since(log, seen)])
        assert log[-1] is event
    made.close()
    assert seen == len(log) > 50
    assert reads == []
    assert log[0] == next(iter(a_long_run(2000)))  # the beginning is held too
    assert reads == []


def test_the_record_is_deleted_while_its_run_trains_and_a_bar_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD", 2000)
    until, passed = threading.Event(), threading.Event()
    bench = a_fit(tmp_path / "root", max_epochs=60)

    def hear(event: Any) -> None:
        if isinstance(event, StepsDone) and event.step > 150 and not passed.is_set():
            shutil.rmtree(tmp_path / "root", ignore_errors=True)  # the fit may write beside
            passed.set()
            until.wait(200)

    bench.subscribe(hear)
    job = bench.fit()
    assert passed.wait(200)
    with pytest.raises(TimeoutError):
        job.result(timeout=0.01)  # its bar asks for the whole record
    until.set()
    with pytest.raises(RecordGone, match="was deleted or moved while the job wrote it"):
        job.result(200)
