"""Runs the searches of the panel's Find buttons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from workbench.events import BenchEvent, RunStarted
from workbench.ui import texts
from workbench.ui.bench import Bench
from workbench.ui.controls.form import Form
from workbench.ui.controls.header import Header
from workbench.ui.controls.widget_utils import off


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

    @property
    def of_settings(self) -> dict[str, tuple[str, Callable[[], None]]]:
        """The searches in the form of all settings: for each setting a tooltip and the call."""
        return {
            "optimizer": (
                texts.FIND_RECIPE,
                lambda: self._begin(
                    texts.ACTIONS["find_recipe"],
                    "find_recipe",
                    self._bench.find_recipe,
                    "optimizer",
                ),
            ),
            "num_workers": (
                texts.FIND_WORKERS,
                lambda: self._begin(
                    texts.ACTIONS["find_num_workers"],
                    "find_num_workers",
                    self._bench.find_num_workers,
                    "num_workers",
                ),
            ),
            "precision": (
                texts.FIND_PRECISION,
                lambda: self._begin(
                    texts.ACTIONS["find_precision"],
                    "find_precision",
                    self._bench.find_precision,
                    "precision",
                ),
            ),
            "weight_decay": (
                texts.FIND_WEIGHT_DECAY,
                lambda: self._begin(
                    texts.ACTIONS["find_weight_decay"],
                    "find_weight_decay",
                    self._bench.find_weight_decay,
                    "weight_decay",
                ),
            ),
        }

    @staticmethod
    def show_busy(header: Header, form: Form | None, busy: Callable[[str], bool]) -> None:
        """Turn off the buttons of the searches that wait or run. busy: returns whether one of
        this kind does.
        """
        off(header.find_batch_size, busy("find_batch_size"))
        off(header.find_clip, busy("find_clip_val"))
        for button in (header.find_lr, header.race):
            off(button, busy("find_lr"))
        for name, button in {} if form is None else form.find.items():
            off(button, busy("find_recipe" if name == "optimizer" else f"find_{name}"))

    @staticmethod
    def on_event(event: BenchEvent, header: Header) -> None:
        """Choose the optimizer that a sweep is of, if the bench has it: a record of another
        kernel may name one that it does not have.
        """
        if isinstance(event, RunStarted) and event.kind == "find_lr":
            optimizer = int(event.request.get("optimizer", 0))
            if any(value == optimizer for _, value in header.optimizer.options):
                header.optimizer.value = optimizer
