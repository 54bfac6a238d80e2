"""What a batch-size trial runs in: a child process with a memory limit on CPU, this process on a device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from workbench.commands import Mailbox, Stop
from workbench.engine.runtime import Runtime
from workbench.events import Trial
from workbench.launch.child import available_memory, run_in_child
from workbench.settings import Settings
from workbench.share.parcel import pack
from workbench.task.protocol import Task
from workbench.tuners.batch_size import BatchSizeRequest, TrialStopped, measure, measure_here

TrialOf = Callable[[int], Trial]


@contextlib.contextmanager
def trials(task: Task, settings: Settings, request: BatchSizeRequest, inbox: Mailbox) -> Iterator[TrialOf]:
    """A `trial(size)` for this task; the model and data travel to the children once."""
    if Runtime(settings).device.type != "cpu":
        yield lambda size: measure_here(task, settings, size, request.steps_per_trial)
        return
    threads = torch.get_num_threads()
    with pack((task, settings), names={"task": task}) as parcel:

        def trial(size: int) -> Trial:
            outcome = run_in_child(
                _measure,
                parcel,
                size,
                request.steps_per_trial,
                memory_limit=request.max_memory or available_memory(),
                stop=lambda: inbox.has(Stop),
                threads=threads,
            )
            if outcome.kind == "stopped":
                raise TrialStopped
            if outcome.out_of_memory:
                return Trial(size, False, peak_bytes=outcome.peak_bytes, error=str(outcome.error or outcome.died))
            measured = outcome.get()
            assert isinstance(measured, Trial)
            return measured

        yield trial


def _measure(given: tuple[Task, Settings], size: int, steps: int) -> Trial:
    task, settings = given
    return measure(task, settings, size, steps)
