"""Units that die in a sweep: they are an edge, and a sweep that only found a dead model is not to be trusted."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.engine.problems import adam, bench, labelled, plain_net
from tests.on_ranks import on_ranks
from tests.tuners.learning_rate.test_ranks_lr_finder import sweep
from workbench.events import CurveEnded
from workbench.tuners.learning_rate.lr_finder import LRRequest

pytestmark = pytest.mark.usefixtures("one_thread")
DEAD = "Most units of layer 0 are dead"


def relu_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def large(data):
    """The same samples, with features around 200 and deviations of 100 times those before."""
    x, y = data.tensors
    return 100 * x + 200, y


def distrust(curve):
    return [note for note in curve.notes if note.startswith("Do not trust this rate")]


def test_a_rate_at_which_units_die_is_an_edge(tmp_path):
    curve = bench(relu_net(), large(labelled(200)), tmp_path, adam).find_lr().result()
    [note] = [note for note in curve.notes if DEAD in note]
    died = float(note.split(" a rate of ")[1].split(" on")[0])
    assert curve.suggestion < died / 10
    # without it the sweep goes on to the end, since a dead model cannot diverge
    assert died < 1 < curve.lrs[-1]


def test_a_sweep_that_found_only_a_dead_model_says_that_it_is_not_to_be_trusted(tmp_path):
    b = bench(relu_net(), large(labelled(200)), tmp_path, adam)
    job = b.find_lr()
    curve = job.result()
    [note] = distrust(curve)
    assert "Scale the inputs and targets" in note
    assert note in repr(curve)
    assert note in next(event for event in job.events if isinstance(event, CurveEnded)).doubts


def test_a_model_that_learned_before_its_units_died_is_trusted(tmp_path):
    curve = (
        bench(relu_net(), labelled(200), tmp_path, adam).find_lr(early_stop_threshold=None).result()
    )
    assert not distrust(curve)
    assert curve.suggestion is not None


def test_a_smooth_model_has_no_dead_units(tmp_path):
    curve = bench(plain_net(), labelled(200), tmp_path, adam).find_lr().result()
    assert not any("dead" in note for note in curve.notes)


def test_a_loss_of_zero_is_no_death(tmp_path):
    """A hinge has no gradient once every sample is on its side: nothing has died, all is learned."""

    y = torch.arange(200) % 3
    data = 3 * F.one_hot(y, 6).float(), y
    curve = (
        bench(
            relu_net(),
            data,
            tmp_path,
            adam,
            loss=functools.partial(F.multi_margin_loss, margin=0.1),
        )
        .find_lr(max_lr=0.1)
        .result()
    )
    assert (curve.losses == 0)[-20:].all()
    assert not any("dead" in note for note in curve.notes)


def test_ranks_agree_on_it():
    def swept():
        _, end, untouched = sweep(
            relu_net(),
            large(labelled(200)),
            {"batch_size": 4},
            LRRequest(),
            {"optimizer": adam, "loss": F.cross_entropy},
        )
        return end, untouched

    (end, untouched), other = on_ranks(2, swept)
    assert untouched
    assert other == (end, True)
    assert any(DEAD in note for note in end.notes)
