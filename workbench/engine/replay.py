"""Keeps what the latest updates began with, so that one with non-finite values can be repeated or undone (engine/nonfinite.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workbench.engine.state import TrainState
from workbench.task import rng


class ReplayPoint(NamedTuple):
    """What is needed to repeat an update: its window, its hidden state, its random state."""

    step: int
    window: Sequence[Any]
    hiddens: Mapping[int, Any]
    random: Tensor | None
    """None: updates draw nothing from torch's generator."""


class Replay:
    """The beginnings of the latest updates: on CPU that of the current one, on a GPU also those that the next flush will show."""

    def __init__(self, device: torch.device, modules: Sequence[nn.Module] = ()) -> None:
        """modules: those whose buffers are restored where an update is skipped; none: no update is skipped."""
        self._device, self._modules = device, modules
        self._recent: list[ReplayPoint] = []
        self._random: Tensor | None = None
        """The random state before the current update; None: it draws nothing, as far as is known."""
        self._buffers: list[tuple[Tensor, Tensor]] = []
        """The buffers, each with its value before the current update."""
        self._draws = False
        """Whether updates are known to draw random numbers (dropout)."""

    def remember(self, state: TrainState, window: Sequence[Any], *, look: bool) -> None:
        """Keep what this update begins with. look: find out whether it draws random numbers.

        Reading the random state costs more than the rest here, so a model without dropout is checked only now and then.
        """
        if state.searching:
            return
        if self._modules:
            buffers = [buffer for module in self._modules for buffer in module.buffers()]
            self._buffers = [(buffer, buffer.detach().clone()) for buffer in buffers]
        self._random = rng.device_state(self._device) if self._draws or look else None
        if state.records and self._device.type == "cuda":
            self._recent.append(self.here(state, window))

    def note_randomness(self) -> None:
        """After the forward and backward of an update: note whether it drew random numbers."""
        if self._random is not None and not self._draws:
            now = rng.device_state(self._device)
            self._draws = now is not None and not torch.equal(self._random, now)

    def here(self, state: TrainState, window: Sequence[Any]) -> ReplayPoint:
        """The beginning of the current update."""
        return ReplayPoint(state.step, window, state.hiddens, self._random)

    def at(self, step: int) -> ReplayPoint | None:
        """The beginning of a recent update; None: it is not kept, or its random numbers are not known."""
        point = next((one for one in self._recent if one.step == step), None)
        return None if point is None or (point.random is None and self._draws) else point

    def forget(self, step: int) -> None:
        """The updates up to this one are known to be finite."""
        self._recent = [point for point in self._recent if point.step > step]

    def restore_buffers(self, where: Tensor | None = None) -> None:
        """Give the buffers their values from before the update. where: a flag on the device, which says whether to."""
        for buffer, before in self._buffers:
            buffer.copy_(before if where is None else torch.where(where, before, buffer))
