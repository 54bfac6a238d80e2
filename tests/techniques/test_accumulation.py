"""How many batches make an update, epoch by epoch, and how many updates that is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.techniques.accumulation import (
    normalized_weights,
    size_at,
    updates_in,
    updates_of_run,
    windows,
)

SETTINGS = st.integers(1, 9) | st.dictionaries(st.integers(0, 12), st.integers(1, 9), min_size=1)


@pytest.mark.parametrize(
    ("setting", "sizes"),
    [
        (3, [3, 3, 3, 3, 3, 3]),
        ({0: 8, 2: 4, 4: 1}, [8, 8, 4, 4, 1, 1]),
        ({4: 1, 0: 8, 2: 4}, [8, 8, 4, 4, 1, 1]),
        ({3: 5}, [1, 1, 1, 5, 5, 5]),
        ({0: 2, 100: 9}, [2, 2, 2, 2, 2, 2]),
    ],
)
def test_a_size_holds_from_its_epoch_on(setting, sizes):
    before = dict(setting) if isinstance(setting, dict) else setting
    assert [size_at(setting, epoch) for epoch in range(6)] == sizes
    assert setting == before


@given(batches=st.integers(0, 40), setting=SETTINGS, epochs=st.integers(0, 15))
def test_a_runs_updates_are_the_windows_that_it_really_has(batches, setting, epochs):
    counted = 0
    for epoch in range(epochs):
        counted += len(list(windows(range(batches), size_at(setting, epoch))))
    assert updates_of_run(batches, setting, epochs) == counted


def test_updates_of_a_very_long_run_are_not_counted_one_by_one():
    assert updates_of_run(10, {0: 10, 10**12: 5}, 2 * 10**12) == 10**12 + 2 * 10**12


@given(batches=st.lists(st.integers(), max_size=30), size=st.integers(1, 9))
def test_windows_keep_every_batch_in_order_and_only_the_last_is_shorter(batches, size):
    cut = list(windows(batches, size))
    assert [batch for window in cut for batch in window] == batches
    assert all(len(window) == size for window in cut[:-1])
    assert len(cut) == updates_in(len(batches), size)


def test_windows_take_no_batch_before_it_is_needed():
    taken = []

    def loader():
        for number in range(6):
            taken.append(number)
            yield number

    next(windows(loader(), 2))
    assert taken == [0, 1]


def test_shares_go_by_weight():
    assert normalized_weights([3, 1]) == [0.75, 0.25]
    assert normalized_weights([7]) == [1.0]
