"""Replaces Lightning's fit loop: `trainer.fit_loop.epoch_progress` counts the epochs that have
begun and ended.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from workbench.task.lightning.strategy import UnsupportedTrainerAttribute
from workbench.task.protocol import Counters


class FitLoop:
    """The object that a module or a callback finds as `self.trainer.fit_loop`."""

    def __init__(self, state: Counters, hook: str | None) -> None:
        """hook: the name of the hook that runs; Lightning's counts change at certain hooks."""
        self._state, self._hook = state, hook

    @property
    def epoch_progress(self) -> SimpleNamespace:
        """`current` and `total`, each with the epochs that are ready, started, processed and
        completed.
        """
        epoch, inside = self._state.epoch, self._state.mid_epoch
        counts = {
            "ready": epoch + inside,
            "started": epoch + (inside and self._hook != "on_train_epoch_start"),
            "processed": epoch + (inside and self._hook == "on_train_epoch_end"),
            "completed": epoch,
        }
        return SimpleNamespace(current=SimpleNamespace(**counts), total=SimpleNamespace(**counts))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedTrainerAttribute(
            f"self.trainer.fit_loop.{name} is not supported. Supported is epoch_progress;"
            " self.trainer has current_epoch, global_step, num_training_batches, is_last_batch,"
            " max_epochs and max_steps."
        )
