"""Early stopping beside Lightning's own callback, and the length of a fit."""

import importlib
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.techniques.stopping import EarlyStop, minimums_met, reached
from workbench.values import EarlyStopping

# Eighths: float32 (Lightning's infinity) and float64 compare them alike.
EIGHTHS = st.integers(-16, 16).map(lambda n: n / 8)
VALUES = st.one_of(EIGHTHS, EIGHTHS, EIGHTHS, st.sampled_from([math.nan, math.inf, -math.inf]))
OPTIONS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["min", "max"]),
        "patience": st.integers(0, 4),
        "check_finite": st.booleans(),
    },
    optional={"min_delta": st.integers(0, 8).map(lambda n: n / 8)},
)
THRESHOLDS = st.fixed_dictionaries(
    {}, optional={"stopping_threshold": EIGHTHS, "divergence_threshold": EIGHTHS}
)


class Twin:
    """Lightning's callback with as much of a trainer as it asks for."""

    def __init__(self, options):
        lightning = importlib.import_module("lightning.pytorch")
        states = importlib.import_module("lightning.pytorch.trainer.states")
        self.callback = lightning.callbacks.EarlyStopping(
            "val_loss", check_on_train_epoch_end=False, **options
        )
        self.trainer = SimpleNamespace(
            state=SimpleNamespace(fn=states.TrainerFn.FITTING), sanity_checking=False, fast_dev_run=False,
            strategy=SimpleNamespace(reduce_boolean_decision=lambda decision, all: decision), current_epoch=0,
        )  # fmt: skip

    def check(self, value):
        torch = importlib.import_module("torch")
        self.trainer.should_stop = False
        self.trainer.callback_metrics = {"val_loss": torch.tensor(value, dtype=torch.float64)}
        self.callback.on_validation_end(self.trainer, None)
        return self.trainer.should_stop


@given(options=OPTIONS, values=st.lists(VALUES, max_size=25))
def test_patience_is_lightnings(options, values):
    """Every check of a sequence, those after the first that stops included."""
    ours, twin = EarlyStop(EarlyStopping(monitor="val_loss", **options)), Twin(options)
    for value in values:
        assert (ours.check({"val_loss": value}) is not None) == twin.check(value)
        assert ours.best == float(twin.callback.best_score)
        assert ours.waited == twin.callback.wait_count


@given(options=OPTIONS, thresholds=THRESHOLDS, values=st.lists(VALUES, max_size=25))
def test_thresholds_are_lightnings(options, thresholds, values):
    """To the first check that stops: there we take the value in, and Lightning leaves it out of its best."""
    ours = EarlyStop(EarlyStopping(monitor="val_loss", **options, **thresholds))
    twin = Twin({**options, **thresholds})
    for value in values:
        stops = twin.check(value)
        assert (ours.check({"val_loss": value}) is not None) == stops
        if stops:
            break
        assert ours.best == float(twin.callback.best_score)
        assert ours.waited == twin.callback.wait_count


@given(
    options=OPTIONS,
    thresholds=THRESHOLDS,
    values=st.lists(VALUES, max_size=15),
    at=st.integers(0, 15),
)
def test_it_goes_on_from_its_state(options, thresholds, values, at):
    monitor = EarlyStopping(monitor="val_loss", warmup=3, **options, **thresholds)
    whole, rest = EarlyStop(monitor), EarlyStop(monitor)
    for value in values[:at]:
        whole.check({"val_loss": value})
    rest.load_state_dict(whole.state_dict())
    for value in values[at:]:
        assert rest.check({"val_loss": value}) == whole.check({"val_loss": value})


def told(values, **options):
    """What is said after each check."""
    stop = EarlyStop(EarlyStopping(monitor="val_loss", **options))
    return [stop.check({"val_loss": value, "val_accuracy": 0.0}) for value in values]


@pytest.mark.parametrize(
    ("monitor", "mode"),
    [
        ("val_accuracy", "max"),
        ("val_loss", "min"),
        ("val_error", "min"),
        ("val_thing", "min"),
        ("val_f1/clean", "max"),
    ],
)
def test_without_a_mode_the_name_of_the_metric_decides(monitor, mode):
    """Lightning's callback takes "min" for a rising accuracy, and ends a fit that learns."""
    silent, told = (
        EarlyStop(EarlyStopping(monitor, patience=2)),
        EarlyStop(EarlyStopping(monitor, mode=mode, patience=2)),
    )
    for value in (0.5, 0.6, 0.7, 0.65, 0.6, 0.9):
        assert silent.check({monitor: value}) == told.check({monitor: value})
    assert silent.best == told.best
    other = "min" if mode == "max" else "max"
    assert (
        EarlyStop(EarlyStopping(monitor, mode=other)).best
        == -EarlyStop(EarlyStopping(monitor)).best
    )


