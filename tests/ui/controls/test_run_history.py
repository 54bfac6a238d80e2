"""Recorded runs in the panel: listed, behind the loss, over one another, shown again and back, whatever goes on meanwhile."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runs.tables.test_brief import events, recorded
from tests.ui.fakes import FakeBench
from tests.ui.mirror import Mirror
from tests.waiting import wait_for
from workbench.events import (
    Annotated,
    Compared,
    CurvePoint,
    Deleted,
    RunEnded,
    RunStarted,
    SettingsSet,
    Shown,
    StatusChanged,
    StepsDone,
    Validated,
    pack,
    to_line,
)
from workbench.runs.folder.annotations import annotate
from workbench.runs.health import examine
from workbench.runs.run import Run
from workbench.runs.tables.brief import RunBrief
from workbench.settings import Settings
from workbench.ui.canvas.findings import Findings
from workbench.ui.canvas.learning_rates import BUCKETS, Rates
from workbench.ui.canvas.runs.past_curves import PastCurves
from workbench.ui.canvas.runs.run_brief import LiveRunBrief
from workbench.ui.canvas.runs.runs_page import Pages
from workbench.ui.canvas.runs.runs_table import RunsTable, fits
from workbench.ui.canvas.transport.channels import Buckets
from workbench.ui.canvas.transport.messages import LIMIT, Outbox
from workbench.ui.canvas.widget import LiveView
from workbench.ui.controls import next_actions
from workbench.ui.panel import Panel

TASK = {"model": "ResNet", "parameters": 11_181_642}
"""As tests.ui.fakes.Summary has it."""


def reading() -> bool:
    """Whether a record is being read: the table's, one that is shown, those that are compared."""
    return any(
        thread.name in ("workbench-runs", "workbench-show", "workbench-compare")
        for thread in threading.enumerate()
    )


class Face:
    """A panel whose messages go to a mirror."""

    def __init__(self, root: Path, **more: Any) -> None:
        self.bench = FakeBench(**more)
        self.bench.root = root
        self.mirror = Mirror()
        self.panel = Panel(self.bench)
        self.panel.canvas.send = lambda content, buffers: self.mirror.on_event(content, buffers)
        self.panel.canvas._heard(self.panel.canvas, {"type": "ready"}, [])
        self.settled(lambda: "runs" in self.mirror.state or not fits(root))

    def settled(self, true: Callable[[], object] = lambda: True) -> None:
        """Until this holds with all read that is to be read, and all sent: nothing moves then but a job that goes on."""
        wait_for(
            lambda: (
                self.panel.dispatcher.drain(60)
                and not reading()
                and self.panel.dispatcher.drain(60)
                and true()
            )
        )

    def state(self, name: str) -> Any:
        return self.mirror.state.get(name)

    def shows(self, name: str) -> Any:
        """What the mirror has of this when all is sent."""
        self.settled()
        return self.state(name)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table of runs, where all of them have come."""
        head = self.state("runs") or {"parts": 0}
        parts = [self.state(f"rows.{k}") or {} for k in range(head["parts"])]
        if any(part.get("of") != head["of"] for part in parts):
            return []
        return [row for part in parts for row in part["rows"]]

    def ask(self, what: str, **more: Any) -> None:
        self.panel.canvas._heard(self.panel.canvas, {"type": "ask", "what": what, **more}, [])


class Early(LiveView):
    """A canvas whose view opens at once: a kernel may take that in on another thread, while its panel is being made."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._heard(self, {"type": "ready"}, [])


def three(root: Path) -> None:
    for i, (n, lr) in enumerate(((200, 0.1), (300, 0.01), (400, 0.001)), 1):
        recorded(
            root, events(n, lr=lr, id=f"{i:04d}-fit"), f"{i:04d}-fit", created=1000.0 * i, task=TASK
        )


def test_a_view_that_opens_before_its_panel_is_made_finds_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(tmp_path)
    monkeypatch.setattr("workbench.ui.panel.LiveView", Early)
    bench, mirror = FakeBench(), Mirror()
    bench.root = tmp_path
    panel = Panel(bench)
    assert panel.dispatcher.drain(60)
    panel.canvas.send = lambda content, buffers: mirror.on_event(content, buffers)
    panel.canvas._picture.outbox.everything()
    panel.dispatcher.wake()
    wait_for(
        lambda: (
            panel.dispatcher.drain(60)
            and not reading()
            and panel.dispatcher.drain(60)
            and mirror.state.get("runs")
        )
    )


