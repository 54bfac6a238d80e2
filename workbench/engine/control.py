"""Carries out the user's commands between two updates: pause, stop, change, validate,
checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Protocol

from workbench.commands import (
    Change,
    Checkpoint,
    Command,
    Histograms,
    Inbox,
    Pause,
    Resume,
    Scheduled,
    Stop,
    Validate,
    method_of,
)
from workbench.engine.metrics.flush import Recorder
from workbench.engine.session import Session
from workbench.events import Changed, Message, StatusChanged
from workbench.task import rng
from workbench.techniques.accumulation import with_size_from
from workbench.units import rate


class ValidationRequests(Protocol):
    """Runs the validations that a user requests (engine/validation/schedule.py)."""

    def validate_now(self, control: Control) -> bool:
        """Run a validation that does not count for the run; returns whether it was stopped."""


class CheckpointRequests:
    """Writes the checkpoints that a user requests (engine/checkpoint/manager.py); this base
    class writes none.
    """

    def save_requested(self) -> bool:
        """Write a checkpoint that is kept as long as the run; returns whether this run writes
        checkpoints at all.
        """
        return False


class Control:
    """Carries out the user's commands for one fit, on all of its ranks alike."""

    def __init__(
        self,
        session: Session,
        recorder: Recorder,
        inbox: Inbox,
        validation: ValidationRequests,
        checkpoints: CheckpointRequests,
        scheduled: Sequence[Scheduled] = (),
    ) -> None:
        self._session, self.recorder, self.inbox = session, recorder, inbox
        self._validation, self._checkpoints = validation, checkpoints
        self._scheduled = list(scheduled)
        """The commands whose update has not come yet."""

    def due(self) -> bool:
        """Whether the update of a scheduled command has come."""
        return any(later.at <= self._session.state.step for later in self._scheduled)

    def _take(self) -> Command | None:
        """The next command whose update has come."""
        while isinstance(command := self.inbox.take(), Scheduled):
            self._scheduled.append(command)
        if command is not None or not self.due():
            return command
        step = self._session.state.step
        later = next(later for later in self._scheduled if later.at <= step)
        self._scheduled.remove(later)
        if later.at < step:
            name = method_of(later.command)
            self.recorder.warn(
                f"{name}(at={later.at}) came after update {step}, and holds from there."
            )
        return later.command

    def apply(self, *, stopping: bool = False) -> bool:
        """Carry out the waiting commands and wait while paused; returns whether the run is to stop.

        stopping: the run is about to stop, so requested validations and checkpoints are left out.
        """
        meter, step = self._session.meter, self._session.state.step
        paused_at: float | None = None
        try:
            while True:
                command = self._take()
                if command is None and paused_at is None:
                    return False
                if command is None:
                    self.inbox.wait(0.2)
                    rng.yield_lock()
                    if not threading.main_thread().is_alive():
                        return True  # the process is ending, and no one can resume the run
                elif isinstance(command, Stop):
                    return True
                elif isinstance(command, Change):
                    self.change(command.values)
                elif isinstance(command, Histograms):
                    self._session.measure_layers(command.layers)
                elif isinstance(command, Validate | Checkpoint):
                    began = perf_counter()
                    stopped = self._run(command, stopping=stopping)
                    if paused_at is None and isinstance(command, Validate):
                        meter.leave_out(perf_counter() - began)
                    if stopped:
                        return True
                elif isinstance(command, Pause) and paused_at is None:
                    paused_at = perf_counter()
                    self.recorder.add(StatusChanged("paused", step))
                elif isinstance(command, Resume) and paused_at is not None:
                    meter.leave_out(perf_counter() - paused_at)
                    paused_at = None
                    self.recorder.add(StatusChanged("running", step))
        finally:  # paused time does not count as training time
            if paused_at is not None:
                meter.leave_out(perf_counter() - paused_at)

    def _run(self, command: Validate | Checkpoint, *, stopping: bool) -> bool:
        """Carry out one request; returns whether it was stopped."""
        if stopping:
            method = "validate()" if isinstance(command, Validate) else "checkpoint()"
            self.recorder.add(
                Message(
                    f"{method} was left out: the run stops here.", "info", self._session.state.step
                )
            )
            return False
        if isinstance(command, Validate):
            return self._validate()
        self._save_checkpoint()
        return False

    def _validate(self) -> bool:
        """Run a validation (`ValidationSchedule.validate_now`); returns whether it was stopped.
        Without validation data it emits a message.
        """
        val = self._session.task.val
        if val is None:
            why = "there is no validation data: make the bench with val=…"
        elif not self._session.data.validates:
            why = (
                f"limit_val_batches={self._session.settings.limit_val_batches!r} leaves no batch:"
                " take a larger one"
            )
        elif val.one_shot:
            why = (
                "the validation data can be read only once, and a later validation needs them: give"
                " a Dataset or a DataLoader"
            )
        else:
            return self._validation.validate_now(self)
        self.recorder.warn(f"nothing was validated: {why}.")
        return False

    def _save_checkpoint(self) -> None:
        """Write a checkpoint, or emit a message why none can be written."""
        if self._checkpoints.save_requested():
            return
        dry = self._session.settings.fast_dev_run
        why = (
            f"fast_dev_run={dry} is a dry run, which keeps nothing"
            if dry
            else "this run has no folder to keep it in"
        )
        self.recorder.warn(f"no checkpoint was written: {why}.")

    def change(self, values: Mapping[str, float | None]) -> None:
        """Apply new values from the next update on (a batch size: from the next epoch on) and
        record the change.
        """
        session, applied = self._session, dict(values)
        if values.get("lr") is not None and not self._set_lr(float(values["lr"])):  # type: ignore[arg-type]
            del applied["lr"]
        if "gradient_clip_val" in values:
            session.state.clip_val = values["gradient_clip_val"]
        if values.get("batch_size") is not None:
            session.data.use_batch_size(int(values["batch_size"]))  # type: ignore[arg-type]
        size = values.get("accumulate_grad_batches")
        if size is not None and not self._accumulate(int(size)):
            del applied["accumulate_grad_batches"]
        if values.get("track_update_ratio") is not None:
            self.recorder.flush(wait=True)  # first record what was measured so far
            session.track_ratios(bool(values["track_update_ratio"]))
        if applied:
            self.recorder.add(Changed(session.state.step, applied))

    def _set_lr(self, lr: float) -> bool:
        """Set this base rate from the next update on. False: it was refused, since a change to or
        from 0 would lose the ratios of groups and schedules.
        """
        optimizers = self._session.optimizers
        if lr and optimizers.base_lr:
            optimizers.set_lr(lr)
            return True
        if lr != optimizers.base_lr:
            direction = "to 0" if optimizers.base_lr else "from 0"
            self.recorder.warn(
                f"lr={rate(lr)} was left out: the rate of a running fit cannot change {direction}."
                " pause() the run, or fit(lr=…) anew."
            )
        return lr == optimizers.base_lr

    def _accumulate(self, size: int) -> bool:
        """Accumulate this many batches from the next update on; False: these batches cannot be
        accumulated.
        """
        session = self._session
        if session.task.manual:
            self.recorder.warn(
                f"accumulate_grad_batches={size} was left out: with manual optimisation it cannot"
                " change while a run is running, since the module knows of it from the beginning."
                " Stop, and continue with fit(start=…, accumulate_grad_batches=…)."
            )
            return False
        setting = with_size_from(
            session.settings.accumulate_grad_batches, session.state.epoch, size
        )
        if setting == session.settings.accumulate_grad_batches:
            return True
        session.accumulate(setting)
        if any(opt.schedules for opt in session.optimizers) and session.updates is not None:
            self.recorder.warn(
                f"{size} batches make an update, and the schedule keeps the {session.updates}"
                " updates for which it was made."
            )
        return True
