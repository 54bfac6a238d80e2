"""Records what a module's `on_save_checkpoint` and `on_load_checkpoint` change in their dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

_PARTS = ("state_dict", "optimizer_states", "lr_schedulers")


@dataclass(frozen=True)
class CheckpointEdits:
    """The difference between such a dictionary before and after the hook. The default: none."""

    removed: tuple[str, ...] = ()
    """Names of weights that are not to be stored."""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights that are another tensor now, or new."""
    optimizers: list[Any] | None = None
    """The states of all optimizers, if they were changed."""
    schedulers: list[Any] | None = None
    """The states of all schedulers, if they were changed."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Other entries that are new or were changed."""
    gone: tuple[str, ...] = ()
    """Entries that were removed."""

    @classmethod
    def between(cls, before: Mapping[str, Any], after: Mapping[str, Any]) -> Self:
        """before: a `copy_of` what the hook was given."""
        there, now = before["state_dict"], after.get("state_dict") or {}
        return cls(
            tuple(name for name in there if name not in now),
            {name: value for name, value in now.items() if isinstance(value, Tensor) and value is not there.get(name)},
            _changed(before, after, "optimizer_states"),
            _changed(before, after, "lr_schedulers"),
            {name: value for name, value in after.items() if name not in _PARTS and not _same(before.get(name, _NONE), value)},
            tuple(name for name in before if name not in after and name != "state_dict"),
        )

    def stored(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights to be stored."""
        return {**{name: value for name, value in weights.items() if name not in self.removed}, **self.weights}

    @property
    def unresumable(self) -> str:
        """Why no fit can continue from what is stored; "": it can."""
        gone = [name for name in ("optimizer_states", "lr_schedulers") if name in self.gone]
        return f"on_save_checkpoint removed {' and '.join(gone)}" if gone else ""

    def put_states(self, optimizers: list[dict[str, Any]]) -> None:
        """Put changed states into those of a checkpoint (engine/checkpoint/optimizer_state.py), in their order."""
        for one, state in zip(optimizers, self.optimizers or (), strict=False):
            one["state"] = state
        schedules = [schedule for one in optimizers for schedule in one["own"]]
        for schedule, state in zip(schedules, self.schedulers or (), strict=False):
            schedule["state"] = state


_NONE = object()


def copy_of(value: Any) -> Any:
    """New containers with the same contents."""
    if isinstance(value, Mapping):
        return {key: copy_of(one) for key, one in value.items()}
    return type(value)(map(copy_of, value)) if type(value) in (list, tuple) else value


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> list[Any] | None:
    return None if name not in after or _same(before[name], after[name]) else list(after[name])


def _same(one: Any, other: Any) -> bool:
    """Whether two values have the same contents; a tensor is equal only to the very same object."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if one is other:
        return True
    if isinstance(one, Tensor) or isinstance(other, Tensor) or type(one) is not type(other):
        return False
    return bool(one == other)
