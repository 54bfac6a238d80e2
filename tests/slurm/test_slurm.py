"""Files of `bench.launch_script`, and workers of studies, submitted to a real SLURM of one node: requeued, preempted, in arrays, by submitit."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from tests.conftest import count
from tests.export.export_running import execute
from tests.launch.joined.test_joined import environment
from tests.launch.joined.test_preempted import updates
from tests.slurm import cluster
from tests.waiting import wait_for
from workbench.runs.read import list_runs

pytestmark = pytest.mark.skipif(
    not cluster.installed(), reason="there is no SLURM here (apt-get install slurm-wlm)"
)
CELL = """
import time

import torch
from torch import nn

import workbench as wb

torch.manual_seed(0)


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))

    def forward(self, x):
        time.sleep(0.03)
        return self.layers(x)


x = torch.randn(120, 8)
y = (x[:, 0] * x[:, 1] > 0).long()
bench = wb.Workbench(
    Slow(), train=(x[:100], y[:100]), val=(x[100:], y[100:]), loss=nn.CrossEntropyLoss(), batch_size=5,
    accelerator="cpu", lr=1e-2, root=ROOT,
)
"""
UPDATES = 80
SPACE = {"lr": (1e-3, 0.3)}


class Slurm:
    """The commands of a SLURM."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.environment = environment() | variables

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Run a command; returns what it prints."""
        ended = subprocess.run(
            command,
            env=self.environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def submit(self, file: Path, *arguments: str) -> str:
        """Submit a job; returns its number."""
        return self.run("sbatch", "--parsable", str(file), *arguments, folder=file.parent)

    def start_again(self, job: str) -> None:
        """Wait until the job is back in the queue, and let it begin soon: a SLURM rejects the credential of a job
        that begins in the second of its requeue.
        """
        state = ("squeue", "--noheader", "--format=%T", "--job", job)
        wait_for(lambda: self.run(*state) == "PENDING")
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+2seconds")


def ended(root: Path, count: int) -> bool:
    """Whether there are so many runs, and none of them trains."""
    statuses = [run.status for run in list_runs(root)]
    return len(statuses) >= count and not {"running", "queued"} & set(statuses)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster.slurm(tmp_path_factory.mktemp("slurm")) as variables:
        yield Slurm(variables)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[wb.Workbench]:
    """The bench of a cell that has tried a few updates."""
    code = CELL.replace("ROOT", repr(str(tmp_path / "jobs" / "runs")))
    made: wb.Workbench = execute(tmp_path / "cell.py", code)["bench"]
    made.fit(max_steps=2).result()
    yield made
    made.close()


def near_its_limit(slurm: Slurm, job: str) -> None:
    """Send what SLURM sends before the end of a job's time."""
    slurm.run("scancel", "--batch", "--signal=USR1", job)


def requeued(slurm: Slurm, job: str) -> None:
    """Send the job back into the queue, as an administrator does."""
    slurm.run("scontrol", "requeue", job)


def preempted(slurm: Slurm, job: str) -> None:
    """Start a job of a partition with a higher priority on the same node."""
    slurm.run("srun", "--partition=urgent", "--exclusive", "true")


@pytest.mark.parametrize(
    "disturb",
    [
        near_its_limit,
        pytest.param(requeued, marks=pytest.mark.slow),
        pytest.param(preempted, marks=pytest.mark.slow),
    ],
)
def test_a_disturbed_job_ends_as_two_devices_of_the_notebook(
    disturb: Callable[[Slurm, str], None], slurm: Slurm, bench: wb.Workbench, tmp_path: Path
) -> None:
    root = tmp_path / "jobs" / "runs"
    file = bench.launch_script(tmp_path / "jobs" / "a job.sbatch", devices=2, time=10, verify=False)
    job = slurm.submit(file, "--max_steps", str(UPDATES))
    kills = count(1, 3)
    for number in range(1, kills + 1):
        wanted = UPDATES * number / 5
        wait_for(lambda wanted=wanted: updates(root) > wanted)
        disturb(slurm, job)
        slurm.start_again(job)
        wait_for(lambda number=number: len(list_runs(root)) > number + 1)
    wait_for(lambda: ended(root, kills + 2))
    first, *disturbed, last = bench.runs
    output = (file.parent / f"slurm-{job}.out").read_text()
    assert last.status == "finished", output
    assert [run.status for run in disturbed] == ["stopped"] * kills
    assert first.status == "finished"
    notebook = bench.fit(devices=2, max_steps=UPDATES).result()
    assert len(last.history["loss"]) == UPDATES
    assert np.allclose(last.history["loss"], notebook.history["loss"], rtol=1e-5)


