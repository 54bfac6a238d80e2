"""Stores samples that are all alike as one tensor or array for each of their parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Column = Tensor | np.ndarray[Any, Any]

_NUMBERS: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}


class Stacked:
    """A fixed number of samples of one kind. A sample is read as a copy, so that changes to it do not reach the
    data.
    """

    def __init__(self, kind: type, keys: tuple[Any, ...] | None, kinds: list[type], columns: list[Column]) -> None:
        """kind: what holds the parts (tuple, list, dict; else there is only one part). keys: a dict's."""
        self._kind, self._keys, self._kinds, self._columns = kind, keys, kinds, columns

    @classmethod
    def like(cls, sample: Any, count: int) -> Stacked | None:
        """Room for `count` samples like this one; None where such samples cannot be stacked."""
        kind, keys, parts = _taken_apart(sample)
        columns = [_column(part, count) for part in parts]
        made = [column for column in columns if column is not None]
        if not parts or len(made) < len(columns):
            return None
        return cls(kind, keys, [type(part) for part in parts], made)

    def put(self, index: int, sample: Any) -> bool:
        """Store a sample; False if it is not like the others."""
        kind, keys, parts = _taken_apart(sample)
        if (kind, keys, [type(part) for part in parts]) != (self._kind, self._keys, self._kinds):
            return False
        if not all(_fits(part, column) for part, column in zip(parts, self._columns, strict=True)):
            return False
        for part, column in zip(parts, self._columns, strict=True):
            column[index] = part
        return True

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> Any:
        parts = [_part(kind, column[index]) for kind, column in zip(self._kinds, self._columns, strict=True)]
        if self._kind is dict:
            return dict(zip(self._keys or (), parts, strict=True))
        return parts[0] if self._kind not in (tuple, list) else self._kind(parts)


def _taken_apart(sample: Any) -> tuple[type, tuple[Any, ...] | None, list[Any]]:
    kind = type(sample)
    if kind is dict:
        return kind, tuple(sample), list(sample.values())
    return kind, None, list(sample) if kind in (tuple, list) else [sample]


def _column(part: Any, count: int) -> Column | None:
    kind = type(part)
    if kind in _NUMBERS:
        return torch.empty(count, dtype=_NUMBERS[kind], device="cpu")
    if kind is Tensor and _plain(part):
        return torch.empty(count, *part.shape, dtype=part.dtype, device="cpu")
    if kind is np.ndarray and not part.dtype.hasobject:
        return np.empty((count, *part.shape), dtype=part.dtype)
    return None


def _fits(part: Any, column: Column) -> bool:
    if type(part) is int:
        return -(1 << 63) <= part < 1 << 63
    if type(part) in _NUMBERS:
        return True
    if type(part) is Tensor and not _plain(part):
        return False
    return bool(part.shape == column.shape[1:] and part.dtype == column.dtype)


def _plain(tensor: Tensor) -> bool:
    dense = tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.is_contiguous()
    return dense and not tensor.requires_grad and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg()


def _part(kind: type, row: Any) -> Any:
    if kind in _NUMBERS:
        return row.item()
    return row.clone() if kind is Tensor else np.array(row)
