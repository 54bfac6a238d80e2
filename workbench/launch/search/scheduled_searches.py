"""Searches a learning rate or a batch size at the start of an epoch of a fit, and trains on with
it.
"""

from __future__ import annotations

from workbench.commands import Stop
from workbench.engine.control import Control
from workbench.engine.data.loaders import Loaders
from workbench.engine.loop import AtEpoch
from workbench.engine.session import Session
from workbench.launch.search.trial_process import trials
from workbench.settings import Settings, SettingsError
from workbench.share.package import pack
from workbench.tuners.batch_size import batch_size_finder
from workbench.tuners.batch_size.batch_size_finder import BatchSizeRequest
from workbench.tuners.batch_size.batch_size_search import ModelDoesNotFit
from workbench.tuners.learning_rate import lr_finder
from workbench.tuners.learning_rate.lr_finder import LRRequest
from workbench.units import rate


def check(settings: Settings) -> None:
    """Raise SettingsError for searches at epochs that the run does not have."""
    if settings.epochs is not None and not settings.fast_dev_run:
        last = (
            f"there {'is' if settings.epochs == 1 else 'are'} {settings.epochs} (max_epochs),"
            " counted from 0"
        )
        _refuse(settings, [e for e in _epochs(settings) if e >= settings.epochs], last)


def searches_by_epoch(session: Session) -> AtEpoch:
    """Return the searches by epoch; raise now the errors that would otherwise come in the middle
    of the run.
    """
    settings = session.settings
    if settings.fast_dev_run:
        return {}  # a search on the few batches of a dry run would find nothing
    _refuse_too_late(settings, session.data)
    if settings.find_batch_size_at:
        batch_size_finder.cap_of(session.task, ranks=session.ranks.world)
        if session.plan.on_cpu and not session.ranks.several:  # its trials run in another process
            pack((session.task, settings), names={"task": session.task}, lists=True).close()
    return dict.fromkeys(_epochs(settings), _searches)


def _epochs(settings: Settings) -> list[int]:
    return sorted({*settings.find_batch_size_at, *settings.find_lr_at})


def _searches(session: Session, control: Control) -> bool:
    """Run the searches of this epoch, batch size first; returns whether the fit was stopped."""
    if session.state.epoch in session.settings.find_batch_size_at and _stopped_in_batch_size(
        session, control
    ):
        return True
    return session.state.epoch in session.settings.find_lr_at and _stopped_in_lr(session, control)


def _stopped_in_lr(session: Session, control: Control) -> bool:
    end = lr_finder.run(session, LRRequest(), control.recorder.emit, control.inbox)
    if control.inbox.has(Stop):
        return control.apply(stopping=True)
    if end.suggestion is None:
        why = " ".join(end.notes) or f"The sweep ended: {end.ended}."
        control.recorder.warn(
            f"no learning rate can be trusted at epoch {session.state.epoch}; the fit keeps the"
            f" present one. {why}"
        )
    else:
        control.change({"lr": end.suggestion})
        if end.doubts:
            doubt = (
                f"the learning rate found at epoch {session.state.epoch} ({rate(end.suggestion)}) "
                "is in doubt."
            )
            control.recorder.warn(f"{doubt} {' '.join(end.doubts)}")
    return False


def _stopped_in_batch_size(session: Session, control: Control) -> bool:
    task, settings = session.task, session.data.settings
    request = BatchSizeRequest()
    best, why = None, ""
    try:
        with trials(task, settings, request, control.inbox, session) as trial:
            sizes = batch_size_finder.run(
                task,
                settings,
                request,
                control.recorder.emit,
                control.inbox,
                trial,
                session.ranks.world,
            )
            best, why = sizes.best, sizes.reason
    except ModelDoesNotFit as error:
        why = str(error)
    if best is None and why:
        at = f"at epoch {session.state.epoch}"
        control.recorder.warn(f"no batch size was found {at}; the fit keeps the present one. {why}")
    if control.inbox.has(Stop):
        return control.apply(stopping=True)
    if best is not None and best != settings.batch_size:
        if any(opt.schedules for opt in session.optimizers) and session.updates is not None:
            text = (
                f"the batch size becomes {best}, and the schedule keeps the {session.updates}"
                " updates for which it was made."
            )
            control.recorder.warn(text)
        control.change({"batch_size": best})
    return False


def _refuse_too_late(settings: Settings, data: Loaders) -> None:
    """Raise SettingsError for searches after max_steps. With find_batch_size_at the length of
    the epochs is not known yet.
    """
    if settings.max_steps is None or settings.find_batch_size_at:
        return
    begins: int | None = 0
    beyond = []
    for epoch in range(max(settings.find_lr_at, default=-1) + 1):
        if begins is not None and begins >= settings.max_steps and epoch in settings.find_lr_at:
            beyond.append(epoch)
        updates = data.updates_in(epoch)
        begins = None if begins is None or updates is None else begins + updates
    _refuse(settings, beyond, f"max_steps={settings.max_steps} ends the run before")


def _refuse(settings: Settings, beyond: list[int], why: str) -> None:
    for name in ("find_batch_size_at", "find_lr_at"):
        late = [epoch for epoch in getattr(settings, name) if epoch in beyond]
        if late:
            raise SettingsError(
                f"{name}={getattr(settings, name)}: epoch {late[0]} is never reached; {why}."
            )
