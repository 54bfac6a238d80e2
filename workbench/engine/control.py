"""Carries out the user's commands between two updates: pause, stop, live changes, validation, a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import perf_counter
from typing import Protocol

from workbench.commands import Change, Checkpoint, Inbox, Pause, Resume, Stop, Validate
from workbench.engine.metrics.flush import emit_message, flush
from workbench.engine.session import Session
from workbench.events import Changed, Emit, Message, StatusChanged
from workbench.task import rng
from workbench.techniques.accumulation import with_size_from
from workbench.units import rate


class ValidationRequests(Protocol):
    """The validation that a user can ask for (engine/validation/schedule.py)."""

    def validate_now(self, emit: Emit, inbox: Inbox) -> bool:
        """Run a validation that does not count for the run; returns whether it was stopped."""


class CheckpointRequests:
    """The checkpoint that a user can ask for (engine/checkpoint/manager.py); this class writes none."""

    def save_requested(self) -> bool:
        """Write a checkpoint of this place that stays as long as the run does; returns whether this run writes any."""
        return False


class UserRequests:
    """The requests of one fit, carried out on all of its ranks alike."""

    def __init__(self, session: Session, validation: ValidationRequests, checkpoints: CheckpointRequests, emit: Emit, inbox: Inbox) -> None:
        self._session, self._validation, self._checkpoints, self._emit, self._inbox = session, validation, checkpoints, emit, inbox

    def validate_now(self) -> bool:
        """Run a validation (`ValidationSchedule.validate_now`); returns whether it was stopped. Without validation data it
        emits a message.
        """
        session, data = self._session, self._session.data
        if not data.validates:
            none = session.task.val is None
            self._say(
                "there is no validation data: make the bench with val=…" if none
                else f"limit_val_batches={session.settings.limit_val_batches!r} leaves no batch: take a larger one"
            )  # fmt: skip
            return False
        if session.task.val is not None and session.task.val.one_shot:
            self._say("the validation data can be read only once, and a later validation needs them: give a Dataset or a DataLoader")
            return False
        return self._validation.validate_now(self._emit, self._inbox)

    def save_checkpoint(self) -> None:
        """Write a checkpoint, or emit a message why none can be written."""
        if self._checkpoints.save_requested():
            return
        dry = self._session.settings.fast_dev_run
        why = f"fast_dev_run={dry} is a dry run, of which nothing is kept" if dry else "this run has no folder to keep it in"
        emit_message(self._session, self._emit, Message(f"no checkpoint was written: {why}.", "warning", self._session.state.step))

    def _say(self, why: str) -> None:
        emit_message(self._session, self._emit, Message(f"nothing was validated: {why}.", "warning", self._session.state.step))


def apply_commands(session: Session, emit: Emit, inbox: Inbox, requests: UserRequests | None = None) -> bool:
    """Carry out the waiting commands and wait while paused; returns whether the run is to stop.

    requests: None where the run is about to stop.
    """
    paused_at: float | None = None
    try:
        while True:
            command = inbox.take()
            if command is None and paused_at is None:
                return False
            if command is None:
                inbox.wait(0.2)
                rng.yield_lock()
                if not threading.main_thread().is_alive():
                    return True  # the process is ending, and nobody is left who could resume
            elif isinstance(command, Stop):
                return True
            elif isinstance(command, Change):
                change(session, command.values, emit)
            elif isinstance(command, Validate | Checkpoint):
                began = perf_counter()
                stopped = _run(session, emit, command, requests)
                if paused_at is None and isinstance(command, Validate):
                    session.meter.leave_out(perf_counter() - began)
                if stopped:
                    return True
            elif isinstance(command, Pause) and paused_at is None:
                paused_at = perf_counter()
                emit_message(session, emit, StatusChanged("paused", session.state.step))
            elif isinstance(command, Resume) and paused_at is not None:
                session.meter.leave_out(perf_counter() - paused_at)
                paused_at = None
                emit_message(session, emit, StatusChanged("running", session.state.step))
    finally:  # paused time does not count as training time
        if paused_at is not None:
            session.meter.leave_out(perf_counter() - paused_at)


def _run(session: Session, emit: Emit, command: Validate | Checkpoint, requests: UserRequests | None) -> bool:
    """Carry out one request; returns whether it was stopped."""
    if requests is None:
        what = "validate()" if isinstance(command, Validate) else "checkpoint()"
        emit_message(session, emit, Message(f"{what} was left out: the run stops here.", "info", session.state.step))
        return False
    if isinstance(command, Validate):
        return requests.validate_now()
    requests.save_checkpoint()
    return False


def change(session: Session, values: Mapping[str, float | None], emit: Emit) -> None:
    """Apply new values from the next update on (a batch size: from the next epoch on) and record the change."""
    applied = dict(values)
    if values.get("lr") is not None and not _set_lr(session, float(values["lr"]), emit):  # type: ignore[arg-type]
        del applied["lr"]
    if "gradient_clip_val" in values:
        session.state.clip_val = values["gradient_clip_val"]
    if values.get("batch_size") is not None:
        session.data.use_batch_size(int(values["batch_size"]))  # type: ignore[arg-type]
    if values.get("accumulate_grad_batches") is not None and not _accumulate(session, values, emit):
        del applied["accumulate_grad_batches"]
    if values.get("track_update_ratio") is not None:
        flush(session, emit, wait=True)  # first record what was measured so far
        session.track_ratios(bool(values["track_update_ratio"]))
    if applied:
        emit_message(session, emit, Changed(session.state.step, applied))


def _set_lr(session: Session, lr: float, emit: Emit) -> bool:
    """Set this base rate from the next update on. False: to or from 0 the ratios of groups and schedules would be
    lost.
    """
    if lr and session.base_lr:
        session.set_lr(lr)
        return True
    if lr != session.base_lr:
        what = "to 0" if session.base_lr else "from 0"
        text = f"lr={rate(lr)} was left out: the rate of a running fit cannot change {what}. pause() the run, or fit(lr=…) anew."
        emit_message(session, emit, Message(text, "warning", session.state.step))
    return lr == session.base_lr


def _accumulate(session: Session, values: Mapping[str, float | None], emit: Emit) -> bool:
    """Accumulate this many batches from the next update on; False: these batches cannot be accumulated."""
    size = int(values["accumulate_grad_batches"])  # type: ignore[arg-type]
    if session.task.manual:
        text = (
            f"accumulate_grad_batches={size} was left out: with manual optimisation it cannot change while a run is running, "
            "since the module knows of it from the beginning. Stop, and continue with fit(start=…, accumulate_grad_batches=…)."
        )
        emit_message(session, emit, Message(text, "warning", session.state.step))
        return False
    setting = with_size_from(session.settings.accumulate_grad_batches, session.state.epoch, size)
    if setting == session.settings.accumulate_grad_batches:
        return True
    session.accumulate(setting)
    if any(opt.schedules for opt in session.optimizers) and session.updates is not None:
        text = f"{size} batches make an update, and the schedule keeps the {session.updates} updates it was made for."
        emit_message(session, emit, Message(text, "warning", session.state.step))
    return True