def test_what_a_person_reads():
    assert (
        told([0.5, 0.412, 0.42, 0.5, 0.413], patience=3)[-1]
        == "val_loss did not improve on 0.412 in 3 validations"
    )
    assert told([1.0, 1.0], patience=0) == [None, "val_loss did not improve on 1 in 1 validation"]
    assert (
        told([1.0, 0.95], patience=1, min_delta=0.1)[-1]
        == "val_loss did not improve on 1 by more than 0.1 in 1 validation"
    )
    assert told([math.nan]) == ["val_loss is nan"]
    assert told([-math.inf]) == ["val_loss is -inf"]
    assert (
        told([math.nan] * 2, check_finite=False, patience=2)[-1]
        == "val_loss did not improve in 2 validations"
    )
    assert told([0.1], stopping_threshold=0.25) == [
        "val_loss is 0.1, below the stopping_threshold of 0.25"
    ]
    assert told([0.9], stopping_threshold=0.8, mode="max") == [
        "val_loss is 0.9, above the stopping_threshold of 0.8"
    ]
    assert told([9.0], divergence_threshold=5) == [
        "val_loss is 9, above the divergence_threshold of 5"
    ]
    assert told([0.1], divergence_threshold=0.5, mode="max") == [
        "val_loss is 0.1, below the divergence_threshold of 0.5"
    ]


def test_thresholds_and_min_delta_are_strict():
    assert told([0.25], stopping_threshold=0.25) == [None]
    assert told([5.0], divergence_threshold=5.0) == [None]
    assert told([1.0, 0.75], patience=1, min_delta=0.25)[-1] is not None
    assert told([1.0, 0.625], patience=1, min_delta=0.25)[-1] is None


def test_the_best_counts_the_value_that_ends_the_fit():
    stop = EarlyStop(EarlyStopping(monitor="val_loss", stopping_threshold=0.2))
    stop.check({"val_loss": 0.3})
    assert stop.check({"val_loss": 0.1}) is not None
    assert stop.best == 0.1


def test_warm_up_checks_count_for_the_best_and_not_for_the_waiting():
    stop = EarlyStop(EarlyStopping(monitor="val_loss", warmup=3, patience=2))
    assert [stop.check({"val_loss": v}) for v in (1.0, 2.0, 3.0)] == [None] * 3
    assert (stop.best, stop.waited) == (1.0, 0)
    assert stop.check({"val_loss": 1.5}) is None
    assert stop.check({"val_loss": 1.5}) == "val_loss did not improve on 1 in 2 validations"


def test_warm_up_is_no_shelter_from_thresholds_and_nan():
    assert told([math.nan], warmup=5)[0] is not None
    assert told([9.0], warmup=5, divergence_threshold=5)[0] is not None
    assert told([0.1], warmup=5, stopping_threshold=0.5)[0] is not None
    assert told([1.0, 1.0, 1.0], warmup=2, patience=0) == [
        None,
        None,
        "val_loss did not improve on 1 in 1 validation",
    ]


def test_a_missing_metric_is_named_beside_those_there_are():
    stop = EarlyStop(EarlyStopping(monitor="val_acc"))
    with pytest.raises(
        TaskError, match=r"no metric 'val_acc' to monitor.* are: val_loss, val_accuracy\."
    ):
        stop.check({"val_loss": 1.0, "val_accuracy": 0.5})
    with pytest.raises(TaskError, match=r"are: none\."):
        stop.check({})


@pytest.mark.parametrize(
    ("settings", "at", "said"),
    [
        ({"max_steps": 5}, (4, 100, 1e9), None),
        ({"max_steps": 5}, (5, 0, 0.0), "max_steps=5 reached"),
        ({"max_steps": 0}, (0, 0, 0.0), "max_steps=0 reached"),
        ({"max_epochs": 3}, (100, 2, 1e9), None),
        ({"max_epochs": 3}, (100, 3, 0.0), "max_epochs=3 reached"),
        ({}, (100, 9, 1e9), None),
        ({}, (100, 10, 0.0), "max_epochs=10 reached"),
        ({"max_time": "00:00:01:30"}, (100, 100, 89.9), None),
        ({"max_time": "00:00:01:30"}, (100, 100, 90.0), "max_time='00:00:01:30' reached"),
        ({"max_time": {"seconds": 0}}, (0, 0, 0.0), "max_time='00:00:00:00' reached"),
        (
            {"max_steps": 9, "max_epochs": 3, "max_time": {"days": 2}},
            (8, 2, 172800.0),
            "max_time='02:00:00:00' reached",
        ),
        ({"max_steps": 9, "max_epochs": 3}, (8, 3, 0.0), "max_epochs=3 reached"),
        # max wins over min
        ({"max_steps": 9, "min_steps": 100}, (9, 0, 0.0), "max_steps=9 reached"),
    ],
)
def test_the_first_limit_reached_is_said(settings, at, said):
    assert reached(Settings.make(**settings), *at) == said


@pytest.mark.parametrize(
    ("settings", "at", "met"),
    [
        ({}, (0, 0), True),
        ({"min_steps": 5}, (4, 9), False),
        ({"min_steps": 5}, (5, 0), True),
        ({"min_epochs": 2}, (99, 1), False),
        ({"min_epochs": 2}, (0, 2), True),
        ({"min_steps": 5, "min_epochs": 2}, (5, 1), False),
        ({"min_steps": 5, "min_epochs": 2}, (4, 2), False),
        ({"min_steps": 5, "min_epochs": 2}, (5, 2), True),
    ],
)
def test_both_minimums_have_to_be_met(settings, at, met):
    assert minimums_met(Settings.make(**settings), *at) is met
