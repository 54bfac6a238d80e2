"""Runs a fit: epochs of updates, validation in between, the user's commands between two updates.

`fit` reads like a table of contents. It never imports a tuner: searches at the start of an epoch come in as `at_epoch`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from workbench.commands import Inbox
from workbench.engine.control import CheckpointRequests, UserRequests, apply_commands
from workbench.engine.data.sample_count import note_length
from workbench.engine.metrics.flush import emit_notes, emit_time, flush, flush_after_error
from workbench.engine.metrics.observations import Observations
from workbench.engine.nonfinite import refuse_unguarded
from workbench.engine.optim import weight_averaging
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.step import train_step
from workbench.engine.validation.schedule import ValidationListener, ValidationSchedule
from workbench.engine.validation.validate import floats
from workbench.events import ENDED_EARLY, Emit, Logged, Message, Status
from workbench.instruments.finite import NonFiniteError
from workbench.task import rng
from workbench.task.errors import TaskError
from workbench.techniques.accumulation import size_at, windows
from workbench.techniques.limits import is_whole
from workbench.techniques.stopping import Limits, minimums_met

AtEpoch = Mapping[int, Callable[[Session, Emit, Inbox], bool]]
"""What to run at the start of an epoch; each returns whether it was stopped."""


class Checkpointing(ValidationListener, CheckpointRequests):
    """Does nothing where a checkpoint may be written; `CheckpointManager` (engine/checkpoint/manager.py) overrides it."""

    def due(self) -> bool:
        """Whether it is time for a checkpoint, between any two updates."""
        return False

    def save(self) -> None:
        """Write one: an update has ended, and nothing has been read for the next."""

    def mark(self) -> None:
        """Remember this place: the next batches will be read before a validation."""

    def save_best(self) -> None:
        """After a validation between two updates: write one, as of the mark, if it is among the best."""

    def cut(self) -> None:
        """The run's length ends here, after an update within an epoch, and nothing has been read for the next."""

    def after_epoch(self) -> None:
        """An epoch has ended, and the next has not begun."""

    def save_before(self, error: TaskError) -> TaskError:
        """Write a checkpoint before the run ends with this error; the returned error says how to continue from it."""
        return error

    def the_end(self) -> contextlib.AbstractContextManager[None]:
        """Surrounds the end of the fit; inside, the model gets its final weights."""
        return contextlib.nullcontext()


def fit(
    session: Session, emit: Emit, inbox: Inbox, at_epoch: AtEpoch | None = None, validation: ValidationSchedule | None = None,
    checkpoints: Checkpointing | None = None,
) -> Status:  # fmt: skip
    """Train until the run's length is reached ("finished") or a Stop arrives ("stopped"), and emit events on the
    way.

    validation: the schedule of validations; where the session is resumed, the one that was restored with it.
    """
    refuse_unguarded(session)
    weight_averaging.refuse_unused(session)
    _refuse_second_pass(session)
    run = _Fit(session, validation or ValidationSchedule(session), checkpoints or Checkpointing(), emit, inbox)
    try:
        run.begin()
        for _ in run.epochs(at_epoch or {}):
            for window in run.windows():  # in between: commands, checkpoints, validation
                run.step(window)
                run.after_step()
            run.end_epoch()
        run.finish()
    except BaseException as error:
        flush_after_error(session, emit)
        session.tell_failure(error)
        raise
    finally:
        session.state.fitting = False
    _conclude(session, run, emit)
    return "stopped" if run.stopped else "finished"


