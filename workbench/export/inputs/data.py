"""Finds the code with which a script reads the same batches from the user's data."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from accelerate.utils import find_batch_size
from torch.utils.data import DataLoader, IterableDataset

from workbench.engine.dry_run.dry_run import SAMPLES
from workbench.export.errors import NotStandAlone
from workbench.export.inputs.collect import Data, collate_given
from workbench.export.inputs.saved_data import SavedSet
from workbench.export.inputs.step import may_skip
from workbench.export.source.origins import is_inlined
from workbench.export.source.source import Sliced
from workbench.settings import Settings
from workbench.task.batch import TARGETS, leaves, sample_count
from workbench.task.data.combined import CombinedBatches
from workbench.task.data.datasets import Batches, Columns
from workbench.task.data.loader_parts import length_of
from workbench.task.data.sharding import RankShard, common_rng_for
from workbench.task.data.spec import DataSpec, Loader, resumable_sampler_of, users_dataset
from workbench.techniques.limits import is_whole

_EPOCHS = 1000
"""How many epochs' lengths are compared at most."""


def data_of(
    spec: DataSpec,
    name: str,
    sliced: Sliced,
    settings: Settings,
    saved: SavedSet | None = None,
) -> Data:
    """The description of one loader, from the data that the user gave. saved: its samples, if
    they are saved next to the script.
    """
    if saved is not None:
        spec = saved.spec
    parts, dataset = spec.parts, spec.parts.dataset
    base, made_by_object, is_loader = f"{name}_data", maker_of(spec) is not None, spec.from_loader
    if isinstance(dataset, Batches) and dataset.one_shot and not made_by_object:
        raise NotStandAlone(
            f"{name} can be read only once (an iterator), so no script can repeat it: give a"
            " Dataset."
        )
    if isinstance(dataset, CombinedBatches):
        raise NotStandAlone(
            f"{name} has several loaders side by side, which no script has yet: give one, of a"
            " StackDataset, say."
        )
    stream = isinstance(dataset, IterableDataset)
    kind: Literal["samples", "stream", "batches"] = "stream" if stream else "samples"
    if parts.ready:
        kind = "batches"
    columns = dataset.columns if isinstance(dataset, Columns) and not is_loader else None
    collate = None if made_by_object else collate_given(name, sliced.arguments)
    loader = spec.loader(settings, train=name == "train")
    generator = None
    if parts.generator is not None:
        generator = f"{base}.generator.clone_state()" if saved is None else saved.generator
    if (
        parts.ready
        and not stream
        and (
            parts.sampler is not None
            or (name == "train" and settings.shuffle and parts.defaults.get("shuffle"))
        )
    ):
        raise NotStandAlone(
            f"the loader of {name} gives batches of the data set's own making (batch_size=None) in"
            " the order of a sampler, which no script can repeat yet: give the samples in a"
            " Dataset."
        )
    if name == "train":
        _refuse_longer_epochs(parts.batch_sampler or parts.sampler, settings)
    generators, unkept = _position(spec, base)
    return Data(
        dataset=f"{base}.dataset" if is_loader else base,
        made_by_object=made_by_object,
        kind=kind,
        arrays=isinstance(columns, tuple),
        columns=isinstance(columns, dict),
        iterable=stream
        and (not isinstance(dataset, Batches) or (spec.from_batches and name not in sliced.ready)),
        converted=isinstance(dataset, Columns) and dataset.converted,
        kinds=dataset.kinds if isinstance(dataset, Columns) else (),
        sampler=None if parts.sampler is None else f"{base}.batch_sampler.sampler",
        batch_sampler=None if parts.batch_sampler is None else f"{base}.batch_sampler",
        generator=generator,
        collate=None if parts.collate_fn is None else collate or f"{base}.collate_fn",
        worker_init=None if parts.worker_init_fn is None else f"{base}.worker_init_fn",
        with_set_epoch=_with_set_epoch(
            spec, base, from_loader=is_loader, inner=spec.from_batches and name not in sliced.ready
        ),
        pinned=loader.pin_memory or (settings.pin_memory is None and not torch.cuda.is_available()),
        sized=length_of(loader) is not None,
        counts=_counts_right(spec, settings),
        empty=_may_be_empty(parts.collate_fn, dataset),
        reuses_memory=loader.reuses_memory
        and (kind != "samples" or _shares_memory(spec, settings)),
        draws=_draws(loader, settings),
        generators=generators,
        unkept=unkept,
        saved="" if saved is None else saved.expression,
    )


