"""Plots a profile: the time of an update by part, and the memory in use.

How to read it: what is limited by its model spends most of the time in forward and backward. Memory
grows in the forward, while activations are kept, and falls in the backward. A line that rises from
update to update means that something keeps tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workbench.plots.chart import Array, Axis, Chart, Mark, Series
from workbench.units import size


def profile(
    parts: Mapping[str, float], seconds: Array, memory: Array, *, on_cpu: bool
) -> list[Chart]:
    """The charts of a profile; those without data are left out.

    parts: seconds of an update by part, the largest first. seconds, memory: the times and the bytes
    in use then, both of shape (points,); on a CPU above those before.
    """
    charts = []
    if parts:
        charts.append(_parts(parts))
    if len(memory):
        charts.append(_memory(seconds, memory, on_cpu))
    return charts


def _parts(parts: Mapping[str, float]) -> Chart:
    milliseconds = 1e3 * np.array(list(parts.values()))
    of_all = milliseconds.sum() or 1.0
    marks = tuple(
        Mark(number, f"{height / of_all:.0%}", height) for number, height in enumerate(milliseconds)
    )
    return Chart(
        "Where the time of an update goes",
        Axis("part", ticks=tuple(parts)),
        Axis("time", "ms"),
        (Series("time", np.arange(len(milliseconds)), milliseconds, "bar"),),
        marks,
    )


def _memory(seconds: Array, memory: Array, on_cpu: bool) -> Chart:
    peak = int(memory.argmax())
    # it stays the same until the next point
    times, megabytes = np.repeat(1e3 * seconds, 2)[1:], np.repeat(memory / 1e6, 2)[:-1]
    label = "above that before" if on_cpu else "in use"
    return Chart(
        "Memory during the updates",
        Axis("time", "ms"),
        Axis("memory", "MB"),
        (Series(label, times, megabytes, "thin"),),
        (Mark(1e3 * seconds[peak], f"peak {size(memory[peak])}", memory[peak] / 1e6),),
    )
