"""Makes the optimizers of a session, with the built-in schedules.

`Optimizers` also has the operations on all of them: whose turn it is, the base rate, gradients,
modes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.engine.distributed.whole_weights import WholeWeights
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.optim.schedule_free import OptimizerModes
from workbench.engine.state import TrainState
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.hooks import Hooks
from workbench.task.protocol import Optimization, Schedule, Task
from workbench.techniques.schedules import built_in, warmup_of
from workbench.techniques.toggling import optimizers_at, toggled, updates_of

_NOTHING_TO_TOGGLE: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


class Optimizers(list[OptimizerHandle]):
    """The optimizers of one session, in the task's order; none where nothing is trained."""

    def __init__(
        self,
        handles: Iterable[OptimizerHandle],
        parameters: Iterable[Tensor],
        weights: WholeWeights,
    ) -> None:
        """parameters: those that require gradients when the session begins."""
        super().__init__(handles)
        self._parameters, self._weights = tuple(parameters), weights
        self._several = len(self) > 1
        self.modes = OptimizerModes([opt.optimizer for opt in self])
        """Those with a train and an eval mode (schedule-free)."""

    # -- rates

    @property
    def lrs(self) -> list[float]:
        """The present rate of each optimizer: that of its first parameter group that is not at
        0.
        """
        return [opt.lr for opt in self]

    @property
    def base_lr(self) -> float:
        """The value of the setting `lr` now: the base rate of the first optimizer that is not at
        0; 0 where all are.
        """
        return next((opt.base_lr for opt in self if opt.base_lr), 0.0)

    def set_lr(self, lr: float) -> None:
        """Set a new base rate; schedules and the ratios of parameter groups and further
        optimizers multiply it.
        """
        old = self.base_lr
        for opt in self:
            opt.set_lr(lr if opt.base_lr == old else opt.base_lr * (lr / old))

    def step_epoch_schedules(self, state: TrainState, hooks: Hooks) -> None:
        """Step the schedules that follow epochs, once for the end of this epoch."""
        if state.epochs_scheduled <= state.epoch:
            state.epochs_scheduled = state.epoch + 1
            for opt in self:
                opt.step_schedules("epoch", state.epoch + 1, hooks)

    # -- turns

    def turn(self, step: int) -> Sequence[OptimizerHandle]:
        """The optimizers that step at update `step`."""
        if not self._several:
            return self
        return [self[n] for n in optimizers_at([opt.frequency for opt in self], step)]

    def only(self, opt: OptimizerHandle) -> contextlib.AbstractContextManager[None]:
        """Context manager in which only the parameters of `opt` require gradients."""
        return toggled(self.trained, opt.trained) if self._several else _NOTHING_TO_TOGGLE

    # -- parameters

    @property
    def trained(self) -> list[Tensor]:
        """The parameters that train: those from the start, and those that optimizers got later."""
        return [*self._parameters, *(p for opt in self for p in opt.late)]

    def add_new_parameters(self) -> None:
        """Note parameters that hooks of the task have made trainable."""
        for opt in self:
            opt.add_new_parameters()

    def drop_gradients(self) -> None:
        """Drop the gradients of all parameters."""
        self._weights.reset()
        for parameter in self.trained:
            parameter.grad = None

    def clip(self, index: int, clip_val: float, algorithm: str) -> None:
        """Clip the gradients of one optimizer in place (`OptimizerHandle.clip`)."""
        self[index].clip(clip_val, algorithm)


