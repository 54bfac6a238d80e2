"""Clipping on the canvas: the caption of the norms, the suggested clip value, norms of another order."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from tests.ui.canvas.gradients.test_gradients import norms_of, state
from tests.ui.canvas.test_widget import Screen, started
from workbench.events import RunEnded, SettingsSet, StatusChanged, StepsDone, pack
from workbench.plots.clip_statistics import suggest_clip
from workbench.settings import Settings

CLIPPED = 6
"""The column of "fit" (extensions/live/src/training/loss.ts)."""


def test_the_caption_says_what_a_chosen_clip_value_would_have_cut() -> None:
    """Of all updates of this run, whose norms fall; nothing for the value that it has."""
    screen = Screen()
    high, low = [8.0] * 100 + [4.0] * 100, [1.0] * 199 + [9.0]
    screen.draw(
        started(), StepsDone(0, 1, 200, 0, 1.0, {"loss": pack([1.0] * 200), "lr": pack([0.1] * 200), "grad_norm": pack(high)}),
        StepsDone(200, 1, 200, 0, 2.0, {"loss": pack([1.0] * 200), "lr": pack([0.1] * 200), "grad_norm": pack(low)}),
    )  # fmt: skip
    screen.draw(SettingsSet(Settings.make(gradient_clip_val=5.0).model_dump()))
    screen.settle()
    assert str(state(screen)["norm"]["caption"]).endswith("5 would cut 25% of the 400 updates")
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
    ended = RunEnded("finished", 219, 219.0)
    screen.draw(started(("a",)), norms_of(0, spread[:19]), RunEnded("finished", 19, 19.0))
    assert state(screen)["norm"]["suggested"] is None, "too few"
    screen.draw(started(("a",)), norms_of(0, spread), ended)
    assert state(screen)["norm"]["suggested"] == 1.41
    for wrong in ({"track_grad_norm": "inf"}, {"gradient_clip_algorithm": "value"}):
        screen.draw(started(("a",), **wrong), norms_of(0, spread), ended)
        assert state(screen)["norm"]["suggested"] is None, "other norms than those that are clipped"
    screen.draw(
        started(("a", "b")),
        norms_of(0, np.ones((200, 2)), **{"grad_norm.0": spread, "grad_norm.1": 3 * spread}),
        ended,
    )
    assert state(screen)["norm"]["suggested"] == 4.22, "each optimizer is clipped by its own norm"


@pytest.mark.parametrize("updates", [600, 40_000])
def test_the_suggestion_and_what_it_would_cut_are_of_the_same_norms_and_stay(updates: int) -> None:
    """The norms of the run fall by a factor of a thousand: a value from its end would cut nearly all of it."""
    screen = Screen()
    norms = np.geomspace(3.0, 0.003, updates)[:, None]
    screen.draw(started(("a",)))
    for step in range(0, updates, 200):
        screen.draw(norms_of(step, norms[step : step + 200]))
        assert state(screen)["norm"]["suggested"] is None, "while it trains, the number would move"
    screen.draw(StatusChanged("paused"))
    suggested = state(screen)["norm"]["suggested"]
    assert suggested == suggest_clip(norms[:, 0])
    screen.draw(StatusChanged("running"))
    assert state(screen)["norm"]["suggested"] is None
    screen.draw(RunEnded("finished", updates, 1e6))
    assert state(screen)["norm"]["suggested"] == suggested
    screen.draw(SettingsSet(Settings.make(gradient_clip_val=suggested).model_dump()))
    told = state(screen)["norm"]
    assert told["suggested"] == suggested
    share = re.search(
        rf"{suggested:g} would cut ([\d.]+)% of the {updates:,} updates$", told["caption"]
    )
    assert share is not None
    assert float(share[1]) == pytest.approx(100 * (norms > suggested).mean(), abs=0.5)
    assert 5 < float(share[1]) <= 10


@pytest.mark.parametrize("order", [1.0, "inf"])
def test_norms_of_another_order_are_not_compared_with_what_is_clipped(order: Any) -> None:
    screen, table = Screen(), np.full((200, 1), 5.0)
    cut = {"grad_norm_clipped": np.ones(200)}
    screen.draw(
        started(("a",), gradient_clip_val=1.0, track_grad_norm=order), norms_of(0, table, **cut)
    )
    told = state(screen)["norm"]
    assert (
        told["caption"]
        == "the clip value limits the 2-norm and is not drawn among these norms · p50 5 · p95 5"
    )
    assert (told["by_norm"], told["lined"], told["suggested"]) == (True, False, None)
    assert not (screen.mirrors[0].rows("fit")[:, CLIPPED] > 0).any()
    screen.draw(started(("a",), gradient_clip_val=1.0), norms_of(0, table, **cut))
    told = state(screen)["norm"]
    assert told["caption"].startswith("clipped 100% of the last 200")
    assert told["lined"] is True
    assert (screen.mirrors[0].rows("fit")[:, CLIPPED] == 1).all()
