"""Which of the sizes that passed is recommended, and the sentence that says why."""

import pytest

from workbench.events import Trial
from workbench.tuners.batch_size.batch_size_choice import BatchSizeChoice, Epoch, choose
from workbench.tuners.trial import certain, typical_time, uncertainty


def passed(**speeds):
    return [Trial(int(size[1:]), True, 1.0, speed) for size, speed in speeds.items()]


SPEEDS = passed(b16=100.0, b64=300.0, b256=950.0, b1024=1000.0)


def test_the_smallest_size_nearly_as_fast_as_the_fastest():
    assert choose(SPEEDS) == BatchSizeChoice(
        256, 256, "256: the smallest size with 90% of the highest speed."
    )


def test_an_epoch_keeps_enough_updates():
    """Digits: 1,437 samples make two updates of 1,024."""
    choice = choose(SPEEDS, Epoch(samples=1437, batches=1, least=20))
    assert choice == BatchSizeChoice(
        64, 256, "64: the largest tried size that makes 20 updates in an epoch (23); 256 makes 6."
    )


def test_accumulated_batches_make_fewer_updates():
    choice = choose(SPEEDS, Epoch(samples=1437, batches=4, least=20))
    assert (choice.best, choice.fastest) == (16, 256)


def test_data_too_short_for_any_size():
    choice = choose(SPEEDS, Epoch(samples=100, batches=1, least=20))
    assert choice == BatchSizeChoice(
        16,
        256,
        "16: the smallest tried size; even this makes fewer than 20 updates in an epoch (7); 256 makes 1.",
    )


def test_long_data_change_nothing():
    assert choose(SPEEDS, Epoch(samples=100_000, batches=1, least=20)) == choose(SPEEDS)


@pytest.mark.parametrize("speed", [None, float("nan")])
def test_without_speeds_it_is_the_largest(speed):
    assert choose([Trial(8, True, None, speed), Trial(4, True, None, speed)]).best == 8


def test_nothing_passed():
    assert choose([]) == BatchSizeChoice(None, None, "")


def test_the_typical_time_is_known_when_its_interval_is_narrow():
    first = 5.0  # gets things ready
    even, uneven = [first] + [1.0, 1.01] * 10, [first] + [1.0, 2.0] * 10
    assert typical_time(even) == pytest.approx(1.005)
    assert certain(even)
    assert not certain(uneven)
    assert uncertainty(uneven) == pytest.approx(0.5 / 1.5)
    assert uncertainty([first] + [1.0] * 9) is None


def test_one_slow_update_in_ten_does_not_matter():
    assert certain([5.0] + [1.0] * 27 + [9.0] * 3)
