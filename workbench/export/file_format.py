"""The formats of an export, and which one a file has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from workbench.export.errors import ExportError

Format = Literal["script", "notebook", "lightning", "settings"]
ENDINGS: Mapping[str, str] = {"script": ".py", "notebook": ".ipynb", "lightning": ".py", "settings": ".yaml"}
"""The formats of an export, with the ending of each one's file."""


def format_of(path: Path, format: Format | None) -> Format:
    """The format of a file: the one that is given, else the one that its ending says. `ExportError` where the two do not fit."""
    found: Format = "notebook" if path.suffix == ".ipynb" else "settings" if path.suffix in (".yaml", ".yml") else "script"
    if format is None or format == found:
        return found
    if format not in ENDINGS:
        raise ExportError(f"format={format!r} is unknown: give {', '.join(map(repr, ENDINGS))}.")
    if found == "script" and format == "lightning":
        return format
    raise ExportError(f"{path} does not fit format={format!r}: give a name that ends in {ENDINGS[format]}.")