def test_the_table_lists_fits_newest_first(tmp_path: Path) -> None:
    three(tmp_path)
    recorded(
        tmp_path, [RunStarted("0004-find_lr", "find_lr", {}, "cpu")], "0004-find_lr", kind="find_lr"
    )
    face = Face(tmp_path)
    face.settled(lambda: len(face.rows()) == 3)
    table = face.state("runs")
    assert table["columns"] == [
        "status", "curve", "loss", "validation", "lr", "accuracy", "time", "started"
    ]  # fmt: skip
    assert [(row["run"], row["status"], row["cells"][4:5]) for row in face.rows()] == [
        ("0003-fit", "finished", ["1e-3"]), ("0002-fit", "finished", ["0.01"]), ("0001-fit", "finished", ["0.1"]),
    ]  # fmt: skip
    row = face.rows()[0]
    assert (row["metric"], row["value"], row["step"], row["time"], row["created"]) == (
        "val_loss",
        "0.007673",
        400,
        "40 s",
        3000.0,
    )
    assert len(row["spark"]) == 32
    assert (min(row["spark"]), row["spark"][0]) == (0, 99)
    assert all(0 <= x <= 99 and 0 <= y <= 99 for x, y in row["dots"])
    # Nothing is read twice; what is new is, when asked for.
    recorded(
        tmp_path,
        events(50, id="0005-fit"),
        "0005-fit",
        created=9000.0,
        task={"model": "Other", "parameters": 3},
    )
    face.ask("refresh")
    face.settled(lambda: len(face.rows()) == 4)
    assert face.state("runs")["columns"][4:6] == ["model", "lr"]
    assert face.rows()[0]["cells"][4] == "Other"
    face.panel.close()


def test_the_last_fits_of_the_same_model_lie_behind(tmp_path: Path) -> None:
    three(tmp_path)
    recorded(
        tmp_path,
        events(50, id="0004-fit"),
        "0004-fit",
        created=9000.0,
        task={"model": "Other", "parameters": 3},
    )
    # goes on, in this very process
    recorded(tmp_path, events(20)[:-1], "0005-fit", created=9100.0, task=TASK)
    face = Face(tmp_path)
    face.settled(
        lambda: (
            [one["run"] for one in face.state("past") or ()] == ["0003-fit", "0002-fit", "0001-fit"]
        )
    )
    rows = face.mirror.rows("past")
    brief = RunBrief.read(tmp_path / "runs" / "0002-fit")
    np.testing.assert_allclose(rows[rows[:, 0] == 1][:, 1:], brief.curve, rtol=1e-6)
    assert face.state("past")[1]["words"] == f"last val_loss {brief.value:.4g}"
    face.panel.close()


def test_runs_over_one_another(tmp_path: Path) -> None:
    three(tmp_path)
    face = Face(tmp_path)
    face.bench.tell(Compared(("0003-fit", "0001-fit")))
    face.settled(lambda: face.state("compared"))
    told = face.state("compared")
    assert told["runs"] == ["0003-fit", "0001-fit"]
    assert told["metrics"] == ["accuracy", "val_loss", "val_loss_averaged"]
    shown = {row["run"]: row["loss"] for row in face.rows()}
    assert ["smoothed loss", shown["0003-fit"], shown["0001-fit"]] in told["rows"], (
        "the same number as in the table of runs"
    )
    assert "loss" not in [row[0] for row in told["rows"]]
    assert ["lr", "1e-3", "0.1"] in told["rows"]
    rows = face.mirror.rows("compared")
    assert set(map(tuple, rows[:, :2])) == {(i, kind) for i in (0, 1) for kind in range(4)}
    assert rows[(rows[:, 0] == 1) & (rows[:, 1] == 0)][-1, 2] == 200
    # A view that opens late has all of it.
    late = face.mirror = Mirror()
    face.panel.canvas._heard(face.panel.canvas, {"type": "ready"}, [])
    face.settled(lambda: "compared" in late.state and "compared" in late.tables)
    np.testing.assert_array_equal(late.rows("compared"), rows)
    # One of two is deleted: there is nothing to compare.
    shutil.rmtree(tmp_path / "runs" / "0001-fit")
    face.bench.tell(Deleted("0001-fit"))
    face.settled(lambda: face.state("compared") is None and len(face.rows()) == 2)
    face.bench.tell(Compared(("0003-fit", "0002-fit")))
    face.settled(lambda: face.state("compared"))
    face.ask("compare", runs=[])
    face.settled(lambda: face.state("compared") is None)
    shutil.rmtree(tmp_path / "runs" / "0002-fit")
    face.bench.tell(Deleted("0002-fit"))
    face.settled(lambda: len(face.rows()) == 1)
    assert face.state("compared") is None, "what was put away does not come back"
    assert face.panel.notice.lines == []
    face.panel.close()


