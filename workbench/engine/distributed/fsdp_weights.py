"""Weights in the shards of FSDP, as the loop has them: a step makes each unit of them whole for its own time alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.engine.checkpoint.files import load_tensors, tensors_of
from workbench.engine.distributed import fsdp
from workbench.engine.distributed.dtensor import in_shards, like, local, whole, whole_of
from workbench.engine.distributed.fake_collectives import PretendedGather, PretendedScatter
from workbench.engine.distributed.process_group import MultiProcessGroup
from workbench.engine.distributed.shards import Shards
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.task.protocol import Task


class FSDPWeights(Shards):
    """The modules of one task, in shards from here on to the end of the process."""

    name = fsdp.NAME

    def __init__(self, task: Task, ranks: MultiProcessGroup, device: torch.device) -> None:
        super().__init__(task)
        self._ranks = ranks
        applied = fsdp.apply(task, device, ranks.world, ranks.local_world)
        self._root, self._units, self._copies = applied.root, applied.units, applied.copies
        self._renewed = applied.renewed
        """Parameters that were whole, with those in their place; their own memory is free."""
        for parameter in self._renewed:
            parameter.data = torch.empty(0, dtype=parameter.dtype)
        self._used: set[int] = set()
        """The ids of parameters that have had a gradient."""
        self._ran = False
        """Whether there was a step, before which torch has nothing to put back."""

    @property
    def words(self) -> str:
        units = len(self._units)
        some = "1 unit" if units == 1 else f"{units} units"
        on = self._ranks.world // self._copies
        more = f", {self._copies} times" if self._copies > 1 else ""
        loose = sum(not in_shards(p) for p in self._root.parameters())
        left_out = f"; {loose} parameters are whole on each (fsdp_ignored_modules)" if loose else ""
        return (
            f"{self.name}: weights, gradients and the optimizer's state lie in shards on {on} ranks{more}, and weights become whole "
            f"in {some}{left_out}."
        )

    # -- steps

    def run(self, step: str, *arguments: Any, **extra: Any) -> Any:
        self._ran = True
        try:
            return self._root(step, *arguments, **extra)
        except RuntimeError as error:
            if "torch.Tensor and DTensor" in str(error):
                error.add_note(
                    f"{step} uses a weight of a layer that is in shards ({self.name}) without calling the layer, outside of which "
                    "it is not whole: call the layer, or leave it out of fsdp_transformer_layer_cls_to_wrap."
                )
            raise

    def begin(self, *, last: bool) -> None:
        self._root.set_requires_gradient_sync(last)

    def bring_together(self) -> None:
        self.rest()
        self.begin(last=True)
        self.run("nothing").backward()

    def rest(self) -> None:
        for unit in self._units:
            unit.reshard()

    def drop(self) -> None:
        if self._ran:
            self._root.reset_iter_state()

    # -- updates

    def take_over(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            group["params"] = [self._renewed.get(p, p) for p in group["params"]]
        for before, now in self._renewed.items():
            own = optimizer.state.pop(before, {}).items()
            if not own:
                continue
            optimizer.state[now] = {k: like(v, now) if isinstance(v, Tensor) and v.shape == now.shape else v for k, v in own}

    def set_up(self, optimizers: Sequence[OptimizerHandle]) -> None:
        """They were made of parameters in shards."""

    def pieces(self, opt: OptimizerHandle) -> list[Tensor]:
        return [local(p.grad) for p in opt.trained if p.grad is not None]

    def copies(self, opt: OptimizerHandle) -> list[int]:
        world = self._ranks.world
        return [self._copies if in_shards(p) else world for p in opt.trained if p.grad is not None]

    def mean_of_the_rest(self, opt: OptimizerHandle) -> None:
        """Gradients of parameters that are whole on each rank become their mean; those that no update has had a use for go."""
        self._drop_unused(opt)
        loose = [p for p in opt.trained if not in_shards(p)]
        if not loose:
            return
        there = self._ranks.sums([float(p.grad is not None) for p in loose])
        for parameter, count in zip(loose, there, strict=True):
            if count and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._ranks.mean([p.grad for p in loose if p.grad is not None])

    def _drop_unused(self, opt: OptimizerHandle) -> None:
        """A parameter that nothing uses has zeros for a gradient, and is to have none, as in one process.

        One that some update had a use for is known from then on: zeros count as its gradient where none has.
        """
        fresh = [p for p in opt.trained if p.grad is not None and in_shards(p) and id(p) not in self._used]
        if not fresh:
            return
        largest = torch.stack([piece.abs().max() if piece.numel() else piece.new_zeros(()) for piece in (local(p.grad) for p in fresh)])
        self._ranks.most(largest)
        for parameter, most in zip(fresh, largest.tolist(), strict=True):
            if most != 0.0:
                self._used.add(id(parameter))
            else:
                parameter.grad = None

    # -- averages

    def parameters(self) -> list[Tensor]:
        return [local(p) for p in self._task.model.parameters()]

    def written(self) -> None:
        """Units are brought together from these very pieces."""

    def averages(self, pieces: Sequence[Tensor]) -> list[Tensor | None]:
        pairs = zip(pieces, self._task.model.parameters(), strict=True) if pieces else ()  # before the first average
        return [whole_of(_as(piece, parameter), wanted=self._ranks.first) for piece, parameter in pairs]

    def pieces_of(self, averages: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(averages, self._task.model.parameters(), strict=True) if averages else ()
        return [local(like(own, parameter)) for own, parameter in pairs]

    # -- what leaves the ranks

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        known: dict[int, Tensor] = {}
        for name, tensor in tensors_of(module).items():
            part = local(tensor).untyped_storage().data_ptr() if in_shards(tensor) else id(tensor)
            if part not in known:  # tied ones stay so
                known[part] = whole(tensor)
                if not self._ranks.first:
                    known[part] = torch.empty(0)
            found[name] = known[part]
        return found if self._ranks.first else {}

    def fill(self, module: nn.Module, tensors: Mapping[str, Tensor], extra: Mapping[str, Any] | None = None) -> None:
        there = tensors_of(module)
        load_tensors(module, {name: like(value, there[name]) if name in there else value for name, value in tensors.items()}, extra)

    def gradients(self) -> dict[str, Tensor]:
        named = self._task.model.named_parameters()
        return {name: whole(parameter.grad) for name, parameter in named if parameter.grad is not None}

    def put_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        for name, parameter in self._task.model.named_parameters():
            if name in gradients:
                parameter.grad = like(gradients[name], parameter).to(parameter.device)

    def optimizer_state(self, opt: OptimizerHandle) -> dict[str, Any]:
        found: dict[str, Any] = whole_of(opt.optimizer.state_dict(), wanted=self._ranks.first)
        return found

    def pieces_of_state(self, opt: OptimizerHandle, state: Mapping[str, Any]) -> dict[str, Any]:
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        parameters = [parameter for group in opt.optimizer.param_groups for parameter in group["params"]]
        pieces = {
            number: {
                name: like(value, parameter) if isinstance(value, Tensor) and value.shape == parameter.shape else value
                for name, value in state["state"].get(number, {}).items()
            }
            for number, parameter in zip(numbers, parameters, strict=True)
        }
        return {**state, "state": {number: own for number, own in pieces.items() if number in state["state"]}}

    # -- searches

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
            DefaultAllGather,
            DefaultReduceScatter,
        )

        try:
            for unit in self._units:
                unit.set_custom_all_gather(PretendedGather())
                unit.set_custom_reduce_scatter(PretendedScatter())
            self.begin(last=True)
            self._root.set_requires_all_reduce(False)
            yield
        finally:
            self.drop()
            for unit in self._units:
                unit.set_custom_all_gather(DefaultAllGather())
                unit.set_custom_reduce_scatter(DefaultReduceScatter())


def _as(piece: Tensor, parameter: Any) -> Tensor:
    """A piece as the tensor that it is a piece of, in shards as the parameter is."""
    if not in_shards(parameter):
        return piece
    from torch.distributed.tensor import DTensor

    found: Tensor = DTensor.from_local(
        piece, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
    return found
