"""The search for a clip value: the norms are those of the run, and only what stands out gets a value."""

import math
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.benchmarks.lr_tasks import counts, mlp
from tests.engine.problems import (
    SizedStream,
    adam,
    bench,
    labelled,
    noisy_net,
    plain_net,
    same_weights,
    twin_of,
    weights,
)
from workbench.events import ClipSearchEnded
from workbench.instruments.finite import NonFiniteError
from workbench.settings import SettingsError
from workbench.task.errors import TaskError
from workbench.tuners.clip_search import ClipSearch, candidate, conclusion, stands_out

pytestmark = pytest.mark.usefixtures("one_thread")


def test_its_norms_are_those_of_a_fit(tmp_path):
    """Two epochs of a fit with a schedule and a warm-up have the same norms, and the model is as before."""
    model, data = plain_net(), labelled(200)
    twin = twin_of(model)
    b = bench(model, data, tmp_path, adam, warmup=10, shuffle=False, gradient_clip_val=0.1)
    before, random = weights(model), torch.get_rng_state()
    found = b.find_clip_val(updates=50, max_epochs=2).result()
    assert same_weights(before, weights(model))
    assert torch.equal(random, torch.get_rng_state())
    run = (
        bench(twin, data, tmp_path / "other", adam, warmup=10, shuffle=False)
        .fit(max_epochs=2, log_every_n_steps=1)
        .result()
    )
    np.testing.assert_array_equal(found.norms[0], run.history["grad_norm"].astype(np.float64))
    assert found.suggestion == run.clip_suggestion
    assert (
        found.share_at(found.suggestion)
        == pytest.approx(run.clip_share_at(found.suggestion))
        == pytest.approx(0.1, abs=0.05)
    )
    assert found.share_at(1e9) == 0.0
    assert wb.attach("0001-find_clip_val", root=tmp_path).result().reason == found.reason


def test_no_trace_is_left_in_a_fit_afterwards(tmp_path):
    losses = []
    for search in (False, True):
        torch.manual_seed(0)
        b = bench(noisy_net(), labelled(100), tmp_path / str(search), adam)
        if search:
            b.find_clip_val(updates=30).result()
        losses.append(b.fit(max_epochs=1).result().history["loss"].tolist())
    assert losses[0] == losses[1]


def test_a_spike_gets_a_value_and_its_absence_none(tmp_path):
    calls = []

    def spiky(output, y):
        calls.append(1)
        return F.cross_entropy(output, y) * (50.0 if len(calls) % 20 == 0 else 1.0)

    b = bench(plain_net(), labelled(400), tmp_path, val=labelled(80, seed=2), loss=spiky, lr=0.1)
    found = b.find_clip_val(updates=100).result()
    assert found.best == {"gradient_clip_val": found.suggestion}
    assert 0.03 < found.share_at(found.suggestion) < 0.2
    assert "times those around them" in found.reason
    assert "The held-out loss after 100 updates" in found.reason
    stream = SizedStream(labelled(400))
    unjudged = bench(plain_net(), stream, tmp_path, loss=spiky, lr=0.1, shuffle=False)
    unjudged = unjudged.find_clip_val(updates=100).result()
    assert (unjudged.best, unjudged.suggestion is None) == ({}, False)
    assert (
        "cannot tell whether that helps, so it is not recommended: an epoch has fewer"
        in unjudged.reason
    )
    calm = bench(plain_net(), labelled(400), tmp_path, lr=1e-4).find_clip_val(updates=100).result()
    assert calm.best == {}
    assert calm.suggestion is not None
    assert "stands out" in calm.reason
    assert "unchanged" in repr(calm)
    assert "is not recommended" in repr(calm)


def test_a_value_that_cuts_what_noisy_losses_need_is_not_recommended(tmp_path):
    """Counts: a few large ones are much of the mean, and their gradients stand out."""
    (x, y), val = counts()
    plan = {"val": val, "loss": F.poisson_nll_loss, "batch_size": 4, "lr": 3e-3}
    before = weights(model := mlp(10, 32, 1))
    found = bench(model, (x, y), tmp_path, adam, **plan).find_clip_val().result()
    assert same_weights(before, weights(model))
    assert stands_out(found.norms[0]) > 3
    assert (found.best, found.suggestion is None) == ({}, False)
    assert "It is not clearly lower" in found.reason


