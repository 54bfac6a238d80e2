"""The finder on several ranks: the curve of one process on the global batch, one decision, and no trace on any rank."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.engine.fit_results import Heard, fit, same
from tests.engine.learners import TwoSided
from tests.engine.problems import adam, labelled, noisy_net, plain_net, same_weights, sgd, weights
from tests.on_ranks import on_ranks
from workbench.commands import Mailbox, Stop
from workbench.engine.dry_run.dry_run import dry_run
from workbench.events import CurveEnded, CurvePoint
from workbench.launch.assignments import FindLRAssignment
from workbench.settings import Settings
from workbench.task.factory import task_of
from workbench.task.rng import RandomState
from workbench.tuners.learning_rate.lr_finder import LRRequest

GIVEN = {
    **dict.fromkeys(("val", "test", "scheduler", "metrics", "collate_fn")),
    "loss": F.cross_entropy,
    "optimizer": sgd,
}


def sweep(model, data, settings, request, given=None, mailbox=None, heard=None):
    """The points and the end of a sweep as this process hears them, and whether its weights and random state are as before."""
    torch.set_num_threads(1)
    task, chosen = (
        task_of(model, **{**GIVEN, "train": data, **(given or {})}),
        Settings.make(**{"lr": 0.05, **settings}),
    )
    dry_run(task, chosen)
    before, random = weights(model), RandomState.capture()
    heard = Heard() if heard is None else heard
    FindLRAssignment(task, chosen, request)(heard, Mailbox() if mailbox is None else mailbox)
    untouched = same_weights(before, weights(model)) and torch.equal(
        random.process["torch"], torch.get_rng_state()
    )
    points = [(e.lr, e.loss, e.smoothed) for e in heard if isinstance(e, CurvePoint)]
    return np.array(points), next(e for e in heard if isinstance(e, CurveEnded)), untouched


def both(make, data, settings, request=None, given=None, world=2):
    """The sweep of the ranks, who must agree to the bit, and that of one process on the global batch."""
    request = request or LRRequest(num_training=40)
    found = on_ranks(
        world, lambda: sweep(make(), data, {**settings, "batch_size": 4}, request, given)
    )
    for points, end, untouched in found:
        np.testing.assert_array_equal(points, found[0][0])
        assert end == found[0][1]
        assert untouched
    return found[0], sweep(make(), data, {**settings, "batch_size": 4 * world}, request, given)


def like(ranks, alone):
    (points, end, _), (expected, expected_end, _) = ranks, alone
    np.testing.assert_allclose(points, expected, rtol=1e-3, atol=1e-6)
    assert end.ended == expected_end.ended
    assert (end.suggestion is None) == (expected_end.suggestion is None)
    if end.suggestion is not None:
        assert end.suggestion == pytest.approx(expected_end.suggestion, rel=1e-3)


CASES = {
    # A pass is over for one rank before the other, more than once in a sweep.
    "tail": {"n": 37},
    "three ranks, one without its share of the tail": {"n": 41, "world": 3},
    "accumulated": {"n": 50, "settings": {"accumulate_grad_batches": 3}},
    "adam, clipped": {
        "n": 37,
        "settings": {"gradient_clip_val": 0.1},
        "given": {"optimizer": adam},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_the_curve_is_that_of_one_process_on_the_global_batch(case, one_thread):
    chosen = dict(CASES[case])
    data = labelled(chosen.pop("n")).tensors
    ranks, alone = both(plain_net, data, chosen.pop("settings", {}), **chosen)
    assert len(ranks[0]) > 20
    like(ranks, alone)


@pytest.mark.parametrize("swept", [0, 1])
def test_one_of_several_optimizers(swept, one_thread):
    request = LRRequest(num_training=30, optimizer=swept)
    given = {"loss": None, "optimizer": torch.optim.AdamW}  # as if none were given: it has its own
    like(*both(lambda: TwoSided(frequencies=(2, 1)), labelled(40).tensors, {}, request, given))


def test_a_loss_that_is_not_finite_on_one_rank_ends_it_on_all(one_thread):
    x, y = labelled(37).tensors
    y[5] = -100

    def loss(output, y):
        return F.cross_entropy(output, y) + torch.where((y == -100).any(), torch.inf, 0.0)

    request = LRRequest(num_training=12, early_stop_threshold=None)
    ranks, alone = both(plain_net, (x, y), {"shuffle": False}, request, {"loss": loss})
    assert ranks[1].ended == alone[1].ended == "loss not finite"
    assert len(ranks[0]) == len(alone[0]) == 1  # sample 5 is of the second rank's first batch


def test_a_stop_ends_it_at_one_point_for_all(one_thread):
    def rank():
        mailbox = Mailbox()

        class Stopping(Heard):
            def __call__(self, event):
                super().__call__(event)
                if isinstance(event, CurvePoint) and event.index == 7:
                    mailbox.put(Stop())  # on each rank, and only that of the first one is heard

        request = LRRequest(num_training=100)
        return sweep(
            plain_net(), labelled(37).tensors, {"batch_size": 4}, request, None, mailbox, Stopping()
        )

    found = on_ranks(2, rank)
    assert [end.ended for _, end, _ in found] == ["stopped", "stopped"]
    first, other = (len(points) for points, _, _ in found)
    assert 8 < first == other < 100  # points are emitted several at once


def test_a_rate_found_in_the_middle_of_a_fit_is_taken_by_all(one_thread):
    """And the fit goes on as one in one process does; dropout and the order of the data are not moved."""
    data = {"train": labelled(37).tensors, "loss": F.cross_entropy, "optimizer": sgd}
    settings = {"max_epochs": 3, "lr": 0.05, "num_sanity_val_steps": 0}
    first, other = on_ranks(
        2, lambda: fit(plain_net(), data, {**settings, "batch_size": 4, "find_lr_at": (1,)})
    )
    same(first, other, 0.0)
    alone = fit(plain_net(), data, {**settings, "batch_size": 8, "find_lr_at": (1,)})
    same(first, alone, 2e-3)
    assert len(set(first["lr"])) == 2


def test_a_sweep_in_the_middle_of_a_fit_leaves_no_trace_on_any_rank(one_thread):
    """A net that draws random numbers and has running statistics, where the rate that is found is not taken."""
    data = {"train": labelled(38).tensors, "loss": F.cross_entropy, "optimizer": sgd}
    settings = {"max_epochs": 3, "lr": 0.05, "num_sanity_val_steps": 0, "batch_size": 4}

    def rank():
        from workbench.engine.control import Control

        Control.change = lambda *_: None
        return fit(noisy_net(), data, settings), fit(
            noisy_net(), data, {**settings, "find_lr_at": (1, 2)}
        )

    for plain, searched in on_ranks(2, rank):
        np.testing.assert_array_equal(plain["loss"], searched["loss"])
        torch.testing.assert_close(plain["weights"], searched["weights"], rtol=0, atol=0)
