"""Keeps the weights of a task sharded over the ranks (FSDP).

Outside of a step a rank has only its piece of each parameter. A step is the forward of a root
module, which gathers the weights of each unit while the unit runs. All ranks take each step
together; one without a batch of its own takes a padding batch with weight 0. No rank ever has the
whole weights: each writes its shards into a checkpoint, and reads them.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.engine.checkpoint.files import (
    Modules,
    load_tensors,
    read_state,
    read_weights,
    tensors_of,
)
from workbench.engine.checkpoint.shards import StoredTensors
from workbench.engine.distributed import fsdp
from workbench.engine.distributed.process_group import MultiProcessGroup, ProcessGroup
from workbench.engine.distributed.whole_weights import WholeWeights
from workbench.events import SHARDED
from workbench.task.device.dtensor import ShardPlace, in_shards, like, local, of_rows
from workbench.task.errors import TaskError
from workbench.task.protocol import Scores, StepResult, Task
from workbench.units import counted


class FSDPWeights(WholeWeights):
    """The modules of one task, sharded until the end of the process.

    All ranks call every method together, except for `gradients_of`, `reshard` and `reset`.
    """

    shard_strategy = fsdp.NAME
    sharded = True

    def __init__(self, task: Task, ranks: MultiProcessGroup, device: torch.device) -> None:
        super().__init__(task)
        self._ranks = ranks
        self._group: ProcessGroup = ranks
        """The ranks over which norms are summed: all of them, or this one while it steps alone."""
        applied = fsdp.apply(task, device, ranks)
        self._root, self._units, self._copies = applied.root, applied.units, applied.copies
        self._renewed = applied.renewed
        """The parameters from before the sharding, whose memory is freed, and the sharded ones
        that replace them.
        """
        self._used: set[int] = set()
        """The ids of the parameters with a gradient on this rank since the last update, zeros
        too.
        """
        self._watch()
        self._ran = False
        """Whether a step was taken; before the first, torch has no weights to reshard."""

    @property
    def shard_message(self) -> str:
        on = self._ranks.world // self._copies
        more = f", {self._copies} times" if self._copies > 1 else ""
        loose = sum(not in_shards(p) for p in self._root.parameters())
        left_out = f"; {loose} parameters are whole on each (fsdp_ignored_modules)" if loose else ""
        return (
            f"{SHARDED} over {on} ranks{more}, and weights become whole in"
            f" {counted(len(self._units), 'unit')}{left_out}."
        )

    # -- steps

    def run(self, step: str, *arguments: Any, **extra: Any) -> Any:
        """Call a step of the task through the sharded root, whose hooks gather the weights."""
        self._ran = True
        try:
            return self._root(step, *arguments, **extra)
        except RuntimeError as error:
            if "torch.Tensor and DTensor" in str(error):
                error.add_note(
                    f"{step} uses a weight of a sharded layer ({self.shard_strategy}) without"
                    " calling the layer, outside of which it is not whole: call the layer, or"
                    " leave it out of fsdp_transformer_layer_cls_to_wrap."
                )
            raise

    def training_step(self, batch: Any, batch_idx: int, **extra: Any) -> StepResult:
        result: StepResult = self.run("training_step", batch, batch_idx, **extra)
        return result

    def validation_step(
        self, batch: Any, batch_idx: int, stage: Literal["val", "test"] = "val"
    ) -> Scores:
        scores: Scores = self.run("validation_step", batch, batch_idx, stage)
        return scores

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.run("predict_step", batch, batch_idx)

    def set_gradient_sync(self, *, last: bool) -> None:
        """Set whether the next backward averages gradients over ranks: only the `last` one of a
        window does.
        """
        self._root.set_requires_gradient_sync(last)

    def average_gradients(self) -> None:
        """Average the gradients of a window whose last batch all ranks have left out."""
        self.reshard()
        self.set_gradient_sync(last=True)
        self.run("nothing").backward()

    def reshard(self) -> None:
        """Free the whole weights after a forward without a backward."""
        for unit in self._units:
            unit.reshard()

    def reset(self) -> None:
        """Free whole weights and gradients after a step that an error may have ended at any
        point.
        """
        if self._ran:
            self._root.reset_iter_state()

    # -- updates

    def take_over(self, optimizer: Optimizer) -> None:
        """Give an optimizer that was made before the sharding the sharded parameters. Raises
        TaskError where its state does not show them.
        """
        state: Any = optimizer.state_dict()
        if not isinstance(state, Mapping) or not {"param_groups", "state"} <= state.keys():
            kind = type(optimizer).__name__
            raise TaskError(
                f"{kind}.state_dict() has no 'state' and 'param_groups', by which sharded weights "
                "(FSDP) find the state of each parameter: take "
                "one optimizer with parameter groups, or a data-parallel config."
            )
        for group in optimizer.param_groups:
            group["params"] = [self._renewed.get(p, p) for p in group["params"]]
        for before, now in self._renewed.items():
            entries = optimizer.state.pop(before, {}).items()
            if not entries:
                continue
            optimizer.state[now] = {
                k: like(v, now) if isinstance(v, Tensor) and v.shape == now.shape else v
                for k, v in entries
            }

    def gradients_of(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """This rank's piece of each gradient of `trained` that exists; it may have no elements."""
        return [local(p.grad) for p in trained if p.grad is not None]

    def _number_of_copies(self, trained: Sequence[Tensor]) -> list[int]:
        """How many ranks have each of these pieces."""
        world = self._ranks.world
        return [self._copies if in_shards(p) else world for p in trained if p.grad is not None]

    def layer_norms(
        self, trained: Sequence[Tensor], gradients: Sequence[Tensor], p: float
    ) -> Tensor:
        """The p-norm of each whole gradient, the same on all ranks, shape (len(gradients),); one
        collective for all.
        """
        norms = torch.zeros(len(gradients), dtype=torch.double, device=gradients[0].device)
        with_elements = [number for number, piece in enumerate(gradients) if piece.numel()]
        if with_elements:
            pieces = [gradients[number] for number in with_elements]
            norms[with_elements] = torch.stack(torch._foreach_norm(pieces, p)).double()
        if p == math.inf:
            self._group.all_reduce_max(norms)
            return norms.to(gradients[0].dtype)
        powers = norms.pow(p) / torch.tensor(
            self._number_of_copies(trained), dtype=torch.double, device=norms.device
        )
        self._group.all_reduce(powers)
        return powers.pow(1.0 / p).to(gradients[0].dtype)

    def average_unsharded(self, trained: Sequence[Tensor]) -> None:
        """Average the gradients of parameters that are whole on each rank, and drop those of
        parameters that no rank has used: FSDP gives them zeros, and in one process they have none.
        """
        parameters = [p for p in trained if not in_shards(p) or p.grad is not None]
        uses = [id(p) in self._used if in_shards(p) else p.grad is not None for p in parameters]
        counts = self._ranks.sums(list(map(float, uses)))
        self._used.clear()
        for parameter, count in zip(parameters, counts, strict=True):
            if not count:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._ranks.mean([p.grad for p in parameters if not in_shards(p) and p.grad is not None])

    def _watch(self) -> None:
        """Note from now on which parameters get a gradient.

        Autograd knows it of the whole parameters, which each unit has from its first forward on.
        """
        claimed: set[nn.Parameter] = set()
        compiler: Any = torch.compiler
        for unit in self._units:
            owners = [module._parameters for module in unit.modules()]
            waiting = [
                (slots, name, parameter)
                for slots in owners for name, parameter in slots.items()
                if parameter is not None and in_shards(parameter) and parameter not in claimed
            ]  # fmt: skip
            claimed.update(parameter for _, _, parameter in waiting)
            watch = functools.partial(self._watch_unit, waiting)
            unit.register_forward_pre_hook(compiler.disable(lambda *_, watch=watch: watch()))

    def _watch_unit(self, waiting: list[tuple[dict[str, Any], str, nn.Parameter]]) -> None:
        """Watch the whole parameters of a unit.

        waiting: those that are not watched yet; a frozen one stays there.
        """
        for slot in list(waiting):
            slots, name, parameter = slot
            if slots[name].requires_grad:
                note = functools.partial(self._note_use, id(parameter))
                slots[name].register_post_accumulate_grad_hook(note)
                waiting.remove(slot)

    def _note_use(self, parameter: int, _: Tensor) -> None:
        self._used.add(parameter)

    @contextlib.contextmanager
    def padding(self) -> Iterator[None]:
        """Context manager for a step on a padding batch, which uses no parameter."""
        used = self._used.copy()
        try:
            yield
        finally:
            self._used = used

    # -- averages

    @functools.cached_property
    def averaged(self) -> list[Tensor]:
        """This rank's pieces of the model's parameters, to be averaged and overwritten in place."""
        return [local(p) for p in self._task.model.parameters()]

    def stored_averages(self, averages: Sequence[Tensor]) -> list[Tensor]:
        """Averages of `averaged`, sharded as the parameters are."""
        # () before the first average
        pairs = zip(averages, self._task.model.parameters(), strict=True) if averages else ()
        return [_as(piece, parameter) for piece, parameter in pairs]

    def own_averages(self, averages: Sequence[Tensor]) -> list[Tensor]:
        """This rank's pieces of averages, which are sharded or whole."""
        pairs = zip(averages, self._task.model.parameters(), strict=True) if averages else ()
        return [local(like(average, parameter)) for average, parameter in pairs]

    # -- checkpoints and results

    def load(
        self,
        modules: Modules,
        tensors: Mapping[str, Tensor],
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Load these weights, sharded or whole on each rank, into the modules
        (`checkpoint.files.load_tensors`).
        """
        targets = tensors_of(modules)
        load_tensors(
            modules,
            {
                name: like(value, targets[name]) if name in targets else value
                for name, value in tensors.items()
            },
            extra,
        )

    def load_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Set the model's gradients from sharded or whole ones."""
        for name, parameter in self._task.model.named_parameters():
            if name in gradients:
                parameter.grad = like(gradients[name], parameter).to(parameter.device)

    def own_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state_dict that the optimizer can load on each rank, from one with sharded or whole
        tensors.
        """
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        pieces = {
            number: {
                name: (
                    like(value, parameter)
                    if isinstance(value, Tensor) and value.shape == parameter.shape
                    else value
                )
                for name, value in state["state"].get(number, {}).items()
            }
            for number, parameter in zip(numbers, parameters, strict=True)
        }
        return {
            **state,
            "state": {
                number: piece for number, piece in pieces.items() if number in state["state"]
            },
        }

    def read_state(self, path: Path) -> dict[str, Any]:
        """Read all state of a checkpoint's directory; of what lies in shards, this rank's rows."""
        return read_state(path, self._own_rows)

    def read_weights(self, file: Path) -> dict[str, Tensor]:
        """Read the weights of a file; of what lies in shards, this rank's rows."""
        return read_weights(file, self._own_rows)

    def _own_rows(self, stored: StoredTensors, name: str) -> Tensor:
        sharded = next(filter(in_shards, self._root.parameters()), None)
        if sharded is None or stored.is_whole(name):
            return stored.get_tensor(name)  # mapped: `load` copies this rank's rows of it
        shape = stored.shapes[name]
        return of_rows(stored.rows(name, *ShardPlace.of(sharded).rows(shape[0])), shape, sharded)

    # -- searches

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Context manager in which this rank steps alone, needs the same memory as in step with
        the others, and computes with meaningless weights.
        """
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
            DefaultAllGather,
            DefaultReduceScatter,
        )

        self._group = ProcessGroup()
        try:
            for unit in self._units:
                unit.set_custom_all_gather(_FakeAllGather())
                unit.set_custom_reduce_scatter(_FakeReduceScatter())
            self.set_gradient_sync(last=True)
            self._root.set_requires_all_reduce(False)
            yield
        finally:
            self._group = self._ranks
            self._used.clear()
            self.reset()
            for unit in self._units:
                unit.set_custom_all_gather(DefaultAllGather())
                unit.set_custom_reduce_scatter(DefaultReduceScatter())


def _as(piece: Tensor, parameter: Any) -> Tensor:
    """A DTensor of this piece, with the parameter's shape and sharding."""
    if not in_shards(parameter):
        return piece
    from torch.distributed.tensor import DTensor

    sharded: Tensor = DTensor.from_local(
        piece,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return sharded


class _FakeCollective:
    """Replaces a collective of FSDP while each rank tries a step alone, to measure its memory. It
    returns a tensor of the right size with meaningless contents, allocated as torch does it.
    Source: torch.distributed.fsdp.FSDPModule.set_custom_all_gather.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _FakeAllGather(_FakeCollective):
    """An all-gather that copies this rank's piece for every rank."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> None:
        for number, chunk in enumerate(output_tensor.chunk(group.size())):
            if number != group.rank():  # its own piece is there already
                chunk.copy_(input_tensor)


class _FakeReduceScatter(_FakeCollective):
    """A reduce-scatter that returns this rank's own values."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        output_tensor.copy_(input_tensor.view(-1)[: output_tensor.numel()].view_as(output_tensor))
