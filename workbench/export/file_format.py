"""The formats of an export, which one a file has, and the options of an export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workbench.export.errors import ExportError

Format = Literal["script", "notebook", "lightning", "settings"]
ENDINGS: Mapping[str, str] = {"script": ".py", "notebook": ".ipynb", "lightning": ".py", "settings": ".yaml"}
"""The formats of an export, with the ending of each one's file."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How an export is written, as `Workbench.export` takes it."""

    evidence: tuple[str, ...] = ()
    """Sentences on where its settings come from, for the comment at its top."""
    format: Format | None = None
    """None: as the ending of the path says."""
    data: Literal["beside"] | None = None
    """"beside": the data of train and val are written beside it too."""
    base: Literal["nn.Module"] | None = None
    """"nn.Module": LightningModules inherit from that."""


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
