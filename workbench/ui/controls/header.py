"""Keeps the controls of the four steps: batch size, learning rate, clip and epochs, with their
finders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.launch.select_launcher import ranks
from workbench.settings import Settings, SettingsError
from workbench.tuners.batch_size.effective_batch import effective_batch
from workbench.ui import texts
from workbench.ui.controls.board import Board, Put
from workbench.ui.controls.form import HEADER
from workbench.ui.controls.setting_control import SettingControls, explanation


@dataclass(frozen=True)
class FinderCalls:
    """The calls of the finders' controls. Each returns at once."""

    batch_size: Callable[[bool], None]
    """Search for a batch size; True: keep the number of samples in an update."""
    lr: Callable[[int, bool], None]
    """Sweep the rate of this optimizer; True: then race the best rates."""
    clip_val: Callable[[], None]
    """Measure gradient norms, and suggest a clip value."""
    look_at: Callable[[int], None]
    """Show this optimizer's curves."""


class Header:
    """The four steps: their finders, and what stands beside their boxes."""

    def __init__(
        self,
        board: Board,
        put: Put,
        controls: SettingControls,
        finders: FinderCalls,
        optimizers: int = 1,
    ) -> None:
        """optimizers: the number of those whose rates can be swept."""
        self._put, self._finders = put, finders
        self._placeholders = {name: controls[name].placeholder for name in HEADER}
        self.optimizers, self.optimizer = optimizers, 0
        self.keep = board.toggle("keep", texts.KEEP, texts.KEEP_TOOLTIP, lambda is_kept: None)
        self.find_batch_size = board.button(
            "find_batch_size",
            texts.FIND,
            texts.FIND_BATCH_SIZE,
            lambda: finders.batch_size(self.keep.pressed),
        )
        self.find_lr = board.button(
            "find_lr", texts.FIND, texts.FIND_LR, lambda: finders.lr(self.optimizer, False)
        )
        self.race = board.button(
            "race", texts.RACE, texts.RACE_TOOLTIP, lambda: finders.lr(self.optimizer, True)
        )
        self.find_clip = board.button(
            "find_clip_val", texts.FIND, texts.FIND_CLIP, finders.clip_val
        )
        self._beside: dict[str, Any] = {}

    def choose(self, optimizer: int) -> None:
        """Let Find sweep this optimizer, and show its curves; a number that the bench does not
        have is ignored, since a record of another kernel may name one.
        """
        if 0 <= optimizer < self.optimizers and optimizer != self.optimizer:
            self.optimizer = optimizer
            self._send()
            self._finders.look_at(optimizer)

    def show(self, settings: Settings) -> None:
        """Update what stands beside the boxes for these settings."""
        epochs = texts.NO_NUMBER if settings.epochs is None else str(settings.epochs)
        self._beside = {
            "placeholders": self._placeholders | {"max_epochs": epochs},
            "help": {name: explanation(name) for name in HEADER},
            "each": _each(settings),
        }
        self._show_kept(settings)
        self._send()

    def _send(self) -> None:
        self._put(
            "steps",
            {**self._beside, "optimizers": self.optimizers, "optimizer": self.optimizer},
        )

    def _show_kept(self, settings: Settings) -> None:
        """Show the number of samples in an update, which the search for a batch size can keep."""
        try:
            kept, why = str(effective_batch(settings, ranks(settings))), texts.KEEP_TOOLTIP
        except SettingsError as error:
            kept, why = "", str(error)
            self.keep.pressed = False
        text = texts.keep(kept) if kept else texts.KEEP
        self.keep.set(text=text, tooltip=why, disabled=not kept)


def _each(settings: Settings) -> str:
    """A note on the number of devices that each have a batch of that size; "": one."""
    try:
        count = ranks(settings)
    except SettingsError:  # starting a job will show this error
        return ""
    return texts.each_of(count) if count > 1 else ""
