"""Reads the front end that is built from extensions/live."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
"""The folder of the built files."""


def text_of(name: str) -> str:
    """The text of a file; "": it does not exist."""
    path = STATIC / name
    return path.read_text(encoding="utf-8") if path.exists() else ""