def test_a_run_that_is_gone_is_said_in_the_panel(tmp_path: Path) -> None:
    three(tmp_path)
    face = Face(tmp_path)
    face.bench.tell(Compared(("0003-fit", "0009-fit")))
    wait_for(lambda: "Compare" in str(face.panel.notice.lines))
    face.panel.close()


def test_a_run_is_shown_again_and_back(tmp_path: Path) -> None:
    three(tmp_path)
    face = Face(tmp_path, epochs=2, updates=40)
    job = face.bench.fit()
    assert job.wait(60)
    face.settled(
        lambda: (
            face.state("progress")["status"] == "finished" and face.state("progress")["done"] == 80
        )
    )
    live = face.mirror.rows("fit").copy()
    face.bench.tell(Shown("0002-fit"))
    face.settled(
        lambda: (
            face.state("opened") == {"run": "0002-fit"} and face.state("progress")["done"] == 300
        )
    )
    assert face.mirror.rows("fit").shape[0] == 300
    assert [one["run"] for one in face.state("past")] == ["0003-fit", "0001-fit"]
    face.bench.tell(SettingsSet(Settings.make(lr=0.5).model_dump()))
    face.bench.tell(Shown(""))
    face.settled(lambda: face.state("opened") is None and face.state("progress")["done"] == 80)
    np.testing.assert_array_equal(face.mirror.rows("fit"), live)
    assert [one["run"] for one in face.state("past")] == ["0003-fit", "0002-fit", "0001-fit"]
    # A run that is deleted while it is shown.
    face.bench.tell(Shown("0002-fit"))
    face.settled(lambda: face.state("progress")["done"] == 300)
    face.bench.tell(Deleted("0002-fit"))
    face.settled(lambda: face.state("opened") is None and face.state("progress")["done"] == 80)
    face.panel.close()


def test_what_goes_on_meanwhile_is_there_on_the_way_back(tmp_path: Path) -> None:
    three(tmp_path)
    face = Face(tmp_path, speed=0.02, epochs=2, updates=200)
    rests = [21, 154]

    def rest(event: object) -> None:
        """At these updates it waits, so that it is not over before the other run has been shown, however slow that is."""
        if isinstance(event, StepsDone) and rests and event.step >= rests[0]:
            rests.pop(0)
            face.bench.jobs[0].pause()

    face.bench.subscribe(rest)
    job = face.bench.fit()
    face.settled(
        lambda: job.status == "paused" and (face.state("progress") or {}).get("done", 0) > 20
    )
    face.bench.tell(Shown("0001-fit"))
    face.settled(
        lambda: (
            face.state("progress")["done"] == 200 and face.state("progress")["status"] == "finished"
        )
    )
    done = len(job.events)
    job.resume()
    face.settled(lambda: len(job.events) > done + 5 and job.status == "paused")
    assert face.state("progress")["done"] == 200
    assert not face.panel.run.stop.disabled  # the controls are the live job's
    job.resume()
    face.bench.tell(Shown(""))
    assert job.wait(60)
    face.settled(
        lambda: (
            face.state("progress")["done"] == 400 and face.state("progress")["status"] == "finished"
        )
    )
    seen = np.concatenate(
        [event.array("loss") for event in job.events if isinstance(event, StepsDone)]
    )
    fit = face.mirror.rows("fit")
    assert len(fit) == len(seen) == 400
    np.testing.assert_allclose(fit[:, 2], seen, rtol=1e-6)  # each update once, none left out
    assert len(face.mirror.rows("val")) == sum(isinstance(event, Validated) for event in job.events)
    face.panel.close()


