"""Clipping on the canvas: the caption of the norms, the suggested clip value, norms of another order."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.ui.canvas.gradients.test_gradients import norms_of, state
from tests.ui.canvas.test_widget import Screen, started
from workbench.events import RunEnded, SettingsSet, StatusChanged, StepsDone, pack
from workbench.settings import Settings

CLIPPED = 6
"""The column of "fit" (extensions/live/src/training/loss.ts)."""


def test_the_caption_says_what_a_chosen_clip_value_would_have_cut() -> None:
    """Of the first and of the last updates of this run, whose norms fall; nothing for the value that it has."""
    screen = Screen()
    high, low = [8.0] * 100 + [4.0] * 100, [1.0] * 199 + [9.0]
    screen.draw(
        started(), StepsDone(0, 1, 200, 0, 1.0, {"loss": pack([1.0] * 200), "lr": pack([0.1] * 200), "grad_norm": pack(high)}),
        StepsDone(200, 1, 200, 0, 2.0, {"loss": pack([1.0] * 200), "lr": pack([0.1] * 200), "grad_norm": pack(low)}),
    )  # fmt: skip
    screen.draw(SettingsSet(Settings.make(gradient_clip_val=5.0).model_dump()))
    screen.settle()
    assert str(state(screen)["norm"]["caption"]).endswith("5 would cut 50% of the first 200 updates, 0.5% of the last 200")
    screen.draw(SettingsSet(Settings.make().model_dump()))
    screen.settle()
    assert "would cut" not in str(state(screen)["norm"]["caption"])


def test_the_caption_can_be_read_and_says_all_at_rest() -> None:
    screen, ones = Screen(), np.ones((1, 1))

    def caption(step: int, seconds: float, *more: Any) -> str:
        screen.draw(dataclasses.replace(norms_of(step, (step + 1) * ones), seconds=seconds), *more)
        return str(state(screen)["norm"]["caption"])

    screen.draw(started(("a",)))
    first = caption(0, 10.0)
    assert first.startswith("no clipping · p50 1")
    assert caption(1, 10.3) == first
    assert (second := caption(2, 10.6)) != first
    assert (third := caption(3, 10.7, StatusChanged("paused"))) != second
    screen.draw(StatusChanged("running"))
    assert caption(4, 10.8) == third
    assert caption(5, 10.9, RunEnded("finished", 6, 11.0)) != third


def test_a_clip_value_is_suggested_from_the_norms_seen() -> None:
    screen = Screen()
    spread = np.linspace(0.5, 1.5, 200)[:, None]
    screen.draw(started(("a",)), norms_of(0, 100 * spread[:19]))
    assert state(screen)["norm"]["suggested"] is None, "too few"
    screen.draw(norms_of(19, spread))
    assert state(screen)["norm"]["suggested"] == 1.4
    screen.draw(norms_of(219, spread * 1.02))
    assert state(screen)["norm"]["suggested"] == 1.4, "a button that is about to be pressed stays"
    for wrong in ({"track_grad_norm": "inf"}, {"gradient_clip_algorithm": "value"}):
        screen.draw(started(("a",), **wrong), norms_of(0, spread))
        assert state(screen)["norm"]["suggested"] is None, "other norms than those that are clipped"
    screen.draw(started(("a", "b")), norms_of(0, np.ones((200, 2)), **{"grad_norm.0": spread, "grad_norm.1": 3 * spread}))
    assert state(screen)["norm"]["suggested"] == 4.2, "each optimizer is clipped by its own norm"


@pytest.mark.parametrize("order", [1.0, "inf"])
def test_norms_of_another_order_are_not_compared_with_what_is_clipped(order: Any) -> None:
    screen, table = Screen(), np.full((200, 1), 5.0)
    cut = {"grad_norm_clipped": np.ones(200)}
    screen.draw(started(("a",), gradient_clip_val=1.0, track_grad_norm=order), norms_of(0, table, **cut))
    told = state(screen)["norm"]
    assert told["caption"] == "the clip value limits the 2-norm and is not drawn among these norms · p50 5 · p95 5"
    assert (told["by_norm"], told["lined"], told["suggested"]) == (True, False, None)
    assert not (screen.mirrors[0].rows("fit")[:, CLIPPED] > 0).any()
    screen.draw(started(("a",), gradient_clip_val=1.0), norms_of(0, table, **cut))
    told = state(screen)["norm"]
    assert told["caption"].startswith("clipped 100% of the last 200")
    assert told["lined"] is True
    assert (screen.mirrors[0].rows("fit")[:, CLIPPED] == 1).all()
