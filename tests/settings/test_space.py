import inspect
import json
import math

import pytest

from workbench.settings import Settings, SettingsError
from workbench.settings.space import Choice, Float, Int, Space

SETTINGS = Settings.make(lr=3e-3, weight_decay=0.05, max_epochs=3)
BUILD = {"width": 128, "dropout": 0.1, "act": "relu", "norm": True}


def parsed(space, **options):
    return Space.parse(space, SETTINGS, BUILD, **options)


FULL = {
    "lr": (1e-4, 1.0),
    "batch_size": [16, 64, 32],
    "width": (16, 256),
    "dropout": (0.0, 0.5),
    "act": ["relu", "gelu"],
    "warmup": ...,
    "gradient_clip_val": ...,
    "norm": ...,
}


def test_each_way_to_write_a_dimension():
    space = parsed(FULL)
    kinds = {d.name: type(d) for d in space.dimensions}
    assert kinds == {
        "lr": Float, "batch_size": Choice, "width": Int, "dropout": Float, "act": Choice, "warmup": Choice, "gradient_clip_val": Choice, "norm": Choice,
    }  # fmt: skip
    assert space.dimension("lr").log
    assert space.dimension("width").log
    assert not space.dimension("dropout").log
    assert space.dimension("batch_size").choices == (16, 32, 64)
    assert space.present == {
        "lr": 3e-3, "batch_size": 32, "width": 128, "dropout": 0.1, "act": "relu", "warmup": 0, "gradient_clip_val": None, "norm": True,
    }  # fmt: skip


def test_a_point_gives_values_and_they_give_the_point():
    space = parsed(FULL)
    for k in range(50):
        values = space.values([(k * 0.618 + 0.37 * d) % 1 for d in range(len(FULL))])
        SETTINGS.replace(**{n: v for n, v in values.items() if n not in BUILD})
        units = space.units(values)
        assert all(0 <= unit <= 1 for unit in units)
        assert space.values(units) == values
    low, high = space.values([0.0] * 8), space.values([1.0] * 8)
    assert (
        low["lr"],
        high["lr"],
        low["width"],
        high["width"],
        low["dropout"],
        high["dropout"],
    ) == (1e-4, 1.0, 16, 256, 0.0, 0.5)


def test_whole_numbers_have_equal_shares():
    dimension = parsed({"width": (1, 4)}).dimensions[0]
    values = [dimension.value((k + 0.5) / 400) for k in range(400)]
    assert [values.count(v) for v in (1, 2, 3, 4)] == [100] * 4


def test_the_record_holds_the_space():
    space = parsed({**FULL, "optimizer": {"adamw": {}, "sgd": {"momentum": (0.8, 0.99)}}})
    assert Space.from_record(json.loads(json.dumps(space.to_record()))) == space


def test_what_is_chosen_for_an_optimizer_belongs_to_it():
    space = parsed(
        {"optimizer": {"adamw": {"lr": ...}, "sgd": {"lr": (1e-2, 1.0), "momentum": (0.8, 0.99)}}}
    )
    assert space.names == (
        "optimizer",
        "optimizer.adamw.lr",
        "optimizer.sgd.lr",
        "optimizer.sgd.momentum",
    )
    adamw, sgd = space.values([0.2, 0.5, 0.5, 0.5]), space.values([0.7, 0.5, 0.5, 0.5])
    assert adamw == {"optimizer": "adamw", "lr": pytest.approx(3e-3)}
    assert sgd == {"optimizer": {"sgd": {"momentum": pytest.approx(0.895)}}, "lr": 0.1}
    assert [u is None for u in space.units(adamw)] == [False, False, True, True]
    assert [u is None for u in space.units(sgd)] == [False, True, False, False]


def test_a_range_around_what_a_search_finds():
    record = parsed(["lr", "batch_size"]).to_record()
    assert Space.from_record(record).dimensions[0].low == pytest.approx(3e-5)
    space = Space.from_record(record, {"lr": {"center": 0.2}, "batch_size": {"largest": 70}})
    assert (space.dimension("lr").low, space.dimension("lr").high) == (
        pytest.approx(2e-3),
        pytest.approx(20),
    )
    assert space.dimension("batch_size").choices == (4, 8, 16, 32, 64)
    given = Space.from_record(parsed({"lr": (1e-4, 1e-1)}).to_record(), {"lr": {"center": 9.0}})
    assert given.dimension("lr").high == 0.1