def test_what_was_shown_leaves_nothing_behind(tmp_path: Path) -> None:
    three(tmp_path)
    sweep: list[Any] = [
        RunStarted("0004-find_lr", "find_lr", {}, "cpu", request={"min_lr": 1e-6, "max_lr": 1.0})
    ]
    sweep += [CurvePoint(i, 10.0 ** (i - 6), 1.0, 1.0) for i in range(4)]
    # its process is this one, and goes on
    recorded(tmp_path, sweep, "0004-find_lr", kind="find_lr")
    face = Face(tmp_path)
    face.bench.tell(Shown("0004-find_lr"))
    face.settled(lambda: "curve" in face.mirror.tables and len(face.mirror.rows("curve")) == 4)
    face.bench.tell(Shown("0002-fit"))  # one right behind the other, and once more
    face.bench.tell(Shown("0003-fit"))
    face.bench.tell(Shown("0002-fit"))
    face.settled(lambda: face.state("progress")["done"] == 300)
    assert len(face.mirror.rows("fit")) == 300
    # each update once
    np.testing.assert_allclose(face.mirror.rows("fit")[:, 2], 2 / (1 + np.arange(300)), rtol=1e-6)
    assert (len(face.mirror.rows("curve")), face.state("earlier_curves")) == (0, [])
    face.bench.tell(Shown(""))  # nothing has run here
    face.settled(lambda: face.state("opened") is None and face.state("progress") is None)
    face.settled(lambda: len(face.mirror.rows("fit")) == len(face.mirror.rows("heat")) == 0)
    assert (face.state("health"), face.state("changes"), face.state("map")["rows"]) == (
        None,
        [],
        [],
    )
    face.panel.close()


def test_a_search_is_drawn_once_on_the_way_back(tmp_path: Path) -> None:
    three(tmp_path)
    face = Face(tmp_path)
    assert face.bench.find_lr().wait(60)
    face.settled(lambda: (face.state("progress") or {}).get("status") == "finished")
    before = (face.state("swept"), face.mirror.rows("curve").copy())
    face.bench.tell(Shown("0002-fit"))
    face.settled(lambda: face.state("progress")["done"] == 300)
    face.bench.tell(Shown(""))
    face.settled(
        lambda: (
            face.state("swept") == before[0] and len(face.mirror.rows("curve")) == len(before[1])
        )
    )
    assert face.state("earlier_curves") == []
    face.panel.close()


def test_a_run_whose_process_was_killed_is_shown_with_its_end(tmp_path: Path) -> None:
    recorded(tmp_path, events(50)[:-1], pid=2**22 + 1, task=TASK)  # beyond all numbers of processes
    face = Face(tmp_path)
    face.bench.tell(Shown("0001-fit"))
    face.settled(lambda: face.state("progress") and face.state("progress")["status"] == "failed")
    assert "ended without ending the run" in face.state("failure")["message"]
    face.panel.close()


def test_a_new_job_ends_the_showing(tmp_path: Path) -> None:
    three(tmp_path)
    face = Face(tmp_path, epochs=1, updates=40)
    face.bench.tell(Shown("0001-fit"))
    face.settled(lambda: (face.state("progress") or {}).get("done") == 200)
    assert face.bench.fit().wait(60)
    face.settled(lambda: face.state("opened") is None and face.state("progress")["done"] == 40)
    assert len(face.mirror.rows("fit")) == 40
    face.panel.close()


def test_a_run_that_goes_on_elsewhere_is_followed_and_its_row_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.ui.canvas.runs.runs_table.EVERY", 0.02)
    monkeypatch.setattr("workbench.ui.controls.run_history.EVERY", 0.02)
    told = events(100)
    # of this very process, and of no job of this bench
    path = recorded(tmp_path, told[:4], task=TASK)
    face = Face(tmp_path)
    face.settled(lambda: [(row["status"], row["step"]) for row in face.rows()] == [("running", 30)])
    face.bench.tell(Shown("0001-fit"))
    face.settled(lambda: (face.state("progress") or {}).get("done") == 30)
    add(path, told[4:6])
    face.settled(
        lambda: (
            face.state("progress")["done"] == 50
            and [row["step"] for row in face.state("moving")] == [50]
        )
    )
    assert face.rows()[0]["step"] == 30, "only what changes is sent"
    add(path, told[6:])
    face.settled(lambda: face.state("progress")["status"] == face.rows()[0]["status"] == "finished")
    assert face.state("moving") == []
    assert len(face.mirror.rows("fit")) == 100  # each update once
    row = face.rows()[0]
    whole = RunBrief.read(path)
    assert (row["loss"], row["value"], len(row["spark"])) == (
        f"{whole.loss:.4g}",
        f"{whole.value:.4g}",
        32,
    )
    # nothing is left to look at
    wait_for(lambda: not alive("workbench-rows") and not alive("workbench-follow"), 60)
    recorded(tmp_path, told[:4], "0002-fit", created=9e9, task=TASK)
    face.ask("refresh")
    face.settled(lambda: len(face.rows()) == 2)
    assert alive("workbench-rows")
    face.panel.close()
    wait_for(lambda: not alive("workbench-rows"), 60)


