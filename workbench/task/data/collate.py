"""Makes batches as torch's default collation does; an error names the part that cannot be
stacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import default_collate

from workbench.task.data.to_dataset import is_frame, is_of_hugging_face, listed, short
from workbench.task.errors import TaskError


@dataclass(frozen=True)
class DefaultCollate:
    """`torch.utils.data.default_collate` for the samples of one data set. Raises TaskError naming
    the data and the part.
    """

    name: str
    """ "train", "val", …"""
    of_lists: bool = False
    """Whether the data set returns lists where users mean tensors (a Hugging Face data set
    without a format).
    """

    @classmethod
    def of(cls, name: str, dataset: Any) -> DefaultCollate:
        """The default collate function of a data set. name: of its loader, for messages."""
        return cls(name, is_of_hugging_face(dataset))

    def __call__(self, samples: list[Any]) -> Any:
        if self.of_lists:
            self._refuse_lists(samples[0])
        self._refuse_masked(samples[0])
        try:
            return default_collate(samples)
        except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as error:
            trouble = _trouble(samples, "")
            if trouble is None:
                raise
            raise TaskError(f"{self.name}: {trouble}") from error

    def _refuse_lists(self, sample: Any) -> None:
        """Raise TaskError for lists, of which default collation would make a list of tensors,
        one for each place.
        """
        values = sample if isinstance(sample, Mapping) else {}
        names = [repr(name) for name, value in values.items() if isinstance(value, (list, dict))]
        if names:
            column = (
                f"column {names[0]} holds" if len(names) == 1 else f"columns {listed(names)} hold"
            )
            raise TaskError(
                f"{self.name}: the {column} lists of Python numbers, no tensors: give"
                f' {self.name}=ds.with_format("torch") (or ds.set_format("torch")), or collate_fn=.'
            )

    def _refuse_masked(self, sample: Any) -> None:
        """Raise TaskError for masked arrays: torch would read masked entries as numbers."""
        elements = sample if isinstance(sample, (tuple, list)) else (sample,)
        for element in sample.values() if isinstance(sample, Mapping) else elements:
            if isinstance(element, np.ma.MaskedArray):
                raise TaskError(
                    f"{self.name}: a sample has a masked array: fill it in the data set, for"
                    " example x.filled(0)."
                )


def _trouble(parts: Sequence[Any], path: str) -> str | None:
    """Why these values, one from each sample, cannot become a batch, and the remedy; None:
    unknown.
    """
    first, where = parts[0], f"element {path} of a sample" if path else "a sample"
    if any(element is None for element in parts):
        return f"{where} is None: leave such samples out of the data set, or give collate_fn=."
    if isinstance(first, (Tensor, np.ndarray)):
        return _of_arrays(parts, where)
    if isinstance(first, Mapping):
        return _of_mappings(parts, path, where)
    if isinstance(first, (tuple, list)):
        lengths = {len(element) if isinstance(element, (tuple, list)) else -1 for element in parts}
        if len(lengths) > 1:
            return (
                f"{where} has another length than in the next sample ({listed(map(short, parts))}):"
                f" {_COLLATE}"
            )
        troubles = (
            _trouble([element[n] for element in parts], f"{path}.{n}" if path else str(n))
            for n in range(len(first))
        )
        return next((trouble for trouble in troubles if trouble is not None), None)
    if isinstance(first, (str, bytes, int, float, complex, np.generic)):
        other = next((element for element in parts if type(element) is not type(first)), None)
        return (
            None
            if other is None
            else (
                f"{where} is of type {short(first)}, and in another sample of type {short(other)}:"
                " make them alike."
            )
        )
    return _of_another_kind(first, where)


_COLLATE = (
    "give collate_fn=, which makes a batch of a list of samples (torch.nn.utils.rnn.pad_sequence"
    " pads them, say)."
)


def _of_arrays(parts: Sequence[Any], where: str) -> str | None:
    shapes = [
        tuple(element.shape) if hasattr(element, "shape") else short(element) for element in parts
    ]
    if len(set(shapes)) > 1:
        named = "" if where == "a sample" else f" ({where})"
        different = listed(dict.fromkeys(map(str, shapes)))
        return (
            f"samples of unlike shapes cannot be stacked{named}: {different}. Give them one shape,"
            f" or {_COLLATE}"
        )
    first = parts[0]
    if isinstance(first, np.ndarray) and first.dtype.kind not in "biufc":
        return (
            f"{where} is an array of dtype {first.dtype}, which makes no tensor: turn it into"
            " numbers, or give collate_fn=."
        )
    if isinstance(first, np.ndarray) and any(stride < 0 for stride in first.strides):
        return (
            f"{where} is an array with negative strides, which torch does not take: return x.copy()"
            " from the data set."
        )
    return None


def _of_mappings(parts: Sequence[Any], path: str, where: str) -> str | None:
    first = parts[0]
    for element in parts:
        keys = set(element) if isinstance(element, Mapping) else set()
        if odd := set(first) ^ keys:
            return (
                f"{where} has the key {sorted(map(str, odd))[0]!r} that another sample does not"
                " have: give all samples the same keys."
            )
    troubles = (
        _trouble([element[key] for element in parts], f"{path}.{key}" if path else str(key))
        for key in first
    )
    return next((trouble for trouble in troubles if trouble is not None), None)


def _of_another_kind(first: Any, where: str) -> str:
    kind = type(first)
    if kind.__module__.partition(".")[0] == "PIL":
        return (
            f"{where} is a PIL {kind.__name__}: let the data set turn it into a tensor,"
            " transform=torchvision.transforms.ToTensor(), say."
        )
    if is_frame(first):
        return (
            f"{where} is a {short(first)}: return its values from the data set,"
            " torch.as_tensor(x.to_numpy())."
        )
    return (
        f"{where} is a {short(first)} from which no batch can be made: give collate_fn=, or the"
        " DataLoader of its own library."
    )
