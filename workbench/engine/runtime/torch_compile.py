"""Compiles the model in place with torch.compile while a job runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from workbench.task.blocks import repeated_blocks
from workbench.task.errors import TaskError
from workbench.task.protocol import Task


@contextlib.contextmanager
def compiled(task: Task, wanted: bool | str | Mapping[str, Any]) -> Iterator[None]:
    """Context manager in which calls of the model go through torch.compile (`wanted`: True, the
    name of a backend, or options; with "regions" only blocks that the model repeats do).

    A model that the user has compiled keeps its options and is not compiled twice. A model with its
    own training_step may call only its submodules, so these are compiled too.
    """
    parts = [task.model, *(task.model.children() if hasattr(task, "module") else ())]
    parts = [
        module
        for module in parts
        if type(module).forward is not nn.Module.forward and not isinstance(module, _LISTS)
    ]
    options = _options(wanted)
    if options.pop("regions", False):
        parts = repeated_blocks(task.model)
        if not parts:
            raise TaskError(
                f"compile={wanted!r}: the model repeats no block (an nn.ModuleList or an"
                " nn.Sequential of modules of one class, which have parts): leave regions out."
            )
    before = [(module, module._compiled_call_impl) for module in parts]
    try:
        for module in parts:
            try:
                _compile(module, options, task.compiler if wanted is True else None)
            except Exception as error:
                raise TaskError(f"compile={wanted!r}: torch.compile says: {error}") from error
        yield
    finally:
        for module, call in before:
            module._compiled_call_impl = call


def _options(wanted: bool | str | Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of torch.compile."""
    if isinstance(wanted, str):
        return {"backend": wanted}
    return dict(wanted) if isinstance(wanted, Mapping) else {}


def _compile(
    part: nn.Module, options: Mapping[str, Any], compiler: Callable[..., Any] | None
) -> None:
    """Compile one module. compiler: compiles with the options with which the user has compiled
    the model; None: the user has not.
    """
    call = _inlined(part) if type(part).forward.__module__.startswith("torch.") else part._call_impl
    if compiler is not None:
        part._compiled_call_impl = compiler(call)
    else:
        part._compiled_call_impl = torch.compile(call, **options)


def _inlined(part: nn.Module) -> Callable[..., Any]:
    """Wrap the call of a torch module (nn.Sequential) in a function, since torch.compile skips
    the module itself.
    """

    inner: Callable[..., Any] = part._call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    return call


_LISTS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
