"""Defines TaskError, which every part of the workbench raises for a task that cannot be trained."""

from __future__ import annotations

from workbench.tracebacks import UserError


class TaskError(UserError):
    """A model, loss or data set that cannot be trained; the message says why and what to do."""