def test_a_relative_rate_is_a_multiple():
    space = parsed({"lr": "relative"})
    assert space.values([0.5]) == {"lr": {"times_found": 1.0}}
    assert space.units({"lr": {"times_found": 10.0}}) == [1.0]
    assert space.units({"lr": 1.0}) == [None]


@pytest.mark.parametrize(("fits", "count"), [(None, 2), (8, 2), (16, 4), (40, 5)])
def test_without_a_space_the_budget_decides(fits, count):
    assert len(parsed(None, fits=fits).names) == count


def test_tuples_stay_tuples():
    shapes = Settings(), {"layers": (32,)}
    space = Space.parse({"layers": [(32,), (64, 64)]}, *shapes)
    recorded = Space.from_record(json.loads(json.dumps(space.to_record())))
    assert recorded == space
    assert recorded.values([0.9]) == {"layers": (64, 64)}
    with pytest.raises(SettingsError, match="lists and tuples"):
        Space.parse({"layers": [(32,), [64, 64]]}, *shapes)


def test_too_many_dimensions_for_the_budget():
    space = parsed(
        {"dropout": (0.0, 0.5), "lr": (1e-4, 1.0), "width": [64, 128], "batch_size": [16, 32]}
    )
    assert space.too_many(8) == ""
    assert "4 dimensions" in space.too_many(4)
    assert "leave out dropout and width" in space.too_many(4)


def test_a_trial_has_the_dimensions_of_one_optimizer_alone():
    optimizers = {"adamw": {"lr": ...}, "sgd": {"lr": ..., "momentum": (0.8, 0.99)}}
    space = parsed({"optimizer": optimizers})
    assert "3 dimensions, and 4 fits" in space.too_many(4)
    assert parsed({"optimizer": {"sgd": optimizers["sgd"]}}).too_many(4) == ""
    assert space.too_many(4, "optimizer") == ""
    wide = parsed({"optimizer": optimizers, "width": [64, 128]})
    assert "3 dimensions for a value of optimizer, of which each has 4 fits" in wide.too_many(
        8, "optimizer"
    )


BAD = [
    ("lr", "give names"),
    ({}, "give names"),
    ([], "give names"),
    (["lr", "lr"], "twice"),
    ([3], "3 is no name"),
    (["lrr"], "Did you mean 'lr'"),
    ({"widht": (1, 2)}, "neither a setting nor a parameter .* width.*Did you mean 'width'"),
    ({"learning_rate": (1e-3, 1.0)}, "Did you mean 'lr'?"),
    ({"learnig_rate": (1e-3, 1.0)}, "Did you mean 'lr'?"),
    ({"wd": (1e-3, 1.0)}, "Did you mean 'weight_decay'?"),
    ({"bs": [8, 16]}, "Did you mean 'batch_size'?"),
    ({"epochs": [8, 16]}, "max_epochs cannot be chosen: all trials of a study have one length"),
    ({"momentum": (0.8, 0.9)}, r"\{'optimizer': \{'sgd': \{'momentum': …\}\}\}"),
    ({"loss": ["a", "b"]}, "It is an object"),
    ({"max_epochs": (1, 3)}, "max_epochs cannot be chosen: all trials of a study have one length"),
    ({"max_steps": (1, 3)}, "one length"),
    ({"max_time": ["00:00:01:00", "00:00:02:00"]}, "one length"),
    ({"seed": [1, 2]}, "seed cannot be chosen: .*seeds=3"),
    ({"devices": [1, 2]}, "devices cannot be chosen: .*workers=4"),
    ({"keep_runs": (1, 3)}, "keep_runs cannot be chosen"),
    ({"limit_val_batches": [1, 2]}, "limit_val_batches cannot be chosen"),
    ({"num_workers": [1, 2]}, "how fast"),
    ({"compile": [True, False]}, "how fast"),
    ({"lr": (1, 0.1)}, "the lower one first"),
    ({"lr": (0.1, 0.1)}, "the lower one first"),
    ({"lr": (0.0, 0.1)}, "begins above 0"),
    ({"lr": (1e-4, math.inf)}, "finite"),
    ({"lr": (math.nan, 1.0)}, "finite"),
    ({"lr": (1e-4, 1e4)}, "lr=10000.0: should be at most 1000"),
    ({"lr": (1e-4, 1e-3, 1e-2)}, "give a tuple of two numbers"),
    ({"lr": 0.1}, "give a tuple of two numbers"),
    ({"lr": (False, True)}, "give a tuple of two numbers"),
    ({"lr": [0.1]}, "at least two values"),
    ({"lr": [0.1, 0.1]}, "twice"),
    ({"weight_decay": "relative"}, "only lr"),
    ({"batch_size": (8.0, 64.5)}, r"batch_size is a whole number, 32: give \(8, 65\)"),
    ({"batch_size": (8.0, 640.0)}, r"give \(8, 640\)"),
    ({"accumulate_grad_batches": (1.0, 4.0)}, r"give \(1, 4\)"),
    ({"precision": ["32-true", "8-true"]}, "precision='8-true'"),
    ({"width": (8.0, 64.5)}, r"width is a whole number.*give \(8, 65\)"),
    ({"act": ...}, "act='relu' has no range of its own"),
    ({"ema_decay": ...}, "ema_decay has no range of its own"),
    ({"act": [print, len]}, "a study's record holds numbers"),
    ({"optimizer": ["adamw"]}, "at least two names"),
    ({"optimizer": (0, 1)}, "at least two names"),
    ({"optimizer": {"adamw": 3, "sgd": {}}}, "give a dict of what is chosen"),
    ({"optimizer": {"adamw": {"seed": [1, 2]}, "sgd": {}}}, "seed cannot be chosen"),
    (
        {"optimizer": {"adamw": {"lr": ...}, "sgd": {}}, "lr": ...},
        "lr is given for all optimizers and for adamw",
    ),
    ({"optimizer": {"adamw": {"momentum": ...}, "sgd": {}}}, "momentum has no range of its own"),
]


