"""Decides when a validation is due: every N updates, at fractions of an epoch, or after an
interval of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.techniques.limits import fraction_of
from workbench.values import seconds as in_seconds


def refuse_no_interval(settings: Settings) -> None:
    """Raise TaskError for validations that follow neither epochs nor an interval of updates or
    time.
    """
    if settings.check_val_every_n_epoch is None and isinstance(settings.val_check_interval, float):
        raise TaskError(
            f"check_val_every_n_epoch=None with val_check_interval={settings.val_check_interval}, a"
            " fraction of an epoch: without epochs to count by, give val_check_interval as updates"
            " (500) or as a time ('00:00:10:00')."
        )


class Cadence:
    """Answers after each update and at the end of each epoch whether a validation is due; `checked`
    records one.

    Intervals of updates and of time count across epochs. Fractions count within each epoch, and
    only in every `check_val_every_n_epoch`-th. A validation is always due at the end of the fit.
    """

    def __init__(self, settings: Settings, updates_per_epoch: int | None) -> None:
        refuse_no_interval(settings)
        interval = settings.val_check_interval
        self._steps = interval if isinstance(interval, int) else None
        self._fraction = interval if isinstance(interval, float) else None
        self._time = in_seconds(interval) if isinstance(interval, str) else None
        self._every_n_epoch = settings.check_val_every_n_epoch or 1
        self._checked_step: int | None = None
        self._checked_seconds = 0.0
        self.updates_per_epoch = updates_per_epoch

    @property
    def updates_per_epoch(self) -> int | None:
        """The updates of the current epoch (None: unknown); the loop sets it again when
        accumulation changes it.
        """
        return self._updates_per_epoch

    @updates_per_epoch.setter
    def updates_per_epoch(self, updates: int | None) -> None:
        if updates is None and self._fraction is not None and self._fraction < 1:
            raise TaskError(
                f"val_check_interval={self._fraction!r} is a fraction of an epoch, whose number of"
                " updates is not known: truncated_bptt_steps splits its batches, or the training"
                " data has no length: give a number of updates (val_check_interval=500) or a time"
                " ('00:00:10:00')."
            )
        self._updates_per_epoch = updates

    def due(self, step: int, epoch: int, in_epoch: int, seconds: float) -> bool:
        """Whether a validation is due after update `step`, the `in_epoch`-th (not the last) of
        epoch `epoch` (from 0).
        """
        if self._fraction is None:
            return self._due_anywhere(step, seconds)
        return (
            self._fraction < 1 and self._epoch_counts(epoch + 1) and in_epoch % self._stride() == 0
        )

    def due_at_end(self, step: int, epoch: int, last: bool, seconds: float) -> bool:
        """Whether a validation is due with `epoch` epochs finished. last: the fit ends here."""
        if step == self._checked_step:
            return False
        if last:
            return True
        if self._fraction is None:
            return self._due_anywhere(step, seconds)
        return self._epoch_counts(epoch) and (self._updates_per_epoch or 0) % self._stride() == 0

    def checked(self, step: int, seconds: float) -> None:
        """Record a validation after update `step`, at this time of the run."""
        self._checked_step = step
        self._checked_seconds = seconds

    def state_dict(self) -> dict[str, Any]:
        """Return when the last validation was."""
        return {"step": self._checked_step, "seconds": self._checked_seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, whatever the interval is now."""
        step = state["step"]
        self._checked_step, self._checked_seconds = (
            None if step is None else int(step),
            float(state["seconds"]),
        )

    def _due_anywhere(self, step: int, seconds: float) -> bool:
        if self._steps is not None:
            return step % self._steps == 0
        return self._time is not None and seconds - self._checked_seconds >= self._time

    def _epoch_counts(self, finished: int) -> bool:
        return finished % self._every_n_epoch == 0

    def _stride(self) -> int:
        """Return the updates between two validations of an epoch; 1 where the fraction is less
        than one update.
        """
        whole = self._updates_per_epoch
        if whole is None or self._fraction is None or self._fraction == 1:
            return whole or 1
        return max(1, fraction_of(whole, self._fraction))
