"""Lists the changes during a run: live changes, and the updates at which it continues another
run.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TypeGuard

from workbench.events import (
    Changed,
    CurveEnded,
    Event,
    Logged,
    Resumed,
    SearchEnded,
    StepsDone,
    Validated,
)
from workbench.export.errors import ExportError, NotStandAlone
from workbench.export.supported import LENGTHS, NO_MATTER, NOT_NEEDED, REPLAYED, SET
from workbench.runs.read import STUDY, read_header
from workbench.runs.run import Run
from workbench.values import first_names


@dataclasses.dataclass(frozen=True)
class ResumePoints:
    """Where a run continues another one."""

    all: tuple[int, ...] = ()
    """The updates before which it does."""
    edited: frozenset[str] = frozenset()
    """The settings that were edited there, except for those that a live change could have set."""


def resume_points_of(run: Run) -> ResumePoints:
    """The points at which the run continues others; raises ExportError for an edit that no
    script can replay.
    """
    edited: set[str] = set()
    for event in run.resumes:
        refuse_other_start(run, event)
        edited |= _edited(run, event)
    if not edited and _is_of_study(run):
        # a trial that was promoted, or taken over, is its whole fit to the bit
        return ResumePoints()
    return ResumePoints(tuple(int(event.step) for event in run.resumes), frozenset(edited))


def _is_of_study(run: Run) -> bool:
    """Whether a run is a piece of a trial, as are the runs that it continues."""
    return run.folder is not None and run.folder.is_dir() and STUDY in read_header(run.folder)


def refuse_other_start(run: Run, event: Resumed) -> None:
    """Raise ExportError for a start from what no script has: a checkpoint of Lightning, or layers
    that were frozen or trained only up to there.
    """
    if event.run.endswith(".ckpt"):
        raise ExportError(
            f"run {run.id} continues {event.run}, a checkpoint of Lightning: a script begins with "
            "weights alone, and does not have the states of its optimizers. Export a run that "
            "starts from its weights: bench.load(path), then bench.fit()."
        )
    if event.unfrozen or event.frozen:
        did, names, before = ("freezes", event.frozen, "were trained")
        if event.unfrozen:
            did, names, before = ("trains", event.unfrozen, "were frozen")
        raise ExportError(
            f"run {run.id} {did} layers ({first_names(names, 3)}) that {before} until update "
            f"{event.step}, where it continues {event.run}, and a script trains the same layers "
            "from its beginning. Export a run that starts from its weights: "
            f"bench.load({event.run!r}), then bench.fit()."
        )


def _edited(run: Run, event: Resumed) -> set[str]:
    """The settings that were edited there, without those that the record has as a live change
    too.
    """
    live = {name for change in run.changes if change.step == event.step for name in change.values}
    for name, value in event.values.items():
        if name not in LENGTHS | NOT_NEEDED | NO_MATTER and not (name in REPLAYED and name in live):
            raise NotStandAlone(
                f"{name}={value!r} was set where run {run.id} continues {event.run}, at update"
                f" {event.step}, and a script has one {name} for the whole run."
            )
    return set(event.values) - live


def _other_epoch(run: Run, place: int) -> bool:
    """Whether the updates after this place of the record are of another epoch."""
    before = next((e for e in reversed(run.outline[:place]) if isinstance(e, StepsDone)), None)
    after = next((e for e in run.outline[place:] if isinstance(e, StepsDone)), None)
    return before is not None and after is not None and after.epoch > before.epoch


def epoch_ends_of(run: Run) -> tuple[int, ...]:
    """The last updates of epochs that a live change followed, before the end of the epoch."""
    return tuple(
        dict.fromkeys(
            int(e.step) for n, e in enumerate(run.outline) if _sets(e) and _ends_epoch(run, n)
        )
    )


def _sets(event: Event) -> TypeGuard[Changed]:
    return isinstance(event, Changed) and not SET.isdisjoint(event.values)


def _ends_epoch(run: Run, place: int) -> bool:
    if not _other_epoch(run, place):
        return False
    since = list(itertools.takewhile(_is_between, reversed(run.outline[:place])))
    until = list(itertools.takewhile(_is_between, run.outline[place:]))
    if any(isinstance(e, Resumed) for e in since):
        return any(_is_check(e) for e in until)
    return not any(_is_check(e) or isinstance(e, Logged | CurveEnded | SearchEnded) for e in since)


def _is_check(event: Event) -> TypeGuard[Validated]:
    """Whether it is a scheduled validation: a script makes no other."""
    return isinstance(event, Validated) and not event.asked


def _is_between(event: Event) -> bool:
    return not isinstance(event, StepsDone)
