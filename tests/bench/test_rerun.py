"""`wb.rerun` repeats a fit of another process to the last bit, from what the fit kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests import warm
from tests.bench import rerun_cases
from workbench.events import Message
from workbench.launch.job import AnyJob

pytestmark = pytest.mark.filterwarnings("ignore:.* is repeated under other conditions")


def said(job: AnyJob) -> list[str]:
    return [event.text for event in job.events if isinstance(event, Message)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The root of runs that another process has made, and what it wrote about each."""
    folder = tmp_path_factory.mktemp("rerun")
    done = warm.python().run(rerun_cases.__file__, str(folder), folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "root", json.loads((folder / "runs.json").read_text())


@pytest.mark.parametrize("name", rerun_cases.CASES)
def test_another_process_repeats_it(name: str, recorded: tuple[Path, dict[str, Any]]) -> None:
    root, runs = recorded
    id, updates = runs[name]
    job = wb.rerun(id, root)
    again = job.result()
    assert again.step == updates
    assert said(job)[-1].startswith(f"repeats {id}: "), said(job)
