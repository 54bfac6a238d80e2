"""Reads the samples of train and val for the file next to the script (`data="beside"`), or says
why they cannot be saved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from workbench import units
from workbench.export.errors import ExportError
from workbench.export.inputs.collect import collate_given, quoted
from workbench.task.data.datasets import Batches, Columns
from workbench.task.data.loader_parts import Parts
from workbench.task.data.preload import probed_samples, random_states, size_of, taken_apart
from workbench.task.data.rng_state import DataRngState
from workbench.task.data.spec import DataSpec
from workbench.task.protocol import Task
from workbench.task.rng import process_state, restored_process_state

MOST = 100e6
"""How many bytes are saved at most."""
_DTYPES = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}
_NUMBERS = (bool, int, float, np.generic)
_SEED = "set a seed before it is made, fit again, and export without data='beside'"


@dataclasses.dataclass(frozen=True)
class SavedSet:
    """The saved samples of train or val."""

    spec: DataSpec
    """The samples in memory, to be read like the user's data."""
    expression: str
    """The expression with which the script makes its data set; `tensors` are the contents of the
    file.
    """
    generator: str | None
    """The expression for the generator of the user's loader; None: the loader has no generator."""


class SavedData:
    """The tensors of the file next to a script, and the expressions with which the script uses
    them.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        """The name of the file."""
        self.tensors: dict[str, Tensor] = {}
        self.sets: dict[str, SavedSet] = {}
        """By "train" and "val"."""
        self._names: dict[tuple[Any, ...], str] = {}
        """The tensors by their memory: a tensor that train and val share is saved once."""

    @classmethod
    def of(cls, file: str, task: Task, arguments: Mapping[str, str]) -> SavedData:
        """The data of a task; ExportError names what cannot be saved, or the size if it is too
        large.

        arguments: the expressions that the bench was given, which the script has.
        """
        saved = cls(file)
        specs = {
            name: spec
            for name, spec in (("train", task.train), ("val", task.val))
            if spec is not None
        }
        by_name = {
            name: _samples_of(name, spec, collate_given(name, arguments) is not None)
            for name, spec in specs.items()
        }
        columns = {
            _memory_of(column): column
            for samples in by_name.values()
            for column in _columns(samples)
        }
        _check_size(sum(column.nbytes for column in columns.values()))
        for name, samples in by_name.items():
            saved._add(name, specs[name].parts, samples)
        return saved

    def _add(self, name: str, parts: Parts, samples: Any) -> None:
        """Add samples: a tensor with a row for each, or a tuple or a dict of these."""
        columns, keys = _columns(samples), list(samples) if isinstance(samples, dict) else []
        names = keys if keys and all(isinstance(key, str) for key in keys) else range(len(columns))
        saved = [
            self._column(f"{name}.{suffix}", column)
            for suffix, column in zip(names, columns, strict=True)
        ]
        dataset: Any
        if isinstance(samples, dict):
            dataset = Columns({key: tensor for key, (tensor, _) in zip(keys, saved, strict=True)})
            expression = (
                "{"
                + ", ".join(
                    f"{quoted(key)}: {text}" for key, (_, text) in zip(keys, saved, strict=True)
                )
                + "}"
            )
        elif isinstance(samples, tuple):
            dataset = TensorDataset(*(tensor for tensor, _ in saved))
            expression = f"TensorDataset({', '.join(text for _, text in saved)})"
        else:
            dataset, expression = saved[0]
        generator = None
        if parts.generator is not None:
            self.tensors[f"generator.{name}"] = parts.generator.get_state()
            generator = f'torch.Generator().set_state(tensors["generator.{name}"])'
        spec = DataSpec(name, dataclasses.replace(parts, dataset=dataset))
        self.sets[name] = SavedSet(spec, expression, generator)

    def _column(self, name: str, column: Tensor) -> tuple[Tensor, str]:
        """A tensor as the script will have it, and its expression."""
        name = self._names.setdefault(_memory_of(column), name)
        if name not in self.tensors:
            self.tensors[name] = column.cpu().contiguous()
        return self.tensors[name], f"tensors[{quoted(name)}]"


# ---- what can be saved ---------------------------------------------------------------------------


def _samples_of(
    name: str, spec: DataSpec, own_collate: bool
) -> Tensor | tuple[Tensor, ...] | dict[Any, Tensor]:
    """All samples: a tensor with a row for each, or a tuple or a dict of these."""
    if spec.made_by_object:
        raise _unsaved(
            name,
            f"is made by {name}_dataloader()",
            f"give what it makes to the Workbench ({name}=…), and fit again",
        )
    if spec.several:
        raise _unsaved(name, "has several sets", "fit with one of them, and export that run")
    parts = spec.parts
    _check_loader(name, parts, own_collate)
    if spec.samples is None:
        raise _unsaved(name, "has no length", "give it __len__, and fit again")
    dataset = parts.dataset
    samples: Any = _in_memory(dataset)
    if samples is None:
        samples = _read(name, dataset, spec.samples, collated=parts.collate_fn is not None)
    for column in _columns(samples):
        _check_tensor(name, column)
        # the result of sums over it depends on the order in memory
        if parts.collate_fn is not None and not column[0].is_contiguous():
            raise _unsaved(
                name,
                "has a tensor that is not contiguous, which a collate_fn reads",
                "give x.contiguous(), and fit again",
            )
    return samples  # type: ignore[no-any-return]


def _check_loader(name: str, parts: Parts, own_collate: bool) -> None:
    """Raise ExportError for a loader with more than samples: ready batches, an own sampler or
    collate_fn, …
    """
    dataset = parts.dataset
    if isinstance(dataset, (IterableDataset, Batches, DataLoader)) or parts.ready:
        kind = type(dataset.users if isinstance(dataset, Batches) else dataset).__name__
        form = "gives ready batches" if parts.ready else "is an IterableDataset"
        raise _unsaved(
            name,
            f"{form} ({kind}), and samples are saved by their number",
            "give the samples in a Dataset, and fit again",
        )
    for option in ("sampler", "batch_sampler", "worker_init_fn"):
        value = getattr(parts, option)
        if value is not None:
            kind = getattr(value, "__name__", type(value).__name__)
            raise _unsaved(
                name,
                f"has a loader with {option}={kind}, made by code that the script would not have",
                _SEED,
            )
    if parts.collate_fn is not None and not own_collate:
        raise _unsaved(
            name,
            "has a loader with a collate_fn, which the script would not have",
            "give it to the Workbench (collate_fn=…), and fit again",
        )
    if parts.generator is not None and parts.generator.device.type != "cpu":
        raise _unsaved(
            name,
            f"has a loader with a generator on {parts.generator.device}",
            "make it on the CPU, and fit again",
        )
    if callable(getattr(dataset, "set_epoch", None)):
        raise _unsaved(
            name,
            f"asks which epoch it is ({type(dataset).__name__}.set_epoch), and its samples may"
            " change",
            _SEED,
        )


def _in_memory(dataset: Any) -> Any:
    """The samples of arrays, a TensorDataset, or a Subset of one, without reading them one by
    one; None: they have to be read.
    """
    if isinstance(dataset, Columns):
        return dataset.columns
    if type(dataset) is TensorDataset:
        return dataset.tensors
    if type(dataset) is Tensor:
        return dataset
    if type(dataset) is Subset and isinstance(whole := _in_memory(dataset.dataset), tuple):
        rows = torch.as_tensor(list(dataset.indices), dtype=torch.int64)
        _check_size(sum(column[:1].nbytes for column in whole) * len(rows))
        return tuple(column[rows.to(column.device)] for column in whole)
    return None


def _read(name: str, dataset: Any, count: int, collated: bool) -> Any:
    """The samples of a map-style data set, each read once. collated: a collate_fn takes them as
    they are.
    """
    kind, rng_state = type(dataset).__name__, DataRngState(dataset=dataset)
    before = rng_state.state()
    draws = _unsaved(
        name,
        f"draws random numbers or changes when it reads a sample ({kind})",
        f"put the random part into collate_fn of the Workbench and fit again; or {_SEED}",
    )
    try:
        with restored_process_state(process_state()):
            first = probed_samples(dataset, count, lambda _: draws)
            _check_size(sum(map(size_of, first)) / len(first) * count)
            states = random_states(dataset)
            samples = [dataset[index] for index in range(count)]
            if random_states(dataset) != states:
                raise draws
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(
            f"data='beside': reading a sample of {name} failed: {type(error).__name__}: {error}"
        ) from error
    finally:
        rng_state.put(before)
    return _stacked(name, kind, samples, collated)


def _stacked(name: str, kind: str, samples: Sequence[Any], collated: bool) -> Any:
    """Samples of one form as columns."""
    parts = [taken_apart(sample) for sample in samples]
    form, keys, first = parts[0]
    types = [type(value) for value in first]
    allowed = (Tensor,) if collated else (Tensor, np.ndarray, *_NUMBERS)
    for value in first:
        if not isinstance(value, allowed) or (collated and type(value) is not Tensor):
            fault = (
                f"has a {type(value).__name__} in its samples ({kind}), and only"
                f" tensors{'' if collated else ' and numbers'} are saved"
            )
            raise _unsaved(name, fault + " where there is a collate_fn" * collated, _SEED)
    if collated and form is list:
        raise _unsaved(
            name,
            f"has lists as samples ({kind}), which a collate_fn may read otherwise than tuples",
            _SEED,
        )
    if any(
        (other, names, [type(value) for value in values]) != (form, keys, types)
        for other, names, values in parts
    ):
        raise _unsaved(name, f"has samples of different forms ({kind})", _SEED)
    try:
        columns = [
            default_collate([values[number] for _, _, values in parts])
            for number in range(len(first))
        ]
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise _unsaved(
            name, f"has samples that cannot be stacked ({kind}: {error})", _SEED
        ) from error
    if form is dict:
        return dict(zip(keys, columns, strict=True))
    return tuple(columns) if form in (tuple, list) else columns[0]


def _columns(samples: Any) -> list[Tensor]:
    """The tensors of samples."""
    if isinstance(samples, dict):
        return list(samples.values())
    return list(samples) if isinstance(samples, tuple) else [samples]


def _memory_of(column: Tensor) -> tuple[Any, ...]:
    """A key that is equal for tensors with the same memory and layout."""
    address = column.data_ptr() if column.numel() else id(column)
    return column.device, address, column.shape, column.stride(), column.dtype


def _check_tensor(name: str, column: Tensor) -> None:
    special = (
        column.layout is not torch.strided
        or column.is_quantized
        or column.is_conj()
        or column.is_neg()
    )
    if type(column) is not Tensor or special or column.dtype not in _DTYPES:
        kind = str(column.layout if column.layout is not torch.strided else column.dtype)
        if type(column) is not Tensor:
            kind = type(column).__name__
        raise _unsaved(name, f"has a tensor of another kind ({kind})", _SEED)
    if column.requires_grad:
        raise _unsaved(
            name, "has a tensor that requires a gradient", "give x.detach(), and fit again"
        )


def _check_size(size: float) -> None:
    if size > MOST:
        raise ExportError(
            f"data='beside' would save {units.size(size)}, and at most {units.size(MOST)} are"
            " saved: write the data to a file of your own (torch.save), read it in a cell"
            " (torch.load), fit again, and export without data='beside'."
        )


def _unsaved(name: str, what: str, remedy: str) -> ExportError:
    return ExportError(f"data='beside' cannot save {name}, which {what}: {remedy}.")
