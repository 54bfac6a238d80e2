"""torch's default device (`torch.set_default_device`): it holds for the user's code, and not for
what the engine makes for itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch

_users: ContextVar[torch.device | None] = ContextVar("the user's default device", default=None)
_CPU = contextlib.nullcontext()


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Context manager in which tensors are made on the CPU, outside of `in_users_code`.

    Samplers, loaders and meters would fail otherwise: torch draws no numbers on a GPU from a
    generator of the CPU.
    """
    device = torch.get_default_device()
    if device.type == "cpu":
        yield
        return
    before = _users.set(device)
    try:
        with torch.device("cpu"):
            yield
    finally:
        _users.reset(before)


def in_users_code() -> contextlib.AbstractContextManager[object]:
    """Return a context manager, which can be entered again and again, in which the user's
    default device holds.
    """
    return _users.get() or _CPU


def differs() -> bool:
    """Whether the user's default device is another one than the CPU."""
    return _users.get() is not None
