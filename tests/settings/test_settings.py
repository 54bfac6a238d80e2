"""Settings: a typo or a bad value is an error that says what to do."""

from __future__ import annotations

import copy
import json
import math
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.settings import Settings, SettingsError, metadata_of
from workbench.values import EarlyStopping


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("learning_rate", "lr"),
        ("batchsize", "batch_size"),
        ("epochs", "max_epochs"),
        ("max_epoch", "max_epochs"),
        ("max_grad_norm", "gradient_clip_val"),
        ("gradient_clip", "gradient_clip_val"),
        ("wd", "weight_decay"),
        ("gradient_accumulation_steps", "accumulate_grad_batches"),
        ("scheduler", "lr_schedule"),
        ("warmup_steps", "warmup"),
        ("amp", "precision"),
        ("ema", "weight_averaging"),
        ("patience", "early_stopping"),
        ("bptt", "truncated_bptt_steps"),
        ("save_steps", "checkpoint_every"),
        ("save_total_limit", "save_top_k"),
        ("metric_for_best_model", "monitor"),
        ("mode", "monitor_mode"),
        ("limit_validation_batches", "limit_val_batches"),
    ],
)
def test_a_typo_names_the_setting_that_was_meant(wrong: str, right: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown setting '{wrong}'. Did you mean '{right}'"):
        Settings.make(**{wrong: 1})
    with pytest.raises(SettingsError, match=f"'{right}'"):
        Settings().replace(**{wrong: 1})


def test_an_unknown_setting_says_where_the_settings_are() -> None:
    with pytest.raises(
        SettingsError, match=r"unknown setting 'zzzzzz'. .*bench\.settings"
    ) as caught:
        Settings.make(zzzzzz=1)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("typo", ["max_epoch", "lear_rate", "zzzzzz", "logger_", "callback"])
def test_the_error_of_a_typo_is_one_short_line(typo: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.make(**{typo: 1})
    assert len(str(caught.value)) < 200
    assert len(str(caught.value).splitlines()) == 1


BAD: dict[str, list[Any]] = {
    "optimizer": ["adamww", "", 5, True, [], ["adam"], {}, {"sgd": 5}, {"sgd": {}, "adam": {}}, {"sgd": {"momentum": math.nan}}, {1: {}}, len, dict],
    "lr": [-1e-3, math.nan, math.inf, "fast", None],
    "weight_decay": [-0.1, math.inf, "none"],
    "batch_size": [0, 2.5, None],
    "accumulate_grad_batches": [0, -2, 2.0, True, None, "4", {}, {-1: 2}, {0: 0}, {0: 2.5}, {0.5: 2}, {True: 2}, {"x": 2}],
    "gradient_clip_val": [-1, math.inf, "off"],
    "gradient_clip_algorithm": ["both"],
    "lr_schedule": ["cos", None],
    "min_lr_ratio": [-0.1, 1.1, math.nan, None],
    "decay_fraction": [0, 1.1, None],
    "decay_shape": ["sqrt", None],
    "lr_power": [0, -1, None],
    "restarts": [0, 1.5, None],
    "warmup": [-1, -0.1, 1.0, 2.5, math.nan, True, "5%", None],
    "precision": ["8", 8, True, "16-true", "bf16-true", "transformer-engine", "half"],
    "compile": [2, None, "", {"mod": 1}, {"mode": "fast"}, {"dynamic": "yes"}, {"mode": "default", "backend": "eager"}],
    "max_epochs": [-2, 1.5, "many"],
    "min_epochs": [-1, 1.5],
    "max_steps": [-2, 1.5],
    "min_steps": [-1, 1.5],
    "max_time": [0, 90, "90", "01:30", "soon", timedelta(seconds=-1), {"minutes": -1}, {"mins": 1}, {"minutes": "1"}, {"days": 1e12}],
    "shuffle": ["maybe", 2, None],
    "num_workers": [-1, 1.5],
    "pin_memory": ["maybe", 2],
    "persistent_workers": ["maybe", None],
    "prefetch_factor": [0, -1, 1.5, "many"],
    "drop_last": ["maybe", None],
    "streams": ["all", "sharded", None, True],
    "preload": ["maybe", None],
    "reload_dataloaders_every_n_epochs": [-1, 0.5, True, None],
    "limit_train_batches": [-1, -0.5, 1.5, math.nan, True, "0.5"],
    "limit_val_batches": [-1, -0.5, 1.5, math.inf, True, "0.5"],
    "limit_test_batches": [-1, 1.5],
    "limit_predict_batches": [-1, 1.5],
    "overfit_batches": [-1, 1.5, False, None],
    "fast_dev_run": [-1, 1.5, None],
    "check_val_every_n_epoch": [0, -1, 0.5],
    "val_check_interval": [0, -5, 0.0, -0.5, 1.5, math.nan, True, "10", {"minute": 1}, timedelta(seconds=-1)],
    "num_sanity_val_steps": [-2, 0.5],
    "early_stopping": [
        5, [5], {"patience": 3}, {"monitor": "val_loss", "patience": -1}, {"monitor": "val_loss", "mode": "lower"},
        [{"monitor": "val_loss"}, {"monitor": "val_loss", "min_delta": -0.1}], {"monitor": "val_loss", "patient": 3}, {0: 1},
    ],
    "weight_averaging": ["mean", True],
    "ema_decay": [0, 1, -0.5, None],
    "ema_warmup": [None, "slow", 5],
    "averaging_every_n_steps": [0, 0.5],
    "averaging_start": [-1, 0.5],
    "averaging_start_epoch": [-1, 0.5],
    "swa_epoch_start": [-1, -0.5, 1.5, math.nan, True, "half", None],
    "swa_lrs": [0, -0.1, math.inf],
    "annealing_epochs": [-1, 0.5],
    "annealing_strategy": ["cosine", None],
    "truncated_bptt_steps": [0, -1, 2.5],
    "tbptt_time_dim": [-1, 0.5, None],
    "find_lr_at": [-1, [-1], [0, 1.5], {0: 1}, "0", True, None],
    "find_batch_size_at": [-1, [-1], ["x"], [True], 2.5, None],
    "track_grad_norm": [0, -2, "two", math.nan],
    "track_update_ratio": ["maybe", None, 2],
    "track_noise_scale": ["layers", None, 2],
    "log_every_n_steps": [0, 0.5],
    "layer_history_mb": [0, 0.5],
    "keep_start": [-1, 0.5],
    "on_nonfinite": ["ignore", None],
    "on_spike": ["stop", True, 3.0],
    "enable_progress_bar": ["maybe", 2],
    "detect_anomaly": ["maybe", None],
    "checkpoint_every": [0, -5, 0.5, math.nan, True, "10", "soon", {"minute": 1}, timedelta(0), timedelta(seconds=-1)],
    "save_top_k": [-2, 0.5, "all", None],
    "monitor": [5, True, "", ["val_loss"]],
    "monitor_mode": ["lower", "minimum", True],
    "keep_runs": [0, 0.5],
    "accelerator": ["quantum", None],
    "devices": [0, -2, 1.5, True, None, "all", [], [-1], [0, 0.5], ["0"], [True]],
    "strategy": ["ddp2", "fsdp", "deepspeed_stage_2", None, 2],
    "num_nodes": [0, 1.5, None],
    "launch": [2, "two.yaml", [("num_processes", 2)], {2: 2}, {"--num_processes": 2}, {"num_processes": None}, {"env": ["A=1"]}],
    "rank_timeout": [0, -1, math.inf, None],
    "seed": [-1, 0.5, None],
    "deterministic": ["maybe", 2],
    "benchmark": ["maybe", 2],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_a_bad_value_is_refused_with_its_name_value_and_meaning(name: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.make(**{name: value})
    text = str(caught.value)
    assert text.startswith(f"{name}={value!r}: ")
    assert str(Settings.model_fields[name].description) in text
    assert "default" in text
    reason = text.removeprefix(f"{name}={value!r}: ").split(". ")[0]
    assert re.search(r"should|required|takes|not permitted|give", reason), reason
    with pytest.raises(SettingsError, match=f"^{name}="):
        Settings().replace(**{name: value})


def test_what_a_search_did_not_find_is_named() -> None:
    """`bench.set(lr=curve.suggestion)` after a search without one."""
    for name, of in (("lr", "learning-rate search"), ("batch_size", "batch-size search")):
        with pytest.raises(
            SettingsError,
            match=f"^{name}=None: a {of} .* gives None.* Search again.* or give a number",
        ):
            Settings().replace(**{name: None})


def test_every_setting_is_tried_with_bad_values() -> None:
    assert BAD.keys() == Settings.model_fields.keys()


def test_all_bad_values_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.make(lr=-1, batch_size=0)
    assert len(str(caught.value).splitlines()) == 2


def test_no_clipping_is_none_or_zero() -> None:
    assert Settings.make(gradient_clip_val=0).gradient_clip_val is None
    assert Settings.make(gradient_clip_val=0.0).gradient_clip_val is None
    assert Settings.make(gradient_clip_val=None).gradient_clip_val is None
    assert Settings.make(gradient_clip_val=0.5).gradient_clip_val == 0.5


def test_the_infinity_norm_may_be_a_number() -> None:
    assert Settings.make(track_grad_norm=math.inf).track_grad_norm == "inf"
    assert Settings.make(track_grad_norm="inf").track_grad_norm == "inf"
    assert Settings.make(track_grad_norm=None).track_grad_norm is None


def test_settings_are_frozen_and_replace_makes_others() -> None:
    first = Settings.make(lr=0.1)
    second = first.replace(batch_size=64)
    assert (first.lr, first.batch_size) == (0.1, 32)
    assert (second.lr, second.batch_size) == (0.1, 64)
    assert second.changed() == {"lr": 0.1, "batch_size": 64}
    assert first.replace(lr=0.1) == first
    assert isinstance(first.replace(limit_train_batches=1).limit_train_batches, int), (
        "1.0, all of them, was another number"
    )
    with pytest.raises(Exception, match="frozen"):
        first.lr = 1.0


def test_a_value_that_is_equal_is_still_checked() -> None:
    """`{"same_network": 1} == {"same_network": True}`, and an error tells the user to write the second for the first."""
    assert (
        Settings.make(launch={"same_network": 1})
        .replace(launch={"same_network": True})
        .launch["same_network"]
        is True
    )
    for name, value, wrong in (
        ("accumulate_grad_batches", {0: 2}, {0: 2.0}),
        ("devices", [0, 1], (0, True)),
        ("find_lr_at", (0, 1), (0.0, 1.0)),
    ):
        with pytest.raises(SettingsError, match=name):
            Settings.make(**{name: value}).replace(**{name: wrong})


def test_length_is_ten_epochs_when_nothing_is_said() -> None:
    assert Settings().epochs == 10
    assert Settings.make(max_steps=5).epochs is None
    assert Settings.make(max_epochs=3, max_steps=5).epochs == 3
    assert Settings.make(max_epochs=0).epochs == 0
    assert Settings.make(max_epochs=-1).epochs is None


def test_settings_read_back_from_plain_data() -> None:
    settings = Settings.make(lr=3e-4, gradient_clip_val=1, track_grad_norm="inf", pin_memory=True)
    assert Settings.make(**settings.model_dump(mode="json")) == settings


_DURATIONS = (
    st.timedeltas(timedelta(0), timedelta(days=1000))
    | st.just("00:00:01:30.5")
    | st.just({"minutes": 90})
)
_INTERVALS = st.timedeltas(timedelta(microseconds=1), timedelta(days=1000)) | st.just(
    {"minutes": 90}
)
_BATCHES = st.integers(0, 999) | st.floats(0, 1)
_EPOCHS = st.integers(0, 99) | st.sets(st.integers(0, 99)) | st.lists(st.integers(0, 99))
_STOPPING = st.fixed_dictionaries(
    {"monitor": st.text(min_size=1)},
    optional={
        "mode": st.sampled_from(["min", "max"]),
        "min_delta": st.floats(0, 1),
        "patience": st.integers(0, 9),
        "warmup": st.integers(0, 9),
        "stopping_threshold": st.none() | st.floats(-9, 9),
        "divergence_threshold": st.none() | st.floats(-9, 9),
        "check_finite": st.booleans(),
    },
)
GOOD = st.fixed_dictionaries(
    {},
    optional={
        "accumulate_grad_batches": st.integers(1, 99)
        | st.dictionaries(st.integers(0, 99), st.integers(1, 99), min_size=1),
        "lr_schedule": st.sampled_from(["constant", "linear", "cosine", "one_cycle", "wsd"]),
        "warmup": st.integers(0, 999) | st.floats(0, 1, exclude_max=True),
        "precision": st.sampled_from(["32-true", "16-mixed", "bf16-mixed"]),
        "compile": st.booleans() | st.just("eager") | st.just({"dynamic": True}),
        "max_time": st.none() | st.just(timedelta(0)) | _DURATIONS,
        "val_check_interval": st.integers(1, 999) | st.floats(0, 1, exclude_min=True) | _INTERVALS,
        "limit_train_batches": _BATCHES,
        "limit_val_batches": _BATCHES,
        "overfit_batches": _BATCHES,
        "fast_dev_run": st.integers(0, 9),
        "early_stopping": st.none()
        | st.text(min_size=1)
        | _STOPPING
        | st.lists(_STOPPING, max_size=3),
        "weight_averaging": st.sampled_from([None, "ema", "swa"]),
        "swa_epoch_start": st.integers(0, 99) | st.floats(0, 1),
        "swa_lrs": st.none() | st.floats(1e-9, 9),
        "truncated_bptt_steps": st.none() | st.integers(1, 99),
        "find_lr_at": _EPOCHS,
        "find_batch_size_at": _EPOCHS,
        "checkpoint_every": st.none() | st.integers(1, 999) | _INTERVALS,
        "save_top_k": st.integers(-1, 9),
        "monitor": st.none() | st.text(min_size=1),
        "monitor_mode": st.sampled_from([None, "min", "max"]),
    },
)


@given(values=GOOD)
def test_settings_survive_a_file_and_leave_the_callers_values_alone(values: dict[str, Any]) -> None:
    """1 and 1.0 are equal, and say different things here: the types have to come back too."""
    before = copy.deepcopy(values)
    settings = Settings.make(**values)
    assert values == before
    written = json.dumps(settings.model_dump(mode="json"))
    again = Settings.make(**json.loads(written))
    assert again == settings
    assert repr(again) == repr(settings)
    assert repr([*again]) == repr([*settings]) == repr([*settings.replace()])


def test_reading_ahead_needs_loader_processes() -> None:
    assert Settings.make(num_workers=2, prefetch_factor=4).prefetch_factor == 4
    with pytest.raises(
        SettingsError,
        match=r"prefetch_factor=4: .*num_workers is 0: give num_workers=2, or prefetch_factor=None",
    ):
        Settings.make(prefetch_factor=4)
    with pytest.raises(SettingsError, match="prefetch_factor=4"):
        Settings.make(num_workers=2, prefetch_factor=4).replace(num_workers=0)


def test_a_rate_does_not_fall_before_it_has_risen() -> None:
    with pytest.raises(SettingsError, match=r"warmup=0.9 and decay_fraction=0.2 overlap"):
        Settings.make(lr_schedule="wsd", warmup=0.9)
    assert Settings.make(lr_schedule="wsd", warmup=0.5, decay_fraction=0.5).warmup == 0.5
    assert Settings.make(lr_schedule="cosine", warmup=0.9).warmup == 0.9


def test_the_repr_has_what_differs_from_the_defaults() -> None:
    assert repr(Settings()) == "Settings()"
    assert (
        repr(Settings.make(batch_size=16, lr=0.1, max_epochs=None))
        == "Settings(lr=0.1, batch_size=16)"
    )
    assert repr(Settings.make(limit_train_batches=1)) == "Settings(limit_train_batches=1)", (
        "1.0 is all batches"
    )


def test_what_the_caller_does_later_to_his_values_changes_nothing() -> None:
    sizes, epochs, monitors = {0: 4, 2: 2}, [0, 5], [{"monitor": "val_loss"}]
    settings = Settings.make(
        accumulate_grad_batches=sizes, find_lr_at=epochs, early_stopping=monitors
    )
    as_made = repr(settings)
    sizes[2] = 100
    epochs.append(7)
    monitors[0]["monitor"] = "other"
    monitors.append({"monitor": "another"})
    assert repr(settings) == as_made
    settings.replace(lr=0.5, accumulate_grad_batches={0: 1})
    assert repr(settings) == as_made


@pytest.mark.parametrize(
    "name", ["warmup", "limit_train_batches", "val_check_interval", "swa_epoch_start"]
)
def test_a_number_and_a_fraction_stay_what_they_are(name: str) -> None:
    assert type(getattr(Settings.make(**{name: 1}), name)) is int
    assert type(getattr(Settings.make(**{name: 0.5}), name)) is float


@pytest.mark.parametrize(
    ("field", "value"), [("patience", -1), ("mode", "lower"), ("min_delta", -0.1), ("patient", 3)]
)
def test_a_bad_value_inside_early_stopping_is_named(field: str, value: Any) -> None:
    for said in (
        {"monitor": "val_loss", field: value},
        ["val_accuracy", {"monitor": "val_loss", field: value}],
    ):
        with pytest.raises(SettingsError, match=re.escape(f": {field}={value!r}: ")):
            Settings.make(early_stopping=said)


def test_several_ways_to_say_when_to_stop_early() -> None:
    one = EarlyStopping(monitor="val_loss")
    for said in (
        "val_loss",
        one,
        [one],
        ("val_loss",),
        {"monitor": "val_loss"},
        [{"monitor": "val_loss"}],
    ):
        assert Settings.make(early_stopping=said).early_stopping == (one,)
    for none in (None, (), []):
        assert Settings.make(early_stopping=none).early_stopping == ()


def test_every_field_has_what_a_face_needs() -> None:
    for name, field in Settings.model_fields.items():
        assert metadata_of(name).group
        assert field.description
        assert field.description.endswith(".")


@pytest.mark.parametrize("name", ["lr", "batch_size", "max_epochs", "seed"])
def test_true_is_no_number(name):
    with pytest.raises(SettingsError, match=f"^{name}=True: input should be a number"):
        Settings.make(**{name: True})
    assert Settings.make(fast_dev_run=True).fast_dev_run == 1  # as in Lightning


def test_str_has_what_differs_by_group() -> None:
    """IPython shows the same at the end of a cell, and the repr stays what one would type."""
    settings = Settings.make(max_epochs=5, lr=0.1, seed=3, batch_size=64)
    text = str(settings)
    assert text.splitlines()[1:] == [
        "  optimisation", "    lr = 0.1  (default 0.001)", "    batch_size = 64  (default 32)",
        "  length", "    max_epochs = 5  (default None)",
        "  devices", "    seed = 3  (default 0)",
    ]  # fmt: skip
    assert str(Settings()) == "All settings have their defaults."
    from IPython.lib.pretty import pretty

    assert pretty(settings) == text
