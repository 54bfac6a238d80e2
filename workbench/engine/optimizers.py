"""The optimizers of a session: what the task configures, with the built-in schedules, and settings that go with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from workbench.engine.optimizing import Optimizing
from workbench.settings import Settings
from workbench.task.protocol import Optimization, Schedule, Task, TaskError
from workbench.techniques.schedules import built_in
from workbench.techniques.toggling import turns

if TYPE_CHECKING:
    from workbench.engine.shards import Shards


def optimizers_of(
    task: Task, settings: Settings, updates: int | None, parameters: list[Tensor], shards: Shards | None = None
) -> list[Optimizing]:
    """The task's optimizers, with the built-in schedules. TaskError: settings that do not go with them."""
    made = task.configure(settings, updates)
    listed = [made] if isinstance(made, Optimization) else list(made)
    found: list[Optimizing] = []
    frequencies = [optimization.frequency for optimization in listed]
    for index, optimization in enumerate(listed):
        # One that has its turn now and then has a schedule for its own turns.
        own = None if updates is None else turns(frequencies, index, updates)
        schedule = built_in(optimization.optimizer, settings, own)
        if schedule is not None:
            optimization.schedules = (*optimization.schedules, Schedule(schedule))
        found.append(Optimizing(index, optimization, parameters, task, shards))
    if found[0].made_lr is None:
        found[0].base_lr = settings.lr
    if len(found) > 1 and not task.manual:
        for opt in found:
            opt.extra = {"optimizer_idx": opt.index}
    if settings.precision == "16-mixed" and any(opt.needs_closure for opt in found):
        raise TaskError(
            "precision='16-mixed' cannot be used with LBFGS, whose step evaluates the loss again: take bf16-mixed."
        )
    if task.manual and settings.truncated_bptt_steps is not None:
        raise TaskError("truncated_bptt_steps: with manual optimisation the task splits its batches itself.")
    return found
