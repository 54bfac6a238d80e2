"""Times calls in the user's code that make training wait: values that are read, tensors that are
moved, memory that is freed.

`loss.item()`, `x.cpu()` or `if loss > 3:` in a training step wait until the device has done all its
work, and a tensor that is made on the CPU at each step has to be copied. `torch.cuda.empty_cache()`
waits too, and then the memory has to be got again; `gc.collect()` looks at every object of the
process. What that costs depends on the model, so it is measured: the calls of a few updates are
timed, by line of code.
"""

from __future__ import annotations

import gc
import linecache
import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from time import perf_counter
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from workbench.tracebacks import shown_line

READS = frozenset(
    ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__array__")
)
"""Methods of a tensor that return its values to Python."""
MOVES = frozenset(("to", "cuda"))
"""Methods that may copy a tensor from the CPU to a device."""
MAKES = frozenset(("tensor", "as_tensor", "asarray", "new_tensor"))
"""Functions that may copy Python's or NumPy's values to a device."""
LEAST = 0.02
"""The least share of an update for which a call is reported."""
_LIBRARY_PATHS = (
    str(Path(torch.__file__).parents[1]) + os.sep,
    str(Path(__file__).parents[1]) + os.sep,
    "/lib/python",
)
_TORCH = str(Path(torch.__file__).parent) + os.sep
_OF_TENSORS = (
    _TORCH + "_tensor.py", _TORCH + "overrides.py", _TORCH + os.path.join("utils", "_device.py"),
    str(Path(np.__file__).parent) + os.sep,
)  # fmt: skip
"""Code through which a line reads a tensor that it names: methods of tensors in Python, and
NumPy.
"""


class _Functions:
    """The functions of modules that torch's modes do not see. While a thread times its calls, each
    tells it how long it took.

    They are replaced as long as any thread does so.
    """

    NAMES = ("empty_cache", "synchronize")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timing = 0
        self._replaced: list[tuple[ModuleType, str, Callable[..., Any], Callable[..., Any]]] = []
        self.here = threading.local()
        """`calls`: the CallTimer of this thread."""

    def begin(self, calls: CallTimer) -> None:
        """From now on report this thread's calls to `calls`."""
        self.here.calls = calls
        with self._lock:
            self._timing += 1
            if self._timing == 1:
                devices = (torch.cuda, torch.mps, torch.xpu, torch.accelerator)
                self._replace(
                    [
                        (gc, "collect"),
                        *((module, name) for module in devices for name in self.NAMES),
                    ]
                )

    def end(self) -> None:
        """Put the functions back, unless another thread still times its calls. A function that the
        user has replaced meanwhile stays.
        """
        self.here.calls = None
        with self._lock:
            self._timing -= 1
            if not self._timing:
                for module, name, timed, users in self._replaced:
                    if getattr(module, name) is timed:
                        setattr(module, name, users)
                self._replaced = []

    def _replace(self, functions: list[tuple[ModuleType, str]]) -> None:
        for module, name in functions:
            users = getattr(module, name, None)
            if users is not None:
                timed = self._timed(users, name)
                self._replaced.append((module, name, timed, users))
                setattr(module, name, timed)

    def _timed(self, users: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(users)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter()
            try:
                return users(*args, **kwargs)
            finally:
                calls: CallTimer | None = getattr(self.here, "calls", None)
                if calls is not None:
                    calls.add(name, perf_counter() - began, sys._getframe(1))

        return timed


_functions = _Functions()


class CallTimer(TorchFunctionMode):
    """Context manager that times calls in the user's code; their results do not change."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds: dict[tuple[str, str, int], float] = {}
        self._total = 0.0
        self._began = 0.0

    def __enter__(self) -> Any:
        self._began = perf_counter()
        _functions.begin(self)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _functions.end()
        self._total += perf_counter() - self._began

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        reads = name in READS
        on_device = bool(args) and isinstance(args[0], Tensor) and args[0].device.type != "cpu"
        if (
            not reads
            and not (name in MOVES and not on_device)
            and not (name in MAKES and (name == "new_tensor" or not on_device))
        ):
            return func(*args, **(kwargs or {}))
        began = perf_counter()
        result = func(*args, **(kwargs or {}))
        passed = perf_counter() - began
        if reads or (isinstance(result, Tensor) and result.device.type != "cpu"):
            self.add(name, passed, sys._getframe(1))
        return result

    def add(self, name: str, seconds: float, frame: FrameType) -> None:
        """Add the seconds of a call to the line of the user's code that it came from."""
        user_line = _place(frame)
        if user_line is not None:
            key = name, *user_line
            self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def found(self) -> tuple[str, ...]:
        """A sentence for each line whose calls take a share of the updates that is worth a look,
        the slowest first.
        """
        slow = sorted(self._seconds.items(), key=lambda item: -item[1])
        return tuple(
            f"{_where(file, line)} takes {seconds / self._total:.0%} of an update in {_call(name)}"
            for (name, file, line), seconds in slow
            if self._total and seconds >= LEAST * self._total
        )


def has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process: calls cannot be timed in such
    code.
    """
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and dynamo.utils.counters["frames"]["total"] > 0


def _place(frame: FrameType | None) -> tuple[str, int] | None:
    """The line of the user's code that makes a call. None: a library makes it, as Adam reads its
    step, which no line of the user's can change.
    """
    while frame is not None and frame.f_code.co_filename.startswith(_OF_TENSORS):
        frame = frame.f_back
    if frame is None:
        return None
    name = frame.f_code.co_filename
    of_library = name.startswith("<frozen") or any(path in name for path in _LIBRARY_PATHS)
    return None if of_library else (name, frame.f_lineno)


def _where(file: str, line: int) -> str:
    """'`the code` (cell 4, line 7)', or the line alone where its code cannot be read."""
    code, location = linecache.getline(file, line).strip(), shown_line(file, line)
    return f"`{code:.80}` ({location})" if code else location


def _call(name: str) -> str:
    """How a user writes the call: `item()`, `numpy()`, or `if tensor` for `__bool__`."""
    return {"__bool__": "`if tensor`", "__array__": "numpy()"}.get(name, f"{name.strip('_')}()")
