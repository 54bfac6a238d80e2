"""Which of the sizes that passed is recommended, and the sentence that says why."""

import pytest

from workbench.events import Trial
from workbench.instruments.noise_scale import NoiseScale
from workbench.tuners.batch_size.batch_size_choice import (
    BatchSizeChoice,
    Epoch,
    choose,
    shortlist,
)


def passed(**speeds):
    return [
        Trial(int(size[1:]), True, int(size[1:]) / speed, speed) for size, speed in speeds.items()
    ]


def updates_of(seconds, fixed):
    """Trials whose updates take `fixed` seconds and `seconds` more for each sample."""
    times = {2**k: fixed + seconds * 2**k for k in range(2, 11)}
    return [Trial(size, True, time, size / time) for size, time in times.items()]


SPEEDS = passed(b16=100.0, b64=300.0, b256=950.0, b1024=1000.0)


def test_the_smallest_size_nearly_as_fast_as_the_fastest():
    assert choose(SPEEDS) == BatchSizeChoice(
        256, 256, "256: the smallest size with 90% of the highest speed."
    )


def test_an_epoch_keeps_enough_updates():
    """Digits: 1,437 samples make two updates of 1,024."""
    choice = choose(SPEEDS, Epoch(samples=1437, batches=1, least=20))
    assert choice == BatchSizeChoice(
        64,
        256,
        "64: the largest size tried with 20 updates in an epoch or more. It makes 23, and 256 makes 6.",
    )


def test_accumulated_batches_make_fewer_updates():
    choice = choose(SPEEDS, Epoch(samples=1437, batches=4, least=20))
    assert (choice.best, choice.fastest) == (16, 256)


def test_data_too_short_for_any_size():
    choice = choose(SPEEDS, Epoch(samples=100, batches=1, least=20))
    assert choice == BatchSizeChoice(
        16,
        256,
        "16: the smallest size tried. No size makes 20 updates in an epoch, and this makes 7.",
    )


def test_long_data_change_nothing():
    assert choose(SPEEDS, Epoch(samples=100_000, batches=1, least=20)) == choose(SPEEDS)


@pytest.mark.parametrize("speed", [None, float("nan")])
def test_without_speeds_it_is_the_largest(speed):
    assert choose([Trial(8, True, None, speed), Trial(4, True, None, speed)]).best == 8


def test_nothing_passed():
    assert choose([]) == BatchSizeChoice(None, None, "")


def noise_of(samples):
    return NoiseScale(samples, 0.1, "")


def times_of(trials, noise):
    """The time of all updates, by its definition: 1 + noise / size of them, each so long."""
    return {t.size: (1 + noise / t.size) * t.seconds for t in trials}


@pytest.mark.parametrize("noise", [10, 100, 1000])
@pytest.mark.parametrize("fixed", [1e-4, 1e-3, 1e-2])
def test_it_is_the_smallest_with_nearly_the_least_time_to_a_loss(noise, fixed):
    """Over a training the noise scale is about twice that of its beginning."""
    trials = updates_of(1e-5, fixed)
    best = choose(trials, noise=noise_of(noise)).best
    times = times_of(trials, 2 * noise)
    assert times[best] <= min(times.values()) / 0.95
    assert all(times[size] > min(times.values()) / 0.95 for size in times if size < best)


def test_more_noise_needs_larger_batches():
    trials = updates_of(1e-5, 1e-3)
    chosen = [choose(trials, noise=noise_of(noise)).best for noise in (1, 10, 100, 1000)]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


def test_a_noise_scale_that_is_at_least_so_large_counts_as_that():
    trials = updates_of(1e-5, 1e-3)
    choice = choose(trials, noise=NoiseScale(None, None, "", 40.0))
    assert choice.best == choose(trials, noise=noise_of(40.0)).best < choose(trials).best
    assert "at least 40 samples" in choice.reason
    assert choose(trials, noise=NoiseScale(None, None, "")) == choose(trials)


def test_the_present_size_stays_unless_another_clearly_saves_time():
    """Even if the noise scale stays as it is."""
    trials = updates_of(1e-5, 1e-3)
    times, best = times_of(trials, 50), choose(trials, noise=noise_of(50)).best
    for present, time in times.items():
        choice = choose(trials, noise=noise_of(50), present=present)
        assert (choice.best == present) == (0.9 * time <= times[best] or present == best)
        assert times[choice.best] <= 1.1 * time
        assert ("present" in choice.reason) == (0.9 * time <= times[best])
    assert len({choose(trials, noise=noise_of(50), present=p).best for p in times}) > 1


@pytest.mark.parametrize("present", [16, 32])
def test_where_the_best_makes_too_few_updates_the_present_size_stays_among_the_others(present):
    trials, epoch = passed(b16=100.0, b32=105.0, b1024=1000.0), Epoch(1437, 1, 20)
    assert choose(trials, present=present).best == 1024
    assert choose(trials, epoch, present=present).best == present


def test_the_present_size_gives_way_to_the_length_of_an_epoch():
    trials = updates_of(1e-5, 1e-3)
    assert choose(trials, Epoch(1000, 1, 20), noise=noise_of(100), present=128).best == 32


def test_the_shortlist_has_what_may_be_chosen():
    trials, epoch = updates_of(1e-5, 1e-3), Epoch(10_000, 1, 20)
    close = {t.size for t in shortlist(trials, epoch, noise_of(100), present=4)}
    assert 4 in close  # far too slow, and still the size with which the others are compared
    assert choose(trials, epoch, noise_of(100)).best in close
    assert 8 not in close
    assert 1024 not in close  # an epoch would have ten updates
    assert shortlist([Trial(8, True)], epoch, noise_of(100), 8) == []
