"""Carries what holds in the cell that starts a job into the thread that does it: much of it is
state of the cell's own thread.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from workbench.launch.process.process_env import in_mlflow_run, mlflow_run
from workbench.task.errors import TaskError

P = ParamSpec("P")
R = TypeVar("R")
_DEVICES = ("cpu", "cuda", "mps", "xpu")
_PRECISIONS = {torch.float16: "16-mixed", torch.bfloat16: "bf16-mixed"}
_OF_THREADS = {
    "SQLite objects created in a thread": (
        "sqlite3.connect(…, check_same_thread=False) opens a connection that another thread may use"
    ),
    "signal only works in main thread": (
        "num_workers=1 reads the data in a process, and strategy='pool' trains in one: there the"
        " code is in the main thread"
    ),
    "There is no current event loop": "call asyncio.run(…), which makes one",
}
"""Words in errors of code that works only in the cell's own thread, each with a remedy."""


class CellContext:
    """What holds where it is made: context variables, torch's default device, numpy's error
    state, an active MLflow run.
    """

    def __init__(self) -> None:
        self._variables = contextvars.copy_context()
        self._default_device = torch.get_default_device()
        self._cuda = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        # before numpy 2, of each thread
        self._numpy_errors: dict[str, Any] = {**np.geterr(), "call": np.geterrcall()}
        self._saving = torch._C._autograd._top_saved_tensors_default_hooks(False)
        self._mlflow_run = mlflow_run()

    @staticmethod
    def stays_here() -> bool:
        """Whether something holds in this thread that another thread can get, and another process
        cannot.
        """
        return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None

    @staticmethod
    def refuse(kind: str) -> None:
        """Raise TaskError for what holds in this thread and cannot be carried into another one.
        kind: of the job.
        """
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                dtype = torch.get_autocast_dtype(device)
                precision = _PRECISIONS.get(dtype, "bf16-mixed")
                raise TaskError(
                    f"torch.autocast({device!r}, {dtype}) is active around {kind}(), and the"
                    " precision of a job is a setting, which its record and its ranks have, too:"
                    f" leave it, and give precision={precision!r}."
                )
        of_functions = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        modes: list[Any] = [*of_functions, *_get_current_dispatch_mode_stack()]
        mode = next((mode for mode in modes if not isinstance(mode, DeviceContext)), None)
        if mode is not None:
            raise TaskError(
                f"{type(mode).__name__} is active around {kind}(), and a job runs in a thread of"
                " its own, which torch's modes do not reach: leave it, and enter it in the model's"
                " forward or training_step."
            )

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in this thread as if it were called in the cell. Raises what MLflow
        raises for a run that it cannot open.
        """
        return self._variables.run(partial(self._call, function, *args, **kwargs))

    def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        with contextlib.ExitStack() as stack, _explained():
            if self._cuda is not None:
                torch.cuda.set_device(self._cuda)
            if self._default_device.type != "cpu":
                stack.enter_context(self._default_device)
            if self._saving is not None:
                stack.enter_context(saved_tensors_hooks(*self._saving))
            stack.enter_context(np.errstate(**self._numpy_errors))
            stack.enter_context(in_mlflow_run(self._mlflow_run))
            return function(*args, **kwargs)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Context manager that adds a note to an error of code that works only in the cell's own
    thread.
    """
    try:
        yield
    except Exception as error:
        for words, remedy in _OF_THREADS.items():
            if words in str(error):
                error.add_note(
                    f"A job runs in a thread of its own, and not in that of the cell: {remedy}."
                )
        raise


def in_kernel() -> bool:
    """Whether this process is the kernel of a notebook."""
    return (
        "ipykernel" in sys.modules
        and hasattr(sys.modules["ipykernel"], "kernelapp")
        and _has_kernel_app()
    )


def _has_kernel_app() -> bool:
    from ipykernel.kernelapp import IPKernelApp

    return bool(IPKernelApp.initialized())
