"""The gradient noise scale against the one of all single samples' gradients, and where it cannot be told."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from sklearn import datasets
from torch import nn
from torch.func import functional_call, grad, vmap

from workbench.instruments.noise_scale import NoiseScaleEstimator

pytestmark = pytest.mark.usefixtures("one_thread")


def digits():
    x, y = datasets.load_digits(return_X_y=True)
    return torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)


def friedman():
    x, y = datasets.make_friedman1(2000, noise=1.0, random_state=0)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


def themselves():
    x, _ = digits()
    return x, x


def mlp(*sizes):
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


TASKS = {
    "classes": (digits, lambda: mlp(64, 32, 10), F.cross_entropy, 0),
    "classes, later": (digits, lambda: mlp(64, 32, 10), F.cross_entropy, 60),
    "regression": (friedman, lambda: mlp(10, 32, 1), F.mse_loss, 0),
    "autoencoder, later": (themselves, lambda: mlp(64, 8, 64), F.mse_loss, 60),
}


def direct(model, loss, x, y):
    """The trace of the covariance of all samples' gradients, by the squared norm of their mean."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    of_one = grad(lambda w, a, b: loss(functional_call(model, w, (a[None],)), b[None]))
    found = vmap(of_one, (None, 0, 0))(weights, x, y)
    each = torch.cat([g.flatten(1) for g in found.values()], 1).double()
    mean = each.mean(0)
    return float((each - mean).square().sum(1).mean() / mean.square().sum())


def estimated(model, loss, x, y, size=16, seed=0):
    estimator, order = NoiseScaleEstimator(size), torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    for part in order.split(size)[: min(64, len(x) // size)]:
        model.zero_grad()
        loss(model(x[part]), y[part]).backward()
        estimator.add([p.grad for p in model.parameters()])
    return estimator.estimate()


@pytest.mark.parametrize("task", TASKS)
def test_it_is_that_of_single_samples_within_30_percent(task):
    data, make, loss, updates = TASKS[task]
    torch.manual_seed(0)
    (x, y), model = data(), make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(updates):
        part = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        loss(model(x[part]), y[part]).backward()
        optimizer.step()
    found = estimated(model, loss, x, y)
    assert found.samples == pytest.approx(direct(model, loss, x, y), rel=0.3)
    assert 0 < found.uncertainty < 1


def test_the_size_of_the_batches_does_not_matter():
    torch.manual_seed(0)
    (x, y), model = digits(), mlp(64, 32, 10)
    scales = [estimated(model, F.cross_entropy, x, y, size).samples for size in (4, 8, 16)]
    assert max(scales) < 1.5 * min(scales)


def test_without_noise_it_is_nothing():
    estimator = NoiseScaleEstimator(8)
    for _ in range(10):
        estimator.add([torch.ones(3), torch.ones(2, 2)])
    assert estimator.estimate().samples == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("batches", [0, 3, 40])
def test_what_cannot_be_told_is_none(batches):
    """Too few batches, or gradients whose mean is 0."""
    estimator, generator = NoiseScaleEstimator(8), torch.Generator().manual_seed(0)
    for _ in range(batches):
        estimator.add([torch.randn(50, generator=generator)])
    assert estimator.estimate() is None


def test_gradients_that_are_not_finite_have_none():
    estimator = NoiseScaleEstimator(8)
    for value in (1.0, 1.0, float("nan"), 1.0, 1.0):
        estimator.add([torch.full((3,), value)])
    assert estimator.estimate() is None
