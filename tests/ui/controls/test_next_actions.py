"""What is offered next: words and values of a change that a running fit can take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.runs.tables.test_brief import events
from workbench.settings import Settings
from workbench.ui.controls.next_actions import differences, in_words, more_to_do

IN_RUN = {"lr": 1e-3, "gradient_clip_val": 1.0, "accumulate_grad_batches": 2}


def test_what_differs_is_offered_in_words() -> None:
    now = Settings.make(lr=3e-3, gradient_clip_val=None, accumulate_grad_batches=4)
    found = differences(now, IN_RUN)
    assert found == {"lr": 3e-3, "gradient_clip_val": None, "accumulate_grad_batches": 4}
    assert in_words(found) == "lr 3e-3, clip off, accumulation 4"


def test_what_is_the_same_is_not_offered_and_a_plan_is_no_value() -> None:
    assert (
        differences(Settings.make(lr=1e-3, gradient_clip_val=1, accumulate_grad_batches=2), IN_RUN)
        == {}
    )
    assert (
        differences(
            Settings.make(lr=1e-3, gradient_clip_val=1.0, accumulate_grad_batches={0: 2, 3: 8}),
            IN_RUN,
        )
        == {}
    )
    assert differences(Settings.make(lr=3e-3), {}) == {}  # nothing runs


@pytest.mark.parametrize(("then", "now", "offered"), [
    ({"max_epochs": 4}, {"max_epochs": 6}, {"max_epochs": 6}),
    ({"max_epochs": 4}, {"max_epochs": 4}, None),
    ({"max_epochs": 4}, {"max_epochs": 3}, None),  # it has had more
    ({"max_epochs": 4}, {"max_epochs": 4, "max_steps": 30}, None),
    ({"max_epochs": 9, "max_steps": 40}, {"max_epochs": 5, "max_steps": None}, {"max_epochs": 5, "max_steps": None}),
    ({"max_epochs": 9, "max_steps": 40}, {"max_epochs": 9, "max_steps": 40, "max_time": "00:00:01:00"}, None),
    ({"max_time": "00:00:00:04"}, {"max_time": "00:00:00:03"}, None),
    ({"max_time": "00:00:00:04"}, {"max_time": "00:00:01:00"}, {"max_time": "00:00:01:00"}),
])  # fmt: skip
def test_a_fit_that_came_to_its_end_goes_on_only_where_more_is_to_be_done(
    then: dict[str, Any], now: dict[str, Any], offered: dict[str, Any] | None
) -> None:
    """It took 40 updates in 4 seconds and was in its fourth epoch."""
    made = SimpleNamespace(
        kind="fit",
        status="finished",
        folder=None,
        events=events(40, **then),
        settings=Settings.make(**then),
    )
    assert more_to_do([made], Settings.make(**now)) == offered
