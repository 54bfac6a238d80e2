"""Events of training: columns of a flush, and what the progress line shows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workbench import events as ev


def test_the_columns_of_a_flush() -> None:
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    flush = ev.StepsDone(
        10, 5, 3, 1, 0.5, {"loss": ev.pack([1, 2, 3]), "layer_norms": ev.pack(table)}
    )
    assert flush.steps.tolist() == [10, 15, 20]
    assert flush.array("loss").tolist() == [1, 2, 3]
    np.testing.assert_array_equal(flush.array("layer_norms"), table)


def test_what_the_model_logged_is_told_from_what_was_measured() -> None:
    measured = (
        "loss",
        "lr",
        "grad_norm",
        "grad_norm_clipped",
        "loss.0",
        "lr.12",
        "grad_norm_clipped.1",
        "skipped",
        "layer_norms",
    )
    logged = (
        "acc",
        "loss_logged",
        "loss.x",
        "lr-Adam",
        "grad_norm/conv",
        "skipped.0",
        "a.1",
        "",
        "Verlust ∑",
        "a\nb",
    )
    flush = ev.StepsDone(0, 1, 1, 0, 0.1, dict.fromkeys((*measured, *logged), ev.pack([1])))
    assert flush.logged == logged


def test_what_is_on_the_progress_line() -> None:
    nan = math.nan
    columns = {
        "loss": ev.pack([1, 2, 3]),
        "acc": ev.pack([0.25, 0.5, nan]),
        "none": ev.pack([nan] * 3),
        "f1": ev.pack([1, 1, 1]),
    }
    assert ev.StepsDone(0, 1, 3, 0, 0.1, columns, ("acc", "none")).on_bar == {"acc": 0.5}
    metrics = {"val_loss": 1.0, "val_acc": 0.5, "val_acc_averaged": 0.75, "f1": 1.0}
    assert ev.Validated(1, 0, metrics, ("val_acc",)).on_bar == {
        "val_acc": 0.5,
        "val_acc_averaged": 0.75,
    }
    assert ev.Logged(1, 0, metrics, ("f1", "gone")).on_bar == {"f1": 1.0}
    assert ev.Validated(1, 0, metrics).on_bar == {}


def test_events_are_frozen() -> None:
    with pytest.raises(AttributeError):
        ev.Message("hello").text = "bye"  # type: ignore[misc]
