"""Events: one read back from its line equals the one written."""

from __future__ import annotations

import math
import pickle
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import events as ev

TEXT = st.text(max_size=20)
FLOAT = st.floats(allow_nan=False, width=64)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
COUNT = st.integers(0, 2**53)
METRICS = st.dictionaries(TEXT, FLOAT, max_size=4)
MAYBE = st.one_of(st.none(), FLOAT)
STATUS = st.sampled_from(["queued", "running", "paused", "finished", "stopped", "failed"])
NAMES = st.lists(TEXT, max_size=3).map(tuple)
SETTINGS = st.dictionaries(
    TEXT, st.one_of(st.none(), st.booleans(), COUNT, FLOAT, TEXT), max_size=5
)


@st.composite
def steps_done(draw: st.DrawFn) -> ev.StepsDone:
    rows, layers = draw(st.integers(1, 8)), draw(st.integers(0, 3))
    number = st.floats(width=32)  # NaN and infinities too: bytes compare as bytes
    logged = draw(st.lists(TEXT, max_size=3, unique=True))
    sizes = dict.fromkeys(logged, rows) | {"loss": rows, "lr": rows, "layer_norms": rows * layers}
    columns = {
        name: ev.pack(draw(st.lists(number, min_size=n, max_size=n))) for name, n in sizes.items()
    }
    shown = tuple(logged[: draw(st.integers(0, len(logged)))])
    return ev.StepsDone(
        draw(COUNT), draw(st.integers(1, 9)), rows, draw(COUNT), draw(FINITE), columns, shown
    )


OPERATOR = st.builds(ev.OperatorTime, TEXT, FLOAT, FLOAT)
HISTOGRAM = st.builds(ev.Histogram, FINITE, FINITE, st.lists(COUNT, max_size=4).map(tuple), COUNT)
LAYER = st.builds(
    ev.LayerHistograms, TEXT, HISTOGRAM, st.one_of(st.none(), HISTOGRAM), TEXT, MAYBE, MAYBE
)
SUGGESTION = st.builds(ev.Suggestion, TEXT, MAYBE, st.one_of(st.none(), COUNT), TEXT)
EVERY: dict[str, st.SearchStrategy[Any]] = {
    "RunStarted": st.builds(
        ev.RunStarted,
        TEXT,
        TEXT,
        SETTINGS,
        TEXT,
        st.lists(TEXT, max_size=4).map(tuple),
        st.one_of(st.none(), COUNT),
        st.one_of(st.none(), COUNT),
        request=SETTINGS,
        groups=st.lists(st.lists(st.tuples(TEXT, FLOAT), max_size=2).map(tuple), max_size=2).map(
            tuple
        ),
    ),
    "StepsDone": steps_done(),
    "TimeSpent": st.builds(ev.TimeSpent, COUNT, FLOAT, METRICS),
    "Validated": st.builds(ev.Validated, COUNT, COUNT, METRICS, NAMES),
    "Logged": st.builds(ev.Logged, COUNT, COUNT, METRICS, NAMES),
    "LayersMeasured": st.builds(
        ev.LayersMeasured, COUNT, st.lists(LAYER, max_size=3).map(tuple), COUNT
    ),
    "Sampled": st.builds(ev.Sampled, COUNT, COUNT, TEXT, TEXT),
    "Saved": st.builds(
        ev.Saved, COUNT, COUNT, TEXT, st.booleans(), st.one_of(st.none(), TEXT), MAYBE
    ),
    "Resumed": st.builds(ev.Resumed, COUNT, TEXT, TEXT, SETTINGS),
    "Changed": st.builds(ev.Changed, COUNT, st.dictionaries(TEXT, MAYBE, max_size=3)),
    "StatusChanged": st.builds(ev.StatusChanged, STATUS, COUNT),
    "CurvePoint": st.builds(ev.CurvePoint, COUNT, FLOAT, FLOAT, FLOAT),
    "CurveEnded": st.builds(
        ev.CurveEnded,
        TEXT,
        st.lists(SUGGESTION, max_size=3).map(tuple),
        MAYBE,
        st.lists(TEXT, max_size=3).map(tuple),
        st.lists(TEXT, max_size=3).map(tuple),
        MAYBE,
    ),
    "TrialStarted": st.builds(ev.TrialStarted, COUNT, st.one_of(st.none(), COUNT)),
    "Trial": st.builds(
        ev.Trial,
        COUNT,
        st.booleans(),
        MAYBE,
        MAYBE,
        st.one_of(st.none(), COUNT),
        st.one_of(st.none(), TEXT),
    ),
    "SearchEnded": st.builds(
        ev.SearchEnded,
        st.one_of(st.none(), COUNT),
        st.one_of(st.none(), COUNT),
        TEXT,
        noise_scale=MAYBE,
        noise_uncertainty=MAYBE,
        noise_reason=TEXT,
    ),
    "RaceTrial": st.builds(ev.RaceTrial, FLOAT, COUNT, FLOAT),
    "SpeedTrial": st.builds(
        ev.SpeedTrial, SETTINGS, MAYBE, MAYBE, MAYBE, MAYBE, st.one_of(st.none(), TEXT)
    ),
    "SpeedSearchEnded": st.builds(ev.SpeedSearchEnded, SETTINGS, TEXT, TEXT),
    "ClipSearchEnded": st.builds(
        ev.ClipSearchEnded,
        SETTINGS,
        MAYBE,
        st.lists(st.lists(FLOAT, max_size=3).map(tuple), max_size=2).map(tuple),
        TEXT,
        TEXT,
    ),
    "RecipeTrial": st.builds(ev.RecipeTrial, SETTINGS, COUNT, FLOAT),
    "RecipeSearchEnded": st.builds(ev.RecipeSearchEnded, SETTINGS, TEXT, TEXT, TEXT),
    "DecayTrial": st.builds(ev.DecayTrial, FLOAT, COUNT, FLOAT),
    "DecaySearchEnded": st.builds(ev.DecaySearchEnded, SETTINGS, MAYBE, TEXT, TEXT),
    "ProfileEnded": st.builds(
        ev.ProfileEnded,
        TEXT,
        TEXT,
        COUNT,
        MAYBE,
        MAYBE,
        parts=METRICS,
        operators=st.lists(OPERATOR, max_size=3).map(tuple),
        kernels=st.lists(OPERATOR, max_size=2).map(tuple),
        memory=st.lists(st.tuples(FLOAT, FLOAT), max_size=3).map(tuple),
        mfu=MAYBE,
        mfu_reason=TEXT,
    ),
    "TuneStep": st.builds(ev.TuneStep, TEXT, SETTINGS, TEXT),
    "TuneTrial": st.builds(ev.TuneTrial, SETTINGS, COUNT, FLOAT),
    "Message": st.builds(ev.Message, TEXT, st.sampled_from(["info", "warning", "error"]), COUNT),
    "Checksums": st.builds(ev.Checksums, TEXT, TEXT, NAMES, TEXT),
    "Observed": st.builds(
        ev.Observed,
        COUNT,
        COUNT,
        st.sampled_from(["evaluation_mode", "same_order", "slow_calls", "loader_option"]),
        NAMES,
    ),
    "Spiked": st.builds(
        ev.Spiked,
        COUNT,
        COUNT,
        FLOAT,
        FLOAT,
        st.one_of(st.none(), FLOAT),
        st.one_of(st.none(), FLOAT),
        st.lists(COUNT, max_size=3).map(tuple),
        st.sampled_from(["report", "skip", "rollback"]),
        st.one_of(st.none(), COUNT),
    ),
    "RunEnded": st.builds(ev.RunEnded, STATUS, COUNT, FLOAT, st.one_of(st.none(), TEXT), METRICS),
}


