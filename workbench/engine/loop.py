"""Runs a fit: epochs of updates, validation in between, the user's commands between two updates.

`fit` is the outline. The engine imports no tuner: searches at the start of an epoch are passed to
`fit` as `at_epoch`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from workbench.commands import Inbox, Scheduled
from workbench.engine.control import CheckpointRequests, Control
from workbench.engine.data.sample_count import note_length, note_more_batches
from workbench.engine.metrics.flush import Recorder
from workbench.engine.metrics.observations import Observations
from workbench.engine.nonfinite import refuse_unguarded
from workbench.engine.optim import averaged_model, weight_averaging
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.step import train_step
from workbench.engine.validation.schedule import ValidationListener, ValidationSchedule
from workbench.engine.validation.validate import floats
from workbench.events import ENDED_EARLY, Emit, Logged, Message, Status
from workbench.instruments.finite import NonFiniteError
from workbench.settings import Settings
from workbench.task import rng
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.hooks import tell_failure
from workbench.techniques.accumulation import size_at, windows
from workbench.techniques.limits import is_whole
from workbench.techniques.stopping import LENGTHS, Limits, minimums_met

AtEpoch = Mapping[int, Callable[[Session, Control], bool]]
"""By epoch, a function to run at its start, which returns whether it was stopped."""


class Checkpointing(ValidationListener, CheckpointRequests):
    """Defines the calls at which checkpoints may be written. This base class writes none;
    `CheckpointManager` (engine/checkpoint/manager.py) does.
    """

    def due(self) -> bool:
        """Whether a checkpoint is due; called between two updates."""
        return False

    def save(self) -> None:
        """Write a checkpoint; called after an update, before a batch of the next is read."""

    def mark(self) -> None:
        """Store the present resume point, before the batches of the next update are read and a
        validation runs.
        """

    def save_best(self) -> None:
        """Write a checkpoint of the marked point, if the validation between two updates was
        among the best.
        """

    def cut(self) -> None:
        """Store all state where the run's length ends within an epoch; called before a batch of
        the next update is read.
        """

    def after_epoch(self) -> None:
        """Write a checkpoint between two epochs, if one is due."""

    def save_before(self, error: TaskError) -> TaskError:
        """Write a checkpoint before the run ends with this error; the returned error says how to
        continue from it.
        """
        return error

    def the_end(self) -> contextlib.AbstractContextManager[None]:
        """Context manager in which the model gets its final weights."""
        return contextlib.nullcontext()

    def restore_best(self) -> None:
        """Give the model the best weights, where `EarlyStopping(restore_best=True)` asks for
        them.
        """

    def compare_with_best(self) -> str:
        """Compare the model's weights with the best ones, in a sentence; "": there are no better
        ones.
        """
        return ""


def fit(
    session: Session,
    emit: Emit,
    inbox: Inbox,
    at_epoch: AtEpoch | None = None,
    validation: ValidationSchedule | None = None,
    checkpoints: Checkpointing | None = None,
    scheduled: Sequence[Scheduled] = (),
    asked: Collection[str] = (),
) -> Status:
    """Train until the run's length is reached ("finished") or a Stop arrives ("stopped"), and emit
    events.

    validation: the schedule of validations; for a resumed session, the one that was restored with
    it.
    scheduled: commands that are known before it begins.
    asked: the names of the settings that this fit alone was given.
    """
    refuse_unguarded(session)
    weight_averaging.refuse_unused(session.settings, session.task)
    _refuse_second_pass(session.settings, session.task.train, resumed=session.state.resumed)
    schedule, writer = validation or ValidationSchedule(session), checkpoints or Checkpointing()
    run = _Fit(session, schedule, writer, emit, inbox, scheduled, asked)
    try:
        with session.timer.compilations():
            run.begin()
            for _ in run.epochs(at_epoch or {}):
                for window in run.windows():  # in between: commands, checkpoints, validation
                    run.step(window)
                    run.after_step()
                run.end_epoch()
            run.finish()
    except BaseException as error:
        run.recorder.after_error()
        tell_failure(session.hooks, error)
        raise
    finally:
        session.state.fitting = False
        if session.probe is not None:  # of an update that failed, or never came
            session.probe.close()
    run.conclude()
    return "stopped" if run.stopped else "finished"


class _Fit:
    """Runs one fit. `stopped`: the user asked to stop."""

    def __init__(
        self,
        session: Session,
        validation: ValidationSchedule,
        checkpoints: Checkpointing,
        emit: Emit,
        inbox: Inbox,
        scheduled: Sequence[Scheduled],
        asked: Collection[str],
    ) -> None:
        self.session, self.validation, self.checkpoints, self.inbox = (
            session,
            validation,
            checkpoints,
            inbox,
        )
        validation.checkpoints = checkpoints
        self.recorder = Recorder(session, emit)
        self.control = Control(session, self.recorder, inbox, validation, checkpoints, scheduled)
        self.observations = Observations(session, self.recorder)
        self._limits = Limits.of(session.settings)
        self._asked = asked
        self._reached = ""
        """The length that was reached first."""
        self.stopped = False
        self._length_reported = False
        """Whether the warning was emitted that epochs have another length than planned."""
        self.stop_requested = False
        """Whether the task, on any rank, asked for the end of the fit."""

    def begin(self) -> None:
        """Run the hooks, the commands and the sanity check before the first update."""
        session, state = self.session, self.session.state
        session.train_mode()
        state.fitting = True
        self.observations.begin()
        session.timer.begin()
        # drops values that the dry run logged; a checkpoint restores those of its epoch
        if not state.resumed:
            session.hooks.forget()
        elif session.hooks.stop_requested and minimums_met(
            session.settings, state.step, state.epoch
        ):
            session.hooks.clear_stop()
        with (
            self._without_new_draws(),
            _restored_groups(session.optimizers) if state.resumed else contextlib.nullcontext(),
        ):
            session.hooks.fit_started()
        self.stopped = self.control.apply()
        if not self.stopped and not state.resumed:
            with session.timer.timed("validation"):
                self.stopped = self.validation.sanity(self.control)

    def _without_new_draws(self) -> contextlib.AbstractContextManager[None]:
        """Context manager that restores the random state afterwards if the fit is resumed, since
        the checkpoint's state includes these draws.
        """
        return rng.preserved() if self.session.state.resumed else contextlib.nullcontext()

    def epochs(self, at_epoch: AtEpoch) -> Iterator[int]:
        """Yield the epochs until the fit ends, each after the searches that are scheduled for
        its start.
        """
        session, state = self.session, self.session.state
        if self.stopped or (not state.resumed and self.over(state.epoch)):  # as in Lightning
            return
        with self._without_new_draws():
            session.hooks.train_started()
        while (
            not self.stopped
            and not self.validation.ended
            and (state.mid_epoch or not self.over(state.epoch))
        ):
            session.freeze()
            if not state.mid_epoch:
                session.note_freezing()
            if state.epoch in at_epoch and not state.mid_epoch:
                with session.timer.timed("searches"):
                    self.stopped = at_epoch[state.epoch](session, self.control)
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
            if session.average is not None:
                session.average.begin_epoch(state.epoch, session.optimizers)
            state.begin_epoch()
            session.hooks.epoch_started()
        session.refresh_parameters()

    def _reload_loaders(self) -> None:
        """Let the task make its loaders again, where `reload_dataloaders_every_n_epochs` asks
        for it.
        """
        session, before = self.session, self.session.data.batches
        session.data.reload_if_due()
        now = session.data.batches
        if (
            now != before
            and session.settings.lr_schedule != "constant"
            and not self._length_reported
        ):
            self._length_reported = True
            text = f"epoch {session.state.epoch} has {now} batches, and the one before had {before}"
            plan = "" if session.updates is None else f" for {session.updates} updates"
            session.notes.append(
                Message(
                    f"{text}: lr_schedule={session.settings.lr_schedule!r} was planned{plan},"
                    " before the loaders were made again.",
                    "warning",
                    session.state.step,
                )
            )

    def windows(self) -> Iterator[Sequence[Any]]:
        """Yield the batches of each update until the epoch ends, or the run ends within it."""
        session, state = self.session, self.session.state
        if state.validation_due:  # resumed after the epoch's last update
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
            # Another window exists, so the update before was not the epoch's last one, after which
            # `end_epoch` validates.
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
                    # reads to the end of the pass, where a sampler may draw random numbers
                    data.next()
                break
        self.observations.after_pass()
        self._refuse_nothing()

    def _between_updates(self, data: _Pass) -> bool:
        """Carry out the user's commands and write a checkpoint that is due; returns whether a
        validation is due.

        No batch of the next update has been read: only here can a run be stopped, changed, stored
        and resumed.
        """
        state, validation, checkpoints = self.session.state, self.validation, self.checkpoints
        rng.yield_lock()
        if self.inbox or self.control.due():
            self.stopped = self.control.apply()
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
        """Run the validation that is due between two updates, and write a checkpoint if it is among
        the best; returns whether a Stop has arrived.
        """
        timed = self.session.timer.timed
        with timed("validation"):
            self.stopped = self.validation.midway(self.control)
        if not self.stopped:
            self._refuse_missing()
            with timed("checkpoints"):
                self.checkpoints.save_best()
        return self.stopped

    def step(self, window: Sequence[Any]) -> None:
        """Take one update; an error gets a note with its place and batch."""
        session, calls = self.session, self.observations.calls_to_time
        if session.probe is not None:
            session.probe.open()
        try:
            if calls is None:
                train_step(session, window)
            else:
                with calls:
                    train_step(session, window)
        except RuntimeError as error:
            if session.settings.detect_anomaly and "returned nan values" in str(error):
                raise NonFiniteError(
                    f"at update {session.state.step}, detect_anomaly: {error}"
                ) from error
            raise

    def after_step(self) -> None:
        """Emit the messages of the update, and the measurements since the last flush if one is
        due.
        """
        session = self.session
        self.observations.after_update()
        if session.probe is not None:
            self.recorder.add(session.layers_measured(session.probe))
        planned = session.data.batches
        if planned is not None and session.state.batch_idx > planned:
            note_more_batches(session)
        if session.notes:
            self.recorder.notes()
        if session.meter.due():
            self.recorder.flush()
        session.timer.end()

    def end_epoch(self) -> None:
        """Run the schedules, the validation, the hooks and the checkpoint after the epoch's last
        update.
        """
        session, state = self.session, self.session.state
        self.recorder.flush(wait=True)
        if self.stopped:
            return
        if not self.validation.ended:
            if not state.validation_due:
                if session.average is not None:
                    session.average.after_epoch(state)
                session.optimizers.step_epoch_schedules(state, session.hooks)
                state.validation_due = True
            with session.timer.timed("validation"):
                self.stopped = self.validation.at_end_of_epoch(
                    self.over(state.epoch + 1), self.control
                )
            if self.stopped:
                return
        session.hooks.epoch_ended()
        logged = floats(session.hooks.epoch_logged())
        if logged:
            shown = tuple(name for name in logged if name in session.hooks.on_bar)
            self.recorder.emit(Logged(state.step, state.epoch, logged, shown))
            state.metrics.update(logged)
        self.validation.judge(state.epoch + 1, logged)
        state.end_epoch()
        self._refuse_missing()
        with session.timer.timed("checkpoints"):
            self.checkpoints.after_epoch()

    def finish(self) -> None:
        """Give the model its final weights."""
        session = self.session
        with self.checkpoints.the_end():
            session.optimizers.modes.eval()
            if session.average is not None and session.average.count:
                averaged_model.copy_average(session)
        self.checkpoints.restore_best()
        session.hooks.fit_ended()

    def conclude(self) -> None:
        """Emit the messages at the end of a fit."""
        session, ended, emit = self.session, self.validation.ended, self.recorder.emit
        self.recorder.notes()  # on a device, the last flush may have added messages
        self.recorder.time()
        state = session.state
        if ended is None and (self.stop_requested or session.hooks.stop_requested):
            emit(Message(f"{ENDED_EARLY}: the module set trainer.should_stop.", "info", state.step))
        if ended:
            emit(Message(f"{ENDED_EARLY}: {ended}.", "info", state.step))
        other = self._other_length()
        if other:
            emit(Message(other, "warning", state.step))
        compared = self.checkpoints.compare_with_best()
        if compared:
            emit(Message(compared, "info", state.step))
        if state.left_out:
            updates = "1 update was" if state.left_out == 1 else f"{state.left_out} updates were"
            emit(
                Message(
                    f"{updates} left out because of numbers that are not finite.",
                    "warning",
                    state.step,
                )
            )
        if session.average is not None and not session.average.count and state.step:
            text = (
                "no weights were averaged: the run was over before the first average"
                " (averaging_start, should_update)."
            )
            emit(Message(text, "warning", state.step))
        if not state.step and state.epoch:
            emit(
                Message(
                    "no update was taken: every batch was left out (None, or training_step returned"
                    " None).",
                    "warning",
                )
            )

    def _other_length(self) -> str:
        """Say that another length ended the fit before the one that it alone was given; "": none
        did.
        """
        settings, planned = self.session.settings, self.session.data.planned()
        if settings.fast_dev_run:
            return ""
        asked = [
            name
            for name in LENGTHS
            if name in self._asked and getattr(settings, name) not in (None, -1)
        ]
        # it may have reached both at once
        complete = planned is not None and self.session.state.step >= planned
        if not asked or self._reached in ("", *asked) or ("max_epochs" in asked and complete):
            return ""
        first, *wanted = (f"{name}={getattr(settings, name)!r}" for name in (self._reached, *asked))
        return (
            f"{first} was reached first, and ended this fit before {' and '.join(wanted)}:"
            f" bench.fit(…, {self._reached}=None) has no such limit."
        )

    def _refuse_missing(self) -> None:
        """End the run with TaskError, after a checkpoint, if nothing reports a metric that early
        stopping or a scheduler needs.
        """
        if self.validation.missing is not None:
            raise self.checkpoints.save_before(self.validation.missing)

    def _refuse_nothing(self) -> None:
        """Raise TaskError for an epoch without a batch, or without an update."""
        session = self.session
        none = not session.state.batch_idx and session.state.step == session.state.epoch_step
        if none and not session.update_hooks.cut_short and not self.over(session.state.epoch):
            raise TaskError(
                f"the training data gave no batch in epoch {session.state.epoch}:"
                f" {self._why_none()}."
            )
        nothing = session.state.batch_idx and session.state.step == session.state.epoch_step
        if nothing and session.settings.epochs is None and not self.validation.ended:
            raise TaskError(
                f"every batch of epoch {session.state.epoch} was left out (None, or training_step"
                " returned None): no update was taken, and no later epoch would take one."
            )

    def _why_none(self) -> str:
        session = self.session
        if session.parallel.dropped_batches:
            return "it has none for each rank; take smaller batches or fewer devices"
        read = session.state.epoch > 0 or (
            session.task.train is not None and session.task.train.one_shot
        )
        return "it can be read only once; give a Dataset or a DataLoader" if read else "it is empty"

    def over(self, finished: int) -> bool:
        """Whether the run ends here: by its length, by a metric, or because the task asked for
        it. finished: epochs.
        """
        session, limits = self.session, self._limits
        # else the clock would be read between any two updates
        seconds = 0.0 if limits.max_seconds is None else session.seconds
        reached = limits.reached(session.state.step, finished, seconds)
        if reached:
            self._reached = self._reached or reached
            return True
        if session.task.hooks is not None:
            self.stop_requested = session.ranks.any(session.hooks.stop_requested)
            if self.stop_requested and minimums_met(session.settings, session.state.step, finished):
                return True
        return self.validation.ended is not None


class _Pass:
    """One pass over the training data, in windows: the batches of one update each."""

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
        """Follow the setting `accumulate_grad_batches` from the next window on; returns whether
        it has changed.
        """
        size, self._size = self._size, self._wanted()
        if size == self._size:
            return False
        self._windows = self._in_windows(0)
        return True

    def _wanted(self) -> int:
        return size_at(self._session.settings.accumulate_grad_batches, self._session.state.epoch)

    def _in_windows(self, sure: int) -> Iterator[Sequence[Any]]:
        """Yield the rest of the batches in windows. All ranks are known to have the first `sure`
        windows.
        """
        session = self._session
        data = session.data
        read = windows(self._batches, self._size, data.samples, data.kept, data.indices)
        timed = session.meter.waiting(read, session.timer)
        return session.parallel.rounds(timed, sure)


@contextlib.contextmanager
def _restored_groups(optimizers: Sequence[OptimizerHandle]) -> Iterator[None]:
    """Context manager for `on_fit_start`, in which the optimizers have the parameter groups that
    the task made.

    As in Lightning, which restores a checkpoint's optimizers after this hook, the hook may add the
    groups that the checkpoint has. At the end the groups are the checkpoint's. Raises TaskError
    where the hook added others.
    """
    before = [
        (
            opt,
            opt.optimizer.param_groups,
            list(opt.optimizer.param_groups),
            [dict(group) for group in opt.optimizer.param_groups],
        )
        for opt in optimizers
    ]
    for opt, param_groups, _, _ in before:
        del param_groups[opt.made_groups :]
    yield
    for opt, param_groups, groups, options in before:
        now = opt.optimizer.param_groups
        added = [] if opt.continued else now[len(groups) :]
        ours, theirs = (
            [[id(p) for p in group["params"]] for group in list_of_groups]
            for list_of_groups in (now, options)
        )
        if opt.continued and ours != theirs[: len(ours)]:
            raise TaskError(
                f"on_fit_start leaves the optimizer with {_parameters(now)}, and the run that"
                f" continues had {_parameters(options)}: as in Lightning, the hook may add only the"
                " groups that the checkpoint has. Add them before the optimizer is made, in"
                " configure_optimizers, or begin a new fit."
            )
        for group, kept in zip(groups, options, strict=True):
            group.clear()
            group.update(kept)
        param_groups[:] = [*groups, *added]
        if [*map(id, opt.optimizer.param_groups)] != [*map(id, param_groups)]:
            opt.optimizer.param_groups = param_groups  # a hook has replaced the list


def _parameters(groups: Sequence[Mapping[str, Any]]) -> str:
    return (
        f"parameter groups of {' and '.join(str(len(group['params'])) for group in groups)}"
        " parameters"
    )


def _refuse_second_pass(settings: Settings, data: DataSpec | None, *, resumed: bool) -> None:
    """Raise TaskError where the run's length needs several passes over data that can be read
    only once.
    """
    no_other_end = (
        settings.max_steps is None
        and settings.max_time is None
        and is_whole(settings.limit_train_batches)
    )
    if (
        data is None
        or not data.one_shot
        or resumed
        or not no_other_end
        or (settings.epochs or 0) < 2
    ):
        return
    raise TaskError(
        "the training data can be read only once (it is an iterator), and"
        f" max_epochs={settings.epochs} reads it {settings.epochs} times: give max_epochs=1, or a"
        " Dataset, a DataLoader, or wb.batches(list)."
    )
