"""Makes text from a record safe for a terminal.

A record may come from anybody, and control characters are commands to a terminal.
"""

from __future__ import annotations

_HARMLESS = "\u00a0\u202f\u200d"
"""Neither letters nor commands: spaces that join words, and characters that join two signs."""


def printable(text: str, *, lines: bool = False) -> str:
    """The text with everything that a terminal would obey (escapes, carriage returns, changes of direction) written
    out: "\\x1b".

    lines: it may have several lines, and tabs.
    """
    if text.isprintable():
        return text
    kept = _HARMLESS + ("\n\t" if lines else "")
    return "".join(sign if sign.isprintable() or sign in kept else sign.encode("unicode_escape").decode() for sign in text)
