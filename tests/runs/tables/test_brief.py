"""A run in little, and a record read piece by piece."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.events import (
    Changed,
    Event,
    Logged,
    Resumed,
    RunEnded,
    RunStarted,
    StatusChanged,
    StepsDone,
    Validated,
    pack,
    to_line,
)
from workbench.plots.smooth import Smoother
from workbench.runs.health import examine
from workbench.runs.read import summary
from workbench.runs.record.stream import ROWS, joined, stream
from workbench.runs.run import Run
from workbench.runs.store import RunFolder
from workbench.runs.tables.brief import CHECKS, POINTS, LiveChange, RunBrief
from workbench.settings import Settings


def events(
    n: int, *, rows: int = 10, id: str = "0001-fit", every: int = 100, **settings: Any
) -> list[Event]:
    out: list[Event] = [
        RunStarted(id, "fit", Settings.make(**settings).model_dump(), "cpu", ("a", "b"), n, 4)
    ]
    for at in range(0, n, rows):
        steps = np.arange(at, min(n, at + rows))
        columns = {
            "loss": pack(2 / (1 + steps)),
            "lr": pack(0 * steps + 0.1),
            "layer_norms": pack(np.stack([steps, steps + 1], 1)),
        }
        out.append(
            StepsDone(at, 1, len(steps), 4 * at // n, 0.1 * (at + len(steps)), columns, memory=at)
        )
        if (at + rows) % every == 0:
            out.append(
                Validated(
                    at + rows,
                    4 * at // n,
                    {"accuracy": 0.5, "val_loss": 3 / (1 + at), "val_loss_averaged": 1.0},
                )
            )
    return [*out, RunEnded("finished", n, 0.1 * n, None, {"val_loss": 0.25})]


def recorded(root: Path, of: list[Event], id: str = "0001-fit", **header: Any) -> Path:
    with RunFolder.create(
        root, id, {"kind": "fit", "task": {"model": "Net", "parameters": 12}, **header}
    ) as folder:
        for event in of:
            folder.append(event)
        return folder.path


def test_joined_flushes_hold_what_the_short_ones_held(tmp_path: Path) -> None:
    short = events(400)
    path = recorded(tmp_path, short)
    long = list(stream(path))
    assert len(long) < len(short) / 3
    before, after = Run.from_events(short), Run.from_events(long)
    for name, column in before.history.items():
        np.testing.assert_array_equal(column, after.history[name])
    assert [to_line(e) for e in short if not isinstance(e, StepsDone)] == [
        to_line(e) for e in long if not isinstance(e, StepsDone)
    ]
    assert max(e.memory or 0 for e in long if isinstance(e, StepsDone)) == 390
    assert (
        1000
        < next(e.rows for e in joined(events(3 * ROWS, every=10**9)) if isinstance(e, StepsDone))
        <= ROWS
    )
    # Other columns, another spacing or a gap are another flush.
    one, two = (
        StepsDone(0, 1, 1, 0, 1.0, {"loss": pack([1])}),
        StepsDone(1, 1, 1, 0, 2.0, {"loss": pack([2])}),
    )
    for other in (
        replace(two, every=2),
        replace(two, step=5),
        replace(two, columns={"lr": pack([2])}),
        replace(two, epoch=1),
    ):
        assert list(joined([one, other])) == [one, other]
    both = StepsDone(0, 1, 2, 1, 2.0, {"loss": pack([1, 2])})
    assert list(joined([one, replace(two, epoch=1)], across_epochs=True)) == [both]


def test_a_stream_stops_at_a_torn_line_and_passes_over_what_it_cannot_read(tmp_path: Path) -> None:
    path = recorded(tmp_path, events(20))
    record = path / "metrics.jsonl"
    whole = record.read_bytes().splitlines(keepends=True)
    record.write_bytes(b"".join([whole[0], b'{"type": "Unheard"}\n', *whole[1:-1], whole[-1][:-4]]))
    assert [type(event).__name__ for event in stream(path)] == [
        "RunStarted",
        "StepsDone",
        "StepsDone",
    ]
    only = [event for event in stream(path, ("loss",)) if isinstance(event, StepsDone)]
    assert set(only[0].columns) == {"loss"}
    assert list(stream(tmp_path / "nowhere")) == []


def test_a_brief_holds_the_curve_and_the_checks(tmp_path: Path) -> None:
    path = recorded(
        tmp_path, [*events(400, lr=0.1)[:-1], Changed(300, {"lr": 0.01}), events(400)[-1]]
    )
    brief = RunBrief.read(path)
    assert (brief.id, brief.status, brief.step, brief.model, brief.changes) == (
        "0001-fit",
        "finished",
        400,
        ("Net", 12),
        {"lr": LiveChange(0.01, 300)},
    )
    assert brief.settings["lr"] == 0.1
    assert brief.monitor == "val_loss"
    np.testing.assert_allclose(brief.checks[:, 3], [3 / (1 + at) for at in (90, 190, 290, 390)])
    np.testing.assert_allclose(
        brief.checks[:, :3], [[100, 1, 10], [200, 2, 20], [300, 3, 30], [400, 4, 40]]
    )
    smooth = Smoother().add(2 / (1 + np.arange(400)))
    steps, epochs, seconds, loss = brief.curve.T
    np.testing.assert_allclose(loss, smooth[steps.astype(int) - 1], rtol=1e-5)
    np.testing.assert_allclose(seconds, 0.1 * steps)
    np.testing.assert_allclose(epochs, steps / 100)
    assert brief.loss == loss[-1]
    assert brief.metrics["val_loss"] == 0.25
    assert brief.metrics["loss"] == np.float32(2 / 400)
    assert brief.best == {"accuracy": 0.5, "val_loss": 3 / 391, "val_loss_averaged": 1.0}


def test_the_best_value_of_a_metric_is_the_lowest_or_the_highest_as_its_name_says() -> None:
    start, *rest = events(40)
    found = [
        {"val_accuracy": 0.5, "val_oddness": 1.0},
        {"val_accuracy": 0.9},
        {"val_accuracy": math.nan},
        {"val_accuracy": 0.75},
    ]
    checks = [Validated(10 * (i + 1), i, metrics) for i, metrics in enumerate(found)]
    brief = RunBrief.of(
        Run.from_events([start, *checks, Logged(40, 4, {"train_error": 0.25}), rest[-1]])
    )
    assert brief.best == {"val_accuracy": 0.9, "train_error": 0.25}
    assert (brief.metrics["val_accuracy"], brief.metrics["val_oddness"]) == (0.75, 1.0)


def test_a_brief_does_not_grow_with_the_run(tmp_path: Path) -> None:
    long = events(50_000, rows=500, every=500)
    of_run = RunBrief.of(Run.from_events(long))
    assert POINTS / 2 <= len(of_run.curve) <= POINTS
    assert CHECKS / 2 - 1 <= len(of_run.checks) <= CHECKS
    assert of_run.curve[-1, 0] == of_run.checks[-1, 0] == 50_000
    assert (np.diff(of_run.curve[:, 0]) > 0).all()
    assert of_run.model == ("", None)
    assert math.isnan(of_run.created)
    back = RunBrief.read(recorded(tmp_path, long))
    np.testing.assert_allclose(back.curve, of_run.curve, rtol=1e-6)


def test_runs_that_hardly_began(tmp_path: Path) -> None:
    empty = RunBrief.read(recorded(tmp_path, [], "0001-fit"))
    assert (empty.status, empty.loss, empty.value, len(empty.curve)) == ("queued", None, None, 0)
    bad = StepsDone(0, 1, 2, 0, 1.0, {"loss": pack([math.nan, math.nan])})
    broken = RunBrief.read(
        recorded(
            tmp_path,
            [events(10)[0], bad, RunEnded("failed", 1, 1.0, "NonFiniteError: loss")],
            "0002-fit",
        )
    )
    assert (broken.status, broken.loss, len(broken.curve)) == ("failed", None, 0)
    assert broken.trouble is not None
    assert (broken.trouble.trouble, empty.trouble) == ("not finite", None)
    resumed = RunBrief.read(
        recorded(tmp_path, [*events(20)[:-1], Resumed(20, "0001-fit", "00000020")], "0003-fit")
    )
    assert resumed.origin == "0001-fit"


def test_the_clock_of_a_resumed_run_goes_on() -> None:
    """The seconds of a flush count those of the run before it."""
    whole = events(200, every=10**9)
    resumed = [*whole[:11], Resumed(100, "0001-fit", "00000100"), *whole[11:]]
    brief = RunBrief.of(Run.from_events(resumed))
    np.testing.assert_allclose(brief.curve[:, 2], 0.1 * brief.curve[:, 0])
    # Without a record of what came before, nobody knows when its first flush began.
    alone = RunBrief.of(
        Run.from_events([whole[0], Resumed(100, "0001-fit", "00000100"), *whole[11:]])
    )
    seconds = alone.curve[:, 2]
    assert np.isnan(seconds[0])
    known = np.isfinite(seconds)
    np.testing.assert_allclose(seconds[known], 0.1 * alone.curve[known, 0])


def test_health_of_a_joined_record_is_that_of_the_record() -> None:
    start, *rest = events(2000, every=10**9)
    assert isinstance(start, RunStarted)
    of = [replace(start, memory=100), *rest]
    assert examine(joined(of)) == examine(of) != ()
    assert examine(joined(of, across_epochs=True)) == examine(of)


def test_of_several_validation_sets_the_one_that_is_watched() -> None:
    """Its losses are drawn beside those of training; a metric of another kind would have another scale."""
    values = {"val_loss/clean": 1.0, "val_loss/shifted": 2.0, "val_accuracy/clean": 0.5}
    for monitor, wanted in (
        ("val_loss/shifted", "val_loss/shifted"),
        ("val_accuracy/clean", "val_loss/clean"),
        (None, "val_loss/clean"),
    ):
        start = RunStarted(
            "0001-fit", "fit", Settings.make(monitor=monitor).model_dump(), "cpu", ("a",), 10, 1
        )
        brief = RunBrief.of(
            Run.from_events([start, Validated(10, 0, values), RunEnded("finished", 10, 1.0)])
        )
        assert (brief.monitor, brief.value) == (wanted, values[wanted])


def test_a_brief_has_the_state_that_the_summary_reads_at_the_end(tmp_path: Path) -> None:
    """The brief follows all events; the summary looks at the last ones."""
    whole = events(400)
    dead = {"pid": 2**22 + 1, "pid_started": 1.0}
    records = {
        "0001-fit": recorded(tmp_path, whole), "0002-fit": recorded(tmp_path, whole[:20], "0002-fit"), "0003-fit": recorded(tmp_path, [], "0003-fit"),
        "0004-fit": recorded(tmp_path, [*whole[:20], StatusChanged("paused", 190)], "0004-fit"), "0005-fit": recorded(tmp_path, whole[:20], "0005-fit", **dead),
        "0006-fit": recorded(tmp_path, whole[:20], "0006-fit", host="elsewhere"), "0007-fit": recorded(tmp_path, [*whole[:-1], RunEnded("failed", 400, 40.0, "E: no")], "0007-fit"),
    }  # fmt: skip
    statuses = []
    for path in records.values():
        brief, wanted = RunBrief.read(path), summary(path)
        state = ("status", "step", "seconds", "error", "unseen", "created")
        assert [getattr(brief, name) for name in state] == [getattr(wanted, name) for name in state]
        statuses.append((brief.status, brief.unseen))
    assert statuses == [
        ("finished", False), ("running", False), ("queued", False), ("paused", False), ("failed", False), ("running", True), ("failed", False),
    ]  # fmt: skip


def test_the_total_of_updates_is_known_until_batches_change(tmp_path: Path) -> None:
    whole = events(400)
    assert RunBrief.read(recorded(tmp_path, whole)).updates == 400
    assert (
        RunBrief.read(
            recorded(tmp_path, [*whole[:20], Changed(200, {"lr": 0.1})], "0002-fit")
        ).updates
        == 400
    )
    assert (
        RunBrief.read(
            recorded(tmp_path, [*whole[:20], Changed(200, {"batch_size": 16.0})], "0003-fit")
        ).updates
        is None
    )
