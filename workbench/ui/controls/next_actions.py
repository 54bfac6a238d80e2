"""Decides whether the panel offers to continue the last fit, or to change the running one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.events import Event, RunEnded, RunStarted, StepsDone
from workbench.runs.tables.brief import RunBrief
from workbench.settings import Settings, SettingsError, recorded_settings
from workbench.settings.setting_text import same, text
from workbench.techniques.stopping import LENGTHS, reached
from workbench.ui import format, texts

LIVE = tuple(texts.LIVE)
"""The settings that the run buttons can change in a running fit."""
GOING = ("queued", "running", "paused")
"""The states of a job that waits or runs."""


def more_to_do(jobs: Iterable[Any], now: Settings) -> dict[str, Any] | None:
    """The settings with which the last fit can be continued; None where it cannot, or where a fit
    waits or runs.

    A fit that was stopped continues to its own length. One that has reached its end continues to
    the length in the controls, if that leaves more to do. A deleted one cannot be continued.
    """
    fits = [job for job in jobs if job.kind == "fit"]
    if any(job.status in GOING for job in fits):
        return None
    begun = [job for job in fits if any(isinstance(event, RunStarted) for event in job.events)]
    if not begun or begun[-1].settings.fast_dev_run or gone(begun[-1]):
        return None
    if begun[-1].status == "stopped":
        return {}
    if begun[-1].status != "finished":
        return None
    then = begun[-1].settings
    other = {
        name: getattr(now, name)
        for name in LENGTHS
        if not same(getattr(now, name), getattr(then, name))
    }
    return other if other and _leaves_more(begun[-1].events, then, other) else None


def lengths(run: RunBrief, now: Settings) -> dict[str, Any]:
    """The lengths with which a recorded run is continued: if it has reached its end, those in
    the controls that differ from its own.
    """
    if run.status != "finished":
        return {}
    then = recorded_settings(run.settings)
    return {
        name: getattr(now, name)
        for name in LENGTHS
        if not same(getattr(now, name), getattr(then, name))
    }


def why_not_continued(run: RunBrief, resumable: bool, now: Settings, parameters: int) -> str:
    """Why a recorded run cannot be continued; "": it can. resumable: whether it has a
    checkpoint. parameters: their number in the bench's model.
    """
    if run.unseen:
        return texts.MAY_STILL_RUN
    if run.status in GOING:
        return texts.NOT_ENDED
    if run.model[1] not in (None, parameters):
        return texts.another_model(run.model[0])
    if not resumable:
        return texts.NO_CHECKPOINT
    if run.status != "finished":
        return ""
    epochs = int(run.curve[-1, 1] + 1e-6) if len(run.curve) else 0
    try:
        longer = recorded_settings(run.settings).replace(**lengths(run, now))
    except SettingsError as error:
        return str(error)
    ended = reached(longer, run.step, epochs, run.seconds)
    if ended is None and lengths(run, now):
        return ""
    return texts.at_its_end(ended or texts.EARLY_STOPPING)


def _leaves_more(events: Sequence[Event], then: Settings, other: Mapping[str, Any]) -> bool:
    """Whether a fit that has reached its end has more to do with these lengths, which count from
    its beginning.
    """
    end = next((event for event in reversed(events) if isinstance(event, RunEnded)), None)
    epoch = next((event.epoch for event in reversed(events) if isinstance(event, StepsDone)), 0)
    if end is None:
        return False
    # The last event has the number of its epoch. That epoch was complete if the run can only have
    # ended at an epoch's end.
    if (
        reached(then, end.step, epoch, end.seconds) is None
        and reached(then, end.step, epoch + 1, end.seconds) is not None
    ):
        epoch += 1
    try:
        return reached(then.replace(**other), end.step, epoch, end.seconds) is None
    except SettingsError:  # these lengths contradict other settings of the fit
        return False


def differences(now: Settings, in_run: Mapping[str, Any]) -> dict[str, Any]:
    """The live settings in which the controls and the running fit differ, with the controls'
    values.
    """
    wanted = {name: getattr(now, name) for name in in_run}
    # a schedule by epochs is not a live value
    fits = {name: value for name, value in wanted.items() if not isinstance(value, Mapping)}
    return {name: value for name, value in fits.items() if not same(value, in_run[name])}


def in_words(changes: Mapping[str, Any]) -> str:
    """'lr 3.2e-3, clip off, accumulation 4'."""
    return ", ".join(f"{texts.LIVE[name]} {_value(value)}" for name, value in changes.items())


def gone(job: Any) -> bool:
    """Whether the run of a job was deleted."""
    return job.folder is not None and not job.folder.path.is_dir()


def _value(value: Any) -> str:
    if value is None:
        return texts.OFF
    return format.rate(value) if isinstance(value, float) else text(value)
