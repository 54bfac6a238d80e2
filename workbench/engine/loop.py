"""The fit: epochs of updates with validation between, under commands from outside.

`fit` reads like a table of contents. It never imports a tuner: what is to happen at the start of an epoch comes
in as `at_epoch`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

import numpy as np

from workbench.commands import Change, Inbox, Pause, Resume, Stop
from workbench.engine import rng
from workbench.engine.session import Session
from workbench.engine.step import update
from workbench.engine.validate import validate
from workbench.events import Changed, Emit, Event, Status, StatusChanged, StepsDone, Validated
from workbench.instruments.finite import NonFiniteError
from workbench.task.batch import describe
from workbench.task.protocol import TaskError
from workbench.techniques.accumulation import windows

AtEpoch = Mapping[int, Callable[[Session], None]]


def fit(session: Session, emit: Emit, inbox: Inbox, at_epoch: AtEpoch | None = None) -> Status:
    """Train until a length is reached ("finished") or a Stop arrives ("stopped"); events go out as it runs."""
    milestones = at_epoch or {}
    session.train_mode()
    try:
        stopped = _obey(session, emit, inbox)
        while not stopped and not _reached(session):
            milestones.get(session.epoch, _nothing)(session)
            stopped = _train_epoch(session, emit, inbox)
            _flush(session, emit, wait=True)
            if not stopped:
                _end_epoch(session)
                stopped = _validation_due(session) and _validate(session, emit, inbox)
    except BaseException:
        _keep(session, emit)
        raise
    return "stopped" if stopped else "finished"


def _train_epoch(session: Session, emit: Emit, inbox: Inbox) -> bool:
    """One pass over the training data; whether it was stopped."""
    before = session.step
    session.batch_idx = 0
    for window in windows(session.train_loader, session.settings.accumulate_grad_batches):
        rng.give_way()
        if inbox and _obey(session, emit, inbox):
            return True
        try:
            update(session, window)
        except Exception as error:
            error.add_note(f"at update {session.step}, epoch {session.epoch}, on {describe(window[0])}")
            raise
        if session.meter.due():
            _flush(session, emit)
        if session.step == session.settings.max_steps:
            break
    if session.step == before:
        raise TaskError(
            f"the training data gave no batch in epoch {session.epoch}: "
            + ("it can be read only once; give a Dataset or a DataLoader." if session.epoch else "it is empty.")
        )
    return False


def _reached(session: Session) -> bool:
    settings = session.settings
    by_epochs = settings.epochs is not None and session.epoch >= settings.epochs
    return by_epochs or (settings.max_steps is not None and session.step >= settings.max_steps)


def _end_epoch(session: Session) -> None:
    session.epoch += 1
    for schedule in session.schedules:
        if schedule.interval == "epoch" and session.epoch % schedule.frequency == 0:
            schedule.scheduler.step()


def _validation_due(session: Session) -> bool:
    last = _reached(session)
    return last or session.epoch % session.settings.check_val_every_n_epoch == 0


def _validate(session: Session, emit: Emit, inbox: Inbox) -> bool:
    """One check of the validation data; whether it was stopped, and then it says nothing."""
    loader = session.val_loader()
    stopped = False

    def until_stopped() -> Iterator[Any]:
        nonlocal stopped
        for batch in () if loader is None else loader:  # not `or`: that asks for its length
            if inbox and inbox.has(Stop):  # anything else waits for the next update
                stopped = _obey(session, emit, inbox)
                return
            yield batch

    metrics = validate(session, until_stopped())
    if metrics and not stopped:
        emit(Validated(session.step, session.epoch - 1, metrics))
    return stopped


def _flush(session: Session, emit: Emit, wait: bool = False) -> None:
    events = session.meter.flush(session.epoch, wait)
    for event in events:
        emit(event)
    for event in events:
        _check_landed(session, event)


def _keep(session: Session, emit: Emit) -> None:
    """An error ends the run: what led to it is kept, if the device still answers."""
    with contextlib.suppress(RuntimeError):
        for event in session.meter.flush(session.epoch, wait=True):
            emit(event)


def _check_landed(session: Session, event: StepsDone) -> None:
    """On a device, a loss or gradient that is not finite is seen when its flush lands; the run ends there."""
    losses = event.array("loss")
    wrong = ~np.isfinite(losses)
    if not session.on_cpu and "grad_norm" in event.columns:
        wrong |= np.isnan(event.array("grad_norm"))
    bad = np.flatnonzero(wrong)
    if bad.size:
        step = int(event.steps[bad[0]])
        raise NonFiniteError(
            f"loss is {losses[bad[0]]} at update {step}: lower the learning rate, clip, or look for bad inputs. "
            "The run ended at the next flush; the weights after that update are not usable."
        )


def _obey(session: Session, emit: Emit, inbox: Inbox) -> bool:
    """Carry out the commands that wait, and hold while paused; whether to stop."""
    paused_at: float | None = None
    while True:
        command = inbox.take()
        if command is None and paused_at is None:
            return False
        if command is None:
            inbox.wait(0.2)
            rng.give_way()
            if not threading.main_thread().is_alive():
                return True  # the process wants to end, and nobody is left who could resume
        elif isinstance(command, Stop):
            return True
        elif isinstance(command, Change):
            _change(session, command.values, emit)
        elif isinstance(command, Pause) and paused_at is None:
            paused_at = perf_counter()
            _tell(session, emit, StatusChanged("paused", session.step))
        elif isinstance(command, Resume) and paused_at is not None:
            session.meter.leave_out(perf_counter() - paused_at)
            paused_at = None
            _tell(session, emit, StatusChanged("running", session.step))


def _change(session: Session, values: Mapping[str, float | None], emit: Emit) -> None:
    if values.get("lr") is not None:
        session.set_lr(float(values["lr"]))  # type: ignore[arg-type]
    if "gradient_clip_val" in values:
        session.clip_val = values["gradient_clip_val"]
    _tell(session, emit, Changed(session.step, dict(values)))


def _tell(session: Session, emit: Emit, event: Event) -> None:
    """Say something at its place in the record: behind the updates before it."""
    _flush(session, emit, wait=True)
    emit(event)


def _nothing(_: Session) -> None:
    """No milestone at this epoch."""
