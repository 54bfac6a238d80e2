"""The detector of spikes: what is one, and what is none."""

import numpy as np
import pytest

from workbench.techniques.spikes import PERSISTS, SpikeDetector


def spikes(losses, norms=None, samples=None, detector=None):
    detector = detector or SpikeDetector()
    norms = np.full(len(losses), np.nan) if norms is None else norms
    samples = [None] * len(losses) if samples is None else samples
    return [
        n
        for n, (loss, norm, count) in enumerate(zip(losses, norms, samples, strict=True))
        if detector.is_spike(float(loss), float(norm), count)
    ]


def noise(n, width=0.1, seed=0):
    return np.exp(width * np.random.default_rng(seed).standard_normal(n))


def curriculum(n):
    return np.linspace(1, 4, n) * noise(n)


CALM = {
    "noise": noise(4000),
    "much noise": noise(4000, 1.5),
    "squares of single samples": np.random.default_rng(1).standard_normal(4000) ** 2,
    "a falling loss": 10 * np.exp(-np.arange(4000) / 300) * noise(4000) + 0.01,
    "a loss that rises slowly": curriculum(4000),
    "a loss that falls by steps at epochs": np.repeat([4, 2, 1, 0.5], 1000) * noise(4000),
    "a negative loss": -5 + noise(4000),
    "a loss around zero": np.random.default_rng(2).standard_normal(4000),
    "zeros": np.zeros(4000),
    "a hinge that is learned": np.concatenate(
        [np.ones(200), np.where(np.arange(3800) % 11 == 0, 0.02, 0.0)]
    ),
    "a constant": np.ones(4000),
}


@pytest.mark.parametrize("name", CALM)
def test_what_is_no_spike(name):
    assert spikes(CALM[name]) == []


@pytest.mark.parametrize(
    ("calm", "high"), [(noise(600), 4.0), (5 * noise(600, 0.02), 8.0), (-5 + noise(600), 3.0)]
)
def test_one_value_far_above_is_a_spike_and_the_next_are_none(calm, high):
    calm = calm.copy()
    calm[400] = high
    assert spikes(calm) == [400]


def test_the_norm_alone_is_a_spike_too():
    norms = noise(600, seed=3)
    norms[400] = 30.0
    assert spikes(noise(600), norms) == [400]


def test_no_value_is_judged_before_there_are_enough():
    assert spikes([*noise(60), 1e6, *noise(60)]) == []


def test_a_loss_that_is_learned_has_no_spikes():
    """Below a twentieth of the loss at the start the samples that are left to learn stand out."""
    losses = np.concatenate([noise(64), np.full(500, 1e-3) * noise(500)])
    low, high = losses.copy(), losses.copy()
    low[400], high[400] = 0.04, 0.5
    assert (spikes(low), spikes(high)) == ([], [400])


def test_a_last_batch_of_few_samples_is_noisier():
    losses, samples = noise(1000, 0.2), np.where(np.arange(1000) % 100 == 99, 1, 64)
    losses[499] = losses[550] = 6.0
    assert spikes(losses, samples=samples.tolist()) == [550]
    assert spikes(losses) == [499, 550]


def test_a_level_that_stays_is_a_new_level():
    losses = np.concatenate([noise(300), 20 * noise(700)])
    assert spikes(losses) == [*range(300, 300 + PERSISTS)]


@pytest.mark.parametrize("at", [7, 140, 405])
def test_it_continues_from_its_state(at):
    losses, norms = noise(600), noise(600, seed=1)
    losses[[300, 401, 402, 500]] = 5.0
    detector, other = SpikeDetector(), SpikeDetector()
    whole = spikes(losses, norms)
    first = spikes(losses[:at], norms[:at], detector=detector)
    other.load_state_dict(detector.state_dict())
    rest = spikes(losses[at:], norms[at:], detector=other)
    assert [*first, *(at + n for n in rest)] == whole == [300, 401, 402, 500]
    assert other.expected == pytest.approx((1.0, 1.0), rel=0.1)
