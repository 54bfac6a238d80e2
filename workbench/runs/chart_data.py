"""Collects the data for the plots of a run from its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from workbench.events import (
    Changed,
    ClipSearchEnded,
    CurveEnded,
    CurvePoint,
    DecaySearchEnded,
    DecayTrial,
    Event,
    ProfileEnded,
    RaceTrial,
    RecipeSearchEnded,
    RecipeTrial,
    Resumed,
    Saved,
    SearchEnded,
    SpeedSearchEnded,
    SpeedTrial,
    Spiked,
    Trial,
)  # fmt: skip
from workbench.plots.chart import Chart
from workbench.plots.searches import batch_size, clip_value, decay, lr_curve, profile, recipe, speed
from workbench.plots.training.changes import Changes
from workbench.plots.training.run import Best
from workbench.settings import setting_text

SPIKES = {"report": "spike", "skip": "spike, left out", "rollback": "spike, rolled back"}
"""The marks of spikes, by what was done."""
UNMARKED = {"track_update_ratio"}
"""Live settings that only change what is measured; their changes are not marked on the plots."""


def changes(events: Sequence[Event]) -> Changes:
    """The marks of the plots: live changes, spikes, and where the run was resumed."""
    live: set[tuple[int, str]] = set()
    for event in events:
        if isinstance(event, Changed):
            live |= {(event.step, name) for name in event.values}
    out: list[tuple[int, Mapping[str, float | None] | str]] = []
    for event in events:
        if isinstance(event, Changed):
            marked = {name: value for name, value in event.values.items() if name not in UNMARKED}
            if marked:
                out.append((event.step, marked))
        elif isinstance(event, Spiked):
            out.append((event.step, SPIKES[event.action]))
        elif isinstance(event, Resumed):
            edited = {k: v for k, v in event.values.items() if (event.step, k) not in live}
            out.append(
                (
                    event.step,
                    ", ".join(
                        [
                            "resumed",
                            *(f"{k} → {setting_text.recorded(k, v)}" for k, v in edited.items()),
                        ]
                    ),
                )
            )
    return out


def best(events: Sequence[Event]) -> Best | None:
    """The last of the best checkpoints."""
    best_saves = (e for e in reversed(events) if isinstance(e, Saved) and e.best)
    return next(
        (
            Best(e.step, e.monitor, e.value)
            for e in best_saves
            if e.monitor is not None and e.value is not None
        ),
        None,
    )


def search_charts(events: Sequence[Event]) -> list[Chart]:
    """The charts of a finder's run; none for a fit."""
    points = [e for e in events if isinstance(e, CurvePoint)]
    if points:
        end = next((e for e in events if isinstance(e, CurveEnded)), None)
        return [
            lr_curve.lr_curve(
                np.array([p.lr for p in points]),
                np.array([p.loss for p in points]),
                np.array([p.smoothed for p in points]),
                end.suggestions if end else (),
                end.suggestion if end else None,
                end.notes if end else (),
                [e for e in events if isinstance(e, RaceTrial)],
            )
        ]
    trials = {e.size: e for e in events if isinstance(e, Trial)}
    if trials:
        over = next((e for e in events if isinstance(e, SearchEnded)), None)
        return batch_size.batch_size(
            trials.values(), over.best if over else None, over.largest if over else None
        )
    clip = next((e for e in reversed(events) if isinstance(e, ClipSearchEnded)), None)
    if clip is not None:
        return [
            clip_value.clip_value(
                [np.asarray(norms, np.float64) for norms in clip.norms], clip.suggestion
            )
        ]
    measured = next((e for e in events if isinstance(e, ProfileEnded)), None)
    if measured is not None:
        parts = dict(sorted(measured.parts.items(), key=lambda part: -part[1]))
        memory = np.asarray(measured.memory, np.float64).reshape(-1, 2)
        on_cpu = measured.busy is None
        return profile.profile(parts, memory[:, 0], memory[:, 1], on_cpu=on_cpu)
    decays = [e for e in events if isinstance(e, DecayTrial)]
    if decays:
        said = next((e for e in events if isinstance(e, DecaySearchEnded)), None)
        return [decay.decay(decays, said.suggestion if said else None)]
    recipes = [e for e in events if isinstance(e, RecipeTrial)]
    if recipes:
        conclusion = next((e for e in events if isinstance(e, RecipeSearchEnded)), None)
        return [recipe.recipe(recipes, conclusion.best if conclusion else {})]
    tried = [e for e in events if isinstance(e, SpeedTrial)]
    if tried:
        ended = next((e for e in events if isinstance(e, SpeedSearchEnded)), None)
        return [speed.speed(tried, ended.best if ended else {})]
    return []