@pytest.mark.parametrize(("space", "words"), BAD, ids=[str(space)[:50] for space, _ in BAD])
def test_bad_input_names_argument_value_and_remedy(space, words):
    with pytest.raises(SettingsError, match=words):
        parsed(space)


def test_more_bad_input():
    with pytest.raises(SettingsError, match="depth, which has no default"):
        Space.parse(["lr"], SETTINGS, {"depth": inspect.Parameter.empty})
    with pytest.raises(SettingsError, match="lr is in the space and given for all trials"):
        parsed(["lr"], fixed=["lr"])
    with pytest.raises(SettingsError, match=r"optimizer='adamv': .* did you mean 'adam"):
        parsed({"optimizer": ["adamv", "sgd"]})
    with pytest.raises(SettingsError, match="a setting and a parameter"):
        Space.parse(["lr"], SETTINGS, {"lr": 0.1})


@pytest.mark.parametrize(
    "entry",
    [None, {}, {"kind": "x"}, {"kind": "float", "low": 1.0, "high": 0.0}, {"kind": "float", "low": "a", "high": 1.0},
     {"kind": "float", "low": 0.0, "high": 1.0, "log": True}, {"kind": "choice", "choices": []}, {"kind": "int", "low": 0.5, "high": 2}],
)  # fmt: skip
def test_a_record_that_is_no_space_is_refused(entry):
    with pytest.raises(ValueError, match="the space"):
        Space.from_record({"lr": entry})


def test_an_empty_record_is_no_space():
    with pytest.raises(ValueError, match="empty"):
        Space.from_record({})


def test_the_arguments_of_one_optimizer_are_chosen():
    space = parsed({"optimizer": {"sgd": {"lr": (1e-3, 1.0), "momentum": (0.8, 0.99)}}})
    assert space.values([0.5, 0.0, 1.0]) == {"optimizer": {"sgd": {"momentum": 0.99}}, "lr": 1e-3}
    assert Space.from_record(space.to_record()) == space


def test_one_value_of_a_choice():
    space = parsed(
        {"optimizer": {"adamw": {"lr": ...}, "sgd": {"momentum": (0.8, 0.99)}}, "width": [64, 128]}
    )
    assert space.only("optimizer", "sgd").names == ("optimizer", "optimizer.sgd.momentum", "width")
    assert space.only("optimizer", "sgd").dimension("optimizer").choices == ("sgd",)
    assert space.only("width", 64).values([0.9] * 4)["width"] == 64
