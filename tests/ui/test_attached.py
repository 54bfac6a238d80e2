"""The view of a job that another process does, driven as its front end does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ipywidgets.widgets.widget import _instances

from tests.ui.fakes import FakeBench, FakeJob
from tests.ui.mirror import Mirror
from tests.waiting import wait_for
from workbench.events import Changed, Message
from workbench.ui.attached import AttachedPanel


class Job(FakeJob):
    """A fit that says what it is told to, and notes what it is asked."""

    def __init__(self, events: list[Any], kind: str = "fit") -> None:
        super().__init__(
            "0012-fit",
            kind,
            FakeBench(lr=0.1, gradient_clip_val=1.0).settings,
            lambda job: iter(()),
        )
        self.events, self.status = events[:-1], "running"
        self.last = events[-1]
        self.asked: list[str] = []

    def on_request(self, callback: Callable[[str], None]) -> None:
        self.said = callback

    recorded_in = Path("0012-fit")

    def validate(self) -> None:
        self.asked.append("validate")

    def histograms(self, layers: Sequence[str] = ()) -> None:
        self.asked.append(f"histograms {layers}")

    def checkpoint(self) -> None:
        raise RuntimeError("checkpoint() comes too late: fit 0012-fit has finished.")

    def finish(self) -> None:
        self.events.append(self.last)
        self.status = self.last.status
        self.over.set()


def enter(view: AttachedPanel, name: str, value: str) -> None:
    """Enter a value into a box."""
    view.canvas._heard(None, {"type": "ask", "what": "enter", "name": name, "value": value}, None)


@pytest.fixture
def job() -> Job:
    bench = FakeBench(lr=0.1, gradient_clip_val=1.0, epochs=1, updates=40)
    real = bench.fit()
    assert real.wait(60)
    wait_for(lambda: type(real.events[-1]).__name__ == "RunEnded")
    return Job(real.events)


def browser(view: AttachedPanel, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    mirror, lock = Mirror(), threading.Lock()

    def send(content: Any, buffers: Any) -> None:
        with lock:
            mirror.on_event(content, buffers)

    monkeypatch.setattr(view.canvas, "send", send)
    view.canvas._heard(None, {"type": "ready"}, None)
    return mirror


def test_it_shows_the_whole_history_and_what_comes(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.events, later = job.events[:4], job.events[4:]
    view = AttachedPanel.of(job)
    assert AttachedPanel.of(job) is view
    mirror = browser(view, monkeypatch)
    wait_for(lambda: mirror.state.get("progress", {}).get("status") == "running")
    assert [one.disabled for one in (view.pause, view.stop)] == [False, False]
    job.events.extend(later)
    job.finish()
    wait_for(lambda: mirror.state["progress"]["status"] == "finished")
    assert mirror.state["progress"]["done"] == 40
    wait_for(lambda: all(one.disabled for one in (view.stop, view.pause, view.validate)))


def test_a_view_whose_cell_runs_again_ends(job: Job) -> None:
    """Its thread, its widgets and what marimo has of it, too; the job continues in the next view."""
    before = set(threading.enumerate())
    view = AttachedPanel.of(job)
    shown = view._display_()
    [following] = [
        one
        for one in threading.enumerate()
        if one.name == "workbench-following" and one not in before
    ]
    models = {shown.model_id, shown.layout.model_id}
    for widget in (shown, shown.layout):  # what marimo does
        widget.comm.close()
    again = AttachedPanel.of(job)
    assert again is not view
    assert again._display_() is again.canvas
    assert models.isdisjoint(_instances)
    following.join(60)
    assert not following.is_alive()
    job.said("wb.attach('0012-fit').pause()")
    assert again.dispatcher.drain(60)
    again.stop.click()
    assert job.stopped
    job.finish()
    wait_for(lambda: again.stop.disabled)
    assert not view.stop.disabled, "it hears no more"


def test_the_line_of_what_was_asked_is_shown(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    view = AttachedPanel(job)
    mirror = browser(view, monkeypatch)
    job.said("wb.attach('0012-fit').pause()")
    wait_for(lambda: mirror.state.get("code") == "wb.attach('0012-fit').pause()")


def test_what_is_asked_reaches_the_job_and_a_refusal_is_said(job: Job) -> None:
    view = AttachedPanel(job)
    wait_for(lambda: view._in_run)
    assert view.dispatcher.drain(60)  # the boxes have been brought to what the run has
    view.validate.click()
    assert job.asked == ["validate"]
    view.checkpoint.click()
    assert view.notice.lines[0] == (
        "error",
        "Save a checkpoint now: RuntimeError: checkpoint() comes too late: fit 0012-fit has finished.",
    )
    assert not view.apply.visible
    enter(view, "lr", "0.05")
    assert view.apply.text == "Apply to the run: lr 0.05"
    view.apply.click()
    assert job.changes == {"lr": 0.05}
    view.canvas._heard(None, {"type": "ask", "what": "measure_ratios", "on": True}, None)
    assert job.changes == {"lr": 0.05, "track_update_ratio": True}
    view.canvas._heard(None, {"type": "ask", "what": "histograms", "layers": ["0"]}, None)
    assert job.asked[-1] == "histograms ['0']"
    view.canvas._heard(None, {"type": "ask", "what": "use_clip", "value": 0.7}, None)
    assert view.apply.text == "Apply to the run: lr 0.05, clip 0.7"
    view.canvas._heard(None, {"type": "ask", "what": "delete", "run": "0012-fit"}, None)
    assert view.notice.lines[0][1].endswith("is not available for a job of another process.")
    view.stop.click()
    assert job.stopped
    job.finish()


def test_the_lines_in_the_canvas_are_the_boxes_as_long_as_they_can_be_dragged(job: Job) -> None:
    view = AttachedPanel(job)
    wait_for(lambda: view._in_run)
    assert view.dispatcher.drain(60)
    assert (view.canvas.marker, view.canvas.clip) == (0.1, 1.0)
    view.canvas.set_state({"marker": 0.02, "clip": 0.5})  # as a browser does
    assert view.apply.text == "Apply to the run: lr 0.02, clip 0.5"
    enter(view, "lr", "0.03")
    assert view.canvas.marker == 0.03
    job.finish()
    wait_for(lambda: (view.canvas.marker, view.canvas.clip) == (0.0, 0.0))
    view.canvas._heard(None, {"type": "ask", "what": "use_clip", "value": 0.7}, None)
    assert "does not train now" in view.notice.lines[0][1]
    assert view.boxes["gradient_clip_val"].read() == 0.5
    sweep = AttachedPanel(Job(job.events, kind="find_lr"))
    assert (sweep.canvas.marker, sweep.canvas.clip) == (0.0, 0.0), (
        "nothing of a sweep can be changed"
    )
    sweep._job.finish()  # type: ignore[attr-defined]


def test_a_change_of_the_run_is_not_offered_to_be_undone(job: Job) -> None:
    view = AttachedPanel(job)
    wait_for(lambda: view._in_run)
    assert view.dispatcher.drain(60)
    enter(view, "gradient_clip_val", "0.5")  # a person's own
    view.dispatcher.put(Changed(20, {"lr": 0.01, "gradient_clip_val": 2.0, "weight_decay": 0.1}))
    assert view.dispatcher.drain(60)
    assert (view.boxes["lr"].read(), view.canvas.marker) == (0.01, 0.01)
    assert view.apply.text == "Apply to the run: clip 0.5"
    job.finish()


def test_messages_of_the_run_are_said(job: Job) -> None:
    job.events.insert(1, Message("weights <changed>", "warning"))
    view = AttachedPanel(job)
    wait_for(lambda: ("warning", "weights <changed>") in view.notice.lines)
    job.finish()
