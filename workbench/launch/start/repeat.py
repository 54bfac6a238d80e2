"""Finds in the record of a fit what its repetition needs, and compares the two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.commands import Change, Scheduled, Stop
from workbench.engine.checkpoint import lightning_file
from workbench.events import (
    DOES_NOT_REPEAT,
    REPEATS,
    Changed,
    CurveEnded,
    Event,
    Message,
    Resumed,
    RunStarted,
    SearchEnded,
    StepsDone,
    Validated,
)
from workbench.launch.start.resume_plan import ResumeHistory
from workbench.runs.checkpoints import Checkpoint, list_checkpoints
from workbench.runs.run import Run


def commands_of(run: Run) -> list[Scheduled]:
    """The live changes of a fit, and the end of one that was stopped.

    What a search of the fit itself has found is left out: the repetition searches, too.
    """
    commands: list[Scheduled] = []
    before: Event | None = None
    searched = False
    for event in _own_events(run):
        if isinstance(event, StepsDone):
            searched = False
        elif isinstance(event, CurveEnded | SearchEnded):
            searched = True
        elif isinstance(event, Changed) and not searched and not isinstance(before, Resumed):
            commands.append(Scheduled(event.step, Change(event.values)))
        before = event
    if run.status == "stopped" or (run.status == "finished" and run.settings.max_time is not None):
        commands.append(Scheduled(run.step, Stop()))
    return commands


def history_of(run: Run) -> ResumeHistory | None:
    """The record before the checkpoint from which a fit continues; None: it continues none."""
    if not run.resumes:
        return None
    events = list(run.events)
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    count = len(_own_events(run))
    until = events[: len(events) - count + 1]
    before: list[Event] = [event for event in until if not isinstance(event, RunStarted)]
    return ResumeHistory(None if started is None else started.settings, before)


def _own_events(run: Run) -> Sequence[Event]:
    """The events of a fit from the last `Resumed` on; all, where it continues no run."""
    events = list(run.events)
    last = max(
        (index for index, event in enumerate(events) if isinstance(event, Resumed)), default=0
    )
    return events[last:]


def inherited_of(run: Run, point: Path) -> tuple[Path, Checkpoint] | None:
    """The checkpoint from which a fit continues, with the folder of a run that still has it; None:
    it is a file of Lightning.

    point: where it was. Raises FileNotFoundError where it is gone.
    """
    if lightning_file.is_one(point):
        if not point.is_file():
            raise FileNotFoundError(
                f"{run.id} cannot be repeated: it continues {point}, which is gone."
            )
        return None
    assert run.folder is not None
    folders = (run.folder, point.parents[1])
    for folder in folders:
        for checkpoint in list_checkpoints(folder):
            if checkpoint.name == point.name:
                return folder, checkpoint
    names = " nor ".join(
        dict.fromkeys(str(folder / "checkpoints" / point.name) for folder in folders)
    )
    raise FileNotFoundError(
        f"{run.id} cannot be repeated: the checkpoint that it continues is gone. There is neither "
        f"{names}."
    )


@dataclass(frozen=True)
class Repetition:
    """Whether a run has the numbers of another."""

    equal: bool
    text: str
    """What is equal, or the first difference."""
    step: int = 0

    @property
    def message(self) -> Message:
        """The text as a message of the run."""
        return Message(self.text, "info" if self.equal else "warning", self.step)


def repetition(original: Run, again: Run) -> Repetition:
    """Compare the losses and validations of two runs, bit by bit."""
    losses, here = _losses(original), _losses(again)
    same = {step for step, loss in losses.items() if step in here and _same(here[step], loss)}
    validations, ours = _validations(original), _validations(again)
    alike = {
        check
        for check, metrics in validations.items()
        if check in ours and _same_metrics(ours[check], metrics)
    }
    step = max((0, *here))
    checked = f", and {len(alike)} of {len(validations)} validations" if validations else ""
    counts = f"{len(same)} of {len(losses)} losses equal{checked}"
    first = next((step for step in losses if step not in same), None)
    if first is not None:
        if first not in here:
            return Repetition(
                False,
                f"{DOES_NOT_REPEAT}{original.id}: it ended before update {first}; {counts}.",
                step,
            )
        value = f"it is {float(here[first])!r} here and {float(losses[first])!r} there"
        return Repetition(
            False,
            f"{DOES_NOT_REPEAT}{original.id}: the loss of update {first} is the first to differ "
            f"({value}); {counts}.{_CAUSES}",
            step,
        )
    check = next((check for check in validations if check not in alike), None)
    if check is not None:
        return Repetition(
            False,
            f"{DOES_NOT_REPEAT}{original.id}: the validation after update {check[0]} is the first "
            f"to differ; {counts}.{_CAUSES}",
            step,
        )
    if len(here) > len(losses):
        return Repetition(
            False, f"{DOES_NOT_REPEAT}{original.id}: it has {len(here)} losses; {counts}.", step
        )
    return Repetition(True, f"{REPEATS}{original.id}: {counts}.", step)


_CAUSES = (
    " What no run keeps may be the cause: files and services that its code reads, environment "
    "variables, the clock, the order of a set, or kernels of a GPU that are not deterministic."
)


def _losses(run: Run) -> dict[int, Any]:
    history = run.history
    return dict(zip(history["step"].tolist(), history["loss"], strict=True))


def _validations(run: Run) -> dict[tuple[int, int], Mapping[str, float]]:
    """The metrics of each validation that belongs to the run, by update and epoch."""
    return {
        (event.step, event.epoch): event.metrics
        for event in run.outline
        if isinstance(event, Validated) and not event.asked
    }


def _same_metrics(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return one.keys() == other.keys() and all(
        _same(one[name], value) for name, value in other.items()
    )


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or (math.isnan(one) and math.isnan(other))
