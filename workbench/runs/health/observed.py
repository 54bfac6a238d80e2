"""Reports modules in evaluation mode, a data order that repeats, and slow calls in the user's
code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from workbench.events import Event, Message, Observed, RunStarted
from workbench.runs.checkpoints import UNSTORED
from workbench.runs.health.finding import Finding, Level, OneFinding, Rule
from workbench.values import first_names


class EvaluationMode(OneFinding):
    """Reports modules with dropout or normalisation statistics that were in evaluation mode during
    an update.

    For the whole model it is a warning. For a part, which is often intended (the normalisation of a
    backbone), it is an info; parts without a trainable weight are not observed.
    """

    def on_event(self, event: Event) -> None:
        if not isinstance(event, Observed) or event.what != "evaluation_mode":
            return
        step = event.step - 1
        if "" in event.parts:
            text = (
                f"the model was in evaluation mode at update {step}: without dropout and batch"
                " statistics"
            )
            self._found = Finding(
                "warning",
                text,
                "does its forward or a hook call eval()? Call train() after it",
                step,
            )
        elif self._found is None:
            names = first_names(event.parts, 3)
            text = f"{names} trained in evaluation mode: without dropout and batch statistics"
            self._found = Finding(
                "info", text, "if that is not on purpose, call train() on it", step
            )


class SameOrder(OneFinding):
    """Reports two consecutive epochs with the same order of samples, from a sampler that
    shuffles.
    """

    def on_event(self, event: Event) -> None:
        if isinstance(event, Observed) and event.what == "same_order" and self._found is None:
            text = (
                f"epoch {event.epoch} had its samples in the same order as epoch {event.epoch - 1},"
                " although they are shuffled"
            )
            advice = (
                "does the sampler seed its generator in __iter__? Seed it once, or by"
                " set_epoch(epoch)"
            )
            self._found = Finding("warning", text, advice, event.step)


class Unstored(OneFinding):
    """Reports state of the user's objects that no checkpoint of the run has; the first place is
    named.
    """

    def on_event(self, event: Event) -> None:
        if isinstance(event, Message) and UNSTORED in event.text and self._found is None:
            attribute = event.text.partition(UNSTORED)[0].strip()
            advice = (
                "keep it in numbers, tensors, arrays or containers of them, or in an object of your"
                " own that holds these"
            )
            self._found = Finding("warning", f"{attribute} {UNSTORED}", advice, event.step)


class SlowCalls(Rule):
    """Reports lines of the user's code that make training wait in each update, with the measured
    time.
    """

    WARNS = 0.1
    """The share of an update from which it is a warning."""
    READS = "keep it a tensor: self.log(…) and metrics= read values later, all at once"
    MOVES = "make it on the device, with device=x.device, or once, as a buffer"
    MAKES = "its values are copied from the CPU each time: make it once, as a buffer"
    ADVICE: ClassVar[Mapping[str, str]] = {
        "to": MOVES,
        "cuda": MOVES,
        "tensor": MAKES,
        "as_tensor": MAKES,
        "asarray": MAKES,
        "new_tensor": MAKES,
        "empty_cache": (
            "leave it out: torch uses that memory again by itself, and else has to get it anew from"
            " the device"
        ),
        "synchronize": "leave it out: torch waits for the device where a value is needed",
        "collect": (
            "leave it out, or call it once an epoch: it looks at every object of the process"
        ),
    }
    """The advice for each call; for any other call, which reads a value, it is `READS`."""

    def __init__(self, start: RunStarted) -> None:
        self._found: tuple[Finding, ...] = ()

    def on_event(self, event: Event) -> None:
        if isinstance(event, Observed) and event.what == "slow_calls":
            self._found = tuple(self._finding(sentence, event.step) for sentence in event.parts)

    def _finding(self, sentence: str, step: int) -> Finding:
        call = re.search(r"in (\w+)\(\)$", sentence)
        advice = self.ADVICE.get(call[1], self.READS) if call is not None else self.READS
        share = re.search(r"takes (\d+)% of an update", sentence)
        level: Level = (
            "warning" if share is not None and int(share[1]) >= 100 * self.WARNS else "info"
        )
        return Finding(level, sentence, advice, step)

    def findings(self) -> Iterator[Finding]:
        yield from self._found