def test_no_page_is_made_while_no_view_draws_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.ui.canvas.runs.runs_table.EVERY", 0.02)
    told, made, page = events(100), [], Pages.page
    monkeypatch.setattr(Pages, "page", lambda *of: made.append(1) or page(*of))
    path = recorded(tmp_path, told[:4], task=TASK)
    face = Face(tmp_path)
    face.settled(lambda: [row["step"] for row in face.rows()] == [30])
    face.ask("drawer", tab="settings")
    before = len(made)
    add(path, told[4:6])
    wait_for(lambda: face.panel.history.runs[0].step == 50)
    add(path, told[6:8])
    wait_for(lambda: face.panel.history.runs[0].step == 70)
    assert len(made) == before
    face.ask("drawer", tab="runs")
    face.settled(lambda: [row["step"] for row in face.rows()] == [70])
    face.panel.close()


def add(path: Path, of: list[Any]) -> None:
    with (path / "metrics.jsonl").open("a") as file:
        file.writelines(to_line(event) + "\n" for event in of)


def alive(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


def test_a_run_in_the_place_of_one_that_was_deleted_is_read_from_its_beginning(
    tmp_path: Path,
) -> None:
    path = recorded(tmp_path, events(100)[:8], created=1000.0)
    growing = LiveRunBrief(path)
    assert growing.brief().step == 70
    shutil.rmtree(path)
    recorded(tmp_path, events(40, lr=0.5)[:3], created=2000.0)
    again = growing.brief()
    assert (again.step, again.settings["lr"], len(again.curve)) == (20, 0.5, 20)
    add(path, events(40)[3:4])
    assert len(growing.brief().curve) == 30


def test_a_comparison_that_is_put_away_while_it_is_read_stays_away(tmp_path: Path) -> None:
    three(tmp_path)
    face = Face(tmp_path)
    gate, asked = threading.Event(), []

    def compare(*runs: str) -> None:
        asked.append(runs)
        assert gate.wait(60)
        face.bench.tell(Compared(runs))

    face.bench.compare = compare  # type: ignore[attr-defined]
    face.ask("compare", runs=["0001-fit", "0002-fit"])
    wait_for(lambda: asked)
    face.ask("compare", runs=["0001-fit", "0002-fit", "0003-fit"])
    face.ask("compare", runs=[])
    gate.set()
    wait_for(lambda: not reading())
    face.settled()
    assert (asked, face.state("compared")) == ([("0001-fit", "0002-fit"), ()], None)
    assert face.panel.history._compared == ()
    face.panel.close()


def test_a_deletion_can_be_undone_for_a_while_and_is_then_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(tmp_path)
    monkeypatch.setattr("workbench.ui.canvas.runs.pending_deletions.SECONDS", 600.0)
    face, deleted = Face(tmp_path), []
    face.bench.delete = lambda run: deleted.append(run) or face.bench.tell(Deleted(run))  # type: ignore[attr-defined]
    face.settled(lambda: face.state("runs"))
    face.ask("delete", runs=["0001-fit", "0002-fit"])
    assert face.shows("deleting") == [{"number": 1, "runs": ["0001-fit", "0002-fit"], "due": False}]
    face.ask("delete", runs=["0002-fit"])
    assert len(face.shows("deleting")) == 1, "it is being deleted already"
    face.ask("undo_delete", number=1)
    assert (face.shows("deleting"), deleted) == ([], [])
    monkeypatch.setattr("workbench.ui.canvas.runs.pending_deletions.SECONDS", 0.05)
    shutil.rmtree(tmp_path / "runs" / "0003-fit")  # the pretended bench deletes nothing
    face.ask("delete", runs=["0003-fit"])
    face.settled(lambda: deleted == ["0003-fit"] and face.state("deleting") == [])
    assert [row["run"] for row in face.rows()] == ["0002-fit", "0001-fit"]
    face.panel.close()


def test_what_cannot_be_deleted_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = Face(tmp_path)

    def delete(run: str) -> None:
        raise RuntimeError(f"{run} is not over")

    face.bench.delete = delete  # type: ignore[attr-defined]
    monkeypatch.setattr("workbench.ui.canvas.runs.pending_deletions.SECONDS", 0.01)
    face.ask("delete", runs=["0001-fit"])
    face.settled(lambda: face.panel.notice.lines and face.state("deleting") == [])
    assert "0001-fit is not over" in face.panel.notice.lines[0][1]
    face.panel.close()


def test_a_closed_panel_deletes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.ui.canvas.runs.pending_deletions.SECONDS", 600.0)
    face = Face(tmp_path)
    face.bench.delete = pytest.fail  # type: ignore[attr-defined]
    before = {*threading.enumerate()}
    face.ask("delete", runs=["0001-fit"])
    timers = [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, threading.Timer) and thread not in before
    ]
    face.panel.close()
    assert timers
    for timer in timers:
        timer.join(60)  # long before its time
        assert not timer.is_alive()


