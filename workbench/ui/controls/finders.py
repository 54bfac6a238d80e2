"""Runs the searches of the panel's Find buttons, and offers what they found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.events import (
    BenchEvent,
    ClipSearchEnded,
    CurveEnded,
    RunStarted,
    SearchEnded,
    SpeedSearchEnded,
)
from workbench.ui import format
from workbench.ui.bench import Bench
from workbench.ui.controls.form import Form
from workbench.ui.controls.header import Header


@dataclass(frozen=True)
class Rate:
    """The suggestion of a sweep: `value` is the optimizer's own rate, which is `ratio` times the setting."""

    value: float
    ratio: float
    why: str

    @property
    def setting(self) -> float:
        """The setting for it, to the digits that are shown."""
        return float(format.rate(self.value / self.ratio))

    @property
    def text(self) -> str:
        own = format.rate(self.value)
        return own if self.ratio == 1 else f"{own} (lr={format.rate(self.setting)})"


class Finders:
    """Connects the header's finders with the bench. `ask(doing, call)` calls, and shows an error."""

    def __init__(self, bench: Bench, ask: Callable[[str, Callable[[], object]], None]) -> None:
        self._bench, self._ask = bench, ask
        self._started: RunStarted | None = None
        self._rates: dict[int, Rate | None] = {}
        """The suggestion of each optimizer's last sweep."""

    def find_lr(self, optimizer: int, race: bool) -> None:
        # As it is written in code: defaults are left out.
        asked: dict[str, Any] = ({"optimizer": optimizer} if optimizer else {}) | ({"race": True} if race else {})
        self._ask("Find learning rate", lambda: self._bench.find_lr(**asked))

    def find_batch_size(self, keep: bool) -> None:
        asked = {"keep_effective": True} if keep else {}
        self._ask("Find batch size", lambda: self._bench.find_batch_size(**asked))

    def find_clip_val(self) -> None:
        self._ask("Find clip value", self._bench.find_clip_val)

    @property
    def of_settings(self) -> dict[str, tuple[str, Callable[[], None]]]:
        """The searches in the form of all settings: by setting, what it does, and the call."""
        return {
            "num_workers": ("Try numbers of loader workers for speed", lambda: self._ask("Find workers", self._bench.find_num_workers)),
            "precision": (
                "Try precisions for speed, and whether their losses agree with float32's",
                lambda: self._ask("Find precision", self._bench.find_precision),
            ),
        }

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
                header.use_clip.offer(dict(event.best), format.rate(value) if value else "", event.reason, self._bench.settings)
            case SpeedSearchEnded():
                name = next((name for name in form.found if name in event.best), None)
                if name is not None:
                    text = ", ".join(f"{key}={value}" for key, value in event.best.items())
                    form.found[name].offer(dict(event.best), text, event.reason, self._bench.settings)
            case _:
                pass

    @property
    def _optimizer(self) -> int:
        """The optimizer that is swept; a fit sweeps its first."""
        return 0 if self._started is None else int(self._started.request.get("optimizer", 0))

    def _rate(self, event: CurveEnded) -> Rate | None:
        alone = self._started is not None and self._started.request.get("group") is not None
        if event.suggestion is None or alone:  # the setting would move the rates of all groups
            return None
        why = " · ".join(event.doubts) or next((s.why for s in event.suggestions if s.lr == event.suggestion), event.ended)
        groups = () if self._started is None else self._started.groups[self._optimizer : self._optimizer + 1]
        ratio = groups[0][0][1] if groups and groups[0] else 1.0
        return Rate(event.suggestion, ratio, why)

    def _offer_size(self, event: SearchEnded, header: Header) -> None:
        if event.best is None:
            header.use_batch_size.offer({}, "", "", self._bench.settings)
            return
        changes, text, many = {"batch_size": event.best}, str(event.best), event.accumulate_grad_batches
        if many is not None:
            changes["accumulate_grad_batches"], text = many, f"{many} x {event.best}"
        header.use_batch_size.offer(changes, text, event.ended, self._bench.settings)


def _choose(header: Header, optimizer: int) -> None:
    """A record of another kernel may name an optimizer that this bench does not have."""
    if any(value == optimizer for _, value in header.optimizer.options):
        header.optimizer.value = optimizer
