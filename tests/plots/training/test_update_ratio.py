"""Update ratios in a chart, and the clip value that the norms suggest."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.events import Event, RunEnded, RunStarted, StepsDone, pack
from workbench.plots.drawing import matplotlib, plotly
from workbench.plots.training.update_ratio import update_ratio
from workbench.runs.run import Run
from workbench.settings import Settings

STEP = np.arange(6)
NAN = np.nan


def test_only_measured_updates_are_columns_and_a_value_holds() -> None:
    layers = {
        "a": np.array([NAN, 1e-3, NAN, NAN, 2e-3, NAN]),
        "b": np.array([NAN, NAN, NAN, 5e-2, NAN, NAN]),
    }
    (chart,) = update_ratio(STEP, layers)
    assert chart.heat is not None
    assert chart.heat.x.tolist() == [1, 3, 4]
    np.testing.assert_array_equal(chart.heat.z, [[1e-3, 1e-3, 2e-3], [NAN, 5e-2, 5e-2]])
    assert chart.heat.span == pytest.approx((1e-5, 1e-1))
    assert chart.notes[1] == "At the last measurement: 0.002 (a) to 0.05 (b)."
    plotly.figure(chart)
    matplotlib.figure(chart)


def test_without_measurements_there_is_no_chart() -> None:
    assert update_ratio(STEP, {}) == update_ratio(STEP, {"a": np.full(6, NAN)}) == []


def a_run(rows: int = 40, **settings: object) -> Run:
    norm = np.linspace(1, 2, rows)
    ratios = np.where(np.arange(rows)[:, None] % 10 == 0, [1e-3, 1e-1], NAN)
    columns = {"loss": norm, "lr": norm, "grad_norm": norm, "update_ratios": ratios}
    events: list[Event] = [
        RunStarted("0001-fit", "fit", Settings.make(**settings).model_dump(), "cpu", ("a", "b")),
        StepsDone(0, 1, rows, 0, 1.0, {name: pack(values) for name, values in columns.items()}),
        RunEnded("finished", rows, 1.0),
    ]
    return Run.from_events(events)


def test_a_run_draws_its_ratios_and_suggests_a_clip_value() -> None:
    (chart,) = a_run().charts("update_ratio")
    assert chart.heat is not None
    assert (chart.heat.rows, chart.heat.x.tolist()) == (("a", "b"), [0, 10, 20, 30])
    assert a_run().clip_suggestion == 1.93
    assert "suggested clip 1.93" in repr(a_run())
    assert a_run(track_grad_norm=1.0).clip_suggestion is None
    events = [e for e in a_run().events if not isinstance(e, StepsDone)]
    with pytest.raises(
        ValueError, match="no update ratios were measured \\(track_update_ratio=True\\)"
    ):
        Run.from_events(events).charts("update_ratio")