def _refuse_longer_epochs(sampler: Any, settings: Settings) -> None:
    """Raise NotStandAlone for a sampler whose later epochs are longer than the first: the run
    left out the rest, since its schedule was planned so.
    """
    limited = not is_whole(settings.limit_train_batches) or settings.overfit_batches
    if (
        limited
        or not callable(getattr(sampler, "set_epoch", None))
        or not hasattr(sampler, "__len__")
    ):
        return
    trial, lengths = copy.copy(sampler), []
    for epoch in range(min(settings.epochs or 2, _EPOCHS)):
        trial.set_epoch(epoch)
        lengths.append(len(trial))
    if lengths and max(lengths) > lengths[0]:
        raise NotStandAlone(
            f"{type(sampler).__name__}, the sampler of train, gives {lengths[0]} in epoch 0 and"
            f" {max(lengths)} in epoch {lengths.index(max(lengths))}: the run left out samples"
            " beyond the first epoch's length, and a script would read them. Let each epoch have"
            " the same length, or make a fit of each stage."
        )


def held_out_of(spec: DataSpec, sliced: Sliced, settings: Settings, saved: SavedSet | None) -> Data:
    """The description of the validation data. For several sets it is that of the first one, which
    the script uses in a loop over them; ExportError says what differs where the others are read in
    another way.
    """
    first, *others = (data_of(one, "val", sliced, settings, saved) for one in spec.sets)
    if not others:
        return first
    names = ", ".join(one.key for one in spec.sets)
    if first.kind != "samples" or first.with_set_epoch:
        what = (
            "have a set_epoch"
            if first.kind == "samples"
            else "are no data sets with samples by number"
        )
        raise NotStandAlone(
            f"the sets of val ({names}) {what}: no script has several such sets. Fit with one of"
            " them to export it."
        )
    for one, other in zip(spec.sets[1:], others, strict=True):
        different = [
            field.name
            for field in dataclasses.fields(Data)
            if getattr(first, field.name) != getattr(other, field.name)
        ]
        if different:
            raise NotStandAlone(
                f"{one.name} is read in another way than {spec.sets[0].name}"
                f" ({', '.join(different)}), and a script has one for all sets: give all of them as"
                " data sets, or all as loaders of one form, or fit with one of them to export it."
            )
    return dataclasses.replace(first, combined=spec.from_combined)


def _with_set_epoch(
    spec: DataSpec, base: str, *, from_loader: bool, inner: bool
) -> tuple[str, ...]:
    """Expressions for the objects whose `set_epoch` the bench calls for each epoch."""
    parts, dataset = spec.parts, spec.parts.dataset
    pairs: list[tuple[Any, str]] = [
        (parts.batch_sampler, f"{base}.batch_sampler"),
        (getattr(parts.batch_sampler, "sampler", None), f"{base}.batch_sampler.sampler"),
        (parts.sampler, f"{base}.{'sampler' if parts.ready else 'batch_sampler.sampler'}"),
    ]
    if isinstance(dataset, Batches):
        users, given = dataset.users, f"{base}.users" if inner else base
        own = getattr(users, "batch_sampler", None)
        pairs += [
            (users, given),
            (getattr(users, "sampler", None), f"{given}.sampler"),
            (own, f"{given}.batch_sampler"),
            (getattr(own, "sampler", None), f"{given}.batch_sampler.sampler"),
            (getattr(users, "dataset", None), f"{given}.dataset"),
        ]
    else:
        pairs.append((dataset, f"{base}.dataset" if from_loader else base))
    found: dict[int, str] = {}
    for part, expression in pairs:
        if callable(getattr(part, "set_epoch", None)):
            found.setdefault(id(part), expression)
    return tuple(found.values())


def _position(spec: DataSpec, base: str) -> tuple[tuple[str, ...], str]:
    """The generators of the user's samplers; and another object that may advance from epoch to
    epoch, "": none.
    """
    parts, dataset = spec.parts, spec.parts.dataset
    generators: list[str] = []
    pending: list[tuple[Any, str]] = [
        (parts.sampler, f"{base}.batch_sampler.sampler"),
        (parts.batch_sampler, f"{base}.batch_sampler"),
    ]
    if isinstance(dataset, IterableDataset):
        pending.append((dataset.users if isinstance(dataset, Batches) else dataset, ""))
    while pending:
        held, expression = pending.pop()
        if held is None or isinstance(held, (list, tuple)):
            continue
        if isinstance(getattr(held, "generator", None), torch.Generator):
            if not expression:
                return tuple(generators), f"the generator of {type(held).__name__}"
            generators.append(f"{expression}.generator")
        if isinstance(held, DataLoader):
            pending += [(held.batch_sampler, ""), (held.sampler, "")]
            pending += [(held.dataset, "")] if isinstance(held.dataset, IterableDataset) else []
        elif type(held).__module__.startswith("torch."):
            pending.append((getattr(held, "sampler", None), expression and f"{expression}.sampler"))
        elif not (is_inlined(type(held).__module__) or hasattr(held, "set_epoch")):
            # the user's own code is checked with the script's code
            return tuple(generators), type(held).__name__
    return tuple(generators), ""


