"""From a run and its bench to a Recipe: what is there is looked at, and what cannot be carried is refused by name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from workbench._version import __version__
from workbench.engine.dry_run import SAMPLES
from workbench.engine.rng import kept
from workbench.events import RunStarted
from workbench.export.capture import CallSite
from workbench.export.errors import ExportError
from workbench.export.recipe import CARRIED, LIVE, NOT_NEEDED, Data, Hooks, Recipe, Schedule, quoted
from workbench.export.source import Sliced, slice_call
from workbench.runs.read import read_header
from workbench.runs.run import Run
from workbench.settings import Settings
from workbench.task.data import DataSpec, batches_in
from workbench.task.datasets import Batches, Columns
from workbench.task.lightning import LightningLike, has_loader
from workbench.task.protocol import Task
from workbench.task.summary import ModelSummary
from workbench.task.supervised import TARGETS, Supervised


def recipe_of(path: Path, run: Run, site: CallSite, task: Task, weights: str | None) -> Recipe:
    """Everything that the script at `path` depends on, checked."""
    header = read_header(run.folder) if run.folder is not None and run.folder.is_dir() else {}
    _check_run(run, header, task)
    _check_start(run, task.model)
    _check_settings(run.settings)
    sliced = slice_call(site)
    started = next((e for e in run.events if isinstance(e, RunStarted)), None)
    with kept():
        return Recipe(
            run=run.id,
            model=str(header.get("task", {}).get("model", type(task.model).__name__)),
            version=__version__,
            script=path.name,
            sliced=sliced,
            kinds=site.kinds,
            settings=run.settings,
            threads=int(header.get("threads", torch.get_num_threads())),
            weights=weights,
            stopped=run.step if run.status == "stopped" else None,
            planned=started.updates if started else None,
            changes=_changes(run),
            **_of_task(task, sliced, run.settings),
        )


def _check_run(run: Run, header: Mapping[str, Any], task: Task) -> None:
    if run.kind != "fit" or run.status not in ("finished", "stopped"):
        raise ExportError(f"run {run.id} is a {run.kind} that {run.status}: only a fit that ended can be repeated.")
    there = header.get("task", {}).get("parameters")
    here = sum(p.numel() for p in task.model.parameters())
    if there not in (None, here):
        raise ExportError(
            f"run {run.id} trained a model of {there} parameters, and this bench has one of {here}: "
            "export it from the bench that made it."
        )
    name, own = header.get("task", {}).get("model"), ModelSummary.of(task).name
    if name not in (None, own):
        raise ExportError(f"run {run.id} trained {name}, and this bench has {own}: export it from the bench that made it.")


def start_of(run: Run) -> Path | None:
    """Where the weights that a run began with are kept; None where it has no record."""
    return None if run.folder is None else run.folder / "checkpoints" / "start.safetensors"


def _check_start(run: Run, model: nn.Module) -> None:
    """The starting weights must be there, and be those of this model."""
    start = start_of(run)
    if start is None:
        return
    if not start.exists():
        raise ExportError(
            f"the starting weights of run {run.id} are gone ({start} was removed, or could not be written), so no script "
            "can begin where it began: fit again, and raise keep_runs if runs are removed too early."
        )
    with safe_open(str(start), framework="pt") as file:
        tied = file.metadata() or {}  # names of weights that are stored under another name
        there = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    here = {name: tuple(value.shape) for name, value in model.state_dict().items() if name not in tied}
    for name in [*here, *there]:
        if there.get(name) != here.get(name):
            raise ExportError(
                f"run {run.id} began with {name} of shape {there.get(name)}, and in the model of this bench it is "
                f"{here.get(name)}: export it from the bench that made it."
            )


def _check_settings(settings: Settings) -> None:
    missing = [name for name in settings.changed() if name not in CARRIED | NOT_NEEDED]
    if missing:
        named = ", ".join(f"{name}={getattr(settings, name)!r}" for name in missing)
        raise ExportError(f"the script cannot carry {named} yet; fit with the default to export.")
    if settings.seed >= 2**32:
        raise ExportError(f"the script cannot carry seed={settings.seed}: take one below 2**32.")


def _changes(run: Run) -> tuple[tuple[int, Mapping[str, float | None]], ...]:
    """The live changes that an update came after, in order."""
    found = [(e.step, e.values) for e in run.changes if e.step < run.step]
    for _, values in found:
        if unknown := sorted(set(values) - LIVE):
            raise ExportError(f"{', '.join(unknown)} was changed while run {run.id} went on, which no script replays yet.")
    return tuple(found)


# ---- the task ---------------------------------------------------------------------------------------------------


def _of_task(task: Task, sliced: Sliced, settings: Settings) -> dict[str, Any]:
    if not isinstance(task, (Supervised, LightningLike)):
        raise ExportError(f"model={type(task).__name__} is a Task of its own kind, which cannot be exported yet.")
    if task.train is None:
        raise ExportError("the bench has no training data to export.")
    if isinstance(task, LightningLike) and task.model is not task.module:
        name = type(task.module).__name__
        raise ExportError(f"model={name} is no nn.Module: make it one (class {name}(nn.Module)) to export it.")
    owner = task.module if isinstance(task, LightningLike) else task.model
    found: dict[str, Any] = {
        "train": _data(task.train, "train", owner, sliced, settings),
        "val": None if task.val is None else _data(task.val, "val", owner, sliced, settings),
        "prepare": tuple(_prepared(task, owner)),
    }
    if isinstance(task, LightningLike):
        none = {"batch": "own", "mean": False, "loss_is_module": False, "metric_modules": False}
        return {**found, **none, "hooks": _hooks(task, sliced, settings)}
    return {
        **found,
        "batch": _layout(_first_batch(task.train, settings), sliced.arguments.get("loss", "None") != "None"),
        "mean": task.loss_is_mean,
        "loss_is_module": task.loss_is_module,
        "metric_modules": len(task.modules) > 1 + task.loss_is_module,
        "hooks": None,
    }


def _prepared(task: Task, owner: Any) -> Iterator[str]:
    """The calls of `prepare_data` and `setup` that the bench made, in their order."""
    assert task.train is not None
    train = _maker(task.train)
    sources = [("network", owner)] if isinstance(task, LightningLike) or has_loader(owner) else []
    if train is not None and train.__self__ is not owner:
        sources.append(("train_data", train.__self__))
    for name, source in sources:
        if has_loader(source, "prepare_data"):
            yield f"{name}.prepare_data()"
        if has_loader(source, "setup"):
            yield f'{name}.setup("fit")'


def _hooks(task: LightningLike, sliced: Sliced, settings: Settings) -> Hooks:
    try:
        made, made_lr = task.module.configure_optimizers(), task.configure(settings, None).lr
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ExportError(f"configure_optimizers() cannot be looked at outside of a fit: {what}") from error
    optimizer, listed = _places(made)
    return Hooks(
        homes={name: home.replace("'", '"') for name, home in task.homes.items()},
        asks_trainer="_trainer" in vars(task.module) and _asks_trainer(type(task.module), sliced.code),
        train_index=task.takes_index,
        val_index=task.val is not None and _takes_index(task.module.validation_step),
        optimizer=optimizer,
        schedules=tuple(_schedule(place, entry) for place, entry in listed),
        made_lr=made_lr,
    )


def _asks_trainer(cls: type, code: str) -> bool:
    """Whether the user's code, or a class that is imported, names the trainer or what it knows."""
    names = {"current_epoch", "global_step", "trainer"}
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning", "torch")]
    functions = [value for base in own for value in vars(base).values() if inspect.isfunction(value)]
    return any(names & set(f.__code__.co_names) for f in functions) or any(f".{name}" in code for name in names)


