"""Gives the processes of a job the kernel's import path, arguments, working directory, code of
cells and torch flags.
"""

from __future__ import annotations

import contextlib
import importlib
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch.backends import cuda

from workbench.engine.runtime.kernel_choice import replaced

_SWITCHES: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "default device": (
        lambda: torch.get_default_device().type,
        lambda kind: torch.set_default_device(None if kind == "cpu" else kind),
    ),
    "numpy's errors": (np.geterr, lambda errors: np.seterr(**errors)),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "flash attention": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    "memory-efficient attention": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    "plain attention": (cuda.math_sdp_enabled, cuda.enable_math_sdp),
    "cuDNN attention": (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    "reduced attention": (
        cuda.fp16_bf16_reduction_math_sdp_allowed,
        cuda.allow_fp16_bf16_reduction_math_sdp,
    ),
    "attention order": (  # not in every torch
        lambda: attrgetter("_get_sdp_priority_order")(torch._C)(),
        lambda order: attrgetter("_set_sdp_priority_order")(torch._C)(order),
    ),
}
_ATTRIBUTES = (
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "cudnn.allow_tf32",
    "cuda.matmul.allow_tf32",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation",
    "cuda.matmul.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "mkldnn.matmul.fp32_precision",
)
"""Flags of torch.backends. Older ones come first, since setting them also sets newer ones."""


@dataclass(frozen=True)
class ProcessEnv:
    """The properties of the kernel's process on which its code relies; a child takes them before
    it unpacks any code.
    """

    path: list[str]
    argv: list[str]
    folder: str | None
    """The working directory; None: it was deleted."""
    cells: dict[str, Any]
    """linecache's entries of code that is in no file: notebook cells, for tracebacks and
    inspect.getsource.
    """
    flags: dict[str, Any]
    """torch's and NumPy's flags."""
    mlflow_run: str | None
    """The active run of MLflow."""

    @classmethod
    def here(cls) -> ProcessEnv:
        """The environment of this process."""
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            folder = None
        # Entries without a modification time belong to no file.
        cells = {
            file: entry
            for file, entry in linecache.cache.items()
            if len(entry) == 4 and entry[1] is None
        }
        return cls(list(sys.path), list(sys.argv), folder, cells, torch_flags(), mlflow_run())

    def take(self) -> None:
        """Set these properties in this process."""
        sys.path[:], sys.argv[:] = self.path, self.argv
        if self.folder is not None:
            os.chdir(self.folder)
        linecache.cache.update(self.cells)
        importlib.invalidate_caches()  # the import caches are as old as the fork server
        set_flags(self.flags)


def torch_flags() -> dict[str, Any]:
    """The flags of this process, as far as its torch has them; those that a running job has
    replaced are as they were before.
    """
    flags = {
        name: value for name in (*_SWITCHES, *_ATTRIBUTES) if (value := _now(name)) is not None
    }
    return {**flags, **{name: value for name, value in [*replaced.items()] if name in flags}}


def set_flags(wanted: Mapping[str, Any]) -> None:
    """Set these flags in this process. Equal ones are skipped: torch warns about setting some,
    and refuses to mix some.
    """
    for name, value in wanted.items():
        if _now(name) != value:
            _set(name, value)


def _now(name: str) -> Any:
    # AttributeError: this torch lacks the flag. RuntimeError: older and newer flags were mixed;
    # then the newer ones hold its value.
    with contextlib.suppress(AttributeError, RuntimeError):
        return _SWITCHES[name][0]() if name in _SWITCHES else attrgetter(name)(torch.backends)
    return None


def _set(name: str, value: Any) -> None:
    if name in _SWITCHES:
        _SWITCHES[name][1](value)
    else:
        owner, _, attribute = name.rpartition(".")
        setattr(attrgetter(owner)(torch.backends), attribute, value)


def mlflow_run() -> str | None:
    """The run of MLflow that is active in this thread; None: there is none, or MLflow is not
    used.
    """
    active = getattr(sys.modules.get("mlflow"), "active_run", lambda: None)()
    return None if active is None else str(active.info.run_id)


@contextlib.contextmanager
def in_mlflow_run(run: str | None) -> Iterator[None]:
    """Context manager in which this run of MLflow is the thread's active one, as it is the
    cell's; it is not ended. None: there is none.
    """
    if run is None:
        yield
        return
    import mlflow

    status = mlflow.get_run(run).info.status
    mlflow.start_run(run_id=run, log_system_metrics=False)
    try:
        yield
    finally:
        now = mlflow.get_run(run).info
        # the user has ended it, and opening it may have set it to running
        if now.end_time is not None:
            ends = (end for end in (now.status, status, "FINISHED") if end != "RUNNING")
            mlflow.end_run(next(ends))
        with contextlib.suppress(Exception):  # a private name; the thread itself ends, too
            mlflow.tracking.fluent._active_run_stack.get().clear()
