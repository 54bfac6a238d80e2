"""The commands that wait for a session, carried out between two updates."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import perf_counter

from workbench.commands import Change, Inbox, Pause, Resume, Stop
from workbench.engine import rng
from workbench.engine.record import tell
from workbench.engine.session import Session
from workbench.events import Changed, Emit, StatusChanged


def obey(session: Session, emit: Emit, inbox: Inbox) -> bool:
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
            change(session, command.values, emit)
        elif isinstance(command, Pause) and paused_at is None:
            paused_at = perf_counter()
            tell(session, emit, StatusChanged("paused", session.step))
        elif isinstance(command, Resume) and paused_at is not None:
            session.meter.leave_out(perf_counter() - paused_at)
            paused_at = None
            tell(session, emit, StatusChanged("running", session.step))


def change(session: Session, values: Mapping[str, float | None], emit: Emit) -> None:
    """New values from the next update on (a batch size: from the next epoch on), and their place in the record."""
    if values.get("lr") is not None:
        session.set_lr(float(values["lr"]))  # type: ignore[arg-type]
    if "gradient_clip_val" in values:
        session.clip_val = values["gradient_clip_val"]
    if values.get("batch_size") is not None:
        session.data.use_batch_size(int(values["batch_size"]))  # type: ignore[arg-type]
    tell(session, emit, Changed(session.step, dict(values)))
