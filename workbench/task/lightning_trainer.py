"""What stands in for Lightning's Trainer on a module while a job runs."""

from __future__ import annotations

from typing import Any

from workbench.task.protocol import Progress, TaskError


class NotServed(TaskError, AttributeError):
    """Something of Lightning's Trainer that a module asked for and that is not here."""


class Trainer:
    """What a module finds as `self.trainer` while a job runs: how far it is, and an error for anything else."""

    progress: Progress | None = None
    is_global_zero = True
    global_rank = 0
    local_rank = 0
    world_size = 1

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a session belongs to its process, and holds all that a job has

    @property
    def current_epoch(self) -> int:
        return self.progress.epoch if self.progress else 0

    @property
    def global_step(self) -> int:
        return self.progress.step if self.progress else 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotServed(f"self.trainer.{name} is not served yet; current_epoch and global_step are.")
