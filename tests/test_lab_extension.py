"""The unit tests of the JupyterLab extension (extensions/jupyterlab/tests), by node's own runner."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import hatch_build

FOLDER = Path(__file__).resolve().parents[1] / hatch_build.LAB.sources


def test_the_unit_tests_of_the_extension() -> None:
    if not (FOLDER / "node_modules").is_dir():
        pytest.skip("the JupyterLab extension is not built here (make live)")
    command, node = hatch_build.node()
    env = os.environ | {"PATH": os.pathsep.join([node, os.environ["PATH"]])}
    done = subprocess.run([*command, "run", "test"], cwd=FOLDER, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
