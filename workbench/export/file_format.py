"""Defines the formats and options of an export, and chooses the format of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from workbench.export.errors import ExportError

Format = Literal["script", "notebook", "lightning", "workbench", "settings"]
ENDINGS: Mapping[str, str] = {
    "script": ".py",
    "notebook": ".ipynb",
    "lightning": ".py",
    "workbench": ".py",
    "settings": ".yaml",
}
"""The formats of an export, each with its file name extension."""


Choice = Format | Literal["page"]
"""What the panel's form writes: a format, or the page."""
PAGES = (".html", ".htm")
"""The extensions of a page with the plots of a run, which is no script."""


class ScriptOptions(TypedDict, total=False):
    """What a stand-alone script does besides the training; `ExportOptions` explains each."""

    resume: bool
    checks: bool
    log_file: bool
    tracker: bool


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of `Workbench.export`."""

    evidence: tuple[str, ...] = ()
    """Sentences about where the settings come from, for the docstring of the script."""
    format: Format | None = None
    """None: chosen by the extension of the path."""
    data: Literal["beside"] | None = None
    """"beside": write the data of train and val next to the script, too."""
    base: Literal["nn.Module"] | None = None
    """"nn.Module": let LightningModules inherit from nn.Module instead."""
    resume: bool = False
    """Whether the script writes a checkpoint after each epoch, from which `--resume` continues."""
    checks: bool = False
    """Whether it compares the weights and batches that it begins with to the run's."""
    log_file: bool = False
    """Whether it has `--log_file`, for a line of JSON for each update and validation."""
    tracker: bool = False
    """Whether it has `--tracker`, for one of accelerate's trackers."""
    job_root: Path | None = None
    """A headless script for a launcher's job: its runs are recorded in this folder, and where the
    job was stopped it continues. None: the script repeats the run.
    """


def format_of(path: Path, format: Format | None) -> Format:
    """The format of a file: the one that is given, else that of its extension. Raises
    ExportError where the two contradict each other.
    """
    if not path.name.strip(".") or path.is_dir():
        raise ExportError(
            f"{str(path)!r} is not a name for a script: give a file, as in 'train.py'."
        )
    if not path.suffix and format is None:
        raise ExportError(
            f"path={str(path)!r} has no ending, which says what is written: {path}.py is a script, "
            f"{path}.ipynb a notebook, {path}.yaml the settings."
        )
    by_ending: dict[str, Format] = {
        ".py": "script",
        ".ipynb": "notebook",
        ".yaml": "settings",
        ".yml": "settings",
    }
    if path.suffix not in by_ending and format is None:
        raise ExportError(
            f"path={str(path)!r} ends in {path.suffix!r}, which is none of .py (a script), .ipynb"
            " (a notebook), .yaml (the settings) and .html (its plots): give one of these, or"
            " format=."
        )
    implied = by_ending.get(path.suffix, "script")
    if format is None or format == implied:
        return implied
    if format not in ENDINGS:
        raise ExportError(f"format={format!r} is unknown: give {', '.join(map(repr, ENDINGS))}.")
    if implied == "script" and ENDINGS[format] == ".py":
        return format
    raise ExportError(
        f"{path} does not fit format={format!r}: give a name that ends in {ENDINGS[format]}."
    )


def has_options(format: Format) -> bool:
    """Whether a file of this format can have the `ScriptOptions`."""
    return format in ("script", "notebook")


def is_verified(format: Format) -> bool:
    """Whether a file of this format is run for its first updates."""
    return format in ("script", "notebook", "workbench")