def test_words_of_options_reach_the_scheduler_as_they_are(
    slurm: Slurm, bench: wb.Workbench, tmp_path: Path
) -> None:
    words = """it's "5 > 3" \\ $HOME `id` #1; a%b"""
    file = bench.launch_script(
        tmp_path / "job.sbatch", verify=False, comment=words, hold=True, requeue=False
    )
    shown = slurm.run("scontrol", "show", "job", slurm.submit(file))
    assert f"Comment={words}" in shown
    assert "Requeue=0" in shown or "requeue" not in file.read_text()


@pytest.mark.slow
def test_the_tasks_of_an_array_are_runs_of_their_own(
    slurm: Slurm, bench: wb.Workbench, tmp_path: Path
) -> None:
    script = bench.export(tmp_path / "train.py", format="workbench", verify=False)
    file = tmp_path / "array.sbatch"
    lines = [
        "#!/bin/sh",
        "#SBATCH --array=1-3",
        f"{sys.executable} {script.name} --seed $SLURM_ARRAY_TASK_ID",
    ]
    file.write_text("\n".join(lines) + "\n")
    slurm.submit(file)
    wait_for(lambda: ended(tmp_path / ".workbench", 3))
    runs = [wb.Run.open(run.path) for run in list_runs(tmp_path / ".workbench")]
    assert sorted(run.settings.seed for run in runs) == [1, 2, 3]
    assert {run.status for run in runs} == {"finished"}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", "slurm"])
def test_submitit_starts_the_same_script(
    where: str, slurm: Slurm, bench: wb.Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitit = pytest.importorskip("submitit")
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    bench.launch_script(tmp_path / "job.sbatch", verify=False)
    executor = submitit.AutoExecutor(tmp_path / "submitit", cluster=where)
    executor.update_parameters(timeout_min=5, tasks_per_node=1)
    train = submitit.helpers.CommandFunction([sys.executable, str(tmp_path / "job.py")])
    job = executor.submit(train)
    job.results()
    notebook, submitted = bench.runs
    assert submitted.status == "finished"
    assert np.allclose(submitted.history["loss"], notebook.history["loss"], rtol=1e-5)


def trained(study: wb.Study) -> bool:
    """Whether a worker has trained some updates of a trial."""
    pieces = [piece for trial in study.record.trials for piece in trial.pieces if piece.run]
    return any(run.step > 9 for run in study.runs if run.id in {piece.run for piece in pieces})


def work(study: wb.Study) -> list[str]:
    """The command of a worker."""
    root = str(study.path.parents[1])
    return [sys.executable, "-m", "workbench", "study", "work", study.id, "--root", root]


def values(study: wb.Study) -> list[tuple[object, float | None]]:
    """The values of each trial, and what its whole fit has reached."""
    record = study.record
    return [(trial.values, record.whole(trial)) for trial in record.trials]


@pytest.mark.slow
@pytest.mark.parametrize("disturb", [requeued, preempted])
def test_a_study_whose_workers_are_the_tasks_of_an_array(
    disturb: Callable[[Slurm, str], None], slurm: Slurm, bench: wb.Workbench, tmp_path: Path
) -> None:
    study = bench.study(SPACE, budget=2.4, workers=0, max_steps=UPDATES)
    file = tmp_path / "array.sbatch"
    lines = [
        "#!/bin/sh",
        "#SBATCH --array=0-1",
        "#SBATCH --requeue",
        f"exec {shlex.join(work(study))}",
    ]
    file.write_text("\n".join(lines) + "\n")
    task = f"{slurm.submit(file)}_0"
    wait_for(lambda: trained(study))
    disturb(slurm, task)
    slurm.start_again(task)
    wait_for(lambda: study.status == "ended")
    pieces = [piece for trial in study.record.trials for piece in trial.pieces]
    assert max(piece.generation for piece in pieces) > 1, study.table()
    quiet = bench.study(SPACE, budget=2.4, workers=2, max_steps=UPDATES)
    quiet.result()
    assert values(study) == values(quiet)
    assert study.record.spent == quiet.record.spent


@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", "slurm"])
def test_submitit_starts_workers_of_a_study(
    where: str, slurm: Slurm, bench: wb.Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitit = pytest.importorskip("submitit")
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    study = bench.study(SPACE, budget=2.4, workers=0, max_steps=UPDATES)
    executor = submitit.AutoExecutor(tmp_path / "submitit", cluster=where)
    executor.update_parameters(timeout_min=5, tasks_per_node=1)
    jobs = [executor.submit(submitit.helpers.CommandFunction(work(study))) for _ in range(2)]
    for job in jobs:
        job.results()
    assert study.status == "ended"
    for trial_values, value in values(study):
        assert bench.fit(max_steps=UPDATES, **trial_values).result().metrics["val_loss"] == value
