"""The user's metrics and the clock of a fit on the canvas: what is drawn, by what axis, and what a click sets."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ui.canvas.test_widget import Screen, started
from tests.ui.fakes import FakeBench, flush
from workbench.events import Changed, Logged, SettingsSet, Validated, pack
from workbench.settings import Settings
from workbench.ui.canvas.metrics import MOST
from workbench.ui.canvas.transport.messages import LIMIT
from workbench.ui.panel import Panel

NAN = np.nan


def told(screen: Screen) -> dict[str, dict[str, Any]]:
    """What the canvas knows of each metric."""
    return {metric["name"]: metric for metric in screen.mirrors[0].state["metrics"]["metrics"]}


def test_metrics_are_columns_with_their_best_and_last_values() -> None:
    screen = Screen()
    screen.draw(
        started(),
        flush(0, 10),
        Validated(10, 0, {"val_loss": 0.5, "val_accuracy": 0.9, "val_oddness": 1.0}),
    )
    screen.draw(
        Logged(10, 0, {"train_error": 0.25}),
        flush(10, 10),
        Validated(20, 1, {"val_loss": 0.4, "val_accuracy": 0.8}),
    )
    screen.draw(Logged(20, 1, {"train_error": 0.125}))
    screen.settle()
    known = told(screen)
    assert list(known) == ["val_accuracy", "val_oddness", "train_error"], (
        "the loss has its own plot"
    )
    accuracy = {
        "name": "val_accuracy",
        "mode": "max",
        "judges": True,
        "last": "0.8",
        "best": "0.9",
        "at": 10,
    }
    assert known["val_accuracy"] == accuracy
    assert (
        known["train_error"]["mode"],
        known["train_error"]["best"],
        known["train_error"]["at"],
    ) == ("min", "0.125", 20)
    # nobody knows what is better
    assert (known["val_oddness"]["mode"], known["val_oddness"]["best"]) == (None, "")
    rows = screen.mirrors[0].rows("metrics")
    # after ten updates: at the last of them
    assert screen.mirrors[0].tables["metrics"].head["origin"] == 9
    np.testing.assert_allclose(rows[[0, 10]], [[0.9, 1, 0.25], [0.8, NAN, 0.125]])
    assert np.isnan(rows[1:10]).all()
    screen.draw(started())
    screen.settle()
    assert told(screen) == {}


def test_each_of_several_validation_sets_has_a_column_and_the_first_is_beside_the_loss() -> None:
    screen = Screen()
    screen.draw(
        started(), flush(0, 10), Validated(10, 0, {"val_loss/clean": 0.5, "val_loss/shifted": 0.75})
    )
    screen.settle()
    assert {name: (metric["mode"], metric["last"]) for name, metric in told(screen).items()} == {
        "val_loss/clean": ("min", "0.5"), "val_loss/shifted": ("min", "0.75"),
    }  # fmt: skip
    assert screen.mirrors[0].state["val"]["name"] == "val_loss/clean"


def test_what_is_logged_for_single_updates_is_drawn_too_and_judges_nothing() -> None:
    screen = Screen()
    event = flush(0, 4)
    screen.draw(
        started(),
        replace(event, columns={**event.columns, "noise_scale": pack([3.0, NAN, 5.0, 4.0])}),
    )
    late = flush(4, 2)
    screen.draw(replace(late, columns={**late.columns, "other_accuracy": pack([0.5, 0.75])}))
    screen.settle()
    np.testing.assert_array_equal(
        screen.mirrors[0].rows("metrics"),
        [[3, NAN], [NAN, NAN], [5, NAN], [4, NAN], [NAN, 0.5], [NAN, 0.75]],
    )
    assert told(screen)["noise_scale"]["last"] == "4"
    assert [told(screen)[name]["judges"] for name in ("noise_scale", "other_accuracy")] == [
        False,
        False,
    ]


def test_many_metrics_over_many_updates_stay_small() -> None:
    screen = Screen()
    screen.draw(
        started(),
        Validated(1, 0, {f"val_{i}{'µ' * 60}": float(i) for i in range(40)} | {"x" * 5000: 1.0}),
    )
    for step in range(0, 200_000, 4000):
        screen.draw(Validated(step, 0, {f"val_{i}{'µ' * 60}": float(step) for i in range(40)}))
    screen.settle()
    rows = screen.mirrors[0].rows("metrics")
    assert rows.shape[1] == len(told(screen)) == MOST
    assert 50 <= len(rows) <= 400
    assert max(screen.sent) <= LIMIT
    np.testing.assert_array_equal(rows[-1], 196_000)


def test_a_click_makes_a_metric_the_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FakeBench()
    panel = Panel(bench)
    said: list[str] = []
    monkeypatch.setattr(panel.canvas, "put", lambda name, value: said.append(name))
    for name, mode in (("val_accuracy", None), ("val_oddness", "max"), ("val_error", None)):
        panel.canvas._heard(
            panel.canvas, {"type": "ask", "what": "monitor", "name": name, "mode": mode}, []
        )
        assert (bench.settings.monitor, bench.settings.monitor_mode) == (name, mode)
    panel.canvas._heard(
        panel.canvas, {"type": "ask", "what": "monitor", "name": "val_loss", "mode": "sideways"}, []
    )
    assert bench.settings.monitor == "val_error"
    assert panel.notice.lines
    panel.close()


def test_which_metric_is_monitored_is_known() -> None:
    screen = Screen()
    for monitor, shown in ((None, "val_loss"), ("val_accuracy", "val_accuracy")):
        screen.draw(SettingsSet(Settings.make(monitor=monitor).model_dump()))
        screen.settle()
        assert screen.mirrors[0].state["metrics"]["monitor"] == shown


def test_a_metric_that_is_no_loss_has_no_place_beside_it() -> None:
    screen = Screen()
    screen.draw(started(), flush(0, 10), Validated(10, 0, {"val_accuracy": 0.9}))
    screen.settle()
    assert screen.mirrors[0].state["val"]["name"] == ""
    assert len(screen.mirrors[0].rows("val")) == 0
    assert ["val", "0.9"] in screen.mirrors[0].state["progress"]["values"]


# -- the clock


def clock(screen: Screen) -> list[list[float]]:
    screen.settle()
    return [row.tolist() for row in screen.mirrors[0].rows("clock")]


def test_updates_in_epochs_samples_seconds_and_memory() -> None:
    screen = Screen()
    screen.draw(started(), replace(flush(0, 100), seconds=2.0, samples=3200, memory=10))
    screen.settle()  # each flush has a message of its own
    screen.draw(replace(flush(100, 100), seconds=5.0, samples=3100, memory=20))
    # 1000 updates are 5 epochs.
    first, *rest = clock(screen)
    assert first[:4] == [0, 0, 0, 0]
    assert rest == [[100, 0.5, 3200, 2, 10], [200, 1, 6300, 5, 20]]


def test_samples_that_were_not_counted_are_unknown_from_there_on() -> None:
    screen = Screen()
    screen.draw(started())
    for event in (
        replace(flush(0, 10), samples=320),
        flush(10, 10),
        replace(flush(20, 10), samples=320),
    ):
        screen.draw(event)
        screen.settle()
    samples = [row[2] for row in clock(screen)]
    assert samples[:2] == [0, 320]
    assert all(math.isnan(count) for count in samples[2:])


def test_after_another_batch_size_only_whole_epochs_are_known() -> None:
    screen = Screen()
    screen.draw(started(), flush(0, 100), Changed(100, {"lr": 0.1}), flush(100, 100))
    assert [row[1] for row in clock(screen)][-1] == 1
    screen.draw(Changed(200, {"batch_size": 8}), flush(200, 100, epoch=1))
    assert [row[1] for row in clock(screen)][-1] == 2  # the second one has begun