def test_every_event_type_is_tried() -> None:
    assert set(EVERY) == {kind.__name__ for kind in get_args(ev.Event)}


@pytest.mark.parametrize("name", EVERY)
def test_a_line_reads_back_equal(name: str) -> None:
    @given(EVERY[name])
    def check(event: ev.Event) -> None:
        line = ev.to_line(event)
        assert "\n" not in line
        assert "\r" not in line
        assert ev.from_line(line) == event
        assert type(ev.from_line(line)) is type(event)
        assert pickle.loads(pickle.dumps(event)) == event

    check()


def test_a_number_is_a_float_whatever_its_line_says() -> None:
    """Arrays of float64 take no int that is beyond theirs."""
    (value,) = ev.from_line(
        f'{{"type": "Validated", "step": 1, "epoch": 0, "metrics": {{"loss": {10**300}}}}}'
    ).metrics.values()  # type: ignore[union-attr]
    assert type(value) is float
    assert value == 1e300
    with pytest.raises(ValueError, match="metrics"):
        ev.from_line(
            f'{{"type": "Validated", "step": 1, "epoch": 0, "metrics": {{"loss": {10**400}}}}}'
        )


def test_nan_survives_as_nan() -> None:
    back = ev.from_line(ev.to_line(ev.Validated(1, 0, {"val_loss": math.nan})))
    assert isinstance(back, ev.Validated)
    assert math.isnan(back.metrics["val_loss"])


def test_a_record_from_before_there_were_these_columns_is_read() -> None:
    old = '{"type":"Validated","step":3,"epoch":0,"metrics":{"val_loss":0.5}}'
    assert ev.from_line(old) == ev.Validated(3, 0, {"val_loss": 0.5})


def test_a_column_of_float64_reads_back_so() -> None:
    exact = np.array([0.1, 1 / 3])
    flush = ev.StepsDone(
        0,
        1,
        2,
        0,
        0.5,
        {"loss": ev.pack(exact, double=True), "lr": ev.pack(exact)},
        double=("loss",),
    )
    back = ev.from_line(ev.to_line(flush))
    assert isinstance(back, ev.StepsDone)
    assert back == flush
    assert back.array("loss").tolist() == exact.tolist()
    assert back.array("lr").tolist() == np.float32(exact).tolist()


def test_a_record_of_the_version_before_reads_as_float32() -> None:
    line = (
        '{"type":"StepsDone","step":0,"every":1,"rows":1,"epoch":0,"seconds":0.5,"columns":{"loss":"AACAPw==","lr":"zczMPQ=="},'
        '"prog_bar":[],"waited":0.0,"memory":null}'
    )
    back = ev.from_line(line)
    assert isinstance(back, ev.StepsDone)
    assert back.array("loss").dtype == np.float32
    assert back.array("loss").tolist() == [1.0]
