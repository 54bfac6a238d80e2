"""Runs side by side: what differs, how they ended, and who may be compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from tests.runs.tables.test_brief import events, recorded
from workbench.events import Changed, Resumed, RunEnded, RunStarted, Validated
from workbench.runs.run import Run
from workbench.runs.tables.brief import RunBrief


def runs(*settings: dict[str, object], n: int = 200) -> list[Run]:
    return [
        Run.from_events(events(n, id=f"{i + 1:04d}-fit", **one)) for i, one in enumerate(settings)
    ]


def test_it_shows_what_differs() -> None:
    both = wb.compare(
        *runs(
            {"lr": 0.1, "batch_size": 64}, {"lr": 0.01, "batch_size": 64, "gradient_clip_val": 1.0}
        )
    )
    assert both.settings == {"lr": ("0.1", "0.01"), "gradient_clip_val": ("none", "1")}
    assert both.metrics["val_loss"] == (0.25, 0.25)
    lines = repr(both).splitlines()
    assert lines[0].split() == ["0001-fit", "0002-fit"]
    assert ["lr", "0.1", "0.01"] in [line.split() for line in lines]
    assert "<td style='text-align:left'>0.01</td>" in both._repr_html_()
    # Rates have three digits, or all where these are the same.
    assert wb.compare(*runs({"lr": 3.1622776e-3}, {"lr": 1e-4})).settings == {
        "lr": ("3.16e-3", "1e-4")
    }
    assert wb.compare(*runs({"lr": 3.1622e-3}, {"lr": 3.1621e-3})).settings == {
        "lr": ("3.1622e-3", "3.1621e-3")
    }
    # One batch is not all of them.
    assert wb.compare(*runs({"limit_train_batches": 1}, {"limit_train_batches": 1.0})).settings == {
        "limit_train_batches": ("1", "1.0")
    }
    # A setting that an older record lacks had its default.
    old = events(20)
    assert isinstance(old[0], RunStarted)
    del old[0].settings["warmup"]
    assert wb.compare(Run.from_events(old), *runs({})).settings == {}


def test_its_data_frame_has_a_row_a_run() -> None:
    both = wb.compare(
        *runs({"lr": 0.1}, {"lr": 0.01, "gradient_clip_val": 1.0}), *runs({"lr": 0.1}, n=40)
    )
    table = both.to_pandas()
    assert list(table.index) == [run.id for run in both.runs]
    assert table["lr"].tolist() == [0.1, 0.01, 0.1]
    assert table["gradient_clip_val"].isna().tolist() == [True, False, True]
    assert table["val_loss"].tolist() == [*both.metrics["val_loss"]]
    assert table["updates"].tolist() == [200, 200, 40]
    assert "batch_size" not in table


def test_its_chart_has_a_line_a_run(tmp_path: Path) -> None:
    three = wb.compare(*runs({}, {}, {}))
    chart = three.chart("epoch")
    assert [(line.name, line.dash) for line in chart.series if line.name] == [
        ("0001-fit", 0),
        ("0002-fit", 1),
        ("0003-fit", 2),
    ]
    assert chart.x.text == "epoch"
    np.testing.assert_allclose(chart.series[0].x[-1], 4)
    np.testing.assert_allclose(three.chart("time").series[0].x[-1], 20)
    assert [line.style for line in chart.series] == ["line", "points"] * 3
    figure = three.figure()
    assert figure.data[0].line.dash is None
    assert figure.data[2].line.dash == "14px 6px"
    drawn = three.plot()
    assert len(drawn.axes[0].lines) == 6
    ax = drawn.axes[0]
    assert three.plot(ax) is ax
    with pytest.raises(ValueError, match="x='hours': give one of 'update', 'epoch', 'time'"):
        three.chart("hours")  # type: ignore[arg-type]


def test_many_runs_are_a_table_of_a_row_each_without_a_plot() -> None:
    six = wb.compare(*runs(*[{"lr": 0.1 * n} for n in range(1, 7)]))
    head, *rows = [line.split() for line in repr(six).splitlines()]
    assert head[:2] == ["status", "lr"]
    assert [row[0] for row in rows] == [f"000{n}-fit" for n in range(1, 7)]
    assert six._repr_html_().count("<tr>") == 7
    with pytest.raises(ValueError, match="a plot of 6 runs cannot be read: compare at most 5"):
        six.plot()


def test_the_best_value_has_a_row_where_it_is_not_the_last() -> None:
    both = wb.compare(*runs({}, {}))  # its end says 0.25, its best check 3 / 191
    rows = {
        line.split()[0] + line.split()[1]: line.split()
        for line in repr(both).splitlines()
        if line.startswith("best")
    }
    assert rows["bestval_loss"] == ["best", "val_loss", "0.01571", "0.01571"]
    assert "bestaccuracy" not in rows


def test_who_may_be_compared(tmp_path: Path) -> None:
    one, two = runs({}, {})
    for given, wrong, words in (
        ([one], ValueError, "1 run to compare: give two or more"),
        ([one, one], ValueError, "0001-fit is given twice"),
        (["0001-fit", "0002-fit"], TypeError, "Ids belong to a bench"),
        (
            [[one, two]],
            TypeError,
            r"got a list: give each run as an argument of its own, wb.compare\(\*runs\)",
        ),
        (
            [
                one,
                Run.from_events(
                    [RunStarted("s", "find_lr", {}, "cpu"), RunEnded("finished", 1, 1.0)]
                ),
            ],
            ValueError,
            "s is a find_lr",
        ),
    ):
        with pytest.raises(wrong, match=words):
            wb.compare(*given)  # type: ignore[arg-type]
    path = recorded(tmp_path, events(200, id="0002-fit"), "0002-fit")
    assert (
        repr(wb.compare(one, Run.open(path)))
        == repr(wb.compare(one, two))
        == repr(wb.compare(one, RunBrief.read(path)))
    )


def test_what_was_changed_live_differs() -> None:
    """All begin alike. A run that continues another one keeps its changes, and has those of the place where it continues."""
    start, *rest, end = events(1200, lr=6.9278e-3)
    steps = [event for event in rest if not isinstance(event, Validated)]
    changed = Run.from_events(
        [
            start,
            *rest,
            Changed(908, {"lr": 2e-3, "gradient_clip_val": 19.3, "track_update_ratio": True}),
            end,
        ]
    )
    twice = Run.from_events(
        [start, *rest, Changed(5, {"lr": 0.1}), Changed(908, {"lr": 2e-3}), end]
    )
    resumed = Run.from_events(
        [
            start,
            *steps,
            Changed(5, {"lr": 0.1}),
            Resumed(1200, "0001-fit", "00001200-end", {"lr_schedule": "linear"}),
            end,
        ]
    )
    both = wb.compare(Run.from_events([start, *rest, end]), changed)
    assert both.settings == {
        "lr": ("6.93e-3", "6.93e-3 → 2e-3 at update 908"),
        "gradient_clip_val": ("none", "none → 19.3 at update 908"),
    }
    assert "6.93e-3 → 2e-3 at update 908" in repr(both)
    assert both.to_pandas()["lr at the end"].tolist() == [6.9278e-3, 2e-3]
    assert wb.compare(resumed, twice).settings == {
        "lr": ("6.93e-3 → 0.1 at update 5", "6.93e-3 → 2e-3 at update 908 (2 changes)"),
        "lr_schedule": ("constant → linear at update 1200", "constant"),
    }
    printed = repr(resumed)
    assert "6.9278e-3 → 0.1 at update 5" in printed
    assert "constant → linear at update 1200" in printed


def test_runs_are_ranked_by_their_best_validation() -> None:
    start, *rest, end = events(400, monitor="churn", monitor_mode="max")
    values = [
        Validated(100 * at, 0, {"churn": value}) for at, value in enumerate((0.2, 0.9, 0.5), 1)
    ]
    steps = [event for event in rest if not isinstance(event, Validated)]
    run = RunBrief.of(Run.from_events([start, *steps, *values, end]))
    assert (run.monitor, run.value, run.last_value) == ("churn", 0.9, 0.5)
    assert RunBrief.of(Run.from_events(events(400))).value == 3 / 391