def test_what_a_person_adds_to_a_run_is_in_its_row(tmp_path: Path) -> None:
    three(tmp_path)
    face = Face(tmp_path)
    face.bench.annotate = lambda run, **given: (
        annotate(tmp_path / "runs" / run, **given) and face.bench.tell(Annotated(run))
    )  # type: ignore[attr-defined]
    face.settled(lambda: face.state("runs"))
    face.ask(
        "annotate",
        run="0001-fit",
        name="<b>base</b>",
        notes="a" * 3000,
        tags=["sgd", "long"],
        pinned=True,
    )
    face.settled(lambda: face.rows()[0]["name"])
    row = face.rows()[0]
    assert (row["name"], row["tags"], row["pinned"]) == ("<b>base</b>", ["sgd", "long"], True)
    assert face.state("notes.0001-fit") == "a" * 3000
    face.ask("annotate", run="0001-fit", notes="")
    face.settled(lambda: face.state("notes.0001-fit") == "")
    face.ask("annotate", run="0001-fit", tags=["x"] * 3 + ["y" * 100])
    assert "give at most 40" in face.panel.notice.lines[0][1]
    face.panel.close()


def test_why_a_run_cannot_be_continued(tmp_path: Path) -> None:
    """It has no checkpoint, it is another model's, it has come to its end; more epochs continue it."""
    finished = recorded(tmp_path, events(40, max_epochs=4), task=TASK)
    brief = RunBrief.read(finished)
    four, five, model = Settings.make(max_epochs=4), Settings.make(max_epochs=5), 11_181_642
    assert next_actions.why_not_continued(brief, False, five, model) == "it has no checkpoint"
    assert "another model (ResNet)" in next_actions.why_not_continued(brief, True, five, model + 1)
    assert "max_epochs=4 reached" in next_actions.why_not_continued(brief, True, four, model)
    assert next_actions.why_not_continued(brief, True, five, model) == ""
    assert next_actions.lengths(brief, five) == {"max_epochs": 5}
    assert next_actions.why_not_continued(replace(brief, status="stopped"), True, four, model) == ""
    assert (
        next_actions.why_not_continued(replace(brief, status="running"), True, five, model)
        == "it has not ended"
    )
    face = Face(tmp_path)
    face.settled(lambda: face.state("ended") == {"0001-fit": "it has no checkpoint"})
    face.panel.close()


def test_requests_are_calls_of_the_bench(tmp_path: Path) -> None:
    face = Face(tmp_path)
    calls: list[tuple[Any, ...]] = []
    for name in ("show", "compare"):
        setattr(face.bench, name, lambda *args, name=name: calls.append((name, *args)))
    face.bench.fit = lambda **said: calls.append(("fit", said))  # type: ignore[method-assign,assignment,return-value]
    for what, more in (
        ("show", {"run": "0001-fit"}), ("show", {"run": ""}), ("continue", {"run": "0001-fit"}),
        ("compare", {"runs": ["0001-fit", "0002-fit"]}),
    ):  # fmt: skip
        face.ask(what, **more)
    compared = ("compare", "0001-fit", "0002-fit")  # it may take a while
    wait_for(lambda: compared in calls)
    assert [call for call in calls if call != compared] == [
        ("show", "0001-fit"),
        ("show", None),
        ("fit", {"start": "0001-fit"}),
    ]
    face.panel.close()


