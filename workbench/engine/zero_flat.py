"""Where a parameter lies in the flat partitions that DeepSpeed's ZeRO makes of an optimizer's parameters.

Each rank has a piece of each flat partition, and the optimizer steps on those pieces as on parameters of its own. `places`
says which part of which parameter a piece holds, so that state leaves the ranks by parameters, as any optimizer has it.
Source: deepspeed.utils.tensor_fragment, deepspeed.runtime.zero.stage3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.engine.distributed.process_group import ProcessGroup


class Place(NamedTuple):
    """This rank's piece of one parameter."""

    flat: Tensor
    """What the optimizer steps on."""
    at: int
    """Where the piece begins in it."""
    begin: int
    """Where it begins in the parameter."""
    size: int
    """Its elements."""

    def of(self, flat: Tensor) -> Tensor:
        """The piece of a tensor that is laid out like the flat partition."""
        return flat.view(-1).narrow(0, self.at, self.size)


def places(zero: Any, parameters: Sequence[Tensor]) -> list[Place | None]:
    """This rank's piece of each parameter that the ZeRO optimizer steps; None: all of it lies on other ranks."""
    return [_partitioned(zero, p) if hasattr(p, "ds_id") else _flattened(zero, p) for p in parameters]


def extent(parameter: Any) -> tuple[int, int]:
    """Where this rank's piece of a parameter of stage 3 begins, and how many of its elements are no padding."""
    begin = dist.get_rank() * parameter.ds_tensor.ds_numel
    return begin, max(0, min(parameter.ds_numel - begin, parameter.ds_tensor.ds_numel))


def _flattened(zero: Any, parameter: Any) -> Place | None:
    """Of stages 1 and 2."""
    fragment = parameter._hp_mapping
    if fragment is None:
        return None
    there = fragment.hp_fragment_address
    flat = zero.single_partition_of_fp32_groups[fragment.param_group_index]
    return Place(flat, there.start, fragment.lp_fragment_address.start, there.numel)


def _partitioned(zero: Any, parameter: Any) -> Place | None:
    """Of stage 3."""
    group, at, _ = zero.grad_position[zero.get_param_id(parameter)]
    begin, size = extent(parameter)
    return Place(zero.fp32_partitioned_groups_flat[group], at, begin, size) if size else None


def whole_state(
    ranks: ProcessGroup, state: Mapping[Tensor, Mapping[str, Any]], parameters: Sequence[Any], there: Sequence[Place | None]
) -> Iterator[dict[str, Any]]:
    """The state of each parameter, put together of the pieces on all ranks, in host memory; all ranks call it together."""
    own = [{} if place is None else state.get(place.flat, {}) for place in there]
    said = [
        {name: value.dtype if place is not None and _laid_out(value, place.flat) else _Plain(value) for name, value in some.items()}
        for some, place in zip(own, there, strict=True)
    ]  # a piece of a parameter may lie on any rank
    for parameter, place, some, *known in zip(parameters, there, own, *ranks.gather(said), strict=True):
        shape = getattr(parameter, "ds_shape", parameter.shape)
        found: dict[str, Any] = {}
        for name, kind in {name: kind for one in known for name, kind in one.items()}.items():
            if isinstance(kind, _Plain):
                found[name] = kind.value.clone() if isinstance(kind.value, Tensor) else kind.value  # each parameter counts its own
                continue
            whole = torch.zeros(shape.numel(), dtype=kind)
            if place is not None:
                whole.narrow(0, place.begin, place.size).copy_(place.of(some[name]))
            ranks.add(whole)
            found[name] = whole.view(shape)
        yield found


class _Plain:
    """A value that is one for the whole parameter, alike on all ranks: a count of steps."""

    def __init__(self, value: Any) -> None:
        self.value = value.cpu() if isinstance(value, Tensor) else value


def _laid_out(value: Any, flat: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == flat.shape


def flat_state(
    states: Sequence[Mapping[str, Any]], shapes: Sequence[Sequence[int]], there: Sequence[Place | None]
) -> dict[Tensor, dict[str, Any]]:
    """The way back: this rank's state of each flat partition. ValueError: of a state that has not its parameter's shape."""
    found: dict[Tensor, dict[str, Any]] = {}
    for state, shape, place in zip(states, shapes, there, strict=True):
        for name, value in state.items():
            if place is None:
                continue
            own = found.setdefault(place.flat, {})
            if not isinstance(value, Tensor) or value.ndim == 0:
                own[name] = max(own.get(name, value), value).clone() if isinstance(value, Tensor) else value
                continue
            if tuple(value.shape) != tuple(shape):
                raise ValueError(f"its {name} has shape {tuple(value.shape)} for a parameter of shape {tuple(shape)}")
            if name not in own:
                own[name] = torch.zeros(place.flat.shape, dtype=value.dtype, device=place.flat.device)
            place.of(own[name]).copy_(value.reshape(-1).narrow(0, place.begin, place.size))
    return found


def gathered(piece: Tensor, parameter: Any) -> Tensor:
    """The whole of a parameter of stage 3 (or of a tensor in pieces like its own); all ranks call it together."""
    parts = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, piece.contiguous())
    whole: Tensor = torch.cat(parts).narrow(0, 0, parameter.ds_numel).view(parameter.ds_shape)
    return whole
