"""Counts the updates of a resumed fit whose epochs have another length than before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.engine.data.loaders import Loaders
from workbench.engine.state import TrainState
from workbench.techniques.accumulation import size_at, updates_in

NAMES = ("step", "epoch", "batch_idx", "epoch_step", "mid_epoch", "checking", "settings", "length")
"""The parts of a checkpoint's state that this count needs."""


def state_of(feeds: Loaders, epoch: int, ahead: int) -> dict[str, Any]:
    """What a checkpoint stores for it."""
    return {"per_epoch": feeds.updates_in(epoch), "ahead": ahead}


def ahead_of_plan(feeds: Loaders, past: Mapping[str, Any]) -> int:
    """How many more updates there are than epochs times updates in an epoch, since earlier epochs had more.

    past: `NAMES` of the state from which the fit is resumed. Epochs of the same length change nothing.
    """
    epoch, epochs, known = past["epoch"], feeds.settings.epochs, past["length"]
    now, planned = feeds.updates_in(epoch), feeds.planned()
    reloads = bool(feeds.settings.reload_dataloaders_every_n_epochs) and known["per_epoch"] is not None  # the run's plan stays
    if now is None or epochs is None or planned is None or now == known["per_epoch"] or reloads:
        return int(known["ahead"])
    begins = epoch + past["mid_epoch"]
    later = sum(feeds.updates_in(number) or 0 for number in range(begins, epochs))
    return int(past["step"]) + _left_in_epoch(feeds, past) + later - planned


def ahead_from(feeds: Loaders, state: TrainState, ahead: int) -> int:
    """The batches ahead of a fit whose epochs have another length from here on: a live change of the accumulation."""
    past = {name: getattr(state, name) for name in ("step", "epoch", "batch_idx", "epoch_step", "mid_epoch", "checking")}
    settings = {"batch_size": feeds.settings.batch_size}
    return ahead_of_plan(feeds, {**past, "settings": settings, "length": {"per_epoch": None, "ahead": ahead}})


def _left_in_epoch(feeds: Loaders, past: Mapping[str, Any]) -> int:
    """Updates until the end of the present epoch, which keeps its batch size."""
    if not past["mid_epoch"] or past["checking"]:
        return 0
    if feeds.settings.batch_size == past["settings"]["batch_size"] and feeds.batches is not None:
        size = size_at(feeds.settings.accumulate_grad_batches, past["epoch"])
        return updates_in(max(0, feeds.batches - past["batch_idx"]), size)
    done: int = past["step"] - past["epoch_step"]
    then: int = past["length"]["per_epoch"] or done
    return max(0, then - done)
