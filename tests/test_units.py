"""Rates as a person types them and as Python reads them, the same everywhere."""

from __future__ import annotations

from decimal import Context, localcontext

import numpy as np
import pytest

from workbench.launch.code_line import line
from workbench.settings import Settings
from workbench.settings.setting_text import typed
from workbench.ui.controls.setting_control import parse
from workbench.units import rate


@pytest.mark.parametrize(("value", "text"), [
    (3.2e-3, "3.2e-3"), (0.001, "1e-3"), (0.05, "0.05"), (0.01, "0.01"), (30.0, "30"), (5.64e-05, "5.64e-5"), (0.0, "0"), (-1e-3, "-1e-3"),
    (250.0, "2.5e2"), (1e-12, "1e-12"), (1 / 3, "0.333"), (float("inf"), "inf"),
])  # fmt: skip
def test_a_rate(value: float, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize("value", [0.0009999999, 1 / 3, 5e-324, 1.7e308, 0.1 + 0.2, 30.0])
def test_the_box_and_the_line_of_code_hold_all_digits(value: float) -> None:
    text = typed("lr", value)
    assert float(text) == value == parse("lr", text)
    assert line("set", {"lr": value}) == f"bench.set(lr={text})"


def test_the_context_of_the_users_decimals_has_no_effect() -> None:
    with localcontext(Context(prec=3)):
        assert rate(0.123456789, None) == "0.123456789"


def test_numbers_of_numpy_are_numbers_of_python_in_a_line_of_code() -> None:
    assert (
        line("set", {"ema_decay": np.float64(0.99), "lr": np.float64(3e-3)})
        == "bench.set(ema_decay=0.99, lr=3e-3)"
    )


def test_a_line_of_code_tells_a_fraction_from_a_count() -> None:
    assert (
        line("set", {"limit_train_batches": 1.0, "batch_size": 8})
        == "bench.set(limit_train_batches=1.0, batch_size=8)"
    )
    assert (
        typed("limit_train_batches", Settings.make(limit_train_batches=1.0).limit_train_batches)
        == "1.0"
    )