def optimizers_of(
    task: Task,
    settings: Settings,
    updates: int | None,
    parameters: list[Tensor],
    weights: WholeWeights,
) -> Optimizers:
    """Make the task's optimizers, with the built-in schedules. Raises TaskError where a setting
    does not fit them.
    """
    configured = task.configure(settings, updates)
    listed = [configured] if isinstance(configured, Optimization) else list(configured)
    if not weights.sharded:
        for optimization in listed:
            _refuse_others_parameters(task, optimization.optimizer)
            _add_hooks(optimization.optimizer)
            _refuse_stateless(optimization.optimizer)
    handles: list[OptimizerHandle] = []
    frequencies = [optimization.frequency for optimization in listed]
    for index, optimization in enumerate(listed):
        # An optimizer with turns has a schedule that counts its own steps.
        own_updates = None if updates is None else updates_of(frequencies, index, updates)
        warmup = warmup_of(settings, own_updates) if optimization.schedules else 0
        if not optimization.schedules:
            schedule = built_in(optimization.optimizer, settings, own_updates)
            optimization.schedules = () if schedule is None else (Schedule(schedule),)
        handles.append(OptimizerHandle(index, optimization, parameters, task, weights, warmup))
    if handles[0].made_lr is None:
        handles[0].base_lr = settings.lr
    for opt in handles:
        opt.rate_set_by_code = not opt.schedules_keep_base()
    if len(handles) > 1:
        for opt in handles:
            opt.column = 1 + opt.index
            opt.extra = {} if task.manual else {"optimizer_idx": opt.index}
    if settings.precision == "16-mixed" and any(opt.needs_closure for opt in handles):
        raise TaskError(
            "precision='16-mixed' cannot be used with an optimizer whose step evaluates the loss"
            " again (LBFGS, SAM): take bf16-mixed."
        )
    if task.manual and settings.truncated_bptt_steps is not None:
        raise TaskError(
            "truncated_bptt_steps: with manual optimisation the task splits its batches itself."
        )
    return Optimizers(handles, parameters, weights)


def _refuse_others_parameters(task: Task, optimizer: Optimizer) -> None:
    """Raise TaskError for an optimizer with parameters that no module of the task has: they
    could not be restored or stored.
    """
    of_task = {id(p) for module in task.modules for p in nn.Module.parameters(module)}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    others = [p for p in parameters if id(p) not in of_task]
    kind = type(optimizer).__name__
    if parameters and len(others) == len(parameters):
        raise TaskError(
            f"the {kind} has {counted_parameters(others)}, none of which belongs to the model, so"
            " nothing would be trained: make it of the parameters that the optimizer function is"
            " given, optimizer=lambda params, lr: …, or of bench.model's own."
        )
    if others:
        raise TaskError(
            f"the {kind} has {counted_parameters(others)} that belongs to no module of the run, so"
            " that its value would be neither stored nor restored: make it part of the model"
            " (model.scale = nn.Parameter(…)), or of an nn.Module given as loss=."
        )


def _add_hooks(optimizer: Optimizer) -> None:
    """Give an optimizer that joins others, and does not call `Optimizer.__init__`, what torch's
    optimizers have besides groups and state.
    """
    if type(
        optimizer
    ).state_dict is not Optimizer.state_dict and "_optimizer_step_pre_hooks" not in vars(optimizer):
        vars(optimizer).setdefault("defaults", {})
        Optimizer.__setstate__(optimizer, {})


def _refuse_stateless(optimizer: Optimizer) -> None:
    """Raise TaskError for an optimizer whose state_dict fails: no trial, checkpoint or finder
    could restore it.
    """
    try:
        optimizer.state_dict()
    except Exception as error:
        kind = type(optimizer).__name__
        raise TaskError(
            f"the state of the {kind} cannot be stored (state_dict() failed with"
            f" {type(error).__name__}: {error}), which checkpoints and finders need:"
            f" {kind}.__init__ has to call torch.optim.Optimizer.__init__. Take another"
            " implementation of it."
        ) from error


def counted_parameters(parameters: list[Tensor]) -> str:
    """Count parameters, in words, with the shapes of the first three: '2 parameters (of shape
    (3, 4), (3,))'.
    """
    shapes = ", ".join(str(tuple(p.shape)) for p in parameters[:3]) + (
        ", …" if len(parameters) > 3 else ""
    )
    return f"{len(parameters)} parameter{'s' if len(parameters) > 1 else ''} (of shape {shapes})"
