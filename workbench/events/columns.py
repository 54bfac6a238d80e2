"""Packs columns of numbers as little-endian bytes (float32, or float64 where that was measured),
and names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Numbers = NDArray[np.float32] | NDArray[np.float64]

MEASURED = re.compile(
    r"(loss|lr|grad_norm|grad_norm_clipped)(\.\d+)?|layer_norms|update_ratios|skipped"
)
"""The columns that the engine measures itself."""
BY_LAYER = ("layer_norms", "update_ratios")
"""Columns with one number for each layer."""
MARK = "_logged"
"""The suffix of a logged name that the record already uses for something else."""
_RESERVED = re.compile(
    r"(step|epoch|skipped|layer_norms|update_ratios|(loss|lr|grad_norm|grad_norm_clipped)(\.\d+)?|(grad_norm|update_ratio)/.*)"
)

_T = TypeVar("_T")


def recorded_name(name: str) -> str:
    """Return the name under which a logged value is recorded: it gets a suffix if the record has
    a column of that name, such as "loss".
    """
    return f"{name}{MARK}" if _RESERVED.fullmatch(name) else name


def by_own_names(values: Mapping[str, _T]) -> dict[str, _T]:
    """Return the values by recorded name, and also by the name with which the user logged them
    where that differs.
    """
    marked = [
        name
        for name in values
        if name.endswith(MARK) and recorded_name(name.removesuffix(MARK)) == name
    ]
    return {**values, **{name.removesuffix(MARK): values[name] for name in marked}}


def pack(values: Iterable[float] | NDArray[Any], double: bool = False) -> bytes:
    """Pack numbers as little-endian float32 bytes (`double`: float64), row by row."""
    kind = "<f8" if double else "<f4"
    array = values if isinstance(values, np.ndarray) else np.fromiter(values, dtype=kind)
    return np.ascontiguousarray(array, dtype=kind).tobytes()


def unpack(data: bytes) -> Floats:
    """Unpack the float32 numbers in `data`, shape (n,)."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32)
