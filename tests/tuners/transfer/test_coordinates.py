"""`bench.coordinate_check`: sizes of outputs and of their changes by width, against a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled
from workbench.settings import SettingsError

pytestmark = pytest.mark.usefixtures("one_thread")
FEATURES = labelled()[0][0].numel()


def build(width: int = 8) -> nn.Module:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(FEATURES, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)),
    )


def bench(root: Path, model: Any, **settings: Any) -> wb.Workbench:
    usual = {"lr": 0.01, "batch_size": 8, "max_epochs": 1, "shuffle": False, "accelerator": "cpu"}
    return wb.Workbench(
        model, train=labelled(), loss=F.cross_entropy, root=root, **{**usual, **settings}
    )


def test_the_sizes_are_those_of_a_plain_loop_and_the_bench_stays(tmp_path: Path) -> None:
    own = bench(tmp_path, build)
    before = [p.clone() for p in own.model.parameters()]
    check = own.coordinate_check([8, 16], updates=2, seeds=1)
    for place, width in enumerate((8, 16)):
        torch.manual_seed(0)
        model = build(width)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        batches = [*torch.utils.data.DataLoader(labelled(), 8)]
        outputs = [model(batches[0][0]).detach().double()]
        for x, y in batches[:2]:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            outputs.append(model(batches[0][0]).detach().double())
        sizes = [float(output.abs().mean()) for output in outputs]
        changes = [float((output - outputs[0]).abs().mean()) for output in outputs[1:]]
        np.testing.assert_allclose(check.layers[-1].sizes[:, place], sizes, rtol=1e-12)
        np.testing.assert_allclose(check.layers[-1].changes[:, place], changes, rtol=1e-12)
    assert [layer.name for layer in check.layers] == ["1", "3", "5"]
    assert all(torch.equal(p, q) for p, q in zip(before, own.model.parameters(), strict=True))
    assert not own.jobs


def test_layers_that_grow_with_the_width_are_named_and_muP_has_none(tmp_path: Path) -> None:
    standard = bench(tmp_path, build).coordinate_check([16, 64, 256], updates=3)
    assert not standard.ok
    assert "grows as width^" in standard.off["5"]
    assert "5" in repr(standard)
    scaled = bench(tmp_path, wb.mup(build, base_width=16)).coordinate_check(
        [16, 64, 256], updates=3
    )
    assert scaled.ok, scaled
    assert "transfers" in repr(scaled)


@pytest.mark.parametrize(
    ("model", "arguments", "says"),
    [
        (build, {"widths": [8]}, r"widths=\[8\]: give at least two"),
        (build, {"widths": [8, 0]}, "above 0"),
        (build, {"widths": [8, 16], "updates": 0}, "updates=0: give a whole number"),
        (build, {"widths": [8, 16], "tolerance": -1}, "tolerance=-1"),
        (lambda size=8: build(size), {"widths": [8, 16]}, "no such parameter"),
        (build(), {"widths": [8, 16]}, "a model that is already made"),
    ],
)
def test_what_cannot_be_compared_is_named(
    tmp_path: Path, model: Any, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        bench(tmp_path, model).coordinate_check(**arguments)
