"""The fit: epochs of updates with validation between, under commands from outside.

`fit` reads like a table of contents. It never imports a tuner: what is to happen at the start of an epoch comes
in as `at_epoch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workbench.commands import Inbox
from workbench.engine import averaged, rng
from workbench.engine.checks import Checks
from workbench.engine.orders import obey
from workbench.engine.record import flush, keep, say
from workbench.engine.session import Session
from workbench.engine.step import update
from workbench.engine.trouble import refuse_unguarded
from workbench.events import Emit, Message, Status
from workbench.instruments.finite import NonFiniteError
from workbench.task.batch import describe
from workbench.task.protocol import TaskError
from workbench.techniques.accumulation import size_at, windows
from workbench.techniques.stopping import reached

AtEpoch = Mapping[int, Callable[[Session, Emit, Inbox], bool]]
"""What is to happen at the start of an epoch; each says whether it was stopped."""


def fit(session: Session, emit: Emit, inbox: Inbox, at_epoch: AtEpoch | None = None) -> Status:
    """Train until a length is reached ("finished") or a Stop arrives ("stopped"); events go out as it runs."""
    milestones = at_epoch or {}
    refuse_unguarded(session)
    averaged.refuse_unused(session)
    checks = Checks(session)
    session.train_mode()
    try:
        stopped = obey(session, emit, inbox) or checks.sanity(emit, inbox)
        while not stopped and not _over(session, checks):
            stopped = session.epoch in milestones and milestones[session.epoch](session, emit, inbox)
            stopped = stopped or _epoch(session, checks, emit, inbox)
        averaged.hand_over(session)
    except BaseException:
        keep(session, emit)
        raise
    _conclude(session, checks, emit)
    return "stopped" if stopped else "finished"


def _epoch(session: Session, checks: Checks, emit: Emit, inbox: Inbox) -> bool:
    """One epoch and what follows it; whether it was stopped."""
    averaged.begin_epoch(session)
    checks.begin_epoch()
    stopped = _train(session, checks, emit, inbox)
    flush(session, emit, wait=True)
    if stopped or checks.ended:
        return stopped
    averaged.end_epoch(session)
    session.epoch += 1
    for opt in session.optimizers:
        opt.step_schedules("epoch", session.epoch)
    return checks.at_end_of_epoch(_over(session, checks), emit, inbox)


def _train(session: Session, checks: Checks, emit: Emit, inbox: Inbox) -> bool:
    """One pass over the training data; whether it was stopped."""
    before = session.step
    session.batch_idx = 0
    size = size_at(session.settings.accumulate_grad_batches, session.epoch)
    empty = True
    for window in windows(session.data.train(), size):
        empty = False
        # Now that there is another window, the update before it was not the epoch's last, which has a check of its own.
        if checks.midway(session.step - before, emit, inbox):
            return True
        if checks.ended:
            break
        rng.give_way()
        if inbox and obey(session, emit, inbox):
            return True
        try:
            update(session, window)
        except Exception as error:
            batch = window[0].batch if session.tbptt is not None else window[0]
            error.add_note(f"at update {session.step}, epoch {session.epoch}, on {describe(batch)}")
            if session.settings.detect_anomaly and "returned nan values" in str(error):
                raise NonFiniteError(f"at update {session.step}, detect_anomaly: {error}") from error
            raise
        if session.notes:
            say(session, emit)
        if session.meter.due():
            flush(session, emit)
        if reached(session.settings, session.step, session.epoch, session.meter.seconds):
            break
    if empty:
        raise TaskError(
            f"the training data gave no batch in epoch {session.epoch}: "
            + ("it can be read only once; give a Dataset or a DataLoader." if _read(session) else "it is empty.")
        )
    if session.step == before and session.settings.epochs is None and not checks.ended:
        raise TaskError(
            f"every batch of epoch {session.epoch} was left out (None, or training_step returned None): no update was "
            "taken, and the run would go on like that."
        )
    return False


def _read(session: Session) -> bool:
    """Whether the data has been read before, and gives nothing any more."""
    return session.epoch > 0 or (session.task.train is not None and session.task.train.one_shot)


def _over(session: Session, checks: Checks) -> bool:
    """Whether the run ends here: a length is reached, or a metric has ended it."""
    length = reached(session.settings, session.step, session.epoch, session.meter.seconds)
    return length is not None or checks.ended is not None


def _conclude(session: Session, checks: Checks, emit: Emit) -> None:
    """What there is to say behind the last update."""
    say(session, emit)  # on a device, what showed at the last flush
    if checks.ended:
        emit(Message(f"the run ended early: {checks.ended}.", "info", session.step))
    if session.left_out:
        what = "1 update was" if session.left_out == 1 else f"{session.left_out} updates were"
        emit(Message(f"{what} left out for numbers that are not finite.", "warning", session.step))
    if session.average is not None and not session.average.count and session.step:
        text = "no weights were averaged: the run was over before the first average (averaging_start, should_update)."
        emit(Message(text, "warning", session.step))
    if not session.step and session.epoch:
        emit(Message("no update was taken: every batch was left out (None, or training_step returned None).", "warning"))
