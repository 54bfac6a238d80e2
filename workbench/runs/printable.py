"""Makes text from a record safe for a terminal.

A record may come from an untrusted source, and control characters are commands to a terminal.
"""

from __future__ import annotations

import textwrap

_HARMLESS = "\u00a0\u202f\u200d"
"""Harmless characters that `str.isprintable` rejects: no-break spaces, and joiners within a
sign.
"""


def printable(text: str, *, lines: bool = False) -> str:
    """The text with all control characters (escapes, carriage returns, changes of direction)
    written as text: "\\x1b".

    lines: keep line breaks and tabs.
    """
    if text.isprintable():
        return text
    kept = _HARMLESS + ("\n\t" if lines else "")
    return "".join(
        sign if sign.isprintable() or sign in kept else sign.encode("unicode_escape").decode()
        for sign in text
    )


def paragraph(text: str) -> list[str]:
    """The lines of a reason as results print it, indented; none for an empty text."""
    return textwrap.wrap(
        text, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
