"""The script: one readable file on torch and accelerate that repeats a run.

It holds the code that the run used (`source.py` slices it), a Config, and a visible loop with only the
techniques that were on. What cannot be carried is refused by name, and then nothing is written.

    reading.py   what the script depends on, from the run and the bench: a Recipe (`recipe.py`)
    loaders.py   its data
    blocks.py    its other functions, one for each technique
    body.py      its main
    text.py      the whole file
    names.py     names: the user's own stay as they are
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from workbench.export.capture import CallSite
from workbench.export.errors import ExportError
from workbench.export.reading import recipe_of
from workbench.export.text import text_of
from workbench.runs.run import Run
from workbench.task.protocol import Task


def export(path: Path, run: Run, site: CallSite, task: Task) -> Path:
    """Write `path` and, where the run has kept them, its starting weights beside it; returns `path`.

    Raises `ExportError`, and writes nothing, where something cannot be carried.
    """
    start = None if run.folder is None else run.folder / "checkpoints" / "start.safetensors"
    if start is not None and not start.exists():
        start = None
    weights = None if start is None else path.with_name(f"{path.stem}.start.safetensors")
    text = text_of(recipe_of(path, run, site, task, None if weights is None else weights.name))
    try:
        compile(text, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise ExportError(f"the script of run {run.id} would be no valid Python ({error}); nothing was written.") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    if start is not None and weights is not None:
        _replace(weights, lambda aside: shutil.copyfile(start, aside))
    _replace(path, lambda aside: aside.write_text(text, encoding="utf-8"))
    return path


def _replace(target: Path, write: Callable[[Path], object]) -> None:
    """Write a file aside and rename it, so that it is whole or as it was."""
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        write(aside)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
