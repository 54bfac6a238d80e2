"""How much of the data is used, and what a dry run and overfitting amount to."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.techniques.limits import effective_settings, limited_batches, smallest_fraction

NAME = "limit_train_batches"


@pytest.mark.parametrize(
    ("length", "limit", "taken"),
    [
        (10, 3, 3),
        (10, 30, 10),
        (10, 0, 0),
        (10, 1, 1),
        (10, 1.0, 10),
        (10, 0.0, 0),
        (10, 0.5, 5),
        (10, 0.55, 5),
        (10, 0.99, 9),
        (100, 0.29, 29),  # 28.999999999999996 in floats
        (49, 1 / 49, 1),  # 0.9999999999999999
        (0, 0.5, 0),
        (None, 3, 3),
        (None, 0, 0),
        (None, 0.0, 0),
        (None, 1.0, None),
    ],
)
def test_so_many_batches_are_taken(length, limit, taken):
    assert limited_batches(length, limit, NAME) == taken


@given(length=st.integers(1, 10**6), percent=st.integers(1, 100))
def test_a_fraction_is_rounded_down_as_it_is_written(length, percent):
    exact = int(length * Fraction(percent, 100))
    if exact:
        assert limited_batches(length, percent / 100, NAME) == exact
    else:
        with pytest.raises(TaskError):
            limited_batches(length, percent / 100, NAME)


def test_a_fraction_that_comes_to_nothing_names_the_smallest_that_does_not():
    with pytest.raises(TaskError) as caught:
        limited_batches(49, 0.001, NAME)
    text = str(caught.value)
    assert text.startswith("limit_train_batches=0.001 of 49 batches")
    assert "give limit_train_batches=0.0205 or more" in text
    assert "(limit_train_batches=1)" in text


@given(length=st.integers(1, 10**7))
def test_the_smallest_fraction_named_is_one_batch_and_hardly_more(length):
    smallest = smallest_fraction(length)
    assert limited_batches(length, smallest, NAME) == 1
    assert 1 / length * (1 - 1e-12) <= smallest <= 1.011 / length


def test_a_fraction_of_data_without_a_length_asks_for_a_number():
    with pytest.raises(
        TaskError,
        match=re.escape("limit_val_batches=0.25 is a fraction, and the data has no length"),
    ):
        limited_batches(None, 0.25, "limit_val_batches")


def test_settings_without_either_are_the_same_object():
    settings = Settings.make(limit_train_batches=5, accumulate_grad_batches={0: 2})
    assert effective_settings(settings) is settings
    off = Settings.make(overfit_batches=0.0)
    assert effective_settings(off) is off


@pytest.mark.parametrize("most", [3, 0.25, 1.0])
def test_overfitting_takes_the_same_first_batches_of_both(most):
    settings = Settings.make(
        overfit_batches=most, limit_train_batches=50, lr=0.5, early_stopping="val_loss"
    )
    expected = settings.replace(shuffle=False, limit_train_batches=most, limit_val_batches=most)
    assert effective_settings(settings) == expected
    assert type(effective_settings(settings).limit_train_batches) is type(most)


def test_a_dry_run_is_one_short_epoch_of_everything_else_as_it_is():
    kept = {
        "lr": 0.5,
        "accumulate_grad_batches": {1: 4},
        "max_steps": 7,
        "warmup": 100,
        "val_check_interval": 0.25,
    }
    settings = Settings.make(
        fast_dev_run=2,
        max_epochs=90,
        early_stopping=["val_loss"],
        limit_val_batches=0,
        num_sanity_val_steps=-1,
        **kept,
    )
    limits = {f"limit_{kind}_batches": 2 for kind in ("train", "val", "test", "predict")}
    assert effective_settings(settings).changed() == {
        **kept,
        **limits,
        "max_epochs": 1,
        "num_sanity_val_steps": 0,
        "fast_dev_run": 2,
    }


def test_a_dry_run_of_overfitting_is_as_short_and_unshuffled():
    both = effective_settings(Settings.make(fast_dev_run=2, overfit_batches=10))
    assert (both.limit_train_batches, both.limit_val_batches, both.shuffle) == (2, 2, False)
    assert effective_settings(both) == both
