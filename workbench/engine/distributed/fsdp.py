"""Shards a model with torch's `fully_shard` (FSDP2), in place, as the user's accelerate config
says.

`accelerate launch` puts the config's FSDP options into the environment, and accelerate's own plugin
reads them there. `fully_shard` is used for both versions of FSDP, and on CPUs too. Sources:
torch.distributed.fsdp, accelerate.utils.fsdp_utils.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy, get_parameters_from_modules
from torch import nn
from torch.utils.checkpoint import checkpoint

from workbench.engine.distributed.process_group import ProcessGroup
from workbench.engine.distributed.task_module import TaskModule
from workbench.task.device.dtensor import ShardPlace, local
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.units import counted

NAME = "FSDP"
ENVIRONMENT = "WORKBENCH_SHARDS"
"""Set in the environment of ranks with sharded weights, to `NAME`."""
_PER_MACHINE = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_KEEPS = ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2")
"""Strategies of FSDP1. HYBRID…: each machine has one copy of the weights. …GRAD_OP, …ZERO2:
weights stay whole from the forward to the backward.
"""

_UNUSED = "set_reduce_scatter_unused_params"
"""A method of `fully_shard` since torch 2.13; 2.11 does not have it."""


class Root(TaskModule):
    """Runs a task's steps as the forward of one module, which FSDP can wrap."""

    def forward(self, step: str, *arguments: Any, **extra: Any) -> Any:
        """Run the step of this name. "nothing" returns a loss to which no parameter contributes."""
        if step == "nothing":
            return torch.zeros((), requires_grad=True) * 1.0
        if step == "training_step":
            return self._task.training_step(*arguments, **extra)
        if step == "validation_step":
            return self._task.validation_step(*arguments, **extra)
        return self._task.predict_step(*arguments, **extra)


@dataclass(frozen=True)
class FSDPOptions:
    """The FSDP options of the environment."""

    plugin: Any
    reshard: bool
    """Whether a unit frees its whole weights between its forward and its backward."""
    per_machine: bool

    @classmethod
    def of_environment(cls) -> FSDPOptions:
        """Read the options; raises TaskError for those that cannot be used."""
        try:
            # All ranks have rank 0's weights before the options are read, whatever these say.
            options = {} if os.environ.get("FSDP_VERSION") == "2" else {"sync_module_states": False}
            plugin = FullyShardedDataParallelPlugin(cpu_ram_efficient_loading=False, **options)
        except (ValueError, KeyError, RuntimeError) as error:
            raise TaskError(
                f"the FSDP part of the accelerate config cannot be used: {error}"
            ) from error
        if plugin.fsdp_version == 2:
            return cls(plugin, bool(plugin.reshard_after_forward), False)
        strategy = (plugin.sharding_strategy or plugin.reshard_after_forward).name.lstrip("_")
        return cls(plugin, strategy not in _KEEPS, strategy in _PER_MACHINE)


@dataclass(frozen=True)
class ShardedModules:
    """The result of sharding a task's modules."""

    root: Any
    units: tuple[Any, ...]
    """The modules whose weights are gathered together; the root is the last."""
    copies: int
    """How many ranks have each piece of the weights."""
    renewed: dict[nn.Parameter, nn.Parameter]
    """Each parameter that was whole, with the sharded one that replaces it."""


