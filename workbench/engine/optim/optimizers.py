"""Makes the optimizers of a session, with the built-in schedules, and the average of its weights."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from workbench.engine.distributed.whole_weights import WholeWeights
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.protocol import Optimization, Schedule, Task
from workbench.techniques.averaging import Average, has_batch_norm, swa_first_epoch
from workbench.techniques.schedules import built_in
from workbench.techniques.toggling import updates_of


def optimizers_of(
    task: Task, settings: Settings, updates: int | None, parameters: list[Tensor], weights: WholeWeights
) -> list[OptimizerHandle]:
    """The task's optimizers, with the built-in schedules. TaskError: a setting does not fit them."""
    made = task.configure(settings, updates)
    listed = [made] if isinstance(made, Optimization) else list(made)
    if not weights.sharded:
        for optimization in listed:
            _refuse_others_parameters(task, optimization.optimizer)
            _refuse_stateless(optimization.optimizer)
    found: list[OptimizerHandle] = []
    frequencies = [optimization.frequency for optimization in listed]
    for index, optimization in enumerate(listed):
        # An optimizer that steps only now and then has a schedule for its own steps.
        own = None if updates is None else updates_of(frequencies, index, updates)
        schedule = built_in(optimization.optimizer, settings, own)
        if schedule is not None:
            optimization.schedules = (*optimization.schedules, Schedule(schedule))
        found.append(OptimizerHandle(index, optimization, parameters, task, weights))
    if found[0].made_lr is None:
        found[0].base_lr = settings.lr
    if len(found) > 1 and not task.manual:
        for opt in found:
            opt.extra = {"optimizer_idx": opt.index}
    if settings.precision == "16-mixed" and any(opt.needs_closure for opt in found):
        raise TaskError(
            "precision='16-mixed' cannot be used with an optimizer whose step evaluates the loss again (LBFGS, SAM): take bf16-mixed."
        )
    if task.manual and settings.truncated_bptt_steps is not None:
        raise TaskError("truncated_bptt_steps: with manual optimisation the task splits its batches itself.")
    return found


def average_of(task: Task, settings: Settings) -> Average | None:
    """The average that the settings ask for, or None. TaskError: this task's weights cannot be averaged."""
    kind = settings.weight_averaging
    if kind is None:
        return None
    if task.manual and has_batch_norm([task.model]):
        raise TaskError(
            "weight_averaging with manual optimisation cannot refresh the statistics of the model's batch normalisation: "
            "take another normalisation, or average in the task."
        )
    if task.train is not None and task.train.one_shot and has_batch_norm([task.model]):
        raise TaskError(
            "weight_averaging reads the training data once more, for the statistics of the model's batch normalisation, "
            "and this data can be read only once: give a Dataset, a DataLoader, or wb.batches(list)."
        )
    if kind == "swa":
        swa_first_epoch(settings)  # a fraction needs max_epochs: raise that before training
    return Average(kind, settings.ema_decay, task.averaging.avg_fn)


def _refuse_others_parameters(task: Task, optimizer: Optimizer) -> None:
    """Raise TaskError for an optimizer of parameters that no module of the task has: they could not be restored or
    stored.
    """
    own = {id(p) for module in task.modules for p in module.parameters()}
    given = [p for group in optimizer.param_groups for p in group["params"]]
    others = [p for p in given if id(p) not in own]
    kind = type(optimizer).__name__
    if given and len(others) == len(given):
        raise TaskError(
            f"the {kind} has {_counted(others)}, none of which belongs to the model, so nothing would be trained: make it of the "
            "parameters that the optimizer function is given, optimizer=lambda params, lr: …, or of bench.model's own."
        )
    if others:
        raise TaskError(
            f"the {kind} has {_counted(others)} that belongs to no module of the run, so that its value would be neither stored "
            "nor put back: make it part of the model (model.scale = nn.Parameter(…)), or of an nn.Module given as loss=."
        )


def _refuse_stateless(optimizer: Optimizer) -> None:
    """Raise TaskError for an optimizer without a state_dict that works: no trial, checkpoint or finder could restore
    it.
    """
    try:
        optimizer.state_dict()
    except Exception as error:
        kind = type(optimizer).__name__
        raise TaskError(
            f"the state of the {kind} cannot be stored (state_dict() failed with {type(error).__name__}: {error}), which checkpoints "
            f"and finders need: {kind}.__init__ has to call torch.optim.Optimizer.__init__. Take another implementation of it."
        ) from error


def _counted(parameters: list[Tensor]) -> str:
    """'2 parameters (of shape (3, 4), (3,))'."""
    shapes = ", ".join(str(tuple(p.shape)) for p in parameters[:3]) + (", …" if len(parameters) > 3 else "")
    return f"{len(parameters)} parameter{'s' if len(parameters) > 1 else ''} (of shape {shapes})"