def _places(made: Any) -> tuple[str, list[tuple[str, Any]]]:
    """Where the optimizer and the schedulers are in what `configure_optimizers()` returned, in any of its forms."""
    if isinstance(made, tuple) and len(made) == 2 and all(isinstance(part, (list, tuple)) for part in made):
        return "[0][0]", [(f"[1][{number}]", entry) for number, entry in enumerate(made[1])]
    at = ""
    if isinstance(made, (list, tuple)):
        made, at = made[0], "[0]"
    if not isinstance(made, Mapping):
        return at, []
    schedulers, there = made.get("lr_scheduler", []), f'{at}["lr_scheduler"]'
    listed = isinstance(schedulers, (list, tuple))
    entries = [(f"{there}[{n}]", entry) for n, entry in enumerate(schedulers)] if listed else [(there, schedulers)]
    return f'{at}["optimizer"]', entries


def _schedule(place: str, entry: Any) -> Schedule:
    if isinstance(entry, Mapping):
        return Schedule(f'{place}["scheduler"]', entry.get("interval", "epoch"), int(entry.get("frequency", 1)))
    return Schedule(place, "epoch", 1)


def _takes_index(hook: Callable[..., Any]) -> bool:
    return len([p for p in inspect.signature(hook).parameters.values() if p.kind is not p.VAR_KEYWORD]) >= 2


# ---- data -------------------------------------------------------------------------------------------------------


