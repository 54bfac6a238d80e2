"""What export says when it cannot write a script."""

from __future__ import annotations


class ExportError(ValueError):
    """Something the script needs cannot be written; the message names it and says what to do."""
