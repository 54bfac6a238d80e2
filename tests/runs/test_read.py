"""Reading: torn lines, the list of runs, series, fewer points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runs.records import history, read_events, read_record
from workbench.events import (
    Event,
    Message,
    RunEnded,
    RunStarted,
    StatusChanged,
    StepsDone,
    Validated,
    pack,
    to_line,
)
from workbench.plots.downsample import downsample
from workbench.runs.read import list_runs, state
from workbench.runs.record.series import validation
from workbench.runs.store import RunFolder


def test_torn_and_unknown_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    lines = [
        to_line(Message("one")),
        '{"type":"Message","text":"tor',
        '{"type":"OfTheFuture","x":1}',
        '{"type":"Message","text":"two","colour":"red"}',
        "\0\0\0",
        "null",
        "",
        to_line(Message("three")),
        to_line(Message("not whole")),
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    record = read_record(tmp_path)
    assert record.events == [Message("one"), Message("three")] == read_events(tmp_path)
    assert record.skipped == 5


def test_no_record_yet_is_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path) == []
    assert list_runs(tmp_path) == []


def test_the_list_reads_only_the_end(tmp_path: Path) -> None:
    big = StepsDone(
        0, 1, 100_000, 0, 9.0, {"loss": pack(np.ones(100_000)), "lr": pack(np.ones(100_000))}
    )
    with RunFolder.create(tmp_path, "a", {"kind": "fit", "created": 2.0}) as folder:
        folder.append(big)
    with RunFolder.create(
        tmp_path, "b", {"kind": "find_lr", "created": "1970-01-01T00:00:01+00:00"}
    ) as folder:
        folder.append(StatusChanged("paused", 7))
    with RunFolder.create(tmp_path, "c", {"kind": "fit", "created": 3.0}) as folder:
        folder.append(big)
        folder.append(RunEnded("stopped", 5, 1.5, "stopped by you", {"val_loss": 0.5}))
    with RunFolder.create(tmp_path, "d", {"kind": "fit", "created": 4.0}):
        pass
    (tmp_path / "runs" / "not-a-run").mkdir()
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    b, a, c, d = list_runs(tmp_path)
    assert (a.id, a.kind, a.status, a.step, a.seconds, a.over) == (
        "a",
        "fit",
        "running",
        100_000,
        9.0,
        False,
    )
    assert (b.id, b.kind, b.status, b.step) == ("b", "find_lr", "paused", 7)
    assert (c.id, c.status, c.step, c.error, c.over) == ("c", "stopped", 5, "stopped by you", True)
    assert c.metrics == {"val_loss": 0.5}
    assert (d.id, d.status, d.step) == ("d", "queued", 0)


def test_the_state_of_events() -> None:
    flush = StepsDone(4, 2, 3, 0, 1.5, {"loss": pack([1, 2, 3])})
    assert state([]).status == "queued"
    assert state([flush]).step == 9  # rows 4, 6, 8: nine updates were taken at least
    assert state([flush, StatusChanged("paused", 9)]).status == "paused"
    assert state([flush, RunEnded("failed", 10, 2.0, "boom")]).error == "boom"


LAYERS = ("conv", "head")


def steps(begin: int, rows: int, epoch: int, *, every: int = 1, norms: bool = True) -> StepsDone:
    t = np.arange(begin, begin + rows, dtype=np.float32)
    columns = {"loss": pack(t), "lr": pack(t / 10)}
    if norms:
        columns |= {
            "grad_norm": pack(t * 2),
            "grad_norm_clipped": pack(t),
            "layer_norms": pack(np.stack([t, -t], 1)),
        }
    return StepsDone(begin, every, rows, epoch, 0.1, columns)


def test_history_has_one_row_per_update() -> None:
    events: list[Event] = [
        RunStarted("a", "fit", {}, "cpu", LAYERS),
        steps(0, 3, 0),
        steps(3, 2, 1),
        steps(5, 0, 1),
    ]
    got = history(events)
    assert list(got) == [
        "step",
        "epoch",
        "loss",
        "lr",
        "grad_norm",
        "grad_norm_clipped",
        "grad_norm/conv",
        "grad_norm/head",
    ]
    assert got["step"].tolist() == [0, 1, 2, 3, 4]
    assert got["epoch"].tolist() == [0, 0, 0, 1, 1]
    assert (got["step"].dtype, got["epoch"].dtype, got["loss"].dtype) == (
        np.int64,
        np.int64,
        np.float32,
    )
    assert got["grad_norm/head"].tolist() == [0, -1, -2, -3, -4]


def test_columns_that_come_and_go_are_nan_where_they_lack() -> None:
    events: list[Event] = [
        RunStarted("a", "fit", {}, "cpu", LAYERS),
        steps(0, 2, 0, norms=False),
        steps(2, 1, 0),
    ]
    got = history(events)
    np.testing.assert_array_equal(got["grad_norm"], np.array([np.nan, np.nan, 4], np.float32))
    np.testing.assert_array_equal(got["grad_norm/conv"], np.array([np.nan, np.nan, 2], np.float32))


def test_nothing_recorded_is_empty_columns() -> None:
    assert {k: len(v) for k, v in history([]).items()} == {
        "step": 0,
        "epoch": 0,
        "loss": 0,
        "lr": 0,
    }
    assert {k: len(v) for k, v in validation([]).items()} == {"step": 0, "epoch": 0}


def test_layers_without_names_are_numbered() -> None:
    assert "grad_norm/1" in history([steps(0, 2, 0)])


def test_validation_has_nan_where_a_metric_lacks() -> None:
    got = validation(
        [
            Validated(10, 0, {"val_loss": 1.0}),
            Validated(20, 1, {"val_loss": 0.5, "val_accuracy": 0.9}),
        ]
    )
    assert got["step"].tolist() == [10, 20]
    assert got["val_loss"].tolist() == [1.0, 0.5]
    np.testing.assert_array_equal(got["val_accuracy"], [np.nan, 0.9])


NUMBERS = st.lists(st.floats(allow_nan=True, width=32), min_size=1, max_size=300)


@given(NUMBERS, st.integers(2, 60))
def test_fewer_points_keep_the_picture(values: list[float], n: int) -> None:
    x, y = np.arange(len(values)), np.array(values)
    dx, dy = downsample(x, y, n)
    assert len(dx) == len(dy) <= max(n, 2)
    np.testing.assert_array_equal(y[dx], dy)  # real points
    assert (np.diff(dx) > 0).all()  # in order, none twice
    assert (dx[0], dx[-1]) == (0, len(y) - 1)
    if len(y) <= n:
        np.testing.assert_array_equal(dy, y)
    known = y[~np.isnan(y)]
    if n >= 4 and known.size:
        assert np.nanmin(dy) == known.min()
        assert np.nanmax(dy) == known.max()


def test_a_gap_stays_a_gap() -> None:
    y = np.ones(10_000)
    y[4000:6000] = np.nan
    _, dy = downsample(np.arange(len(y)), y, 200)
    assert np.isnan(dy).sum() > 10


def test_fewer_points_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="n=1"):
        downsample(np.arange(5), np.arange(5), 1)
    with pytest.raises(ValueError, match="points"):
        downsample(np.arange(5), np.arange(4), 3)


def test_a_fit_that_continues_is_where_it_continues_while_its_past_is_written(
    tmp_path: Path,
) -> None:
    with RunFolder.create(tmp_path, "0001-fit", {"kind": "fit"}) as run:
        run.append(RunStarted("0001-fit", "fit", {}, "cpu", resumed_at=51200))
        columns = {"loss": pack(np.zeros(10))}
        for step in range(0, 3000, 10):
            run.append(StepsDone(step, 1, 10, 0, 1.0, columns))
        (summary,) = list_runs(tmp_path)
        assert summary.step == 51200
        run.append(StepsDone(51200, 1, 10, 5, 60.0, columns))
        assert list_runs(tmp_path)[0].step == 51210