def _may_be_empty(collate: Any, dataset: Any) -> bool:
    """Whether a batch may be None."""
    if collate is not None and may_skip(collate):
        return True
    ready = getattr(dataset, "_batches", None) if isinstance(dataset, Batches) else None
    return isinstance(ready, (list, tuple)) and any(batch is None for batch in ready)


def _draws(loader: Loader, settings: Settings) -> bool:
    """Whether all processes must draw the same random numbers to read the same batches
    (`task/data/sharding.py`).
    """
    deals = resumable_sampler_of(loader)
    if deals is None:
        ready = users_dataset(loader)
        return not settings.num_workers and not isinstance(ready, (list, tuple))
    return common_rng_for(deals.batches, RankShard(0, 2), settings.seed) is not None


def maker_of(spec: DataSpec) -> Any:
    """The bound method of the user's object that makes this loader; None where data was given."""
    if not spec.made_by_object:
        return None
    maker = inspect.getclosurevars((spec._whole or spec)._given).nonlocals["make"]  # type: ignore[arg-type]
    if not inspect.ismethod(maker):
        raise NotStandAlone(
            f"{spec.name}_dataloader is no method of a class, so a script cannot call it: define it"
            " in one."
        )
    return maker


def first_batch(spec: DataSpec, settings: Settings) -> Any:
    """A first batch of the data, read without the user's samplers."""
    # Without the user's samplers, which may count how often they are asked.
    parts = dataclasses.replace(spec.parts, sampler=None, batch_sampler=None)
    try:
        return DataSpec(spec.name, parts).peek(min(SAMPLES, settings.batch_size))
    except Exception as error:
        raise NotStandAlone(
            f"reading a sample of {spec.name} failed: {type(error).__name__}: {error}"
        ) from error


def _counts_right(spec: DataSpec, settings: Settings) -> bool:
    """Whether the number of samples of a batch is that which accelerate reads from it."""
    batch = first_batch(spec, settings)
    try:
        if batch is not None and find_batch_size(batch) != sample_count(batch):
            return False
    except (TypeError, IndexError):  # it starts with something else than a tensor
        return False
    if spec.parts.ready or spec.parts.collate_fn is None:
        return True
    if _leaves_samples_out(spec.parts.collate_fn):
        return False
    parts = dataclasses.replace(spec.parts, sampler=None, batch_sampler=None)
    for size in range(1, min(3, settings.batch_size, spec.samples or 3) + 1):
        try:
            batch = DataSpec(spec.name, parts).peek(size)
            if batch is not None and sample_count(batch) != size:
                return False
        except Exception:  # noqa: BLE001  # a collate function may refuse such a small batch
            continue
    return True


def _shares_memory(spec: DataSpec, settings: Settings) -> bool:
    """Whether two batches of samples lie in the same memory."""
    pair = [first_batch(spec, settings) for _ in range(2)]
    first, second = (
        {tensor.untyped_storage().data_ptr() for _, tensor in leaves(batch)} for batch in pair
    )
    return bool(first & second)


def _leaves_samples_out(collate: Callable[..., Any]) -> bool:
    """Whether the code of a collate function, or of a function that it calls, chooses samples."""
    functions, seen = [inspect.unwrap(collate)], set[int]()
    while functions:
        function = functions.pop()
        code = getattr(function, "__code__", None)
        module = getattr(function, "__module__", None) or "__main__"
        is_users = module == "__main__" or is_inlined(module)
        if code is None or id(code) in seen or not is_users:
            continue
        seen.add(id(code))
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, SyntaxError, TypeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.comprehension, ast.For)) and _chooses(node):
                return True
            if isinstance(node, ast.Name) and node.id in ("filter", "filterfalse", "compress"):
                return True
        functions += [function.__globals__.get(name) for name in code.co_names]
    return False


def _chooses(loop: ast.comprehension | ast.For) -> bool:
    """Whether a loop leaves some of its items out."""
    if isinstance(loop, ast.comprehension):
        return bool(loop.ifs)
    return any(isinstance(node, (ast.If, ast.Continue, ast.Break)) for node in ast.walk(loop))


def layout_of(batch: Any, has_loss: bool) -> str:
    """The kind of a training batch, for `ScriptSpec.batch`."""
    if isinstance(batch, Mapping):
        return f"dict:{next((key for key in TARGETS if key in batch), '')}"
    if isinstance(batch, (tuple, list)):
        return "pair" if has_loss and len(batch) == 2 else "tuple"
    return "single"
