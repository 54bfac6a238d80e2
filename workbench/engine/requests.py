"""User-requested validation and checkpoints between updates."""

from __future__ import annotations

from typing import Protocol

from workbench.commands import Inbox
from workbench.engine.metrics.flush import emit_message
from workbench.engine.session import Session
from workbench.engine.validation.schedule import ValidationSchedule
from workbench.events import Emit, Message


class CheckpointRequests(Protocol):
    """The checkpoint that a user can ask for (engine/checkpoint/manager.py)."""

    def keep_asked(self) -> None:
        """Write a checkpoint of this place that stays as long as the run does."""


class UserRequests:
    """The requests of one fit, carried out on all of its ranks alike. keeper: None where no checkpoints are written."""

    def __init__(self, session: Session, checks: ValidationSchedule, keeper: CheckpointRequests | None, emit: Emit, inbox: Inbox) -> None:
        self._session, self._checks, self._keeper, self._emit, self._inbox = session, checks, keeper, emit, inbox

    def look(self) -> bool:
        """Run a validation (`ValidationSchedule.look`); returns whether it was stopped. Without validation data it
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
            self._say("the validation data can be read only once, and a check is to come: give a Dataset or a DataLoader")
            return False
        return self._checks.look(self._emit, self._inbox)

    def save(self) -> None:
        """Write a checkpoint, or emit a message why none can be written."""
        if self._keeper is not None:
            self._keeper.keep_asked()
            return
        dry = self._session.settings.fast_dev_run
        why = f"fast_dev_run={dry} is a dry run, of which nothing is kept" if dry else "this run has no folder to keep it in"
        emit_message(self._session, self._emit, Message(f"no checkpoint was written: {why}.", "warning", self._session.state.step))

    def _say(self, why: str) -> None:
        emit_message(self._session, self._emit, Message(f"nothing was validated: {why}.", "warning", self._session.state.step))
