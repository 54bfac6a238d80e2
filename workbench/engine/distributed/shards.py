"""A task whose weights lie in shards over the ranks: what the loop asks for, whichever way shards them.

Outside of a step each parameter is this rank's piece of it alone. A step is the forward of a root module, which makes them
whole for its time; all ranks take each step together, and one that has no batch of its own takes a borrowed one that does
not count. Weights and state leave the ranks whole.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.engine import rng
from workbench.engine.checkpoint.weights import kept_state
from workbench.engine.distributed.process_group import ProcessGroup
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.task.errors import TaskError
from workbench.task.hooks import Stage
from workbench.task.protocol import Scores, StepResult, Task
from workbench.techniques.tbptt import Piece

if TYPE_CHECKING:
    from workbench.engine.session import Session

NAME = "WORKBENCH_SHARDS"
"""Set in the environment of ranks that are to share one copy of the weights: the way in which they do."""


class Root(nn.Module):
    """A task's steps as the forward of one module."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.parts = nn.ModuleList(task.modules)
        self._task = task

    def forward(self, step: str, *arguments: Any, **extra: Any) -> Any:
        """What the step returns. "nothing": a loss that no parameter has a part in."""
        if step == "nothing":
            return torch.zeros((), requires_grad=True) * 1.0
        if step == "training_step":
            return self._task.training_step(*arguments, **extra)
        if step == "validation_step":
            return self._task.validation_step(*arguments, **extra)
        return self._task.predict_step(*arguments, **extra)


