"""Keeps the inputs of the latest updates, so that one with non-finite values can be repeated or
undone (engine/nonfinite.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workbench.engine.state import TrainState
from workbench.task import rng


class ReplayPoint(NamedTuple):
    """The inputs of an update: its window, its hidden state, its random state."""

    step: int
    window: Sequence[Any]
    hiddens: Mapping[int, Any]
    random: Tensor | None
    """torch's random state; None: updates draw no random numbers."""


class Replay:
    """The inputs of the latest updates: on CPU of the current one; on a GPU also of those whose
    values have not reached the host.
    """

    def __init__(self, device: torch.device, modules: Sequence[nn.Module] = ()) -> None:
        """modules: the modules whose buffers are restored when an update is skipped; none if
        updates are never skipped.
        """
        self._device, self._modules = device, modules
        self._recent: list[ReplayPoint] = []
        self._random: Tensor | None = None
        """The random state before the current update; None: no random numbers are known to be
        drawn.
        """
        self._buffers: list[tuple[Tensor, Tensor]] = []
        """The buffers, each with its value before the current update."""
        self._draws = False
        """Whether updates are known to draw random numbers (dropout)."""

    def remember(self, state: TrainState, window: Sequence[Any], *, look: bool) -> None:
        """Keep the inputs of this update. look: find out whether it draws random numbers.

        Reading the random state takes longer than everything else here, so a model without dropout
        is checked only in some updates.
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
        """Note, after the forward and backward of an update, whether it drew random numbers."""
        if self._random is not None and not self._draws:
            now = rng.device_state(self._device)
            self._draws = now is not None and not torch.equal(self._random, now)

    def here(self, state: TrainState, window: Sequence[Any]) -> ReplayPoint:
        """The inputs of the current update."""
        return ReplayPoint(state.step, window, state.hiddens, self._random)

    def at(self, step: int) -> ReplayPoint | None:
        """The inputs of a recent update; None: they are not kept, or its random state is not
        known.
        """
        point = next((recent for recent in self._recent if recent.step == step), None)
        return None if point is None or (point.random is None and self._draws) else point

    def forget(self, step: int) -> None:
        """Drop the inputs of the updates up to this one, which are known to be finite."""
        self._recent = [point for point in self._recent if point.step > step]

    def restore_buffers(self, where: Tensor | None = None) -> None:
        """Restore the buffers' values from before the update. where: a boolean on the device;
        restore only where it is True.
        """
        for buffer, before in self._buffers:
            buffer.copy_(before if where is None else torch.where(where, before, buffer))
