"""A run's schedule in a stretch, which is shorter than the run."""

import pytest

from workbench.settings import Settings
from workbench.tuners.stretch import shape


def test_the_run_ends_where_its_stretch_ends() -> None:
    falling = Settings.make(lr_schedule="inverse_sqrt", min_lr_ratio=0.4)
    factors = shape(falling, "inverse_sqrt", 5, planned=100_000)
    assert factors == pytest.approx([1, 3**-0.5, 5**-0.5, 0.4, 0.4])
    warmed = shape(falling, "inverse_sqrt", 5, 0.4, 100_000)
    assert warmed == pytest.approx([0.5, 1, 1, (2 / 3) ** 0.5, 0.5**0.5])
    assert shape(Settings.make(lr_schedule="linear"), "linear", 4) == [1, 0.75, 0.5, 0.25]
