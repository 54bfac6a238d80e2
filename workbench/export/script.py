"""The script: one readable file on torch and accelerate that repeats a run.

It holds the code that the run used (`source.py` slices it), a Config, and a visible loop with only the
techniques that were on (`blocks.py`). What cannot be carried is refused by name, and then nothing is written.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from workbench._version import __version__
from workbench.events import Changed
from workbench.export.capture import CallSite
from workbench.export.errors import ExportError
from workbench.export.recipe import CARRIED, Data, Recipe
from workbench.export.source import Sliced, slice_call
from workbench.export.text import text_of
from workbench.runs.read import read_header
from workbench.runs.run import Run
from workbench.settings import Settings
from workbench.task.data import Batches, Columns, DataSpec
from workbench.task.lightning import LightningLike
from workbench.task.protocol import Task
from workbench.task.supervised import TARGETS, Supervised

# They say what is kept of a run, or where; the script computes the same without them.
NOT_NEEDED = {"track_grad_norm", "log_every_n_steps", "keep_runs"}


def export(path: Path, run: Run, site: CallSite, task: Task) -> Path:
    """Write `path` and, where the run has a folder, its starting weights beside it; returns `path`.

    Raises `ExportError`, and writes nothing, where something cannot be carried.
    """
    recipe = recipe_of(path, run, site, task)
    text = text_of(recipe)
    compile(text, str(path), "exec")
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = None if run.folder is None else run.folder / "checkpoints" / "start.safetensors"
    if weights is not None and weights.exists():
        _replace(path.with_name(recipe.weights), weights)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
    return path


def recipe_of(path: Path, run: Run, site: CallSite, task: Task) -> Recipe:
    """Everything that the script depends on, checked."""
    if run.kind != "fit" or run.status not in ("finished", "stopped"):
        raise ExportError(f"run {run.id} is a {run.kind} that {run.status}: only a fit that ended can be repeated.")
    _check_settings(run.settings)
    sliced = slice_call(site)
    header = read_header(run.folder) if run.folder is not None else {}
    settings = run.settings
    if run.status == "stopped":  # repeat as far as it went
        settings = settings.replace(max_steps=run.step)
    return Recipe(
        run=run.id,
        model=str(header.get("task", {}).get("model", type(task.model).__name__)),
        version=__version__,
        sliced=sliced,
        settings=settings,
        threads=int(header.get("threads", 1)),
        weights=f"{path.stem}.start.safetensors",
        script=path.name,
        stopped=run.status == "stopped",
        changes={e.step: _merged(run, e.step) for e in run.events if isinstance(e, Changed)},
        **_of_task(task, sliced),
    )


def _merged(run: Run, step: int) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for event in run.changes:
        if event.step == step:
            values.update(event.values)
    return values


def _check_settings(settings: Settings) -> None:
    missing = [name for name in settings.changed() if name not in CARRIED | NOT_NEEDED]
    if missing:
        named = ", ".join(f"{name}={getattr(settings, name)!r}" for name in missing)
        raise ExportError(f"the script cannot carry {named} yet; fit with the default to export.")


def _of_task(task: Task, sliced: Sliced) -> dict[str, Any]:
    if task.train is None:
        raise ExportError("the bench has no training data to export.")
    if isinstance(task, Supervised):
        return {
            "train": _source(task.train, sliced, "train"),
            "val": None if task.val is None else _source(task.val, sliced, "val"),
            "batch": _batch_kind(task),
            "mean": task.loss_is_mean,
            "loss_is_module": task.loss_is_module,
            "lightning": None,
        }
    if isinstance(task, LightningLike):
        if task.model is not task.module:
            raise ExportError(
                f"model={type(task.module).__name__} is no nn.Module: make it one (class … (nn.Module)) to export it."
            )
        return {
            "train": _source(task.train, sliced, "train"),
            "val": None if task.val is None else _source(task.val, sliced, "val"),
            "batch": "own",
            "mean": False,
            "loss_is_module": False,
            "lightning": task.homes,
            "lightning_index": task.takes_index,
        }
    raise ExportError(f"model={type(task).__name__} is a Task of its own kind, which cannot be exported yet.")


def _source(spec: DataSpec, sliced: Sliced, name: str) -> Data:
    """How the script gets a data set, from what the user gave for it."""
    parts = spec.parts
    if sliced.arguments.get(name, "None") == "None":
        # From a DataModule given as train, or from the model object itself.
        by_train = sliced.arguments.get("train", "None") != "None"
        return Data("loader", f"{'train_data' if by_train else 'network'}.{name}_dataloader()")
    if spec.made_by_object:
        return Data("loader", f".{name}_dataloader()", setup=True)
    if isinstance(parts.dataset, Batches):
        if parts.dataset.one_shot:
            raise ExportError(f"{name} can be read only once (an iterator), so no script can repeat it: give a Dataset.")
        return Data("batches")
    if isinstance(parts.dataset, Columns):
        return Data("dict" if isinstance(parts.dataset.columns, dict) else "arrays")
    return Data("loader" if spec.from_loader else "dataset")


def _batch_kind(task: Supervised) -> str:
    """What a training batch looks like: "tuple", or "dict:<key of the target>"."""
    assert task.train is not None
    batch = task.train.peek(1)
    if isinstance(batch, dict):
        return f"dict:{next((key for key in TARGETS if key in batch), '')}"
    return "tuple" if isinstance(batch, (tuple, list)) else "single"


def _replace(target: Path, source: Path) -> None:
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, aside)
    os.replace(aside, target)
