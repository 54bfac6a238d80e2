"""Puts a task's modules into one, so that DDP or FSDP can wrap its steps."""

from __future__ import annotations

from torch import nn

from workbench.task.protocol import Task


class TaskModule(nn.Module):
    """One module with all of a task's modules; a subclass defines `forward`, which runs the
    task's steps.
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.parts = nn.ModuleList(task.modules)
        self._task = task
