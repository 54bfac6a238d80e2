"""Weights as DeepSpeed's ZeRO has them: its engine goes forward and steps, and what it shards the loop has in pieces.

Stages 1 and 2 keep the weights whole on each rank, and stage 3 in pieces; gradients and the optimizer's state lie in pieces
always. The optimizer is the user's own: DeepSpeed gives it this rank's flat partitions in the place of its parameters.
Source: deepspeed.initialize, deepspeed.runtime.zero.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.engine import deepspeed_config, zero_flat
from workbench.engine.checkpoint import files
from workbench.engine.distributed.process_group import MultiProcessGroup
from workbench.engine.distributed.shards import Shards
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.zero_flat import Place
from workbench.engine.zero_start import Listing, imported, refuse
from workbench.task.errors import TaskError
from workbench.task.protocol import Task


class Zero(Shards):
    """The modules of one task under DeepSpeed, from `set_up` on to the end of the process."""

    name = deepspeed_config.NAME
    own_steps = True

    def __init__(self, task: Task, ranks: MultiProcessGroup, device: torch.device) -> None:
        super().__init__(task)
        self._ranks, self._device = ranks, device
        self._config = deepspeed_config.of_environment()
        self.stage = int(self._config["zero_optimization"].get("stage", 0))
        self._root: Any = Listing(task).to(device)
        self._engine: Any = None
        self._zero: Any = None
        """DeepSpeed's own optimizer, around the user's."""
        self._trained: list[Any] = []
        self._trains: tuple[bool, ...] = ()
        self._groups: list[list[Any]] = []
        """What the parameter groups held before."""
        self._places: list[Place | None] = []

    @property
    def words(self) -> str:
        pieces = {1: "the optimizer's state lies", 2: "gradients and the optimizer's state lie"}
        what = pieces.get(self.stage, "weights, gradients and the optimizer's state lie")
        return f"{self.name}, ZeRO stage {self.stage}: {what} in shards on {self._ranks.world} ranks."

    def take_over(self, optimizer: Optimizer) -> None:
        """It has the parameters that it was given, until `set_up`."""

    def set_up(self, optimizers: Sequence[OptimizerHandle]) -> None:
        """From here on the engine has the modules; `optimizers`: the one that trains them, or none where nothing does."""
        if not optimizers and self.stage < 3:
            return  # the weights stay whole
        opt = optimizers[0] if optimizers else None
        if opt is not None:
            refuse(opt)
            self._groups = [list(group["params"]) for group in opt.optimizer.param_groups]
            self._trained = [p for p in opt.trained if p.numel()]
        self._trains = tuple(p.requires_grad for p in self._root.parameters())
        deepspeed = imported(self._device)
        known = opt is None or type(opt.optimizer).__module__.startswith("torch.optim")
        untested = {"zero_allow_untested_optimizer": True} if known else {}
        try:
            self._engine, zero, _, _ = deepspeed.initialize(
                model=self._root, optimizer=None if opt is None else opt.optimizer, config={**self._config, **untested}
            )
        except (AssertionError, ValueError, NotImplementedError) as error:
            raise TaskError(f"the model cannot be put into shards: DeepSpeed says: {error}") from error
        self._zero = None if opt is None else zero
        self._places = [] if opt is None else zero_flat.places(zero, self._trained)

    # -- steps

    def run(self, step: str, *arguments: Any, **extra: Any) -> Any:
        (found,) = (self._root if self._engine is None else self._engine)(step, *arguments, **extra)
        return found

    def begin(self, *, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)

    def bring_together(self) -> None:
        self.begin(last=True)
        if self.stage == 1:
            self._engine.allreduce_gradients()
        else:
            self._zero.finalize_gradient_accumulation_boundary()

    def rest(self) -> None:
        """Modules give their weights back behind each forward."""

    def drop(self) -> None:
        if self._zero is None:
            return
        if self.stage == 3:
            self._zero.checkpoint_event_prologue()  # all weights in pieces; those that stay whole are so from the next forward on
        self._forget()

    # -- updates

    def pieces(self, opt: OptimizerHandle) -> list[Tensor]:
        """One of each trained parameter: ZeRO has zeros for one without a part in the loss."""
        return self._whole_pieces() if self.stage == 3 else [self._fragment(p) for p in self._trained]

    def _fragment(self, parameter: Any) -> Tensor:
        """Of stages 1 and 2: the part of a gradient that this rank's partition has."""
        fragment = parameter._hp_mapping
        if fragment is None:
            return torch.zeros(0, device=self._device)
        gradient: Tensor = fragment.get_lp_grad_fragment(parameter._index_in_param_group)
        there = fragment.lp_fragment_address
        if gradient.numel() != there.numel:
            gradient = gradient.reshape(-1).narrow(0, there.start, there.numel)
        return gradient

    def _whole_pieces(self) -> list[Tensor]:
        """Of stage 3, without padding."""
        from deepspeed.utils import safe_get_local_grad

        return [safe_get_local_grad(p).view(-1).narrow(0, 0, zero_flat.extent(p)[1]) for p in self._trained]

    def there(self, opt: OptimizerHandle) -> list[Tensor]:
        return self._trained

    def copies(self, opt: OptimizerHandle) -> list[int]:
        return [1] * len(self._trained)

    def mean_of_the_rest(self, opt: OptimizerHandle) -> None:
        """There is none: all that trains lies in shards."""

    def step(self, opt: OptimizerHandle) -> bool:
        if self._trains != tuple(p.requires_grad for p in self._root.parameters()):
            raise TaskError(
                f"the parameters that require a gradient are others than at the start: with {self.name} they cannot change, since its "
                "partitions are of those of the start. Freeze and unfreeze before the run, or take data-parallel ranks (MULTI_GPU)."
            )
        self._engine.step()
        self._forget()
        taken: bool = self._engine.was_step_applied()
        return taken

    def zero_grad(self, opt: OptimizerHandle) -> None:
        self._forget()

    def _forget(self) -> None:
        """No gradient is there any more, nor in the buffers of parameters that the next backward may have no part for."""
        zero = self._zero
        zero.zero_grad(set_to_none=True)
        if self.stage == 3:
            zero.grad_partitions_flat_buffer.zero_()
        else:
            from deepspeed.runtime.zero.stage_1_and_2 import INITIAL_MICRO_STEP_ID

            zero.micro_step_id = INITIAL_MICRO_STEP_ID
            for group in zero.averaged_gradients:
                zero.averaged_gradients[group] = zero.all_grad_tensors[group] = None
        for flat in self._flats:
            if flat.grad is not None:  # of what is offloaded
                flat.grad.zero_()

    @property
    def _flats(self) -> list[Tensor]:
        zero = self._zero
        found: list[Tensor] = zero.fp32_partitioned_groups_flat if self.stage == 3 else zero.single_partition_of_fp32_groups
        return found

    # -- averages

    def parameters(self) -> list[Tensor]:
        return [self._piece(p) for p in self._task.model.parameters()]

    def _piece(self, parameter: Any) -> Tensor:
        piece: Tensor = parameter.ds_tensor if hasattr(parameter, "ds_tensor") else parameter
        return piece.detach()

    def written(self) -> None:
        """What the optimizer steps on becomes what the weights are, and small weights that stay whole are whole anew."""
        if self._zero is None:
            return
        if self.stage == 3:
            self._zero.checkpoint_event_prologue()
        self._zero.refresh_fp32_params()
        if self.stage == 3:
            self._zero.checkpoint_event_epilogue()

    def averages(self, pieces: Sequence[Tensor]) -> list[Tensor | None]:
        found = []
        for piece, parameter in zip(pieces, self._task.model.parameters(), strict=True):
            whole = zero_flat.gathered(piece, parameter) if hasattr(parameter, "ds_tensor") else piece
            found.append(whole.cpu() if self._ranks.first else None)
        return found

    def pieces_of(self, averages: Sequence[Tensor]) -> list[Tensor]:
        return [self._cut(own, p) for own, p in zip(averages, self._task.model.parameters(), strict=True)]

    def _cut(self, whole: Tensor, parameter: Any) -> Tensor:
        if not hasattr(parameter, "ds_tensor"):
            return whole
        piece = torch.zeros_like(parameter.ds_tensor)
        begin, size = zero_flat.extent(parameter)
        piece.narrow(0, 0, size).copy_(whole.reshape(-1).narrow(0, min(begin, whole.numel()), size))
        return piece

    # -- what leaves the ranks

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        if self.stage < 3:
            there = files.tensors_of(module) if self._ranks.first else {}
            return {name: tensor.to("cpu", copy=True) for name, tensor in there.items()}
        found: dict[str, Tensor] = {}
        known: dict[int, Tensor] = {}  # tied ones stay so
        for name, tensor in module.state_dict(keep_vars=True).items():
            if not isinstance(tensor, Tensor):
                continue
            if id(tensor) not in known:
                whole = zero_flat.gathered(tensor.ds_tensor.detach(), tensor) if hasattr(tensor, "ds_tensor") else tensor.detach()
                known[id(tensor)] = whole.cpu() if self._ranks.first else torch.empty(0)
            found[name] = known[id(tensor)]
        return found if self._ranks.first else {}

    def fill(self, module: nn.Module, tensors: Mapping[str, Tensor], extra: Mapping[str, Any] | None = None) -> None:
        with self.whole(writing=True):
            files.load_tensors(module, tensors, extra)
        self.written()

    @contextlib.contextmanager
    def whole(self, *, writing: bool = False) -> Iterator[None]:
        """Inside, all parameters are whole on each rank. writing: behind it they are what rank 0 has made of them."""
        if self.stage < 3:
            yield
            return
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters(list(self._root.parameters()), modifier_rank=0 if writing else None):
            yield

    def gradients(self) -> dict[str, Tensor]:
        """Between the backward and the step: no gradient outlasts that."""
        from deepspeed.utils import safe_get_full_grad

        trained = {id(p) for p in self._trained}
        return {name: safe_get_full_grad(p) for name, p in self._task.model.named_parameters() if id(p) in trained}

    def put_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        if gradients:
            raise TaskError(f"the checkpoint has gradients that count on, which {self.name} does not keep: take data-parallel ranks (MULTI_GPU).")

    def shapes(self, opt: OptimizerHandle) -> list[list[tuple[int, ...]]]:
        """Those of the parameters in the optimizer's groups, as they were given to it."""
        return [[tuple(getattr(p, "ds_shape", p.shape)) for p in group] for group in self._groups]

    def optimizer_state(self, opt: OptimizerHandle) -> dict[str, Any]:
        found = zero_flat.whole_state(self._ranks, opt.optimizer.state, self._trained, self._places)
        number = {id(p): n for n, p in enumerate(p for group in self._groups for p in group)}
        state = {number[id(p)]: own for p, own in zip(self._trained, found, strict=True) if own}
        groups = [
            {**{name: value for name, value in group.items() if name != "params"}, "params": [number[id(p)] for p in before]}
            for group, before in zip(opt.optimizer.param_groups, self._groups, strict=True)
        ]
        return {"state": state, "param_groups": groups} if self._ranks.first else {"state": {}, "param_groups": groups}

    def pieces_of_state(self, opt: OptimizerHandle, state: Mapping[str, Any]) -> dict[str, Any]:
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        number = {id(p): n for n, p in zip(numbers, (p for group in self._groups for p in group), strict=True)}
        states = [state["state"].get(number[id(p)], {}) for p in self._trained]
        try:
            own = zero_flat.flat_state(states, [getattr(p, "ds_shape", p.shape) for p in self._trained], self._places)
        except ValueError as error:
            raise TaskError(f"the optimizer's state in the checkpoint is no state by elements, and {self.name} has no other: {error}.") from error
        with self._listed(opt):
            now = opt.optimizer.state_dict()
            flats = [flat for group in opt.optimizer.param_groups for flat in group["params"]]
        theirs = [{**group, "params": here["params"]} for group, here in zip(state["param_groups"], now["param_groups"], strict=True)]
        return {"state": {n: own[flat] for n, flat in enumerate(flats) if flat in own}, "param_groups": theirs}

    def state(self, opt: OptimizerHandle) -> dict[str, Any]:
        """This rank's part of the optimizer's state, copied, for `load_state`."""
        with self._listed(opt):
            return copy.deepcopy(opt.optimizer.state_dict())

    def load_state(self, opt: OptimizerHandle, state: dict[str, Any]) -> None:
        """A state of this rank's parts (`state`, `pieces_of_state`) becomes the optimizer's."""
        with self._listed(opt):
            opt.optimizer.load_state_dict(state)

    @contextlib.contextmanager
    def _listed(self, opt: OptimizerHandle) -> Iterator[None]:
        """Inside, the optimizer's groups list what it steps on, which stage 3 does within a step alone."""
        if self.stage < 3:
            yield
            return
        for sub_group, flat in enumerate(self._flats):
            opt.optimizer.param_groups[self._zero.sub_group_to_group_id[sub_group]]["params"].append(flat)
        try:
            yield
        finally:
            for group in opt.optimizer.param_groups:
                group["params"] = []

    # -- searches

    def alone(self) -> contextlib.AbstractContextManager[None]:
        raise TaskError(f"with {self.name} no rank can try a batch size by itself: look for it with data-parallel ranks (MULTI_GPU).")
