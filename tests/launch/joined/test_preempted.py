"""A job that a scheduler stops and submits again ends as one that nothing has disturbed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import count
from tests.launch.joined.test_joined import HERE, STARTS_TWO, environment
from tests.waiting import wait_for
from workbench.events import Resumed
from workbench.runs.read import list_runs
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("forked_ranks")


def start(launcher: Sequence[str], folder: Path, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *launcher, str(HERE / "preempted.py")],
        cwd=folder,
        env=environment() | variables,
        stdout=(folder / "output.log").open("ab"),
        stderr=subprocess.STDOUT,
    )


def updates(root: Path) -> int:
    """How many updates the newest run has recorded."""
    runs = list_runs(root)
    return runs[-1].step if runs else 0


@pytest.mark.parametrize(
    ("launcher", "length"),
    [
        pytest.param((), 200, id="one process"),
        pytest.param(STARTS_TWO, 104, id="two ranks"),
    ],
)
def test_it_ends_with_the_losses_of_an_undisturbed_one(
    launcher: Sequence[str], length: int, tmp_path: Path
) -> None:
    folders = tmp_path / "calm", tmp_path / "disturbed"
    for folder in folders:
        folder.mkdir()
    calm = start(launcher, folders[0])
    draw, root, kills = random.Random(0), folders[1] / ".workbench", count(2, 5)
    for number in range(kills):
        wanted = length * (number + draw.random()) / (kills + 1)
        job = start(launcher, folders[1])
        wait_for(lambda job=job, wanted=wanted: updates(root) > wanted or job.poll() is not None)
        # a number for each signal: schedulers send either
        job.send_signal(signal.SIGTERM if launcher or number % 2 else signal.SIGUSR1)
        assert job.wait(60) != 0
        assert list_runs(root)[-1].status == "stopped"
    assert start(launcher, folders[1]).wait(120) == 0, (folders[1] / "output.log").read_text()
    assert calm.wait(120) == 0
    losses = [json.loads((folder / "rank0.json").read_text()) for folder in folders]
    assert len(losses[0]) == length
    assert losses[1] == losses[0]
    assert [run.status for run in list_runs(root)] == ["stopped"] * kills + ["finished"]


def test_ranks_that_torchrun_starts_again_go_on(tmp_path: Path) -> None:
    job = start([*STARTS_TWO, "--max-restarts", "1"], tmp_path, DIES_AT_FIRST="1")
    assert job.wait(120) == 0, (tmp_path / "output.log").read_text()
    runs = list_runs(tmp_path / ".workbench")
    # torchrun sends SIGTERM when rank 0 has lost the other one
    assert runs[0].status in ("failed", "stopped")
    assert runs[1].status == "finished"
    assert runs[1].header["fingerprint"] == runs[0].header["fingerprint"]
    assert len(json.loads((tmp_path / "rank1.json").read_text())) == runs[1].step == 104
    events = Run.open(runs[1].path).events
    assert [event.run for event in events if isinstance(event, Resumed)] == [runs[0].id]
