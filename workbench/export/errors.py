"""What export says when it cannot write a script."""

from __future__ import annotations

from workbench.tracebacks import UserError


class ExportError(UserError):
    """Something the script needs cannot be written; the message names it and says what to do."""