@pytest.mark.parametrize(
    ("losses", "helps"),
    [
        ((1.0, 0.5), True),
        ((1.0, 0.99), False),
        ((0.5, 1.0), False),
        ((math.inf, 0.5), True),
        ((0.5, math.inf), False),
        ((math.inf, math.inf), False),
        ((-1.0, -1.5), True),
        ((-1.5, -1.0), False),
    ],
)
def test_a_value_is_recommended_where_the_loss_is_clearly_lower_with_it(losses, helps):
    tried = ClipSearchEnded({"gradient_clip_val": 2.0}, 2.0, ((1.0,),), "spikes", "all")
    end = conclusion(tried, 2.0, 100, *losses)
    assert bool(end.best) == helps
    assert end.suggestion == 2.0
    assert end.reason.startswith("spikes. The held-out loss after 100 updates is ")


def test_each_optimizer_has_its_norms(tmp_path):
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)

        def training_step(self, batch, batch_idx, optimizer_idx):
            x, y = batch
            return (
                F.cross_entropy((self.one, self.two)[optimizer_idx](x), y) * (1, 10)[optimizer_idx]
            )

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), lr=1e-3) for part in (self.one, self.two)]

    found = (
        wb.Workbench(Two(), train=labelled(200), root=tmp_path, batch_size=8)
        .find_clip_val(updates=25)
        .result()
    )
    assert [len(one) for one in found.norms] == [25, 25]
    assert np.median(found.norms[1]) > 3 * np.median(found.norms[0])
    assert found.suggestion > np.median(found.norms[1])


def test_a_slow_fall_is_no_spike():
    assert stands_out(np.geomspace(10, 0.01, 200)) < 2.5
    assert stands_out(np.r_[np.ones(100), 7.0, np.ones(50)]) == pytest.approx(7)
    assert stands_out(np.array([])) == stands_out(np.full(5, np.nan)) == 0


def test_too_few_norms_and_a_stop_give_no_value():
    assert candidate(((1.0,) * 10,), "all updates taken").suggestion is None
    assert candidate(((1.0,) * 30 + (99.0,) * 9,), "stopped").best == {}
    assert ClipSearch.from_events([]).suggestion is None
    assert ClipSearch.from_events([ClipSearchEnded({}, None, (), "", "x")]).share_at(1.0) == 0.0


def test_bad_input_is_named(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path)
    for updates in (0, True, "many", 5):
        with pytest.raises(SettingsError, match="updates="):
            b.find_clip_val(updates=updates)
    error = b.find_clip_val(gradient_clip_algorithm="value").exception()
    assert isinstance(error, TaskError)
    assert "gradient_clip_algorithm='value'" in str(error)
    with pytest.raises(NonFiniteError):
        bench(
            plain_net(),
            labelled(),
            tmp_path,
            loss=lambda output, y: output.sum() * float("nan"),
            dry_run=False,
        ).find_clip_val().result()


def test_ranks_have_the_norms_of_one_process_and_stop_together(tmp_path):
    data = labelled(200)
    alone = (
        bench(plain_net(), data, tmp_path / "alone", adam, batch_size=8)
        .find_clip_val(updates=25)
        .result()
    )
    b = bench(plain_net(), data, tmp_path / "two", adam, batch_size=4, devices=2, accelerator="cpu")
    together = b.find_clip_val(updates=25).result()
    np.testing.assert_allclose(together.norms[0], alone.norms[0], rtol=1e-4)
    job = b.find_clip_val(updates=10**6)
    while not job.events and not job.done():
        time.sleep(0.01)
    job.stop()  # in the middle of it
    assert job.wait(200)
    assert (job.status, job.result().best) == ("stopped", {})
