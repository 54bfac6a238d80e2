"""The fit: epochs of updates with validation between, under commands from outside.

`fit` reads like a table of contents. It never imports a tuner: what is to happen at the start of an epoch comes
in as `at_epoch`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from workbench.commands import Inbox
from workbench.engine import averaged, rng
from workbench.engine.checks import Checks, HearsChecks
from workbench.engine.counting import note_length
from workbench.engine.errands import Errands, Keeps
from workbench.engine.observations import Observations
from workbench.engine.orders import obey
from workbench.engine.record import flush, keep, say
from workbench.engine.session import Session
from workbench.engine.step import update
from workbench.engine.trouble import refuse_unguarded
from workbench.engine.validate import floats
from workbench.events import Emit, Logged, Message, Status
from workbench.instruments.finite import NonFiniteError
from workbench.task.advice import of_step
from workbench.task.batch import describe
from workbench.task.protocol import TaskError
from workbench.techniques.accumulation import size_at, windows
from workbench.techniques.stopping import minimums_met, reached

AtEpoch = Mapping[int, Callable[[Session, Emit, Inbox], bool]]
"""What is to happen at the start of an epoch; each says whether it was stopped."""


class Keeping(HearsChecks, Keeps, Protocol):
    """What writes checkpoints (engine/keeper.py), at the places where a run can go on from."""

    def due(self) -> bool:
        """Whether it is time for one; asked between any two updates."""

    def keep(self) -> None:
        """Write one: an update is over, and nothing has been read for the next."""

    def mark(self) -> None:
        """Remember this place: a check may come when the next batches have been read."""

    def keep_best(self) -> None:
        """Behind a check between two updates: write one if it is among the best, as of the mark."""

    def cut(self) -> None:
        """A length is reached here, behind an update in an epoch, and nothing has been read for the next."""

    def after_epoch(self) -> None:
        """An epoch is over, and the next has not begun."""

    def keep_before(self, error: TaskError) -> TaskError:
        """After a check with which the run ends in an error: write a checkpoint; the error says how to continue from it."""

    def the_end(self) -> contextlib.AbstractContextManager[None]:
        """The fit is over; inside, the model gets the weights that it keeps."""


def fit(
    session: Session, emit: Emit, inbox: Inbox, at_epoch: AtEpoch | None = None, checks: Checks | None = None,
    keeper: Keeping | None = None,
) -> Status:  # fmt: skip
    """Train until a length is reached ("finished") or a Stop arrives ("stopped"); events go out as it runs.

    A session that goes on from a checkpoint comes with its `checks`.
    """
    refuse_unguarded(session)
    averaged.refuse_unused(session)
    fitting = _Fit(session, checks or Checks(session), keeper, emit, inbox)
    try:
        stopped = fitting.begin() or fitting.train(at_epoch or {})
        with keeper.the_end() if keeper is not None else contextlib.nullcontext():
            averaged.hand_over(session)
        session.moments.fit_ended()
    except BaseException as error:
        keep(session, emit)
        _tell_failure(session, error)
        raise
    finally:
        session.fitting = False
    _conclude(session, fitting, emit)
    return "stopped" if stopped else "finished"


class _Fit:
    """The parts of a fit; each says whether it was stopped."""

    def __init__(
        self, session: Session, checks: Checks, keeper: Keeping | None, emit: Emit, inbox: Inbox
    ) -> None:
        self.session, self.checks, self.keeper, self.emit, self.inbox = session, checks, keeper, emit, inbox
        checks.keeper = keeper
        self.errands = Errands(session, checks, keeper, emit, inbox)
        self.observations = Observations(session, emit)
        self.asked = False
        """Whether the task, on any rank, wants the fit to end."""

    def begin(self) -> bool:
        """Before the first update."""
        session = self.session
        session.train_mode()
        session.fitting = True
        if not session.resumed:  # what was tried; a checkpoint brings what was logged in its epoch
            session.moments.forget()
        elif session.moments.wants_end and minimums_met(session.settings, session.step, session.epoch):
            session.moments.goes_on()
        with self._as_drawn():
            session.moments.fit_started()
        return obey(session, self.emit, self.inbox, self.errands) or (
            not session.resumed and self.checks.sanity(self.emit, self.inbox)
        )

    def _as_drawn(self) -> contextlib.AbstractContextManager[None]:
        """A fit that goes on has drawn what its beginning draws already: inside, nothing is drawn that counts."""
        return rng.kept() if self.session.resumed else contextlib.nullcontext()

    def train(self, milestones: AtEpoch) -> bool:
        """Epochs until the fit is over."""
        session, stopped = self.session, False
        with self._as_drawn():
            session.moments.train_started()
        while not stopped and not self.checks.ended and (session.mid_epoch or not self.over(session.epoch)):
            if session.epoch in milestones and not session.mid_epoch:
                stopped = milestones[session.epoch](session, self.emit, self.inbox)
            stopped = stopped or self.epoch()
        session.stage = ""
        session.moments.train_ended()
        return stopped

    def epoch(self) -> bool:
        """One epoch and what follows it."""
        session = self.session
        self._begin_epoch()
        stopped = not session.checking and self._updates()
        flush(session, self.emit, wait=True)
        if stopped:
            return True
        if self.checks.ended:
            self._end_epoch()
            return False
        if not session.checking:
            averaged.end_epoch(session)
            session.step_epoch_schedules()
            session.checking = True
        if self.checks.at_end_of_epoch(self.over(session.epoch + 1), self.emit, self.inbox):
            return True
        self._end_epoch()
        return False

    def _begin_epoch(self) -> None:
        session, resumed = self.session, self.session.mid_epoch
        session.stage, session.data.epoch = "train", session.epoch
        self.checks.begin_epoch(resumed=resumed)
        if not resumed:
            averaged.begin_epoch(session)
            session.epoch_step, session.batch_idx, session.mid_epoch = session.step, 0, True
            session.moments.epoch_started()
        session.look_around()

    def _end_epoch(self) -> None:
        """The task has its say, the check is judged, and the epoch counts."""
        session = self.session
        session.moments.epoch_ended()
        logged = floats(session.moments.epoch_logged())
        if logged:
            shown = tuple(name for name in logged if name in session.moments.on_bar)
            self.emit(Logged(session.step, session.epoch, logged, shown))
            session.metrics.update(logged)
        self.checks.judge(session.epoch + 1, logged)
        session.epoch += 1
        session.batch_idx, session.mid_epoch, session.checking = 0, False, False
        self._refuse_missing()
        if self.keeper is not None:
            self.keeper.after_epoch()

    def _updates(self) -> bool:
        """One pass over the training data, or what is left of it."""
        session, checks, keeper, inbox = self.session, self.checks, self.keeper, self.inbox
        size = size_at(session.settings.accumulate_grad_batches, session.epoch)
        sure = session.data.whole_windows(size)
        left = session.data.train()
        batches = self._windows(left, size, sure)
        while True:
            # Between two updates, and nothing is read yet: here a run can be stopped, changed, and gone on from.
            rng.give_way()
            if inbox:
                if obey(session, self.emit, inbox, self.errands):
                    return True
                now = size_at(session.settings.accumulate_grad_batches, session.epoch)
                if now != size:
                    size, batches = now, self._windows(left, now, 0)
                    checks.count_updates(begun=session.batch_idx > 0)
            due = checks.due(session.step - session.epoch_step)
            if keeper is not None:
                if keeper.due():
                    keeper.keep()
                if due:
                    keeper.mark()
            window = next(batches, None)
            if window is None:
                note_length(session)
                break
            # Now that there is another window, the update before it was not the epoch's last, which has a check of its own.
            if due and checks.midway(self.emit, inbox):
                return True
            if due:
                self._refuse_missing()
            if due and keeper is not None:
                keeper.keep_best()
            if (due or session.step == session.epoch_step) and self.over(session.epoch):
                break
            try:
                update(session, window)
            except Exception as error:
                _say_where(session, window, error)
                raise
            self.observations.after_update()
            if session.notes:
                say(session, self.emit)
            if session.meter.due():
                flush(session, self.emit)
            if session.within and self._cut_short():
                break
            if self.over(session.epoch):
                if keeper is not None:
                    keeper.cut()
                break
        self.observations.after_pass()
        self._refuse_nothing()
        return False

    def _refuse_missing(self) -> None:
        """A check has found that nothing reports a metric which is to be followed: the run ends, and nothing of it is lost."""
        error = self.checks.missing
        if error is not None:
            raise error if self.keeper is None else self.keeper.keep_before(error)

    def _windows(self, batches: Iterator[Any], size: int, sure: int) -> Iterator[Sequence[Any]]:
        """What is left of an epoch's batches in windows of `size`, of which all ranks have so many for `sure`."""
        session = self.session
        found = session.meter.waiting(windows(batches, size, session.data.samples))
        return found if session.together is None else session.together.rounds(found, sure)

    def _cut_short(self) -> bool:
        """Whether the task, on any rank, leaves out the rest of the epoch."""
        self.session.cut_short = self.session.ranks.any(self.session.cut_short)
        return self.session.cut_short

    def _refuse_nothing(self) -> None:
        """An epoch without a batch, or without an end."""
        session = self.session
        none = not session.batch_idx and session.step == session.epoch_step
        if none and not session.cut_short and not self.over(session.epoch):
            raise TaskError(f"the training data gave no batch in epoch {session.epoch}: {_why_none(session)}.")
        nothing = session.batch_idx and session.step == session.epoch_step
        if nothing and session.settings.epochs is None and not self.checks.ended:
            raise TaskError(
                f"every batch of epoch {session.epoch} was left out (None, or training_step returned None): no update was "
                "taken, and the run would go on like that."
            )

    def over(self, finished: int) -> bool:
        """Whether the run ends here, with so many epochs finished: a length is reached, a metric or the task has ended it."""
        session = self.session
        seconds = 0.0 if session.settings.max_time is None else session.seconds  # asked between any two updates
        if reached(session.settings, session.step, finished, seconds) is not None:
            return True
        self.asked = session.task.moments is not None and session.ranks.any(session.moments.wants_end)
        return (self.asked and minimums_met(session.settings, session.step, finished)) or self.checks.ended is not None


