"""Scripts of the demo and of a file with postponed annotations name nothing that is undefined, and mypy finds no error."""

from __future__ import annotations

from pathlib import Path

from mypy import api

from tests.export.export_running import execute, lint, make_bench
from workbench import demo

ANNOTATED = """\
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import workbench as wb

if TYPE_CHECKING:
    import numpy.typing as npt

Batch = tuple[Tensor, Tensor]


class Net(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.activation, self.head = activation, nn.Linear(8, 3)

    def forward(self, x: Tensor, scale: npt.NDArray | None = None) -> Tensor:
        y: Tensor = self.head(self.activation(x))
        return y


def data() -> Batch:
    return torch.randn(30, 8), torch.randint(0, 3, (30,))


model = Net()
"""


def test_scripts_define_what_their_annotations_name(tmp_path: Path) -> None:
    with demo.make_bench(tmp_path / "demo") as bench:
        bench.fit(max_epochs=1).result()
        of_demo = bench.export(tmp_path / "of_demo.py")
    with make_bench(
        tmp_path,
        "model, train=data(), val=data(), loss=F.cross_entropy, max_epochs=1",
        prelude=ANNOTATED,
    ) as bench:
        bench.fit().result()
        script = bench.export(tmp_path / "train.py")
    for path in (of_demo, script):
        lint(path)
    names = execute(tmp_path / "copy.py", script.read_text().partition("if __name__ ==")[0])
    assert {"Callable", "Batch", "Tensor"} <= set(names)
    assert "npt" not in names, "only type checkers import it"
    # Packages are skipped: reading torch takes a minute, and accelerate and sklearn have no types.
    options = [
        "--config-file=",
        f"--cache-dir={tmp_path / 'cache'}",
        "--follow-imports=skip",
        "--ignore-missing-imports",
    ]
    found, error, _ = api.run([*options, str(of_demo), str(script)])
    assert found.startswith("Success"), found + error
