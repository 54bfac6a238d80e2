"""Measures the gradient noise scale at a run's present weights, with batches of its own that train nothing."""

from __future__ import annotations

import itertools
from contextlib import closing

from workbench.engine import backward, rng
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.instruments.memory import is_out_of_memory
from workbench.instruments.noise_scale import NoiseScale, NoiseScaleEstimator
from workbench.settings import Settings
from workbench.task.protocol import Task
from workbench.tuners.trial import at_size, free_memory
from workbench.tuners.trial_batches import cycled_windows

SIZE = 16
"""Samples in a batch: small, since the noise of single samples is what is measured."""
BATCHES = 64
"""Batches at most; no sample is read twice."""


def measure_noise(task: Task, settings: Settings, samples: int | None) -> NoiseScale | None:
    """The noise scale of the first optimizer's gradients; None: it cannot be told, or memory ran out. samples: of an epoch, where known."""
    size = SIZE if samples is None else max(2, min(SIZE, samples // 16))
    count = BATCHES if samples is None else min(BATCHES, samples // size)
    settings = at_size(settings, size).replace(accumulate_grad_batches=1)
    estimator = NoiseScaleEstimator(size)
    try:
        with open_session(task, settings) as session, scratch(session):
            opt = session.optimizers[0]
            if task.manual or session.tbptt is not None or session.weights.sharded:
                return None
            session.train_mode()
            with closing(cycled_windows(task, settings)) as feed, session.only(opt):
                for window in itertools.islice(feed, count):
                    rng.yield_lock()
                    session.state.begin_update()
                    loss = backward.finish(backward.backward(session, opt, window))
                    backward.finish_window(session, window)
                    gradients = opt.gradients()
                    if loss is not None and len(gradients) == len(opt.trained):
                        estimator.add(gradients)
                    opt.zero_grad()
            return estimator.estimate()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        free_memory()