class Shards(abc.ABC):
    """The modules of one task in shards. Every method but `pieces`, `rest` and `drop` is one that all ranks call together."""

    name: str
    """The way, as its users call it."""
    own_steps = False
    """Whether `step` is another than the optimizer's own."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @property
    @abc.abstractmethod
    def words(self) -> str:
        """What lies in shards, for the record."""

    # -- steps

    @abc.abstractmethod
    def run(self, step: str, *arguments: Any, **extra: Any) -> Any:
        """One of the task's steps, through the root."""

    def training_step(self, batch: Any, batch_idx: int, **extra: Any) -> StepResult:
        found: StepResult = self.run("training_step", batch, batch_idx, **extra)
        return found

    def validation_step(self, batch: Any, batch_idx: int, stage: Literal["val", "test"] = "val") -> Scores:
        found: Scores = self.run("validation_step", batch, batch_idx, stage)
        return found

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.run("predict_step", batch, batch_idx)

    @abc.abstractmethod
    def begin(self, *, last: bool) -> None:
        """A forward and backward of a window comes; behind its last one gradients are brought together."""

    @abc.abstractmethod
    def bring_together(self) -> None:
        """The window's last batch was left out by all: what the batches before it have given becomes the gradient."""

    @abc.abstractmethod
    def rest(self) -> None:
        """Behind a forward without a backward: parameters are pieces again."""

    @abc.abstractmethod
    def drop(self) -> None:
        """Behind a step that may have ended anywhere: parameters are pieces again, and there are no gradients."""

    # -- updates

    @abc.abstractmethod
    def take_over(self, optimizer: Optimizer) -> None:
        """An optimizer that was made before has the parameters of before: it gets those that are in their place."""

    @abc.abstractmethod
    def set_up(self, optimizers: Sequence[OptimizerHandle]) -> None:
        """The optimizers are made; there are none where nothing trains."""

    def there(self, opt: OptimizerHandle) -> list[Tensor]:
        """Those of `opt.trained` that have a gradient."""
        return [p for p in opt.trained if p.grad is not None]

    @abc.abstractmethod
    def pieces(self, opt: OptimizerHandle) -> list[Tensor]:
        """This rank's piece of each gradient that is there, in the order of `opt.trained`; it may have no elements."""

    @abc.abstractmethod
    def copies(self, opt: OptimizerHandle) -> list[int]:
        """On how many ranks each of these pieces lies."""

    def layer_norms(self, ranks: ProcessGroup, opt: OptimizerHandle, pieces: Sequence[Tensor], p: float) -> Tensor:
        """The p-norm of each whole gradient, alike on all ranks, shape (len(pieces),); one collective for all."""
        own = torch.zeros(len(pieces), dtype=torch.double, device=pieces[0].device)
        there = [number for number, piece in enumerate(pieces) if piece.numel()]
        if there:
            found = torch.stack(torch._foreach_norm([pieces[number] for number in there], p))
            own[there] = found.double()
        if p == math.inf:
            ranks.most(own)
            return own.to(pieces[0].dtype)
        powers = own.pow(p) / torch.tensor(self.copies(opt), dtype=torch.double, device=own.device)
        ranks.add(powers)
        return powers.pow(1.0 / p).to(pieces[0].dtype)

    @abc.abstractmethod
    def mean_of_the_rest(self, opt: OptimizerHandle) -> None:
        """Gradients of parameters that are whole on each rank become their mean."""

    def step(self, opt: OptimizerHandle) -> bool:
        """Take the optimizer's step; whether it was taken."""
        opt.optimizer.step()
        return True

    def zero_grad(self, opt: OptimizerHandle) -> None:
        opt.optimizer.zero_grad()

    def state(self, opt: OptimizerHandle) -> dict[str, Any]:
        """A copy of this rank's part of the optimizer's state, for `load_state`."""
        return copy.deepcopy(opt.optimizer.state_dict())

    def load_state(self, opt: OptimizerHandle, state: dict[str, Any]) -> None:
        """A state from `state` or `pieces_of_state` becomes the optimizer's."""
        opt.optimizer.load_state_dict(state)

    def shapes(self, opt: OptimizerHandle) -> list[list[tuple[int, ...]]]:
        """The whole shapes of the parameters in the optimizer's groups."""
        return [[tuple(parameter.shape) for parameter in group["params"]] for group in opt.optimizer.param_groups]

    # -- averages

    @abc.abstractmethod
    def parameters(self) -> list[Tensor]:
        """This rank's pieces of the model's parameters, to be averaged and overwritten in place."""

    @abc.abstractmethod
    def written(self) -> None:
        """They were overwritten."""

    @abc.abstractmethod
    def averages(self, pieces: Sequence[Tensor]) -> list[Tensor | None]:
        """Pieces like those of `parameters`, whole, on rank 0; None elsewhere."""

    @abc.abstractmethod
    def pieces_of(self, averages: Sequence[Tensor]) -> list[Tensor]:
        """The way back."""

    # -- what leaves the ranks

    @abc.abstractmethod
    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        """Parameters and persistent buffers by name, whole and in host memory, on rank 0; elsewhere none of them."""

    def whole(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the modules' parameters show the shapes of the whole."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def fill(self, module: nn.Module, tensors: Mapping[str, Tensor], extra: Mapping[str, Any] | None = None) -> None:
        """Make these, whole on each rank, the module's weights (`checkpoint.fill`)."""

    @abc.abstractmethod
    def gradients(self) -> dict[str, Tensor]:
        """The model's gradients by name, whole, on each rank."""

    @abc.abstractmethod
    def put_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """The way back."""

    @abc.abstractmethod
    def optimizer_state(self, opt: OptimizerHandle) -> dict[str, Any]:
        """The optimizer's state_dict with whole tensors, on rank 0; elsewhere with None for them."""

    @abc.abstractmethod
    def pieces_of_state(self, opt: OptimizerHandle, state: Mapping[str, Any]) -> dict[str, Any]:
        """The way back, on each rank: a state_dict that the optimizer takes."""

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Inside, the modules of rank 0 have whole weights, in host memory, to be looked at."""
        there = [(part._parameters, name, parameter, whole) for part, name, parameter, whole in self._pairs()]
        for slots, name, parameter, whole in there:
            slots[name] = nn.Parameter(whole, requires_grad=parameter.requires_grad)
        try:
            yield
        finally:
            for slots, name, parameter, _ in there:
                slots[name] = parameter

    def _pairs(self) -> Iterator[tuple[nn.Module, str, nn.Parameter, Tensor]]:
        for module in self._task.modules:
            weights = self.weights(module)
            for path, part in module.named_modules():
                for name, parameter in part._parameters.items():
                    value = weights.get(f"{path}.{name}" if path else name)
                    if parameter is not None and value is not None:
                        yield part, name, parameter, value

    # -- searches

    @abc.abstractmethod
    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Inside, this rank steps by itself, with as much memory as in step with the others and with weights of no use."""


def refuse(session: Session, name: str) -> None:
    """What cannot be done with weights in shards, by name, before anything is trained."""
    task, settings = session.task, session.settings
    why = None
    if task.manual:
        why = "manual optimisation calls backward inside of training_step, where the weights of its layers are not whole"
    elif len(session.optimizers) > 1:
        why = "several optimizers take turns with parts of the model, which lie in shards as one"
    elif any(opt.needs_closure for opt in session.optimizers):
        why = "LBFGS lays all weights end to end, and they are on no rank whole"
    elif len(task.trained_modules) > 1:
        why = "the loss has parameters of its own, which would lie outside of the shards: make it a part of the model"
    elif settings.precision == "16-mixed":
        why = "precision='16-mixed' scales losses and steps in a way of its own; take precision='bf16-mixed'"
    elif session.hooks.zeroes and session.shards is not None and session.shards.own_steps:
        why = "an optimizer_zero_grad of the module's own cannot keep gradients behind a step, where they are gone"
    if why is not None:
        raise TaskError(f"{name} is what the accelerate config asks for, and {why}. Data-parallel ranks can: take a config of type MULTI_GPU.")


class Borrowed:
    """A batch for a rank that has none of its own, so that the others do not wait for it: nothing of it counts."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def pass_through(self, session: Session, stage: Stage, step: Callable[[Any], object]) -> None:
        """Take the step with it; buffers, attributes, random numbers and what is logged are as before behind it."""
        batch = self._batch.batch if isinstance(self._batch, Piece) else self._batch
        with rng.preserved(), session.hooks.discarding_logs(), kept_state(session.task), session.precision.autocast():
            step(session.to_device(batch, stage))