class _Fit:
    """Runs one fit. `stopped`: the user asked to stop."""

    def __init__(
        self, session: Session, validation: ValidationSchedule, checkpoints: Checkpointing, emit: Emit, inbox: Inbox
    ) -> None:
        self.session, self.validation, self.checkpoints, self.emit, self.inbox = session, validation, checkpoints, emit, inbox
        validation.checkpoints = checkpoints
        self.requests = UserRequests(session, validation, checkpoints, emit, inbox)
        self.observations = Observations(session, emit)
        self._limits = Limits.of(session.settings)
        self.stopped = False
        self._length_told = False
        """Whether the message was emitted that epochs have another length than planned."""
        self.stop_requested = False
        """Whether the task, on any rank, asked for the end of the fit."""

    def begin(self) -> None:
        """Run the hooks, the commands and the sanity check before the first update."""
        session, state = self.session, self.session.state
        session.train_mode()
        state.fitting = True
        self.observations.begin()
        session.timer.begin()
        if not state.resumed:  # drop what the dry run logged; a checkpoint brings what its epoch has logged
            session.hooks.forget()
        elif session.hooks.stop_requested and minimums_met(session.settings, state.step, state.epoch):
            session.hooks.clear_stop()
        with self._without_new_draws(), _restored_groups(session.optimizers) if state.resumed else contextlib.nullcontext():
            session.hooks.fit_started()
        self.stopped = apply_commands(session, self.emit, self.inbox, self.requests)
        if not self.stopped and not state.resumed:
            with session.timer.timed("validation"):
                self.stopped = self.validation.sanity(self.emit, self.inbox)

    def _without_new_draws(self) -> contextlib.AbstractContextManager[None]:
        """Context manager in which draws of random numbers do not count if the fit is resumed: it has drawn them already."""
        return rng.preserved() if self.session.state.resumed else contextlib.nullcontext()

    def epochs(self, at_epoch: AtEpoch) -> Iterator[int]:
        """The epochs until the fit ends, each after the searches that are scheduled for its start."""
        session, state = self.session, self.session.state
        if self.stopped:
            return
        with self._without_new_draws():
            session.hooks.train_started()
        while not self.stopped and not self.validation.ended and (state.mid_epoch or not self.over(state.epoch)):
            if state.epoch in at_epoch and not state.mid_epoch:
                with session.timer.timed("searches"):
                    self.stopped = at_epoch[state.epoch](session, self.emit, self.inbox)
                if self.stopped:
                    break
            self._begin_epoch()
            yield state.epoch
        state.stage = ""
        session.hooks.train_ended()

    def _begin_epoch(self) -> None:
        session, state, resumed = self.session, self.session.state, self.session.state.mid_epoch
        state.stage = "train"
        session.data.begin_epoch(state.epoch)
        if not resumed:
            self._reload_loaders()
        self.validation.begin_epoch(resumed=resumed)
        if not resumed:
            weight_averaging.begin_epoch(session)
            state.epoch_step, state.batch_idx, state.mid_epoch = state.step, 0, True
            session.hooks.epoch_started()
        session.refresh_parameters()

    def _reload_loaders(self) -> None:
        """Let the task make its loaders again, every so many epochs."""
        session, before = self.session, self.session.data.batches
        session.data.reload_if_due()
        now = session.data.batches
        if now != before and session.settings.lr_schedule != "constant" and not self._length_told:
            self._length_told = True
            text = f"epoch {session.state.epoch} has {now} batches, and the one before had {before}"
            plan = "" if session.updates is None else f" for {session.updates} updates"
            session.notes.append(Message(f"{text}: lr_schedule={session.settings.lr_schedule!r} was planned{plan}, before the loaders were made again.", "warning", session.state.step))

    def windows(self) -> Iterator[Sequence[Any]]:
        """The batches of each update until the epoch's end, or until the run ends within it."""
        session, state = self.session, self.session.state
        if state.checking:  # resumed after the epoch's last update
            return
        data = _Pass(session)
        while True:
            due = self._between_updates(data)
            if self.stopped:
                return
            window = data.next()
            if window is None:
                note_length(session)
                break
            # Another window exists, so the update before it was not the epoch's last, which has a validation of its own.
            if due and self._validate_midway():
                return
            if (due or state.step == state.epoch_step) and self.over(state.epoch):
                break
            yield window
            if session.update_hooks.ends_epoch():
                break
            if self.over(state.epoch):
                self.checkpoints.cut()
                if not session.ranks.any(state.batch_idx != session.data.batches_of_pass):
                    data.next()  # it was the last one: at the end of its pass a sampler may draw
                break
        self.observations.after_pass()
        self._refuse_nothing()

    def _between_updates(self, data: _Pass) -> bool:
        """Carry out the user's commands and write a checkpoint that is due; returns whether a validation is due.

        Nothing has been read for the next update: only here can a run be stopped, changed, stored and resumed.
        """
        state, validation, checkpoints = self.session.state, self.validation, self.checkpoints
        rng.yield_lock()
        if self.inbox:
            self.stopped = apply_commands(self.session, self.emit, self.inbox, self.requests)
            if self.stopped:
                return False
            if data.resize():
                validation.count_updates(begun=state.batch_idx > 0)
        due = validation.due(state.step - state.epoch_step)
        if checkpoints.due():
            with self.session.timer.timed("checkpoints"):
                checkpoints.save()
        if due:
            checkpoints.mark()
        return due

    def _validate_midway(self) -> bool:
        """Run the validation that is due between two updates, and write a checkpoint if it is among the best; returns
        whether a Stop has arrived.
        """
        timed = self.session.timer.timed
        with timed("validation"):
            self.stopped = self.validation.midway(self.emit, self.inbox)
        if not self.stopped:
            self._refuse_missing()
            with timed("checkpoints"):
                self.checkpoints.save_best()
        return self.stopped

    def step(self, window: Sequence[Any]) -> None:
        """Take one update; an error gets a note with its place and batch."""
        session, calls = self.session, self.observations.calls_to_time
        try:
            if calls is None:
                train_step(session, window)
            else:
                with calls:
                    train_step(session, window)
        except RuntimeError as error:
            if session.settings.detect_anomaly and "returned nan values" in str(error):
                raise NonFiniteError(f"at update {session.state.step}, detect_anomaly: {error}") from error
            raise

    def after_step(self) -> None:
        """Emit what the update has shown, and what has been measured since the last flush."""
        session = self.session
        self.observations.after_update()
        if session.notes:
            emit_notes(session, self.emit)
        if session.meter.due():
            flush(session, self.emit)
        session.timer.end()

    def end_epoch(self) -> None:
        """Run what follows the epoch's last update: schedules, the validation, hooks, a checkpoint."""
        session, state = self.session, self.session.state
        flush(session, self.emit, wait=True)
        if self.stopped:
            return
        if not self.validation.ended:
            if not state.checking:
                weight_averaging.end_epoch(session)
                session.step_epoch_schedules()
                state.checking = True
            with session.timer.timed("validation"):
                self.stopped = self.validation.at_end_of_epoch(self.over(state.epoch + 1), self.emit, self.inbox)
            if self.stopped:
                return
        session.hooks.epoch_ended()
        logged = floats(session.hooks.epoch_logged())
        if logged:
            shown = tuple(name for name in logged if name in session.hooks.on_bar)
            self.emit(Logged(state.step, state.epoch, logged, shown))
            state.metrics.update(logged)
        self.validation.judge(state.epoch + 1, logged)
        state.epoch += 1
        state.batch_idx, state.mid_epoch, state.checking = 0, False, False
        self._refuse_missing()
        with session.timer.timed("checkpoints"):
            self.checkpoints.after_epoch()

    def finish(self) -> None:
        """Give the model its final weights."""
        with self.checkpoints.the_end():
            weight_averaging.copy_average(self.session)
        self.session.hooks.fit_ended()

    def _refuse_missing(self) -> None:
        """End the run, after a checkpoint, if nothing reports a metric that it must follow."""
        if self.validation.missing is not None:
            raise self.checkpoints.save_before(self.validation.missing)

    def _refuse_nothing(self) -> None:
        """Raise TaskError for an epoch without a batch, or without an update."""
        session = self.session
        none = not session.state.batch_idx and session.state.step == session.state.epoch_step
        if none and not session.update_hooks.cut_short and not self.over(session.state.epoch):
            raise TaskError(f"the training data gave no batch in epoch {session.state.epoch}: {_why_none(session)}.")
        nothing = session.state.batch_idx and session.state.step == session.state.epoch_step
        if nothing and session.settings.epochs is None and not self.validation.ended:
            raise TaskError(
                f"every batch of epoch {session.state.epoch} was left out (None, or training_step returned None): no update was "
                "taken, and no later epoch would take one."
            )

    def over(self, finished: int) -> bool:
        """Whether the run ends here, with so many epochs finished: by its length, a metric, or the task."""
        session, limits = self.session, self._limits
        seconds = 0.0 if limits.max_seconds is None else session.seconds  # read between any two updates
        if limits.reached(session.state.step, finished, seconds):
            return True
        if session.task.hooks is not None:
            self.stop_requested = session.ranks.any(session.hooks.stop_requested)
            if self.stop_requested and minimums_met(session.settings, session.state.step, finished):
                return True
        return self.validation.ended is not None


