"""The gradient noise scale of a fit: that of all single samples' gradients, and the fit is what it is without it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from tests.engine.problems import bench, labelled, noisy_net, plain_net, sgd, twin_of
from workbench.engine.metrics.noise_scale import FEWEST, NAME
from workbench.events import Message

pytestmark = pytest.mark.usefixtures("one_thread")


def direct(model, x, y):
    """S / |G|^2 from the gradient of each sample."""
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    gradients = torch.stack(rows).double()
    return float(gradients.var(0).sum() / (gradients.mean(0) ** 2).sum())


def warnings(job):
    return [e.text for e in job.events if isinstance(e, Message) and "track_noise_scale" in e.text]


@pytest.mark.parametrize(("size", "many"), [(2, 8), (4, 4)])
def test_it_is_the_direct_estimate_at_weights_that_stay(size, many, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(400, 6) + 0.5
    y = (x @ torch.randn(6, 3)).argmax(1)
    model = plain_net()
    expected = direct(twin_of(model), x, y)
    b = bench(model, TensorDataset(x, y), tmp_path, sgd, lr=1e-12, batch_size=size, accumulate_grad_batches=many)
    job = b.fit(max_epochs=40, track_noise_scale=True)
    found = job.result().history[NAME]
    assert np.isnan(found[: FEWEST - 1]).all()
    assert np.median(found[200:]) == pytest.approx(expected, rel=0.3)
    assert job.result().charts(NAME)
    assert not warnings(job)


def test_the_fit_is_what_it_is_without(tmp_path):
    found = []
    for tracks in (False, True):
        b = bench(noisy_net(), labelled(200), tmp_path / str(tracks), accumulate_grad_batches=3, gradient_clip_val=0.5)
        run = b.fit(max_epochs=8, track_noise_scale=tracks).result()
        found.append([run.history[name].tolist() for name in ("loss", "grad_norm", "grad_norm_clipped")])
        assert (NAME in run.history) == tracks
    assert found[0] == found[1]


def test_without_norms_it_measures_its_own(tmp_path):
    runs = []
    for order in (2.0, None):
        b = bench(plain_net(), labelled(200), tmp_path / str(order), accumulate_grad_batches=4, track_grad_norm=order)
        runs.append(b.fit(max_epochs=10, track_noise_scale=True).result().history[NAME])
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "why"),
    [({}, "set accumulate_grad_batches to 2 or more"), ({"accumulate_grad_batches": 2, "devices": 2}, "several ranks share an update")],
    ids=["one-batch", "ranks"],
)
def test_where_it_cannot_be_measured_you_see_why(settings, why, tmp_path):
    job = bench(plain_net(), labelled(100), tmp_path).fit(max_epochs=1, track_noise_scale=True, **settings)
    run = job.result()
    (said,) = warnings(job)
    assert why in said
    assert NAME not in run.history