# -- the parts


def brief(i: int, **settings: Any) -> RunBrief:
    return RunBrief.of(Run.from_events(events(40, id=f"{i:04d}-fit", **settings)))


def test_a_comparison_of_long_names_fits_too() -> None:
    curves = PastCurves()
    outbox = Outbox({"past": curves.past, "compared": curves.compared})
    wide = [brief(i, monitor="µ" * 500 + str(i), lr=0.1 + i) for i in range(5)]
    curves.over_one_another(outbox, wide)
    curves.draw_previous(outbox, wide[:3])
    while (packet := outbox.take()) is not None:
        assert packet.size <= LIMIT


def test_a_broken_folder_is_no_row(tmp_path: Path) -> None:
    three(tmp_path)
    (tmp_path / "runs" / "0001-fit" / "run.json").write_text("{")
    (tmp_path / "runs" / "0002-fit" / "metrics.jsonl").unlink()
    read: list[list[RunBrief]] = []
    table = RunsTable(
        tmp_path, lambda briefs, count, waiting: read.append(briefs), pytest.fail, pytest.fail
    )
    table.refresh()
    wait_for(lambda: read)
    assert [one.id for one in read[-1]] == ["0003-fit"]
    table.close()
    assert fits(tmp_path / "nowhere") == []


def test_each_optimizer_has_its_rate() -> None:
    channel = Buckets([("last", 1)], BUCKETS)
    outbox = Outbox({"rates": channel})
    rates = Rates(outbox, channel)
    rates.start()
    for at in range(0, 3000, 100):
        columns = {
            "loss": pack(np.ones(100)),
            "lr.0": pack(np.full(100, 0.1)),
            "lr.1": pack(np.full(100, 0.01 * (at + 1))),
        }
        rates.steps(StepsDone(at, 1, 100, 0, 1.0, columns))
    assert outbox._values["rates"] == ["optimizer 0", "optimizer 1"]
    assert BUCKETS / 2 <= channel.length <= BUCKETS
    np.testing.assert_allclose(channel.rows(0, channel.length)[-1], [0.1, 29.01], rtol=1e-6)
    rates.start()
    rates.steps(StepsDone(0, 1, 2, 0, 1.0, {"loss": pack([1, 1]), "lr": pack([0.1, 0.2])}))
    assert (outbox._values["rates"], channel.length) == (["lr"], 2)


def test_health_in_words_about_once_a_second() -> None:
    outbox = Outbox({})
    findings = Findings(outbox)
    start, step = events(40)[0], events(40)[1]
    assert isinstance(step, StepsDone)
    findings.on_event(start)
    assert outbox._values["health"] == []
    bad = StepsDone(10, 1, 1, 0, 1.5, {"loss": pack([np.nan])})
    findings.on_event(step)
    findings.on_event(bad)
    assert outbox._values["health"] == []  # half a second later
    findings.on_event(StepsDone(11, 1, 1, 0, 5.0, {"loss": pack([1.0])}))
    assert [found["text"] for found in outbox._values["health"]] == [
        "loss not finite at update 10, first in a"
    ]
    findings.on_event(StatusChanged("paused"))
    assert outbox._values["health"][0]["level"] == "error"


def test_health_of_a_run_that_is_followed_is_that_of_its_record() -> None:
    """It waits for its loader half of the time but for the beginning, which is no habit."""
    start, *steps = (event for event in events(400) if isinstance(event, RunStarted | StepsDone))
    waiting = [
        replace(event, waited=event.seconds * 0.5 if i else 0.9 * event.seconds)
        for i, event in enumerate(steps)
        if isinstance(event, StepsDone)
    ]
    outbox = Outbox({})
    findings = Findings(outbox)
    for event in (start, *waiting, RunEnded("finished", 400, 40.0)):
        findings.on_event(event)
    told = [found["text"] for found in outbox._values["health"]]
    assert told == [
        found.text for found in examine([start, *waiting, RunEnded("finished", 400, 40.0)])
    ]
    assert any("wait" in text for text in told)
