"""Runs the searches of the panel's Find buttons, and offers their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from workbench.events import (
    BenchEvent,
    ClipSearchEnded,
    CurveEnded,
    DecaySearchEnded,
    RecipeSearchEnded,
    RunStarted,
    SearchEnded,
    SpeedSearchEnded,
)
from workbench.plots.names import recipe_name
from workbench.ui import format, texts
from workbench.ui.bench import Bench
from workbench.ui.controls.form import Form
from workbench.ui.controls.header import Header
from workbench.ui.controls.widget_utils import off


@dataclass(frozen=True)
class Rate:
    """The suggestion of a sweep: `value` is the optimizer's own rate, which is `ratio` times the
    setting.
    """

    value: float
    ratio: float
    why: str

    @property
    def setting(self) -> float:
        """The value of the setting for it, rounded to the digits that are shown."""
        return float(format.rate(self.value / self.ratio))

    @property
    def text(self) -> str:
        """The rate as text, and the setting for it if they differ."""
        rate = format.rate(self.value)
        return rate if self.ratio == 1 else texts.own_rate(rate, format.rate(self.setting))


class Begin(Protocol):
    """Starts a job for a click and shows an error. `of`: the setting for which it searches a
    value.
    """

    def __call__(self, doing: str, kind: str, call: Callable[[], object], of: str = "") -> None: ...


class Finders:
    """Connects the header's finders with the bench."""

    def __init__(self, bench: Bench, begin: Begin) -> None:
        self._bench, self._begin = bench, begin
        self._started: RunStarted | None = None
        self._rates: dict[int, Rate | None] = {}
        """The suggestion of each optimizer's last sweep."""

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
    def show_busy(header: Header, form: Form, busy: Callable[[str], bool]) -> None:
        """Turn off the buttons of the searches that wait or run. busy: returns whether one of
        this kind does.
        """
        off(header.find_batch_size, busy("find_batch_size"))
        off(header.find_clip, busy("find_clip_val"))
        for button in (header.find_lr, header.race):
            off(button, busy("find_lr"))
        for name, button in form.find.items():
            off(button, busy("find_recipe" if name == "optimizer" else f"find_{name}"))

    def look_at(self, header: Header, optimizer: int) -> None:
        """Offer the result for this optimizer."""
        rate = self._rates.get(optimizer)
        if rate is None:
            header.use_lr.offer({}, "", "", self._bench.settings)
        else:
            header.use_lr.offer({"lr": rate.setting}, rate.text, rate.why, self._bench.settings)

    def on_event(self, event: BenchEvent, header: Header, form: Form) -> None:
        """Update the offers for an event of a search."""
        match event:
            case RunStarted():
                self._started = event
                if event.kind == "find_lr":
                    _choose(header, self._optimizer)
            case CurveEnded():
                self._rates[self._optimizer] = self._rate(event)
                _choose(header, self._optimizer)
                self.look_at(header, self._optimizer)
            case SearchEnded():
                self._offer_size(event, header)
            case ClipSearchEnded():
                value = event.best.get("gradient_clip_val")
                header.use_clip.offer(
                    dict(event.best),
                    format.rate(value) if value else "",
                    event.reason,
                    self._bench.settings,
                )
            case SpeedSearchEnded() | DecaySearchEnded():
                default = "weight_decay" if isinstance(event, DecaySearchEnded) else None
                name = next((name for name in form.found if name in event.best), default)
                if name is not None:
                    text = format.assignments(event.best)
                    form.found[name].offer(
                        dict(event.best), text, event.reason, self._bench.settings
                    )
            case RecipeSearchEnded():
                text = recipe_name(event.best) if event.best else ""
                why = texts.SEPARATOR.join(filter(None, [event.doubt, event.reason]))
                form.found["optimizer"].offer(dict(event.best), text, why, self._bench.settings)
            case _:
                pass

    @property
    def _optimizer(self) -> int:
        """The optimizer that is swept; within a fit it is the first one."""
        return 0 if self._started is None else int(self._started.request.get("optimizer", 0))

    def _rate(self, event: CurveEnded) -> Rate | None:
        alone = self._started is not None and self._started.request.get("group") is not None
        if event.suggestion is None or alone:  # the setting would change the rates of all groups
            return None
        why = " · ".join(event.doubts) or event.why
        groups = (
            ()
            if self._started is None
            else self._started.groups[self._optimizer : self._optimizer + 1]
        )
        ratio = groups[0][0][1] if groups and groups[0] else 1.0
        return Rate(event.suggestion, ratio, why)

    def _offer_size(self, event: SearchEnded, header: Header) -> None:
        if event.best is None:
            header.use_batch_size.offer({}, "", "", self._bench.settings)
            return
        changes, text, many = (
            {"batch_size": event.best},
            str(event.best),
            event.accumulate_grad_batches,
        )
        if many is not None:
            changes["accumulate_grad_batches"], text = many, texts.accumulated(many, event.best)
        header.use_batch_size.offer(changes, text, event.ended, self._bench.settings)


def _choose(header: Header, optimizer: int) -> None:
    """Choose the optimizer in the header, if the bench has it: a record of another kernel may
    name one that it does not have.
    """
    if any(value == optimizer for _, value in header.optimizer.options):
        header.optimizer.value = optimizer