class _Pass:
    """One pass over the training data, in windows of as many batches as make an update."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._size = self._wanted()
        sure = session.data.whole_windows(self._size)
        self._batches = session.data.train()
        self._windows = self._in_windows(sure)

    def next(self) -> Sequence[Any] | None:
        """The next window; None: the data have ended."""
        return next(self._windows, None)

    def resize(self) -> bool:
        """Follow the setting `accumulate_grad_batches` from the next window on; returns whether it has changed."""
        size, self._size = self._size, self._wanted()
        if size == self._size:
            return False
        self._windows = self._in_windows(0)
        return True

    def _wanted(self) -> int:
        return size_at(self._session.settings.accumulate_grad_batches, self._session.state.epoch)

    def _in_windows(self, sure: int) -> Iterator[Sequence[Any]]:
        """The rest of the batches. All ranks are known to have the first `sure` windows."""
        session = self._session
        found = session.meter.waiting(windows(self._batches, self._size, session.data.samples), session.timer)
        return session.parallel.rounds(found, sure)


@contextlib.contextmanager
def _restored_groups(optimizers: Sequence[OptimizerHandle]) -> Iterator[None]:
    """Lightning restores a checkpoint's optimizers after `on_fit_start`, so that the hook finds the parameter groups that the task made, and may
    add those of the checkpoint. At the end of the block the groups are the checkpoint's. TaskError: the hook added others.
    """
    before = [(opt, opt.optimizer.param_groups, list(opt.optimizer.param_groups), [dict(group) for group in opt.optimizer.param_groups])
              for opt in optimizers]
    for opt, there, _, _ in before:
        del there[opt.made_groups :]
    yield
    for opt, there, groups, options in before:
        now = opt.optimizer.param_groups
        added = [] if opt.continued else now[len(groups) :]
        ours, theirs = ([[id(p) for p in group["params"]] for group in one] for one in (now, options))
        if opt.continued and ours != theirs[: len(ours)]:
            raise TaskError(
                f"on_fit_start leaves the optimizer with {_parameters(now)}, and the run that continues had {_parameters(options)}: as in "
                "Lightning, the hook may add only the groups that the checkpoint has. Add them before the optimizer is made, in "
                "configure_optimizers, or begin a new fit."
            )
        for group, kept in zip(groups, options, strict=True):
            group.clear()
            group.update(kept)
        there[:] = [*groups, *added]
        opt.optimizer.param_groups = there  # a hook may have replaced the list


def _parameters(groups: Sequence[Mapping[str, Any]]) -> str:
    return f"parameter groups of {' and '.join(str(len(group['params'])) for group in groups)} parameters"


def _refuse_second_pass(session: Session) -> None:
    """Raise TaskError where the run's length asks for data again that can be read only once."""
    settings, data = session.settings, session.task.train
    no_other_end = settings.max_steps is None and settings.max_time is None and is_whole(settings.limit_train_batches)
    if data is None or not data.one_shot or session.state.resumed or not no_other_end or (settings.epochs or 0) < 2:
        return
    raise TaskError(
        f"the training data can be read only once (it is an iterator), and max_epochs={settings.epochs} reads it "
        f"{settings.epochs} times: give max_epochs=1, or a Dataset, a DataLoader, or wb.batches(list)."
    )


