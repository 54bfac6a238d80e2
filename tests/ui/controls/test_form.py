"""Controls follow the Settings metadata, whatever fields come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
import pytest

from workbench.settings import Settings, SettingsError, metadata_of, reason
from workbench.ui.controls import setting_control
from workbench.ui.controls.form import HEADER, Form, grouped
from workbench.ui.controls.setting_control import SettingControls
from workbench.values import EarlyStopping


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_a_control_that_shows_its_default_and_gives_it_back(name: str) -> None:
    default = Settings.model_fields[name].default
    control = setting_control.make(name, default)
    assert control.read() == default
    assert Settings.model_fields[name].description in control.widget.tooltip


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("lr", widgets.Text, 0.02),
        ("batch_size", widgets.Text, 48),
        ("shuffle", widgets.Checkbox, False),
        ("gradient_clip_algorithm", widgets.Dropdown, "value"),
        ("pin_memory", widgets.Dropdown, True),
        ("pin_memory", widgets.Dropdown, None),
        ("gradient_clip_val", widgets.Text, 0.5),
        ("gradient_clip_val", widgets.Text, None),
        ("weight_decay", widgets.Text, 0.01),
        ("max_epochs", widgets.Text, 3),
        ("track_grad_norm", widgets.Text, "inf"),
        ("track_grad_norm", widgets.Text, None),
        ("save_top_k", widgets.Text, -1),
        ("monitor_mode", widgets.Dropdown, "max"),
        ("monitor_mode", widgets.Dropdown, None),
        ("strategy", widgets.Dropdown, "pool"),
        ("num_nodes", widgets.Text, 2),
        ("rank_timeout", widgets.Text, 30.0),
        ("preload", widgets.Checkbox, True),
        ("devices", widgets.Text, (0, 2)),
    ],
)
def test_the_control_fits_the_type_and_speaks_the_settings_values(
    name: str, kind: type, value: Any
) -> None:
    control = setting_control.make(name, Settings.model_fields[name].default)
    assert isinstance(control.widget, kind)
    control.write(value)
    assert control.read() == value
    assert getattr(Settings.make(**{name: control.read()}), name) == value


def form_of(edited: Callable[[str, Any], str]) -> tuple[Form, SettingControls]:
    controls = SettingControls(Settings.make(), edited, lambda: None)
    return Form(controls, {}), controls


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("batch_size", "1.5"), ("batch_size", "0"), ("batch_size", "-5"), ("batch_size", "many"), ("lr", "1e9"), ("lr", "-1"), ("lr", "nan"),
        ("gradient_clip_val", "-3"), ("max_epochs", "-2"), ("max_epochs", "2.5"), ("seed", "-1"), ("monitor", "[val_loss"), ("devices", "two"),
    ],
)  # fmt: skip
def test_what_is_refused_stays_as_it_was_typed_with_the_reason_below(name: str, typed: str) -> None:
    def edited(name: str, value: Any) -> str:
        try:
            Settings.make(**{name: value})
        except SettingsError as error:
            return reason(name, value, error)
        return ""

    controls = SettingControls(Settings.make(), edited, lambda: None)
    control = controls[name]
    row = widgets.Box([control.widget])
    control.stands_in(row)
    control.widget.value = typed
    controls.show(Settings.make(num_workers=2))
    assert control.widget.value == typed
    assert controls.refused == [name]
    assert "wb-refused" in control.widget._dom_classes
    assert "hould " in row.children[-1].value
    controls.show(
        Settings.make(**{name: {"max_epochs": 3, "monitor": "val_acc", "devices": 2}.get(name, 1)})
    )
    assert controls.refused == [], "changed elsewhere, it gives way"
    assert "wb-refused" not in control.widget._dom_classes
    assert row.children[-1].layout.display == "none"


def test_a_number_is_read_as_it_is_written() -> None:
    set_to: list[Any] = []
    controls = SettingControls(
        Settings.make(), lambda name, value: set_to.append(value) or "", lambda: None
    )
    controls["batch_size"].widget.value = "1e3"
    controls.show(Settings.make(batch_size=1000))
    assert (set_to, controls["batch_size"].widget.value) == ([1000], "1e3"), (
        "a valid text is not rewritten either"
    )


def test_a_word_that_is_no_value_is_left_to_settings_to_explain() -> None:
    control = setting_control.make("weight_decay", None)
    control.widget.value = "plenty"
    assert control.read() == "plenty"
    with pytest.raises(ValueError, match="weight_decay='plenty'"):
        Settings.make(weight_decay=control.read())


def test_the_form_has_all_but_the_headers_four_in_their_groups() -> None:
    names = [name for group in grouped().values() for name in group]
    assert sorted([*names, *HEADER]) == sorted(Settings.model_fields)
    for group, members in grouped().items():
        assert all(metadata_of(name).group == group for name in members)
    form, _ = form_of(lambda name, value: "")
    assert form.accordion.selected_index is None, "collapsed"
    assert len(form.accordion.children) == len(form.accordion.titles) == len(grouped())


def test_an_edit_is_told_and_showing_settings_is_not() -> None:
    told: list[tuple[str, Any]] = []
    form, controls = form_of(lambda name, value: told.append((name, value)) or "")
    controls.show(Settings.make(num_workers=4, shuffle=False, weight_decay=0.1, pin_memory=False))
    assert told == []
    assert form.controls["num_workers"].read() == 4
    form.controls["num_workers"].widget.value = "2"
    form.controls["weight_decay"].widget.value = ""
    assert told == [("num_workers", 2), ("weight_decay", None)]


WRITTEN: list[tuple[str, str, Any]] = [
    ("limit_train_batches", "1", 1),
    ("limit_train_batches", "1.0", 1.0),
    ("limit_val_batches", "off", 0),
    ("overfit_batches", "0.25", 0.25),
    ("overfit_batches", "off", 0),
    ("warmup", "500", 500),
    ("warmup", "0.1", 0.1),
    ("warmup", "off", 0),
    ("swa_epoch_start", "1", 1),
    ("swa_epoch_start", "1.0", 1.0),
    ("val_check_interval", "500", 500),
    ("val_check_interval", "0.25", 0.25),
    ("val_check_interval", "00:00:10:00", "00:00:10:00"),
    ("max_time", "00:01:30:00", "00:01:30:00"),
    ("max_time", "{'minutes': 90}", "00:01:30:00"),
    ("max_time", "timedelta(minutes=90)", "00:01:30:00"),
    ("max_time", "none", None),
    ("accumulate_grad_batches", "4", 4),
    ("accumulate_grad_batches", "{0: 8, 4: 4}", {0: 8, 4: 4}),
    ("find_lr_at", "0, 5, 10", (0, 5, 10)),
    ("find_lr_at", "{10, 0, 5}", (0, 5, 10)),
    ("find_batch_size_at", "5", (5,)),
    ("find_batch_size_at", "none", ()),
    ("compile", "yes", True),
    ("compile", "off", False),
    ("compile", "inductor", "inductor"),
    ("truncated_bptt_steps", "32", 32),
    ("swa_lrs", "1e-3", 1e-3),
    ("checkpoint_every", "500", 500),
    ("checkpoint_every", "00:00:10:00", "00:00:10:00"),
    ("checkpoint_every", "{'minutes': 10}", "00:00:10:00"),
    ("checkpoint_every", "off", None),
    ("monitor", "val_accuracy", "val_accuracy"),
    ("monitor", "val/acc", "val/acc"),
    ("monitor", "none", None),
    ("devices", "2", 2),
    ("devices", "auto", "auto"),
    ("devices", "0, 2", (0, 2)),
    ("devices", "[0, 2]", (0, 2)),
    ("devices", "[1]", (1,)),
    ("launch", "{'config_file': 'two.yaml'}", {"config_file": "two.yaml"}),
    ("launch", "none", None),
    ("early_stopping", "val_loss", (EarlyStopping(monitor="val_loss"),)),
    ("early_stopping", "{'monitor': 'val_loss', 'patience': 5}", (EarlyStopping(monitor="val_loss", patience=5),)),
    ("early_stopping", "wb.EarlyStopping(monitor='f1', mode='max')", (EarlyStopping(monitor="f1", mode="max"),)),
    ("early_stopping", "val_loss, f1", (EarlyStopping(monitor="val_loss"), EarlyStopping(monitor="f1"))),
    ("early_stopping", "['val_loss', {'monitor': 'f1', 'mode': 'max'}]",
     (EarlyStopping(monitor="val_loss"), EarlyStopping(monitor="f1", mode="max"))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "typed", "value"), WRITTEN)
def test_what_is_typed_is_understood_and_shown_back_as_the_same(
    name: str, typed: str, value: Any
) -> None:
    control = setting_control.make(name, Settings.model_fields[name].default)
    control.widget.value = typed
    assert control.read() == value
    assert type(control.read()) is type(value)
    again = setting_control.make(name, control.read())
    assert again.read() == value
    assert type(again.read()) is type(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("val_loss", "val_loss"),
        (
            {"monitor": "val_loss", "patience": 5, "mode": "min"},
            "{'monitor': 'val_loss', 'patience': 5}",
        ),
        (["a", {"monitor": "b", "mode": "max"}], "['a', {'monitor': 'b', 'mode': 'max'}]"),
        (None, ""),
    ],
)
def test_early_stopping_is_shown_without_what_is_understood(value: Any, shown: str) -> None:
    control = setting_control.make(
        "early_stopping", Settings.make(early_stopping=value).early_stopping
    )
    assert control.widget.value == shown


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("early_stopping", "{'monitor': 'val_loss'"),
        ("early_stopping", "EarlyStopping('val_loss')"),
        ("accumulate_grad_batches", "{0: 8"),
        ("accumulate_grad_batches", "off"),
        ("max_time", "90 minutes"),
        ("limit_train_batches", "1.5"),
        ("find_lr_at", "now and then"),
        ("compile", "[" * 5000),
        ("checkpoint_every", "0.5"),
        ("checkpoint_every", "now and then"),
        ("monitor", "[val_loss"),
        ("devices", "all of them"),
        ("devices", "0"),
        ("devices", "0.5"),
        ("devices", "[0, 2"),
        ("launch", "two.yaml"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(name: str, typed: str) -> None:
    control = setting_control.make(name, Settings.model_fields[name].default)
    control.widget.value = typed
    with pytest.raises(SettingsError, match=name):
        Settings.make(**{name: control.read()})


def test_a_count_of_one_and_the_whole_are_told_apart_all_the_way() -> None:
    told: list[tuple[str, Any]] = []
    form, controls = form_of(lambda name, value: told.append((name, value)) or "")
    box = form.controls["limit_train_batches"].widget
    assert box.value == ""
    assert box.placeholder == "all (1.0)"
    assert "fraction" in box.tooltip
    controls.show(Settings.make(limit_train_batches=1))
    assert box.value == "1"
    controls.show(Settings.make())
    assert box.value == ""
    assert told == []


def test_the_new_groups_are_there_in_order() -> None:
    titles = form_of(lambda name, value: "")[0].accordion.titles
    assert titles[4:8] == ("Early stopping", "Averaging", "Sequences", "Scheduled searches")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_steps", "no limit"),
        ("find_lr_at", "none, or 0, 5"),
        ("warmup", "off (0)"),
        ("overfit_batches", "off (0)"),
        ("limit_predict_batches", "all (1.0)"),
        ("val_check_interval", "each epoch (1.0)"),
        ("compile", "off"),
        ("swa_lrs", "as scheduled"),
        ("swa_epoch_start", "0.8"),
        ("checkpoint_every", "epochs 10 min apart"),
        ("monitor", "val_loss, if any"),
        ("devices", "auto, or 2, or [0, 2]"),
    ],
)
def test_an_empty_box_says_what_holds(name: str, words: str) -> None:
    assert (
        setting_control.make(name, Settings.model_fields[name].default).widget.placeholder == words
    )
