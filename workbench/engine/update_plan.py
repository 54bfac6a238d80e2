"""Holds what is known of all updates of a session before the first, so that no update has to find it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.task.protocol import StepResult


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """What holds for each update of a session."""

    on_cpu: bool
    """Whether values can be read at once: the device is the CPU."""
    lazy: bool
    """Whether operations wait for `Session.sync_device` (a TPU)."""
    cores: int
    """The cores of a TPU among which each batch is divided."""
    moves: bool
    """Whether batches are moved to the device, by torch or by the task's own hook."""
    several: bool
    """Whether there are several optimizers."""
    tbptt: int | None
    """The length of the pieces into which batches are cut in time; None: they are not cut."""
    skips_nonfinite: bool
    """Whether updates with values that are not finite are skipped; else they end the run."""
    direct: bool
    """Whether an update of one batch needs neither other ranks, nor hooks, nor turns (`backward.of_one_batch`)."""
    training_step: Callable[..., StepResult]
    """The task's training step in the precision of the settings, for such an update."""
