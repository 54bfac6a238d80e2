"""Runs the searches of the panel's Find buttons."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from workbench.ui import texts
from workbench.ui.bench import Bench
from workbench.ui.controls.board import Board, Button


class Begin(Protocol):
    """Starts a job for a click and shows an error. `of`: the setting for which it searches a
    value.
    """

    def __call__(self, doing: str, kind: str, call: Callable[[], object], of: str = "") -> None: ...


class Finders:
    """Connects the header's finders with the bench."""

    def __init__(self, bench: Bench, begin: Begin) -> None:
        self._bench, self._begin = bench, begin

    def find_lr(self, optimizer: int, race: bool) -> None:
        """Start a sweep of this optimizer's rate, and a race if asked for."""
        # The line of code that is shown leaves out defaults.
        arguments: dict[str, Any] = ({"optimizer": optimizer} if optimizer else {}) | (
            {"race": True} if race else {}
        )
        self._begin(
            texts.ACTIONS["find_lr"], "find_lr", lambda: self._bench.find_lr(**arguments), "lr"
        )

    def find_batch_size(self, keep: bool) -> None:
        """Start a search for the batch size. keep: keep the number of samples in an update."""
        arguments = {"keep_effective": True} if keep else {}
        self._begin(
            texts.ACTIONS["find_batch_size"],
            "find_batch_size",
            lambda: self._bench.find_batch_size(**arguments),
            "batch_size",
        )

    def find_clip_val(self) -> None:
        """Start a search for a clip value."""
        self._begin(
            texts.ACTIONS["find_clip_val"],
            "find_clip_val",
            self._bench.find_clip_val,
            "gradient_clip_val",
        )

    def of_settings(self, board: Board) -> dict[str, Button]:
        """Add the buttons of the searches in the form of all settings; returns them by the kind
        of their jobs. The name of each in the front end is that of its setting, after "find_".
        """
        searches: list[tuple[str, str, str, Callable[[], object]]] = [
            ("optimizer", "find_recipe", texts.FIND_RECIPE, self._bench.find_recipe),
            ("num_workers", "find_num_workers", texts.FIND_WORKERS, self._bench.find_num_workers),
            ("precision", "find_precision", texts.FIND_PRECISION, self._bench.find_precision),
            (
                "weight_decay",
                "find_weight_decay",
                texts.FIND_WEIGHT_DECAY,
                self._bench.find_weight_decay,
            ),
        ]
        return {
            kind: board.button(
                f"find_{setting}",
                texts.FIND,
                tooltip,
                partial(self._begin, texts.ACTIONS[kind], kind, search, setting),
            )
            for setting, kind, tooltip, search in searches
        }
