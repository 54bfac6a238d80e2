"""Settings: a typo or a bad value is an error that says what to do."""

from __future__ import annotations

import math
from typing import Any

import pytest

from workbench.settings import Settings, SettingsError, knob


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
    ],
)
def test_a_typo_names_the_setting_that_was_meant(wrong: str, right: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown setting '{wrong}'. Did you mean '{right}'"):
        Settings.make(**{wrong: 1})
    with pytest.raises(SettingsError, match=f"'{right}'"):
        Settings().replace(**{wrong: 1})


def test_an_unknown_setting_lists_those_there_are() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.make(zzzzzz=1)
    assert "Did you mean" not in str(caught.value)
    assert all(name in str(caught.value) for name in Settings.model_fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0),
        ("lr", -1e-3),
        ("lr", math.nan),
        ("lr", math.inf),
        ("lr", "fast"),
        ("lr", None),
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("weight_decay", -0.1),
        ("accumulate_grad_batches", 0),
        ("gradient_clip_val", -1),
        ("gradient_clip_algorithm", "both"),
        ("max_epochs", -1),
        ("num_workers", -1),
        ("accelerator", "quantum"),
        ("keep_runs", 0),
    ],
)
def test_a_bad_value_is_refused_with_its_name_value_and_meaning(name: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.make(**{name: value})
    text = str(caught.value)
    assert text.startswith(f"{name}={value!r}: ")
    assert str(Settings.model_fields[name].description) in text
    assert "default" in text


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
    with pytest.raises(Exception, match="frozen"):
        first.lr = 1.0


def test_length_is_ten_epochs_when_nothing_is_said() -> None:
    assert Settings().epochs == 10
    assert Settings.make(max_steps=5).epochs is None
    assert Settings.make(max_epochs=3, max_steps=5).epochs == 3


def test_settings_read_back_from_plain_data() -> None:
    settings = Settings.make(lr=3e-4, gradient_clip_val=1, track_grad_norm="inf", pin_memory=True)
    assert Settings.make(**settings.model_dump(mode="json")) == settings


def test_every_field_has_what_a_face_needs() -> None:
    for name, field in Settings.model_fields.items():
        assert knob(name).group
        assert field.description
        assert field.description.endswith(".")
