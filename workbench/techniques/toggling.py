"""Selects which of several optimizers steps, and lets only its parameters require gradients
meanwhile.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from workbench.task.errors import TaskError


class Toggle:
    """Switches off the gradients of all parameters but one optimizer's, until `untoggle`."""

    def __init__(self) -> None:
        self._off: list[Tensor] = []

    def toggle(self, all_parameters: Sequence[Tensor], own: Collection[Tensor]) -> None:
        """Let only those of `own` (by identity) require gradients that did before, until
        `untoggle`.
        """
        self.untoggle()
        kept = {id(p) for p in own}
        self._off = [p for p in all_parameters if p.requires_grad and id(p) not in kept]
        for parameter in self._off:
            parameter.requires_grad_(False)

    def untoggle(self) -> None:
        """Let the parameters that the last `toggle` switched off require gradients again."""
        for parameter in self._off:
            parameter.requires_grad_(True)
        self._off = []


@contextlib.contextmanager
def toggled(all_parameters: Sequence[Tensor], own: Collection[Tensor]) -> Iterator[None]:
    """Context manager in which only those of `own` (by identity) require gradients that did
    before.
    """
    toggle = Toggle()
    try:
        toggle.toggle(all_parameters, own)
        yield
    finally:
        toggle.untoggle()


def optimizers_at(frequencies: Sequence[int], step: int) -> tuple[int, ...]:
    """Return the optimizers of update `step` (0, 1, …): all of them where no frequency is given,
    else one.

    With frequencies (5, 1) the first has five updates in a row, then the second has one, and so on.
    """
    if not any(frequencies):
        return tuple(range(len(frequencies)))
    if min(frequencies) <= 0:
        raise TaskError(
            f"the optimizers' frequencies are {tuple(frequencies)}: give each one its number of"
            " updates in a row (at least 1), or leave all frequencies out."
        )
    ends = list(itertools.accumulate(frequencies))
    return (bisect.bisect_right(ends, step % ends[-1]),)


def updates_of(frequencies: Sequence[int], index: int, updates: int) -> int:
    """Return in how many of the first `updates` updates the optimizer `index` steps."""
    if not any(frequencies):
        return updates
    rounds, rest = divmod(updates, sum(frequencies))
    frequency, before = frequencies[index], sum(frequencies[:index])
    return rounds * frequency + min(max(rest - before, 0), frequency)