def _say_where(session: Session, window: Sequence[Any], error: Exception) -> None:
    """Add to an error where it was; raises `NonFiniteError` from one that detect_anomaly raised."""
    batch = window[0].batch if session.tbptt is not None else window[0]
    error.add_note(f"at update {session.step}, epoch {session.epoch}, on {describe(batch)}")
    if remedy := of_step(error):
        error.add_note(remedy)
    if session.settings.detect_anomaly and "returned nan values" in str(error):
        raise NonFiniteError(f"at update {session.step}, detect_anomaly: {error}") from error


def _tell_failure(session: Session, error: BaseException) -> None:
    """The task hears of the error; what it does then must not hide it."""
    try:
        session.moments.failed(error)
    except Exception as second:  # noqa: BLE001
        error.add_note(f"and on_exception failed as well: {type(second).__name__}: {second}")


def _why_none(session: Session) -> str:
    if session.together is not None and session.together.left_over:
        return "it has none for each rank; take smaller batches or fewer devices"
    read = session.epoch > 0 or (session.task.train is not None and session.task.train.one_shot)
    return "it can be read only once; give a Dataset or a DataLoader" if read else "it is empty"


def _conclude(session: Session, fitting: _Fit, emit: Emit) -> None:
    """What there is to say behind the last update."""
    say(session, emit)  # on a device, what showed at the last flush
    checks = fitting.checks
    if checks.ended is None and (fitting.asked or session.moments.wants_end):
        emit(Message("the run ended early: the module set trainer.should_stop.", "info", session.step))
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
