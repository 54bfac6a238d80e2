"""Finds what no script can have of a task; a bench says so before its first fit."""

from __future__ import annotations

from workbench.export.errors import ExportError, NotStandAlone
from workbench.task.function_hooks import FunctionHooks
from workbench.task.lightning.task import LightningTask
from workbench.task.protocol import Task
from workbench.task.supervised import Supervised


def refusal(task: Task) -> str:
    """Why no script can be written for the runs of a task, as far as its objects show it; "": they
    show nothing.
    """
    try:
        check_task(task)
    except ExportError as error:
        return str(error)
    return ""


def check_task(task: Task) -> None:
    """Raise NotStandAlone for a task of which no script can be written, as far as its objects show
    it.
    """
    if not isinstance(task, (Supervised, LightningTask)):
        raise NotStandAlone(
            f"model={type(task).__name__} is a Task of its own kind, which cannot be exported yet."
        )
    if task.train is None:
        raise NotStandAlone("the bench has no training data to export.")
    model, *others = task.trained_modules.values()
    if any(
        id(p) in set(map(id, model.parameters())) for other in others for p in other.parameters()
    ):
        raise NotStandAlone(
            "the loss has parameters of its own and shares others with the model, which cannot be "
            "exported yet."
        )
    if isinstance(task, LightningTask) and task.hooks.objects:
        names = ", ".join(type(callback).__name__ for callback in task.hooks.objects)
        raise NotStandAlone(
            f"callbacks=: export does not support callbacks with hooks ({names}): write what they "
            "do in the module's own hooks."
        )
    if isinstance(task.hooks, FunctionHooks):
        raise NotStandAlone(
            "hooks=: a stand-alone script does not call functions at the places of Lightning's"
            " hooks."
        )
    if isinstance(task, LightningTask) and task.model is not task.module:
        name = type(task.module).__name__
        raise NotStandAlone(
            f"model={name} is not an nn.Module: make it one (class {name}(nn.Module)) to export it."
        )
