"""`bench.scaling`: the best rate at several sizes, the law through them and its predictions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.tuners.transfer.test_coordinates import bench, build
from workbench.settings import SettingsError
from workbench.tuners.transfer import scaling
from workbench.tuners.transfer.scaling import Scaling, SizeRates


def law_of(best: Any, sizes: dict[str, list[int]], first: float = 1e-2) -> Scaling:
    """What is found where a seed's loss is a parabola of log lr around best(size, seed)."""
    measured = []
    for size in scaling.star(sizes):
        found = scaling.search(
            lambda lr, at=size: [math.log(lr / best(at, seed)) ** 2 for seed in range(3)], first
        )
        measured.append(SizeRates(size, found.losses, found.lr, found.of_seeds))
    return Scaling(tuple(measured))


def test_a_power_law_is_found_and_goes_on() -> None:
    law = law_of(
        lambda size, seed: 3.0 / size["width"] * math.sqrt(size["batch_size"]),
        {"width": [64, 128, 256], "batch_size": [16, 32, 64], "length": [300]},
    )
    assert law.varied == ("width", "batch_size")
    assert law.exponents["width"][0] == pytest.approx(-1.0)
    assert law.exponents["batch_size"][0] == pytest.approx(0.5)
    predicted = law.predict(width=1024, batch_size=128)
    assert predicted.lr == pytest.approx(3.0 / 1024 * math.sqrt(128))
    assert predicted.low < predicted.lr < predicted.high
    assert law.predict(width=512).lr == pytest.approx(3.0 / 512 * math.sqrt(32))
    assert "lr ~ width^-1.00" in repr(law)
    assert len(law._charts()) == 3


def test_seeds_that_differ_widen_the_range() -> None:
    sizes = {"width": [64, 128, 256], "length": [300]}
    near = law_of(lambda size, seed: 1 / size["width"] * 1.1**seed, sizes).predict(width=512)
    far = law_of(lambda size, seed: 1 / size["width"] * 1.5**seed, sizes).predict(width=512)
    assert far.high / far.low > 2 * near.high / near.low
    assert far.low < 1.5 / 512 < far.high


def test_rates_that_break_the_training_are_left_behind() -> None:
    def losses_at(lr: float) -> list[float]:
        return [math.inf if lr > 0.011 else abs(math.log(lr / 1e-3))]

    found = scaling.search(losses_at, 1.0)
    assert found.best_of_grid == pytest.approx(1e-3, rel=0.5)
    assert 5e-4 < found.lr < 2e-3
    with pytest.raises(SettingsError, match="no loss is finite at any rate"):
        scaling.search(lambda lr: [math.inf], 1.0)


def test_a_bench_measures_and_stays(tmp_path: Path) -> None:
    own = bench(tmp_path, wb.mup(build, base_width=8), lr=0.05)
    law = own.scaling(widths=[8, 12, 16], lengths=[5], seeds=1)
    assert {size.size["width"] for size in law.sizes} == {8, 12, 16}
    assert law.predict(width=32).lr > 0
    assert own.settings.lr == 0.05
    assert not own.jobs
    with pytest.raises(SettingsError, match="only length=5 was measured"):
        law.predict(length=10)
    with pytest.raises(SettingsError, match=r"predict\(depth=3\): give width, length"):
        law.predict(depth=3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "give at least 3 sizes of one kind"),
        ({"widths": [8, 16]}, "a law needs at least 3 sizes"),
        ({"batches": [8, 8, 8]}, "give at least 3 sizes"),
        ({"lengths": [10, 20, -1]}, "whole numbers above 0"),
        ({"widths": [8, 12, 16], "seeds": 0}, "seeds=0"),
    ],
)
def test_too_few_sizes_are_named(tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        bench(tmp_path, build).scaling(**arguments)
