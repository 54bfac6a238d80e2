"""The estimate of the gradient noise scale from gradients of batches whose noise is known."""

import numpy as np
import pytest
import torch
from torch import nn

from workbench.instruments.noise_scale import FEWEST, Sketch, noise_scale

SAMPLES, NUMBERS = 4, 50


def gradients(weights, signal=1.0, seed=0):
    """Mean gradients of batches that count as many units as their weight; a unit's noise scale is NUMBERS / signal^2."""
    drawn = np.random.default_rng(seed)
    mean = np.zeros(NUMBERS)
    mean[0] = signal
    return [mean + drawn.normal(size=NUMBERS) / np.sqrt(w) for w in weights]


def test_the_estimate_is_right_on_average():
    """A ratio of averages over many experiments: each estimate of S and of |G|^2 is unbiased."""
    found = [
        noise_scale(gradients([SAMPLES] * 64, seed=seed), [SAMPLES] * 64, SAMPLES)
        for seed in range(100)
    ]
    values = np.array([f.value for f in found])
    assert values.mean() == pytest.approx(NUMBERS, rel=0.05)
    within = [abs(f.value - NUMBERS) <= f.uncertainty * NUMBERS for f in found]
    assert 0.85 <= np.mean(within) <= 1.0  # an interval of 95%, from a jackknife
    assert values.std() < 0.3 * NUMBERS


def test_batches_count_by_their_weights():
    """Batches of as many samples, but of more or fewer tokens: the noise is that of a token, the scale is in samples."""
    weights = [SAMPLES * (2 if n % 2 else 20) for n in range(512)]  # 11 tokens a sample
    found = noise_scale(gradients(weights, 0.3), weights, SAMPLES)
    assert found.value == pytest.approx(NUMBERS / 0.3**2 / 11, rel=0.15)


def test_the_scale_of_the_loss_does_not_matter():
    given = gradients([SAMPLES] * 32)
    assert noise_scale([1e-4 * g for g in given], [1.0] * 32, SAMPLES).value == pytest.approx(
        noise_scale(given, [SAMPLES] * 32, SAMPLES).value
    )


def test_pure_noise_has_no_number():
    for seed in range(20):
        found = noise_scale(gradients([SAMPLES] * 64, 0.0, seed), [SAMPLES] * 64, SAMPLES)
        assert (found.value, found.uncertainty) == (None, None)
        assert "the mean gradient of 256 samples is not clearly above its noise" in found.reason


def test_gradients_that_are_all_the_same_have_no_number():
    assert noise_scale([np.ones(3)] * 16, [1.0] * 16, 1).value is None
    assert noise_scale([np.zeros(3)] * 16, [1.0] * 16, 1).value is None


def test_too_few_batches():
    found = noise_scale(gradients([1.0] * (FEWEST - 1)), [1.0] * (FEWEST - 1), 1)
    assert found.value is None
    assert f"needs {FEWEST} batches" in found.reason


def layer(*shape):
    parameter = nn.Parameter(torch.zeros(*shape))
    parameter.grad = torch.randn(*shape)
    return parameter


def test_a_small_gradient_is_kept_whole():
    torch.manual_seed(0)
    small = [layer(30, 20), layer(30), layer(5, 30)]
    small[1].grad = None
    assert (Sketch(small).take() ** 2).sum() == pytest.approx(
        sum(float((p.grad**2).sum()) for p in small if p.grad is not None)
    )


def test_a_large_gradient_keeps_its_norm_and_its_products():
    torch.manual_seed(0)
    large = [layer(1000, 100), layer(16381, 8), layer(77)]
    sketch = Sketch(large)
    first, before = sketch.take(), [p.grad.clone() for p in large]
    for p in large:
        p.grad = p.grad + torch.randn_like(p.grad)
    second = sketch.take()
    norm = float(sum((g**2).sum() for g in before))
    product = float(sum((g * p.grad).sum() for g, p in zip(before, large, strict=True)))
    assert first @ first == pytest.approx(norm, rel=0.03)
    assert first @ second == pytest.approx(product, rel=0.05)


def test_a_sketch_draws_from_no_stream_of_the_run():
    state = torch.get_rng_state()
    Sketch([layer(3, 3)])
    torch.manual_seed(1)
    expected = torch.get_rng_state()
    torch.manual_seed(1)
    Sketch([nn.Parameter(torch.zeros(9))]).take()
    assert torch.equal(torch.get_rng_state(), expected)
    torch.set_rng_state(state)


def test_complex_and_sparse_gradients():
    whole = nn.Parameter(torch.zeros(4, dtype=torch.complex64))
    whole.grad = torch.full((4,), 3 + 4j)
    assert (Sketch([whole]).take() ** 2).sum() == pytest.approx(4 * 25)
    table = nn.Embedding(6, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert (Sketch([table.weight]).take() ** 2).sum() == pytest.approx(2 * 4 + 2 * 1)
