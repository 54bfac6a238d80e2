"""Durations, intervals, numbers of batches, monitors: what is taken, in which form it is kept, what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from workbench.settings import Settings, SettingsError
from workbench.values import (
    Batches,
    ByEpoch,
    Duration,
    EarlyStopping,
    Epochs,
    Interval,
    Monitors,
    SwaStart,
    Warmup,
    seconds,
)


def taken(kind: Any, value: Any) -> Any:
    return TypeAdapter(kind).validate_python(value)


def refused(kind: Any, value: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        taken(kind, value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "kept", "length"),
    [
        ("00:00:00:00", "00:00:00:00", 0),
        ("00:01:30:00", "00:01:30:00", 5400),
        ("1:2:3:4.5", "01:02:03:04.5", 93784.5),
        ("120:00:00:00", "120:00:00:00", 120 * 86400),
        ("00:00:90:00", "00:01:30:00", 5400),
        (timedelta(days=2, minutes=1), "02:00:01:00", 172860),
        (timedelta(milliseconds=250), "00:00:00:00.25", 0.25),
        ({"minutes": 90}, "00:01:30:00", 5400),
        ({"hours": 25, "seconds": 1}, "01:01:00:01", 90001),
        ({"hours": 1, "minutes": -30}, "00:00:30:00", 1800),
    ],
)
def test_a_duration_is_kept_in_one_form(value: Any, kept: str, length: float) -> None:
    assert taken(Duration, value) == kept
    assert seconds(kept) == length
    assert taken(Duration, kept) == kept
    if length:
        assert taken(Interval, value) == kept


@given(duration=st.timedeltas(timedelta(0), timedelta(days=3000)))
def test_a_duration_loses_no_microsecond(duration: timedelta) -> None:
    kept = taken(Duration, duration)
    assert timedelta(seconds=seconds(kept)) == duration
    assert taken(Duration, kept) == kept


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (90, "DD:HH:MM:SS"),
        (None, "DD:HH:MM:SS"),
        ("90", "days:hours:minutes:seconds"),
        ("01:30:00", "days:hours:minutes:seconds"),
        ("00:00:-1:00", "days:hours:minutes:seconds"),
        (" 00:00:01:00", "days:hours:minutes:seconds"),
        (timedelta(microseconds=-1), "negative"),
        ({"seconds": -1}, "negative"),
        ({"mins": 5}, "days, hours, minutes, seconds"),
        ({"minutes": "5"}, "days, hours, minutes, seconds"),
        ({"days": 1e12}, "shorter than"),
        ("999999999999:00:00:00", "shorter than"),
    ],
)
def test_no_duration(value: Any, said: str) -> None:
    assert said in refused(Duration, value)


def test_seconds_of_something_else_say_what_it_should_be() -> None:
    with pytest.raises(ValueError, match=r"'soon' should be a duration like '00:01:30:00'"):
        seconds("soon")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            Interval,
            [1, 500, 0.25, 1.0],
            [0, -1, 0.0, 1.01, True, None, "00:00:00:00", timedelta(0), {}],
        ),
        (Batches, [0, 5, 0.0, 0.25, 1.0], [-1, -0.1, 1.01, True, None, "0.5"]),
        (Warmup, [0, 5, 0.0, 0.99], [-1, -0.1, 1.0, True, None, "0.5"]),
        (SwaStart, [0, 5, 0.0, 1.0], [-1, -0.1, 1.01, True, None, "0.5"]),
        (
            ByEpoch,
            [1, 8, {0: 8, 4: 1}],
            [0, -1, 1.0, True, None, {}, {-1: 1}, {0: 0}, {0: True}, {0: 1.0}, [1]],
        ),
    ],
)
def test_numbers_and_fractions_keep_their_type(kind: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert repr(taken(kind, value)) == repr(value)
    for value in [*bad, float("nan"), float("inf")]:
        assert "Value error, " in refused(kind, value)


def test_a_fraction_above_one_is_told_that_a_number_is_an_int() -> None:
    for kind in (Interval, Batches, Warmup):
        assert "an int" in refused(kind, 50.0)


def test_sizes_by_epoch_read_back_from_json_and_name_what_is_wrong() -> None:
    assert taken(ByEpoch, {"0": 8, "4": 1}) == {0: 8, 4: 1}
    given_values = {0: 8, 4: 1}
    assert taken(ByEpoch, given_values) is not given_values
    assert "the key -1 should be an epoch" in refused(ByEpoch, {0: 8, -1: 2})
    assert "the key 'x' should be an epoch" in refused(ByEpoch, {"x": 2})
    assert "the key '²' should be an epoch" in refused(ByEpoch, {"²": 2})
    assert "at key 4 is 0" in refused(ByEpoch, {0: 8, 4: 0})


@pytest.mark.parametrize(
    "value", [{10, 0, 5}, [10, 5, 0], (0, 5, 10, 5), frozenset({0, 5, 10}), ["0", "5", "10"]]
)
def test_epochs_come_in_their_order_once(value: Any) -> None:
    assert taken(Epochs, value) == (0, 5, 10)


def test_one_epoch_or_none() -> None:
    assert taken(Epochs, 3) == (3,)
    assert taken(Epochs, []) == ()
    for value in (-1, True, [True], [1.5], {0: 1}, "0", None):
        assert "should be" in refused(Epochs, value)


def test_monitors_are_a_tuple_of_early_stopping() -> None:
    one, other = (
        EarlyStopping(monitor="val_loss"),
        EarlyStopping(monitor="val_accuracy", mode="max", patience=0),
    )
    assert taken(Monitors, None) == ()
    assert taken(Monitors, "val_loss") == (one,)
    assert taken(Monitors, other) == (other,)
    assert taken(Monitors, ["val_loss", other]) == (one, other)
    assert taken(Monitors, other.model_dump()) == (other,)
    assert "should be EarlyStopping" in refused(Monitors, 5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("monitor", None),
        ("mode", "lower"),
        ("min_delta", -0.1),
        ("min_delta", float("nan")),
        ("min_delta", float("inf")),
        ("stopping_threshold", float("nan")),
        ("patience", -1),
        ("patience", 2.5),
        ("warmup", -1),
        ("stopping_threshold", "good"),
        ("divergence_threshold", "bad"),
        ("check_finite", "maybe"),
        ("patient", 3),
    ],
)
def test_early_stopping_names_the_argument_and_the_value(name: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        EarlyStopping(**{"monitor": "val_loss", name: value})
    assert str(caught.value).startswith(f"EarlyStopping: {name}={value!r}: ")


def test_the_monitor_may_stand_alone() -> None:
    assert EarlyStopping("val_loss", patience=5) == EarlyStopping(monitor="val_loss", patience=5)


def test_early_stopping_is_frozen() -> None:
    one = EarlyStopping(monitor="val_loss")
    with pytest.raises(ValidationError, match="frozen"):
        one.patience = 5


def test_numbers_of_numpy_are_as_good_as_pythons():
    found = Settings.make(
        limit_train_batches=np.int64(3), limit_val_batches=np.float32(0.5), warmup=np.int32(5),
        accumulate_grad_batches={np.int64(0): np.int64(2)}, find_lr_at=[*np.arange(2).tolist(), np.int64(4)],
    )  # fmt: skip
    assert type(found.limit_train_batches) is int
    assert type(found.limit_val_batches) is float
    assert found.accumulate_grad_batches == {0: 2}
    assert found.find_lr_at == (0, 1, 4)