def _why_none(session: Session) -> str:
    if session.parallel.dropped_batches:
        return "it has none for each rank; take smaller batches or fewer devices"
    read = session.state.epoch > 0 or (session.task.train is not None and session.task.train.one_shot)
    return "it can be read only once; give a Dataset or a DataLoader" if read else "it is empty"


def _conclude(session: Session, run: _Fit, emit: Emit) -> None:
    """Emit the messages at the end of a fit."""
    emit_notes(session, emit)  # on a device: what the last flush has shown
    emit_time(session, emit)
    validation = run.validation
    if validation.ended is None and (run.stop_requested or session.hooks.stop_requested):
        emit(Message(f"{ENDED_EARLY}: the module set trainer.should_stop.", "info", session.state.step))
    if validation.ended:
        emit(Message(f"{ENDED_EARLY}: {validation.ended}.", "info", session.state.step))
    if session.state.left_out:
        what = "1 update was" if session.state.left_out == 1 else f"{session.state.left_out} updates were"
        emit(Message(f"{what} left out for numbers that are not finite.", "warning", session.state.step))
    if session.average is not None and not session.average.count and session.state.step:
        text = "no weights were averaged: the run was over before the first average (averaging_start, should_update)."
        emit(Message(text, "warning", session.state.step))
    if not session.state.step and session.state.epoch:
        emit(Message("no update was taken: every batch was left out (None, or training_step returned None).", "warning"))
