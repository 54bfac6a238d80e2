"""A run that goes on with epochs of another number of updates: its length and its schedule are those that it really has."""

import math

import numpy as np
import pytest
import torch.nn.functional as F

import workbench as wb
from tests.engine.problems import labelled, plain_net
from workbench.events import RunStarted

pytestmark = pytest.mark.usefixtures("one_thread")


def bench(root, **settings):
    given = {"batch_size": 8, "max_epochs": 2, "lr": 0.05, "lr_schedule": "cosine", **settings}
    return wb.Workbench(
        plain_net(), train=labelled(48), loss=F.cross_entropy, root=root, accelerator="cpu", **given
    )


def total(run):
    return next(event for event in run.events if isinstance(event, RunStarted)).updates


def falls_to_the_end(run, begins):
    """From the update `begins` on, the rates of one cosine over the whole run."""
    expected = [
        0.025 * (1 + math.cos(math.pi * step / run.step)) for step in range(begins, run.step)
    ]
    np.testing.assert_allclose(run.history["lr"][begins:], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("edits", "updates"),
    [
        ({"max_epochs": 4}, 24),
        ({"max_epochs": 4, "batch_size": 16}, 12 + 6),
        ({"max_epochs": 4, "accumulate_grad_batches": 3}, 12 + 4),
        ({"max_epochs": 4, "limit_train_batches": 2}, 12 + 4),
        ({"max_epochs": 4, "batch_size": 16, "max_steps": 15}, 15),
    ],
)
def test_from_the_end_of_an_epoch(edits, updates, tmp_path):
    with bench(tmp_path) as b:
        b.fit().result()
        run = b.fit(start="continue", **edits).result()
    assert (run.step, total(run)) == (updates, updates)
    if "max_steps" not in edits:
        falls_to_the_end(run, 12)


@pytest.mark.parametrize(
    ("edits", "updates"),
    [
        # of the epoch that goes on, four batches are left
        ({"accumulate_grad_batches": 2}, 8 + 2 + 3 + 3),
        ({"batch_size": 16}, 8 + 4 + 3 + 3),  # that epoch keeps its batches
    ],
)
def test_from_the_middle_of_an_epoch_and_once_more(edits, updates, tmp_path):
    with bench(tmp_path, max_epochs=4) as b:
        cut = b.fit(max_steps=8).result()
        assert cut.step == 8
        run = b.fit(start="continue", max_steps=None, **edits).result()
        assert (run.step, total(run)) == (updates, updates)
        falls_to_the_end(run, 8)
        # Cut once more on the way, and with nothing edited behind that: all of it stays as it was.
        b.fit(start=cut.id, **{**edits, "max_steps": 13}).result()
        again = b.fit(start="continue", max_steps=None).result()
        assert (again.step, total(again)) == (updates, updates)
        np.testing.assert_array_equal(again.history["lr"][13:], run.history["lr"][13:])
