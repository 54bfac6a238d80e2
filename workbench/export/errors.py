"""Defines ExportError, which is raised where no script can be written for a run."""

from __future__ import annotations

from workbench.tracebacks import UserError


class ExportError(UserError):
    """The script needs something that cannot be written; the message names it and says what to
    do.
    """


class NotStandAlone(ExportError):
    """The run has something that a script on torch and accelerate alone does not support.

    A headless script (`format="workbench"`), in which the workbench trains, has it.
    """


class NotResumable(ExportError):
    """The script was asked for `resume=True`, and could not continue this run to the last bit."""

    def __init__(self, why: str) -> None:
        super().__init__(f"resume=True is not possible: {why}. Leave it out.")
        self.why = why
