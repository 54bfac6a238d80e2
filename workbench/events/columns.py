"""Packs columns of numbers as little-endian bytes: float32, or float64 where that was measured."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Numbers = NDArray[np.float32] | NDArray[np.float64]

MEASURED = re.compile(r"(loss|lr|grad_norm|grad_norm_clipped)(\.\d+)?|layer_norms|update_ratios|skipped")
"""The columns that the engine measures itself."""
BY_LAYER = ("layer_norms", "update_ratios")
"""Columns with one number for each layer."""


def pack(values: Iterable[float] | NDArray[Any], double: bool = False) -> bytes:
    """Numbers as little-endian float32 bytes (`double`: float64), row by row."""
    kind = "<f8" if double else "<f4"
    array = values if isinstance(values, np.ndarray) else np.fromiter(values, dtype=kind)
    return np.ascontiguousarray(array, dtype=kind).tobytes()


def unpack(data: bytes) -> Floats:
    """The float32 numbers in `data`, shape (n,)."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32)
