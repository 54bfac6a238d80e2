"""The unit tests of the JupyterLab extension (extensions/jupyterlab/tests), by node's own runner."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import hatch_build
from tests.server import front_end

FOLDER = Path(__file__).resolve().parents[2] / hatch_build.LAB.sources


def test_the_unit_tests_of_the_extension() -> None:
    if not (FOLDER / "node_modules").is_dir():
        pytest.skip("the JupyterLab extension is not built here (make live)")
    command, node = hatch_build.node()
    env = os.environ | {"PATH": os.pathsep.join([node, os.environ["PATH"]])}
    done = subprocess.run(
        [*command, "run", "test"], cwd=FOLDER, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_the_types_of_the_extension_are_held_against_what_the_server_sends() -> None:
    """By `make check`, on this file."""
    assert front_end.FILE.read_text(encoding="utf-8") == front_end.text(), (
        "run `python -m tests.server.front_end`"
    )
