"""Gradient norms of several ranks are those of the gradient that all of them step with, so those of one process."""

import numpy as np
import pytest
import torch

from tests.engine.fit_results import Heard
from tests.engine.learners import TwoSided
from tests.engine.problems import labelled
from tests.on_ranks import on_ranks
from workbench.commands import Mailbox
from workbench.engine.dry_run.dry_run import dry_run
from workbench.events import StepsDone
from workbench.launch.assignments import FitAssignment
from workbench.settings import Settings
from workbench.task.factory import task_of


def columns(settings):
    """All that was measured of the updates of a fit with two optimizers."""
    torch.set_num_threads(1)
    given = dict.fromkeys(("val", "test", "loss", "scheduler", "metrics", "collate_fn"))
    task = task_of(TwoSided(), train=labelled(40).tensors, optimizer=torch.optim.AdamW, **given)
    chosen = Settings.make(lr=0.05, max_epochs=2, **settings)
    dry_run(task, chosen)
    heard = Heard()
    FitAssignment(task, chosen)(heard, Mailbox())
    done = [event for event in heard if isinstance(event, StepsDone)]
    return {name: np.concatenate([steps.array(name) for steps in done]) for name in done[0].columns}


@pytest.mark.parametrize(
    "clip",
    [{"gradient_clip_val": 0.3}, {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"}],
    ids=str,
)
@pytest.mark.parametrize("order", [2.0, 1.0])
def test_norms_are_measured_and_clipped_behind_the_reduction(order, clip, one_thread):
    settings = {"track_grad_norm": order, "accumulate_grad_batches": 2, **clip}
    first, other = on_ranks(2, lambda: columns({**settings, "batch_size": 2}))
    alone = columns({**settings, "batch_size": 4})
    assert {"grad_norm", "grad_norm_clipped", "layer_norms"} < set(first)
    assert first["layer_norms"].shape[1] == 6
    assert (first["grad_norm_clipped"] < first["grad_norm"]).any()
    assert list(first) == list(alone)
    for name in first:
        np.testing.assert_array_equal(first[name], other[name], err_msg=name)
        np.testing.assert_allclose(first[name], alone[name], rtol=1e-3, atol=1e-5, err_msg=name)