def apply(task: Task, device: torch.device, ranks: ProcessGroup) -> ShardedModules:
    """Shard rank 0's weights, which need not be in memory: they may be those of a mapped file.

    Inner units are sharded first; the root has the rest. A rank never holds more than its shards
    and one unit.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

    if not hasattr(FSDPModule, _UNUSED):
        raise TaskError(
            f"sharded weights need torch 2.13 or later (this is {torch.__version__}), where ranks"
            " whose batches do not use the same layers do not wait for one another for ever:"
            " update torch, or take a data-parallel config."
        )
    options = FSDPOptions.of_environment()
    world, local_world = ranks.world, ranks.local_world
    hybrid = options.per_machine and world > local_world
    shape, names = (
        ((world // local_world, local_world), ("machines", "shards"))
        if hybrid
        else ((world,), ("shards",))
    )
    offloads = device.type != "cpu" and _offloads(options.plugin)
    arguments: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, shape, mesh_dim_names=names),
        "offload_policy": CPUOffloadPolicy() if offloads else OffloadPolicy(),
    }
    # scalars, which torch cannot shard
    ignored = {p for whole in task.modules for p in whole.parameters() if p.ndim == 0}
    for parameter in ignored:
        parameter.data = parameter.data.to(device)
    if options.plugin.ignored_modules is not None:
        ignored |= get_parameters_from_modules(options.plugin.ignored_modules, task.model, device)
    arguments["ignored_params"] = ignored
    _refuse_hooks(task, ignored)
    before = list(_slots(task))
    units = list(_units(task, options.plugin))
    root = Root(task)
    renewed: dict[nn.Parameter, nn.Parameter] = {}
    try:
        for unit in units:
            if options.plugin.activation_checkpointing:
                _checkpoint(unit)
            fully_shard(unit, reshard_after_forward=options.reshard, **arguments)
            _take_shards(before, renewed, ranks)
        fully_shard(root, **arguments)
        _take_shards(before, renewed, ranks)
        # Where one rank's data do not use a layer, the other ranks must not wait for it, and all
        # must send in the same order.
        getattr(root, _UNUSED)(True)
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise TaskError(f"the model cannot be sharded: torch says: {error}") from error
    return ShardedModules(root, (*units, root), world // local_world if hybrid else 1, renewed)


def _take_shards(
    before: Sequence[tuple[dict[str, Any], str, nn.Parameter]],
    renewed: dict[nn.Parameter, nn.Parameter],
    ranks: ProcessGroup,
) -> None:
    """Give each parameter that was sharded since the last call rank 0's values, and free the whole
    one, which `renewed` then has.
    """
    for slots, name, parameter in before:
        sharded = slots[name]
        if sharded is parameter or parameter in renewed:
            continue
        renewed[parameter] = sharded
        # Contiguous, so that nothing is written into the memory of rank 0's parameter.
        value = (
            parameter.detach().contiguous() if ranks.first else torch.empty_like(parameter.detach())
        )
        ranks.broadcast([value])
        start, stop = ShardPlace.of(sharded).rows(len(value))
        local(sharded).copy_(value[start:stop])
        parameter.data = parameter.detach().new_empty(0)


def _refuse_hooks(task: Task, ignored: Collection[nn.Parameter]) -> None:
    """Raise TaskError for hooks on weights to be sharded.

    FSDP puts other parameters in their place, on which no hook would run.
    """
    for module in task.modules:
        for name, parameter in module.named_parameters():
            hooks = parameter._backward_hooks or parameter._post_accumulate_grad_hooks
            if hooks and parameter not in ignored:
                raise TaskError(
                    f"the parameter {name} has {counted(len(hooks), 'hook')} (register_hook,"
                    f" register_post_accumulate_grad_hook), and {NAME} puts another parameter in"
                    " its place, on which hooks would not run: leave its layer out of the sharding"
                    " (fsdp_ignored_modules), or take a config of type MULTI_GPU."
                )


def _slots(task: Task) -> Iterator[tuple[dict[str, Any], str, nn.Parameter]]:
    """All parameters, each with the dict that holds it and its name there."""
    for whole in task.modules:
        for module in whole.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    yield module._parameters, name, parameter


def _units(task: Task, plugin: Any) -> Iterable[nn.Module]:
    """The parts of the model that the config's policy chooses, inner ones before outer ones."""
    try:
        policy: Callable[[nn.Module], bool] | None = fsdp2_prepare_auto_wrap_policy(
            plugin, task.model
        )
    except ValueError as error:
        raise TaskError(f"fsdp_transformer_layer_cls_to_wrap: {error}") from error
    if policy is None:
        return []
    parts = [module for module in task.model.modules() if module is not task.model]
    return [
        module for module in reversed(parts) if type(module).forward is not _NONE and policy(module)
    ]


_NONE = nn.Module.forward
"""The forward of containers that are never called (ModuleList, ModuleDict)."""


def _offloads(plugin: Any) -> bool:
    offload = plugin.cpu_offload
    return bool(getattr(offload, "offload_params", type(offload).__name__ == "CPUOffloadPolicy"))


def _checkpoint(unit: Any) -> None:
    """Recompute a unit in the backward instead of keeping its activations."""
    unit.forward = functools.partial(checkpoint, unit.forward, use_reentrant=False)
