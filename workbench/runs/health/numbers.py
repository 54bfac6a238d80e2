"""Reports non-finite values: the one that ended the run, and updates that were left out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from workbench.events import Event, Message, RunEnded, RunStarted, Spiked, StepsDone, Validated
from workbench.runs.health.finding import FIND_RATE, Finding, OneFinding, Rule, in_a_line, taken
from workbench.runs.record.series import column
from workbench.units import counted, number

_ERROR = "NonFiniteError: "
_SKIPPED = re.compile("This update was skipped|The update was not taken")
"""The run's own message about each of the first updates that are left out; the second text is
from earlier versions.
"""


_VALIDATION = "the validation loss is not finite"
"""How the run's own message begins about the first batch with such a loss."""


def replaces_message(message: Message) -> bool:
    """Whether a finding replaces this message of the run."""
    of_validation = message.level == "warning" and message.text.startswith(_VALIDATION)
    return of_validation or _is_about_skipped(message)


def _is_about_skipped(message: Message) -> bool:
    return message.level == "warning" and _SKIPPED.search(message.text) is not None


class NonFinite(OneFinding):
    """Reports the first update whose loss or gradient was not finite, and the first layer with
    such a gradient.
    """

    def __init__(self, start: RunStarted) -> None:
        super().__init__(start)
        self._layers = start.layers
        self._alive = np.zeros(len(start.layers), dtype=np.bool_)
        """Which layers ever had a gradient: the norm of a layer without one is NaN, too."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepsDone):
            self._steps(event)
        elif isinstance(event, RunEnded) and event.error and event.error.startswith(_ERROR):
            # The run's own message has more details: the batch, and the origin of the value.
            text = event.error.removeprefix(_ERROR).strip().rstrip(".")
            remedy = "" if "the batch itself holds" in text else FIND_RATE
            self._found = Finding("error", text, "", event.step, remedy, trouble="not finite")

    def _steps(self, event: StepsDone) -> None:
        bad = ~taken(event) & ~(column(event, "skipped") > 0)
        norms = (
            event.array("layer_norms")
            if event.columns.get("layer_norms")
            else np.empty((event.rows, 0))
        )
        norms = (
            norms
            if norms.shape[1] == len(self._layers)
            else np.full((event.rows, len(self._layers)), np.nan)
        )
        if bad.any() and self._found is None:
            row = int(bad.argmax())
            self._alive |= np.isfinite(norms[:row]).any(axis=0)
            # the norms of an old update may have been thinned out
            has_norms = bool(event.layer_rows[row])
            wrong = np.flatnonzero(
                np.isinf(norms[row]) | (np.isnan(norms[row]) & self._alive & has_norms)
            )
            quantity = "gradient" if np.isfinite(column(event, "loss")[row]) else "loss"
            where = f", first in {self._layers[wrong[0]]}" if len(wrong) else ""
            step = int(event.steps[row])
            text = f"{quantity} not finite at update {step}{where}"
            self._found = Finding(
                "error",
                text,
                "lower the learning rate, clip, or look for bad inputs",
                step,
                FIND_RATE,
                "not finite",
            )
        self._alive |= np.isfinite(norms).any(axis=0)


class NonFiniteValidation(OneFinding):
    """Reports the first validation loss that is not finite: nothing then tells which weights are
    best, and early stopping ends the run.
    """

    TROUBLE = "val_loss not finite"

    def on_event(self, event: Event) -> None:
        if isinstance(event, Message) and event.text.startswith(_VALIDATION):
            # it has more details than the mean: the batch, and whether its data are the cause
            text = event.text.rstrip(".")
            self._found = Finding("error", text, "", event.step, trouble=self.TROUBLE)
        elif isinstance(event, Validated) and self._found is None:
            name = next((name for name in event.metrics if self._is_bad(event.metrics, name)), None)
            if name is not None:
                text = f"{name} is {event.metrics[name]} after update {event.step}"
                advice = (
                    "look for NaN or infinite values in the validation data, or for log(0), 0/0 or"
                    " overflow in the loss"
                )
                self._found = Finding("error", text, advice, event.step, trouble=self.TROUBLE)

    def _is_bad(self, metrics: Mapping[str, float], name: str) -> bool:
        is_loss = name.partition("/")[0].removesuffix("_averaged") == "val_loss"
        return is_loss and not math.isfinite(metrics[name])


class SkippedUpdates(Rule):
    """Reports updates that were left out. 16-mixed leaves out a few by design while it searches
    for its loss scale.
    """

    BY_DESIGN = 10
    """How often torch's GradScaler halves its scale from 65536 until almost any gradient fits."""
    SHARE = 0.01
    """The share of updates: the scaler tries a larger scale every 2000 updates, so 1 in 2000 is
    usual.
    """

    def __init__(self, start: RunStarted) -> None:
        self._scaled = start.settings.get("precision") == "16-mixed"
        self._first, self._count, self._updates = 0, 0, 0
        self._said = ""
        """The run's own message about the first one."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepsDone):
            skipped = column(event, "skipped") > 0
            if skipped.any() and not self._count:
                self._first = int(event.steps[skipped.argmax()])
            self._count += int(skipped.sum())
            self._updates += event.rows
        elif isinstance(event, Spiked) and event.action != "report":
            self._count -= 1  # `Spikes` reports them
        elif isinstance(event, Message) and _is_about_skipped(event) and not self._said:
            self._said = _SKIPPED.split(event.text)[0].strip().rstrip(".")

    def findings(self) -> Iterator[Finding]:
        if self._count <= 0:
            return
        many = (
            "1 update was left out, update"
            if self._count == 1
            else f"{self._count} updates were left out, the first at"
        )
        if not self._scaled:
            why = f": {self._said}" if self._said else ""
            yield Finding(
                "warning",
                f"{many} {self._first}{why}",
                "look at the batch, or lower the learning rate",
                self._first,
            )
        elif self._count > max(self.BY_DESIGN, self.SHARE * self._updates):
            yield Finding(
                "warning",
                f"{many} {self._first}: too large for 16 bits",
                "precision='bf16-mixed' has room for them",
                self._first,
            )


class Spikes(Rule):
    """Reports updates whose loss or gradient norm was far above those before them."""

    FEW = 3
    """The most samples that are named as common to all."""

    def __init__(self, start: RunStarted) -> None:
        self._first: Spiked | None = None
        self._count = 0
        self._common: set[int] = set()
        """The samples, or ready batches, that each of them has."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, Spiked):
            if self._first is None:
                self._first, self._common = event, set(event.samples)
            self._common &= set(event.samples)
            self._count += 1

    def findings(self) -> Iterator[Finding]:
        if self._first is None:
            return
        first = self._first
        at = f"update {first.step}: {number(first.loss)}, expected {number(first.expected)}"
        if self._count > 1:
            at = f"{self._count} times, the first time at {at}"
            if 0 < len(self._common) <= self.FEW:
                named = ", ".join(map(str, sorted(self._common)))
                if first.are_batches:
                    at += f"; each of them has batch {named} of the loader"
                else:
                    at += f"; sample {named} is in each of these batches"
        else:
            at = f"at {at}"
        which = "numbers of the batches" if first.are_batches else "samples"
        if first.action == "report":
            yield Finding(
                "warning",
                f"the loss spiked {at}",
                f"run.spikes has the {which}; on_spike='skip' leaves such updates out",
                first.step,
                "bench.set(on_spike='skip')",
            )
        else:
            updates = "this update was" if self._count == 1 else "these updates were"
            back = "" if first.action == "skip" else ", with those since a copy of the weights"
            yield Finding(
                "info",
                f"the loss spiked {at}; {updates} left out{back}",
                f"run.spikes has the {which}",
                first.step,
            )


class Failed(OneFinding):
    """Reports the error that ended the run, if no other rule explains it."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunEnded) and event.error and not event.error.startswith(_ERROR):
            where = f" in {event.where}" if event.where else ""
            text = (
                f"an error ended it after {counted(event.step, 'update')}{where}:"
                f" {in_a_line(event.error)}"
            )
            self._found = Finding("error", text, "", event.step, trouble="failed")
