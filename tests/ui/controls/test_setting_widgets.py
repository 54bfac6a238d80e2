"""The ipywidgets that a notebook shows among its own: linked with the settings both ways."""

from __future__ import annotations

from pathlib import Path

import ipywidgets as widgets
import pytest
import torch
from ipywidgets.widgets.widget import _instances
from torch import nn

import workbench as wb
from tests.ui.fakes import FakeBench
from workbench.settings import Settings, SettingsError
from workbench.ui.controls.setting_widgets import SettingWidgets


def test_a_widget_and_its_setting_follow_each_other() -> None:
    bench = FakeBench(lr=1e-3)
    controls = SettingWidgets(bench)
    lr, optimizer = controls["lr"], controls["optimizer"]
    assert isinstance(lr, widgets.FloatText)
    assert controls["lr"] is lr
    lr.value = 0.02
    assert bench.settings.lr == 0.02
    bench.set(lr=0.3, optimizer="muon")
    assert (lr.value, optimizer.value) == (0.3, "muon")
    slider = widgets.FloatLogSlider(min=-5, max=0)
    widgets.link((lr, "value"), (slider, "value"))
    slider.value = 0.01
    assert bench.settings.lr == 0.01
    optimizer.value = ""
    assert bench.settings.optimizer is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lr", widgets.FloatText),
        ("batch_size", widgets.IntText),
        ("shuffle", widgets.Checkbox),
        ("precision", widgets.Dropdown),
        ("pin_memory", widgets.Dropdown),
        ("max_epochs", widgets.Text),
    ],
)
def test_the_widget_fits_the_type(name: str, kind: type) -> None:
    assert type(SettingWidgets(FakeBench())[name]) is kind


@pytest.mark.parametrize("name", Settings.model_fields)
def test_each_setting_has_a_widget_that_changes_nothing(name: str) -> None:
    bench = FakeBench()
    before = bench.settings
    assert SettingWidgets(bench)[name].description == name
    assert bench.settings is before


def test_a_refused_value_stays_with_its_reason_until_it_is_corrected() -> None:
    bench = FakeBench(batch_size=32)
    box = SettingWidgets(bench)["batch_size"]
    box.value = -5
    assert (box.value, bench.settings.batch_size) == (-5, 32)
    assert box.description == "batch_size: should be at least 1"
    box.value = 32
    assert box.description == "batch_size"
    box.value = -5
    bench.set(batch_size=64)
    assert (box.value, box.description) == (64, "batch_size")


def test_a_misspelt_setting_is_named() -> None:
    with pytest.raises(SettingsError, match=r"lr_scedule.*lr_schedule"):
        SettingWidgets(FakeBench())["lr_scedule"]


def test_a_closed_bench_closes_them(tmp_path: Path) -> None:
    before = set(_instances)
    data = (torch.zeros(8, 2), torch.zeros(8, 1))
    bench = wb.Workbench(nn.Linear(2, 1), train=data, loss=nn.functional.mse_loss, root=tmp_path)
    box = bench.controls["lr"]
    box.value = 0.5
    assert bench.settings.lr == 0.5
    assert bench.controls["lr"] is box
    bench.close()
    assert set(_instances) <= before
