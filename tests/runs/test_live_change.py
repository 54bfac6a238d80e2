"""What can change while a run trains."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.commands import Change
from workbench.runs.live_change import live_change
from workbench.settings import Settings, SettingsError


@pytest.mark.parametrize(("values", "checked"), [
    ({"lr": 0.01}, {"lr": 0.01}), ({"gradient_clip_val": None}, {"gradient_clip_val": None}), ({"track_update_ratio": True}, {"track_update_ratio": True}),
    ({"accumulate_grad_batches": 4}, {"accumulate_grad_batches": 4}),
])  # fmt: skip
def test_live_settings_become_a_command(values: dict[str, Any], checked: dict[str, Any]) -> None:
    assert live_change(Settings(), values) == Change(checked)


@pytest.mark.parametrize(("values", "said"), [
    ({}, "name a setting"), ({"max_epochs": 3}, "max_epochs cannot change while a run is running; these can: lr"), ({"lr": 0}, "lr=0"),
    ({"lr": -1}, "lr=-1"), ({"accumulate_grad_batches": {0: 2}}, "it can only change to one number"), ({"speed": 1}, "speed"),
])  # fmt: skip
def test_anything_else_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        live_change(Settings(), values)
