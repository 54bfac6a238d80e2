"""Times calls in the user's code that make training wait for the device: values that are read, tensors that are moved.

`loss.item()`, `x.cpu()` or `if loss > 3:` in a training step wait until the device has done all its work, and a tensor that
is made on the CPU at each step has to be copied. What that costs depends on the model, so it is measured: the calls of a
few updates are timed, by line of code.
"""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

READS = frozenset(("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__array__"))
"""Methods of a tensor that return its values to Python."""
MOVES = frozenset(("to", "cuda"))
"""Methods that may copy a tensor from the CPU to a device."""
LEAST = 0.02
"""Calls are reported that take at least this share of an update."""
_LIBRARIES = (str(Path(torch.__file__).parents[1]) + os.sep, str(Path(__file__).parents[1]) + os.sep, "/lib/python")


class SlowCalls(TorchFunctionMode):
    """Inside, calls of the user's code are timed; they compute what they compute without it."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds: dict[tuple[str, str, int], float] = {}
        self._total = 0.0
        self._began = 0.0

    def __enter__(self) -> Any:
        self._began = perf_counter()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._total += perf_counter() - self._began

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        reads = name in READS
        if not reads and not (name in MOVES and isinstance(args[0], Tensor) and args[0].device.type == "cpu"):
            return func(*args, **(kwargs or {}))
        began = perf_counter()
        result = func(*args, **(kwargs or {}))
        passed = perf_counter() - began
        if reads or (isinstance(result, Tensor) and result.device.type != "cpu"):
            place = _place(sys._getframe(1))
            if place is not None:
                key = name, *place
                self._seconds[key] = self._seconds.get(key, 0.0) + passed
        return result

    def found(self) -> tuple[str, ...]:
        """A sentence for each line whose calls take a share of the updates that is worth a look, the slowest first."""
        slow = sorted(self._seconds.items(), key=lambda item: -item[1])
        return tuple(
            f"{_where(file, line)} takes {seconds / self._total:.0%} of an update in {_call(name)}"
            for (name, file, line), seconds in slow
            if self._total and seconds >= LEAST * self._total
        )


def has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process: calls cannot be timed in such code."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and dynamo.utils.counters["frames"]["total"] > 0


def _place(frame: FrameType | None) -> tuple[str, int] | None:
    """The innermost line of the user's code; None: a library or the workbench called by itself."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith("<frozen") and not any(part in name for part in _LIBRARIES):
            return name, frame.f_lineno
        frame = frame.f_back
    return None


def _where(file: str, line: int) -> str:
    """`the code` at file.py:12; of a notebook's cell the code and its line."""
    code = linecache.getline(file, line).strip()
    name = "the cell, line" if "ipykernel" in file or file.startswith("<") else f"{Path(file).name}:"
    said = f"{name} {line}" if name.endswith("line") else f"{name}{line}"
    return f"`{code:.80}` ({said})" if code else said


def _call(name: str) -> str:
    """How a user writes the call: `item()`, `numpy()`, or `if tensor` for `__bool__`."""
    return {"__bool__": "`if tensor`", "__array__": "numpy()"}.get(name, f"{name.strip('_')}()")
