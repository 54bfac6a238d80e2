"""Controls follow the Settings metadata, whatever fields come."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets
import pytest

from workbench.settings import Settings, knob
from workbench.ui import controls
from workbench.ui.form import HEADER, Form, grouped


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_a_control_that_shows_its_default_and_gives_it_back(name: str) -> None:
    default = Settings.model_fields[name].default
    control = controls.make(name, default)
    assert control.read() == default
    assert Settings.model_fields[name].description in control.widget.tooltip


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("lr", widgets.BoundedFloatText, 0.02),
        ("batch_size", widgets.BoundedIntText, 48),
        ("shuffle", widgets.Checkbox, False),
        ("gradient_clip_algorithm", widgets.Dropdown, "value"),
        ("pin_memory", widgets.Dropdown, True),
        ("pin_memory", widgets.Dropdown, None),
        ("gradient_clip_val", widgets.BoundedFloatText, 0.5),
        ("gradient_clip_val", widgets.BoundedFloatText, None),
        ("weight_decay", widgets.Text, 0.01),
        ("max_epochs", widgets.Text, 3),
        ("track_grad_norm", widgets.Text, "inf"),
        ("track_grad_norm", widgets.Text, None),
    ],
)
def test_the_control_fits_the_type_and_speaks_the_settings_values(name: str, kind: type, value: Any) -> None:
    control = controls.make(name, Settings.model_fields[name].default)
    assert isinstance(control.widget, kind)
    control.write(value)
    assert control.read() == value
    assert getattr(Settings.make(**{name: control.read()}), name) == value


def test_bounds_come_from_the_field() -> None:
    box = controls.make("batch_size", 32).widget
    assert box.min == 1
    assert controls.shape("gradient_clip_val").low == 0


def test_a_word_that_is_no_value_is_left_to_settings_to_explain() -> None:
    control = controls.make("weight_decay", None)
    control.widget.value = "plenty"
    assert control.read() == "plenty"
    with pytest.raises(ValueError, match="weight_decay='plenty'"):
        Settings.make(weight_decay=control.read())


def test_the_form_has_all_but_the_headers_four_in_their_groups() -> None:
    names = [name for group in grouped().values() for name in group]
    assert sorted([*names, *HEADER]) == sorted(Settings.model_fields)
    for group, members in grouped().items():
        assert all(knob(name).group == group for name in members)
    form = Form(Settings.make(), lambda name, value: None)
    assert form.accordion.selected_index is None, "collapsed"
    assert len(form.accordion.children) == len(form.accordion.titles) == len(grouped())


def test_an_edit_is_told_and_showing_settings_is_not() -> None:
    told: list[tuple[str, Any]] = []
    form = Form(Settings.make(), lambda name, value: told.append((name, value)))
    form.show(Settings.make(num_workers=4, shuffle=False, weight_decay=0.1, pin_memory=False))
    assert told == []
    assert form.controls["num_workers"].read() == 4
    form.controls["num_workers"].widget.value = 2
    form.controls["weight_decay"].widget.value = ""
    assert told == [("num_workers", 2), ("weight_decay", None)]
