"""Controls follow the Settings metadata, whatever fields come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workbench.settings import Settings, SettingsError, metadata_of, reason
from workbench.settings.setting_text import same
from workbench.ui.controls import setting_control
from workbench.ui.controls.form import HEADER, drawn_schedule, form, grouped
from workbench.ui.controls.setting_control import SettingControls
from workbench.values import EarlyStopping


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_a_control_that_shows_its_default_and_gives_it_back(name: str) -> None:
    default = Settings.model_fields[name].default
    control = setting_control.make(name, default)
    assert control.read() == default


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("lr", "text", 0.02),
        ("batch_size", "text", 48),
        ("shuffle", "tick", False),
        ("gradient_clip_algorithm", "choice", "value"),
        ("pin_memory", "choice", True),
        ("pin_memory", "choice", None),
        ("gradient_clip_val", "text", 0.5),
        ("gradient_clip_val", "text", None),
        ("weight_decay", "text", 0.01),
        ("max_epochs", "text", 3),
        ("track_grad_norm", "text", "inf"),
        ("track_grad_norm", "text", None),
        ("save_top_k", "text", -1),
        ("monitor_mode", "choice", "max"),
        ("monitor_mode", "choice", None),
        ("strategy", "choice", "pool"),
        ("num_nodes", "text", 2),
        ("rank_timeout", "text", 30.0),
        ("preload", "tick", True),
        ("devices", "text", (0, 2)),
    ],
)
def test_the_control_fits_the_type_and_speaks_the_settings_values(
    name: str, kind: str, value: Any
) -> None:
    control = setting_control.make(name, Settings.model_fields[name].default)
    tick_or_text = "tick" if isinstance(control.shown, bool) else "text"
    assert ("choice" if control.options else tick_or_text) == kind
    control.write(value)
    assert control.read() == value
    assert getattr(Settings.make(**{name: control.read()}), name) == value


def controls_of(
    edited: Callable[[str, Any], str], sent: dict[str, Any] | None = None
) -> SettingControls:
    put = ({} if sent is None else sent).__setitem__
    return SettingControls(Settings.make(), edited, lambda: None, put)


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

    sent: dict[str, Any] = {}
    controls = controls_of(edited, sent)
    controls.enter(name, typed)
    controls.show(Settings.make(num_workers=2))
    assert controls[name].shown == sent[f"field.{name}"]["shown"] == typed
    assert controls.refused == [name]
    assert "hould " in sent[f"field.{name}"]["why"]
    controls.show(
        Settings.make(**{name: {"max_epochs": 3, "monitor": "val_acc", "devices": 2}.get(name, 1)})
    )
    assert controls.refused == [], "changed elsewhere, it gives way"
    assert sent[f"field.{name}"]["why"] == ""


def test_a_number_is_read_as_it_is_written() -> None:
    set_to: list[Any] = []
    controls = controls_of(lambda name, value: set_to.append(value) or "")
    controls.enter("batch_size", "1e3")
    controls.show(Settings.make(batch_size=1000))
    assert (set_to, controls["batch_size"].shown) == ([1000], "1e3"), (
        "a valid text is not rewritten either"
    )


def test_a_rate_has_six_digits_in_its_box_and_keeps_its_own() -> None:
    sent: dict[str, Any] = {}
    set_to: list[Any] = []
    controls = controls_of(
        lambda name, value: set_to.append(value) or ("too low" if value < 0 else ""), sent
    )
    controls.show(Settings.make(lr=0.048892525, weight_decay=0.012345))
    assert sent["field.lr"]["shown"] == "0.0488925"
    assert sent["field.weight_decay"]["shown"] == "0.012345"
    for entered in ("-1", "0.0488925", "0.0489"):
        controls.enter("lr", entered)
    assert set_to == [-1, 0.048892525, 0.0489]


def test_a_word_that_is_no_value_is_left_to_settings_to_explain() -> None:
    control = setting_control.make("weight_decay", None)
    control.shown = "plenty"
    assert control.read() == "plenty"
    with pytest.raises(ValueError, match="weight_decay='plenty'"):
        Settings.make(weight_decay=control.read())


def test_the_form_has_all_but_the_headers_four_in_their_groups() -> None:
    names = [name for group in grouped().values() for name in group]
    assert sorted([*names, *HEADER]) == sorted(Settings.model_fields)
    for group, members in grouped().items():
        assert all(metadata_of(name).group == group for name in members)
    sections = form(controls_of(lambda name, value: ""))
    assert [section["group"] for section in sections] == [*grouped()]
    assert [one["name"] for section in sections for one in section["settings"]] == names


def test_an_edit_is_told_and_showing_settings_is_not() -> None:
    told: list[tuple[str, Any]] = []
    controls = controls_of(lambda name, value: told.append((name, value)) or "")
    controls.show(Settings.make(num_workers=4, shuffle=False, weight_decay=0.1, pin_memory=False))
    assert told == []
    assert controls["num_workers"].read() == 4
    controls.enter("num_workers", "2")
    controls.enter("weight_decay", "")
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
    control.shown = typed
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
    assert control.shown == shown


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
    control.shown = typed
    with pytest.raises(SettingsError, match=name):
        Settings.make(**{name: control.read()})


def test_a_count_of_one_and_the_whole_are_told_apart_all_the_way() -> None:
    told: list[tuple[str, Any]] = []
    controls = controls_of(lambda name, value: told.append((name, value)) or "")
    box = controls["limit_train_batches"]
    assert (box.shown, box.placeholder) == ("", "all (1.0)")
    controls.show(Settings.make(limit_train_batches=1))
    assert box.shown == "1"
    controls.show(Settings.make())
    assert box.shown == ""
    assert told == []


def test_the_new_groups_are_there_in_order() -> None:
    titles = [section["title"] for section in form(controls_of(lambda name, value: ""))]
    assert titles[4:8] == ["Early stopping", "Averaging", "Sequences", "Scheduled searches"]


def described() -> dict[str, dict[str, Any]]:
    """The settings of the form by their names."""
    sections = form(controls_of(lambda name, value: ""))
    return {one["name"]: one for section in sections for one in section["settings"]}


@pytest.mark.parametrize("name", [name for group in grouped().values() for name in group])
def test_units_and_help_are_in_the_page(name: str) -> None:
    assert Settings.model_fields[name].description in described()[name]["help"]
    assert described()[name]["unit"] == metadata_of(name).unit


def test_a_count_or_a_fraction_is_explained() -> None:
    assert "with a point, like 1.0, is a fraction" in described()["limit_train_batches"]["help"]
    assert "with a point" not in described()["seed"]["help"]


@pytest.mark.parametrize("name", [name for group in grouped().values() for name in group])
def test_what_is_entered_for_the_default_is_the_default(name: str) -> None:
    control = setting_control.make(name, Settings.model_fields[name].default)
    default = Settings.model_fields[name].default
    assert same(control.means(described()[name]["default"]), default)


def test_what_differs_from_its_default_is_marked() -> None:
    sent: dict[str, Any] = {}
    controls = controls_of(lambda name, value: "", sent)
    controls.show(Settings.make(seed=7, max_epochs=3))
    assert [name for name, field in sent.items() if field["changed"]] == [
        "field.max_epochs",
        "field.seed",
    ]


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
    assert setting_control.make(name, Settings.model_fields[name].default).placeholder == words


def test_a_schedule_is_drawn_for_the_length_that_is_known() -> None:
    assert drawn_schedule(Settings())["line"] == []
    falls = drawn_schedule(Settings.make(lr_schedule="linear"))
    assert falls["line"] == sorted(falls["line"], reverse=True)
    assert (falls["line"][0], falls["line"][-1]) == (99, 0)
    assert "updates" not in falls["words"]  # the same at each length
    rises = {"warmup": 200, "lr_schedule": "cosine"}
    assert "2,000 updates" in drawn_schedule(Settings.make(**rises))["words"]
    assert "500 updates" in drawn_schedule(Settings.make(**rises, max_steps=500))["words"]
    assert drawn_schedule(Settings.make(**rises, max_steps=100))["line"] == []  # a fit refuses it
    assert drawn_schedule(Settings.make(warmup=200), own_schedule=True)["line"] == []
