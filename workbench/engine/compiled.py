"""torch.compile for the time of a job: the model is compiled in place, and afterwards it is as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from workbench.task.protocol import Task, TaskError


@contextlib.contextmanager
def compiled(task: Task, wanted: bool | str) -> Iterator[None]:
    """Inside, calls of the model go through torch.compile (`wanted`: True, or the name of a backend).

    An object with a training_step of its own may call its parts and never itself, so they are compiled too.
    """
    if not wanted:
        yield
        return
    parts = [task.model, *(task.model.children() if hasattr(task, "module") else ())]
    parts = [
        part for part in parts if type(part).forward is not nn.Module.forward and not isinstance(part, _LISTS)
    ]
    before = [(part, part._compiled_call_impl) for part in parts]
    try:
        for part in parts:
            _compile(part, wanted)
        yield
    finally:
        for part, call in before:
            part._compiled_call_impl = call


def _compile(part: nn.Module, wanted: bool | str) -> None:
    try:
        part.compile(backend=wanted) if isinstance(wanted, str) else part.compile()
    except Exception as error:
        raise TaskError(f"compile={wanted!r}: torch.compile says: {error}") from error


_LISTS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
