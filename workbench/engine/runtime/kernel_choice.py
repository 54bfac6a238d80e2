"""Lets torch choose kernels as a job's settings say, and keeps the process's own flags."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from workbench.settings import Settings

replaced: dict[str, Any] = {}
"""torch's flags that the present job has replaced, as they were before: a process that is started
meanwhile for other work gets these.
"""


@contextlib.contextmanager
def kernel_choice(settings: Settings) -> Iterator[None]:
    """Context manager in which torch chooses kernels as `deterministic` and `benchmark` say; the
    process's own flags are restored.
    """
    wanted, benchmark = settings.deterministic, settings.benchmark
    if not wanted and benchmark is None:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    flags = {
        "deterministic": torch.get_deterministic_debug_mode(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
    }
    new = flags.keys() - replaced.keys()  # a session may be opened within another
    replaced.update({name: flags[name] for name in new})
    if wanted:
        torch.use_deterministic_algorithms(True, warn_only=wanted == "warn")
    torch.backends.cudnn.benchmark = bool(benchmark)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=warn_only)
        torch.backends.cudnn.benchmark = before[1]
        for name in new:
            del replaced[name]
