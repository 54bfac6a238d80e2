"""The script of a notebook, of any way of defining things, repeats its run to the last bit in a fresh process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import warm
from tests.combinations import every
from tests.export.export_running import Outcome, Runner
from tests.export.notebooks import NOTEBOOKS
from workbench.runs.run import Run

HEADLESS = "a DataModule"
RUNNER = Path(__file__).with_name("run_notebook.py")


def ran(name: str, folder: Path) -> dict[str, Any]:
    """What the notebook did in this folder, where its script is then."""
    (folder / "cells.json").write_text(json.dumps(NOTEBOOKS[name]))
    python = warm.python()
    # the script that the export verifies is forked, too
    environment = {**python.environment, "PYTHON_EXEC": str(python.executable)}
    cells = str(folder / "cells.json")
    done = python.run(str(RUNNER), cells, folder=folder, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    run: dict[str, Any] = torch.load(folder / "run.pt")
    return run


def compare(run: dict[str, Any], outcome: Outcome) -> None:
    assert np.array_equal(outcome.losses, run["loss"].numpy())
    assert run["weights"].keys() == outcome.weights.keys()
    assert all(torch.equal(value, outcome.weights[key]) for key, value in run["weights"].items())
    assert "Not the run's" not in outcome.said


@pytest.mark.parametrize("name", every(6, [name for name in NOTEBOOKS if name != HEADLESS]))
def test_its_script_repeats_the_run(name: str, runner: Runner, tmp_path: Path) -> None:
    run = ran(name, tmp_path)
    assert not run["notes"]
    runner.folder = tmp_path  # beside the files that it wrote
    compare(run, runner.run(tmp_path / "out" / "train.py"))


@pytest.mark.slow
def test_its_headless_script_repeats_the_run(tmp_path: Path) -> None:
    run = ran(HEADLESS, tmp_path)
    assert "objects that make their loaders" in run["notes"][0]
    empty = tmp_path / "empty"
    empty.mkdir()
    done = warm.python().run(str(tmp_path / "out" / "train.py"), folder=empty)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = empty.rglob("run.json")
    assert np.array_equal(Run.open(record.parent).history["loss"], run["loss"].numpy())