def _data(spec: DataSpec, name: str, owner: Any, sliced: Sliced, settings: Settings) -> Data:
    """How the script gets a loader, from what the user gave for it."""
    parts, dataset = spec.parts, spec.parts.dataset
    base, before, is_loader = _base(spec, name, owner, sliced)
    if isinstance(dataset, Batches) and dataset.one_shot and not before:
        raise ExportError(f"{name} can be read only once (an iterator), so no script can repeat it: give a Dataset.")
    stream = isinstance(dataset, IterableDataset)
    kind = "batches" if parts.ready else "stream" if stream else "samples"
    columns = dataset.columns if isinstance(dataset, Columns) and not is_loader else None
    by_collate = sliced.arguments.get("collate_fn", "None") != "None" and not before
    loader = spec.loader(settings, train=name == "train")
    whole = hasattr(dataset, "__getitems__") and columns is None and type(dataset) is not TensorDataset
    return Data(
        dataset=f"{base}.dataset" if is_loader else base,
        before=before,
        kind=kind,  # type: ignore[arg-type]
        arrays=isinstance(columns, tuple),
        columns=isinstance(columns, dict),
        iterable=stream and not isinstance(dataset, Batches),
        sampler=None if parts.sampler is None else f"{base}.batch_sampler.sampler",
        batch_sampler=None if parts.batch_sampler is None else f"{base}.batch_sampler",
        generator=None if parts.generator is None else f"{base}.generator.clone_state()",
        collate=None if parts.collate_fn is None else "collate" if by_collate else f"{base}.collate_fn",
        worker_init=None if parts.worker_init_fn is None else f"{base}.worker_init_fn",
        whole=whole and kind == "samples",
        pinned=loader.pin_memory or (settings.pin_memory is None and not torch.cuda.is_available()),
        sized=batches_in(loader) is not None,
        count=_count(_first_batch(spec, settings)) or "1",
    )


def _base(spec: DataSpec, name: str, owner: Any, sliced: Sliced) -> tuple[str, tuple[str, ...], bool]:
    """What stands for the user's data, the lines before it, and whether it is a DataLoader."""
    maker = _maker(spec)
    if maker is None:
        return f"{name}_data", (), spec.from_loader
    given = sliced.arguments.get(name, "None") != "None"
    source = f"{name}_data" if given else "network" if maker.__self__ is owner else "train_data"
    base = "given" if name == "train" else f"given_{name}"
    made, index = maker(), ""
    while isinstance(made, (list, tuple)):
        made, index = made[0], f"{index}[0]"
    return base, (f"{base} = {source}.{name}_dataloader(){index}",), isinstance(made, DataLoader)


def _maker(spec: DataSpec) -> Any:
    """The bound method of the user's object that makes this loader; None where data was given."""
    if not spec.made_by_object:
        return None
    maker = inspect.getclosurevars(spec._given).nonlocals["make"]  # type: ignore[arg-type]
    if not inspect.ismethod(maker):
        raise ExportError(f"{spec.name}_dataloader is no method of a class, so a script cannot call it: define it in one.")
    return maker


def _first_batch(spec: DataSpec, settings: Settings) -> Any:
    # Without the user's samplers, which may count how often they are asked.
    parts = dataclasses.replace(spec.parts, sampler=None, batch_sampler=None)
    try:
        return DataSpec(spec.name, parts).peek(min(SAMPLES, settings.batch_size))
    except Exception as error:
        raise ExportError(f"reading a sample of {spec.name} failed: {type(error).__name__}: {error}") from error


def _layout(batch: Any, has_loss: bool) -> str:
    """What a training batch looks like, for `Recipe.batch`."""
    if isinstance(batch, Mapping):
        return f"dict:{next((key for key in TARGETS if key in batch), '')}"
    if isinstance(batch, (tuple, list)):
        return "pair" if has_loss and len(batch) == 2 else "tuple"
    return "single"


def _count(batch: Any, name: str = "batch") -> str | None:
    """How many samples `batch` holds, as an expression; None where it holds no tensor. As `task.data.sample_count`."""
    if isinstance(batch, PackedSequence):
        return f"int({name}.batch_sizes[0])"
    if isinstance(batch, (Tensor, np.ndarray)):
        return f"len({name})" if batch.ndim else "1"
    items: list[tuple[Any, Any]] = []
    if isinstance(batch, Mapping):
        items = list(batch.items())
    elif isinstance(batch, (tuple, list)):
        items = list(enumerate(batch))
    counts = (_count(value, f"{name}[{quoted(key)}]") for key, value in items)
    return next((count for count in counts if count is not None), None)
