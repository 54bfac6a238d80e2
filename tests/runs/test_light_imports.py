"""The light parts load neither torch nor a plotting library, not even through others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIGHT = [
    "workbench",
    "workbench.settings",
    "workbench.events",
    "workbench.commands",
    "workbench.runs",
    "workbench.runs.store",
    "workbench.runs.read",
    "workbench.runs.run",
    "workbench.plots",
    "workbench.plots.training.run",
    "workbench.plots.searches.batch_size",
    "workbench.plots.searches.lr_curve",
    "workbench.plots.drawing.plotly",
    "workbench.plots.drawing.matplotlib",
]
HEAVY = ["torch", "accelerate", "matplotlib", "plotly", "IPython", "ipywidgets"]


@pytest.mark.parametrize("name", LIGHT)
def test_importing_loads_nothing_heavy(name: str) -> None:
    code = f"import sys, {name}; print([m for m in {HEAVY} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_run_can_be_read_and_its_charts_made_without_torch(tmp_path: Path) -> None:
    code = """
import sys, pathlib
import workbench as wb
from workbench.events import RunEnded, RunStarted, StepsDone, pack
from workbench.runs.store import RunFolder
from workbench.runs.folder.ids import new_id
root = pathlib.Path(sys.argv[1])
with RunFolder.create(root, new_id(root, "fit"), {"kind": "fit"}) as folder:
    folder.append(RunStarted(folder.id, "fit", {}, "cpu"))
    folder.append(StepsDone(0, 1, 2, 0, 0.1, {"loss": pack([2, 1]), "lr": pack([1, 1])}))
    folder.append(RunEnded("finished", 2, 0.1))
run = wb.Run.open(folder.path)
run.charts(), repr(run), run._repr_html_(), run.history, run.settings
print([m for m in ("torch", "matplotlib", "plotly") if m in sys.modules])
"""
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"
