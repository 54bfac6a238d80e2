"""Counts the updates of a whole fit, also where the epochs of a resumed fit have another length
than before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.engine.data.loaders import Loaders
from workbench.engine.state import TrainState
from workbench.techniques.accumulation import size_at, updates_in

NAMES = (
    "step",
    "epoch",
    "batch_idx",
    "epoch_step",
    "mid_epoch",
    "validation_due",
    "settings",
    "length",
)
"""The parts of a checkpoint's state that this count needs."""


class TotalSteps:
    """The number of updates of a whole fit."""

    def __init__(self, data: Loaders, past: Mapping[str, Any] | None) -> None:
        """past: the entries `NAMES` of the state from which the fit is resumed; None: a new fit."""
        self._data = data
        self._ahead = 0 if past is None else self._ahead_of_plan(past)
        """Updates beyond epochs times updates in an epoch, since earlier epochs had more."""

    def planned(self) -> int | None:
        """Updates of the whole run as planned now; None: they cannot be known."""
        return self._data.updates(self._ahead)

    def recount(self, state: TrainState) -> None:
        """Recompute the number after a live change of the accumulation, with which epochs have
        another length.
        """
        past = {
            name: getattr(state, name)
            for name in ("step", "epoch", "batch_idx", "epoch_step", "mid_epoch", "validation_due")
        }
        settings = {"batch_size": self._data.settings.batch_size}
        self._ahead = self._ahead_of_plan(
            {**past, "settings": settings, "length": {"per_epoch": None, "ahead": self._ahead}}
        )

    def state_dict(self, epoch: int) -> dict[str, Any]:
        """What a checkpoint in this epoch stores for it."""
        return {"per_epoch": self._data.updates_in(epoch), "ahead": self._ahead}

    def _ahead_of_plan(self, past: Mapping[str, Any]) -> int:
        """How many more updates the run has than epochs of the present length would give."""
        data, settings = self._data, self._data.settings
        epoch, epochs, known = past["epoch"], settings.epochs, past["length"]
        now, planned = data.updates_in(epoch), data.planned()
        # the plan of the run is kept
        reloads = (
            bool(settings.reload_dataloaders_every_n_epochs) and known["per_epoch"] is not None
        )
        if now is None or epochs is None or planned is None or now == known["per_epoch"] or reloads:
            return int(known["ahead"])
        begins = epoch + past["mid_epoch"]
        later = sum(data.updates_in(number) or 0 for number in range(begins, epochs))
        return int(past["step"]) + self._left_in_epoch(past) + later - planned

    def _left_in_epoch(self, past: Mapping[str, Any]) -> int:
        """Updates until the end of the present epoch, which keeps its batch size."""
        data = self._data
        if not past["mid_epoch"] or past["validation_due"]:
            return 0
        if data.settings.batch_size == past["settings"]["batch_size"] and data.batches is not None:
            size = size_at(data.settings.accumulate_grad_batches, past["epoch"])
            return updates_in(max(0, data.batches - past["batch_idx"]), size)
        done: int = past["step"] - past["epoch_step"]
        then: int = past["length"]["per_epoch"] or done
        return max(0, then - done)
