"""strategy='launch': the same job under `accelerate launch`, detached. Each start takes seconds, so each test shows much."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.engine.problems import bench, labelled, noisy_net, plain_net, sgd
from tests.launch.launched import ended, kernel, processes_of
from tests.waiting import wait_for
from workbench.events import Changed, Message, RunEnded, RunStarted, StatusChanged, StepsDone
from workbench.launch.accelerate.failure_files import LaunchError
from workbench.runs.run import Run

PYTHON = sys.executable
pytestmark = pytest.mark.usefixtures("one_thread", "forked_ranks")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with ended(tmp_path / "wb"):
        yield tmp_path / "wb"


def test_two_ranks_train_as_one_process_and_the_model_comes_home(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, heard = labelled(96), []
    model, twin = plain_net(), plain_net()
    parameters = list(model.parameters())

    class Counting(torch.nn.Module):  # of this function alone: it travels by value
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("largest", torch.zeros(()))
            self.calls = 0

        def forward(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.largest = output.detach().abs().max()
            print("loss of batch", self.calls)
            return F.cross_entropy(output, y)

    loss = Counting()
    settings = {"max_epochs": 2, "lr": 0.05, "accelerator": "cpu"}
    made = wb.Workbench(
        model,
        train=data,
        val=data,
        loss=loss,
        optimizer=sgd,
        root=root,
        listeners=[heard.append],
        **settings,
    )
    run = made.fit(strategy="launch", devices=2, batch_size=8).result()
    one = wb.Workbench(
        twin, train=data, val=data, loss=F.cross_entropy, optimizer=sgd, root=root, **settings
    )
    expected = one.fit(strategy="thread", batch_size=16).result()

    assert (run.status, run.step) == ("finished", 12)
    np.testing.assert_allclose(run.history["loss"], expected.history["loss"], rtol=1e-5)
    np.testing.assert_allclose(
        run.validation["val_loss"], expected.validation["val_loss"], rtol=1e-5
    )
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    for mine, other in zip(parameters, twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
    assert loss.largest > 0
    assert loss.calls > 12

    assert run.folder is not None
    assert run == Run.open(run.folder)
    assert (
        sum(isinstance(event, RunStarted) for event in heard)
        == sum(isinstance(event, RunEnded) for event in heard)
        == 1
    )
    assert sum(e.rows for e in heard if isinstance(e, StepsDone)) == 12
    header = json.loads((run.folder / "run.json").read_text())
    assert header["takes_commands"]
    assert header["pid"] != os.getpid()
    assert (run.folder / "output.log").read_text().count("loss of batch 1\n") == 2
    assert (run.folder / "checkpoints" / "start.safetensors").exists()
    assert not (run.folder / "launch").exists()  # no code lies about
    wait_for(lambda: not processes_of(run.folder))

    # Here alone Python itself starts the launcher and its worker, which import all that they need.
    monkeypatch.setattr(sys, "executable", PYTHON)
    monkeypatch.delenv("PYTHON_EXEC")
    # its settings go on too: it is launched
    again = made.fit(start=run.id, max_epochs=3, devices=1, batch_size=8).result()
    assert again.step == 12 + 12
    assert again.resumes[0].run == run.id
    assert again == Run.open(again.folder)


SLOW = """
import sys, time, torch, workbench as wb
from torch.nn import functional as F

def loss(output, y):
    time.sleep(0.02)
    return F.cross_entropy(output, y)

torch.manual_seed(0)
data = torch.randn(64, 6), torch.randint(0, 3, (64,))
bench = wb.Workbench(torch.nn.Linear(6, 3), train=data, loss=loss, root=sys.argv[1], accelerator="cpu", max_epochs=100_000)
job = bench.fit(strategy="launch", devices=int(sys.argv[2]), batch_size=8)
while not sum(type(e).__name__ == "StepsDone" for e in job.events):
    assert not job.done(), job.exception()
    time.sleep(0.05)
"""
CLOSES = SLOW + textwrap.dedent("""
    bench.close()
    assert job.done() and job.status == "running"
    try:
        job.result()
    except RuntimeError as error:
        assert "wb.attach('0001-fit')" in str(error), error
    else:
        raise AssertionError("there is no result yet")
    print("closed", flush=True)
""")
STAYS = SLOW + "print('runs', flush=True); time.sleep(600)"


def test_a_run_outlives_its_kernel_and_is_followed_and_commanded_from_another(root: Path) -> None:
    with kernel(STAYS, str(root), "2") as asked:
        assert asked.stdout.readline() == "runs\n"
    folder = root / "runs" / "0001-fit"
    assert asked.returncode == -9
    job = wb.attach("0001-fit", root)
    assert (job.kind, job.status, job.settings.batch_size) == ("fit", "running", 8)
    assert isinstance(job.events[0], RunStarted)
    assert job.events[0].device == "2 x cpu"
    job.change(lr=0.25)
    wait_for(lambda: any(isinstance(e, Changed) for e in job.events))
    job.pause()
    wait_for(lambda: job.status == "paused")
    assert wb.attach("0001-fit", root).status == "paused"  # it may be followed by many
    job.resume()
    wait_for(
        lambda: (
            [e.status for e in job.events if isinstance(e, StatusChanged)] == ["paused", "running"]
        )
    )
    (folder / "control" / "0.json").write_text('{"type": "Change", "values": {"batch_size": 4}}')
    (folder / "control" / "1.json").write_text("{")
    wait_for(lambda: sum(isinstance(e, Message) and e.level == "warning" for e in job.events) == 2)
    job.stop()
    run = job.result(200)
    assert run.status == "stopped"
    assert run == Run.open(folder) == Run.from_events(job.events, folder)
    assert [c.values for c in run.changes] == [{"lr": 0.25}]
    assert list(run.history["step"]) == list(range(run.step))
    assert run.checkpoints[-1].end
    assert run.checkpoints[-1].step == run.step
    wait_for(lambda: not processes_of(folder))
    fresh = bench(torch.nn.Linear(6, 3), labelled(16), root)
    fresh.load(run)  # the weights are where those of any run are


def test_a_closed_bench_lets_go_and_a_killed_rank_0_is_told(root: Path) -> None:
    with kernel(CLOSES, str(root), "1") as asked:
        assert asked.stdout.readline() == "closed\n"
        assert asked.wait(200) == 0  # nothing keeps it
    folder = root / "runs" / "0001-fit"
    job = wb.attach("0001-fit", root)
    assert job.status == "running"
    psutil.Process(json.loads((folder / "run.json").read_text())["pid"]).kill()
    with pytest.raises(LaunchError, match="0001-fit ended without ending the run"):
        job.result(200)
    assert job.status == "failed"
    assert wb.attach("0001-fit", root).status == Run.open(folder).status == "failed"


def test_the_error_of_one_rank_is_the_error_of_the_job(root: Path) -> None:
    class Spoilt(RuntimeError):
        """Of this function alone."""

    class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if os.environ.get("RANK") == "1" and index > 40:
                raise Spoilt(f"sample {index} is spoilt")
            return torch.zeros(6), index % 3

    made = bench(noisy_net(), Data(), root, shuffle=False, max_epochs=3)
    job = made.fit(strategy="launch", devices=2)
    with pytest.raises(Spoilt, match="is spoilt") as caught:
        job.result()
    assert "in rank 1 of 2" in caught.value.__notes__
    assert "in __getitem__" in str(caught.value.__cause__)
    assert job.folder is not None
    run = Run.open(job.folder.path)
    assert run.status == "failed"
    assert "is spoilt" in (run.error or "")
    told = [e.text for e in run.events if isinstance(e, Message) and e.level == "error"]
    assert len(told) == 1
    assert told[0].startswith("in rank 1 of 2")
    assert "in __getitem__" in told[0]
    assert "is spoilt" in (job.folder.path / "output.log").read_text()
    with pytest.raises(RuntimeError, match="is spoilt"):
        wb.attach(job.id, root).result()
    wait_for(lambda: not processes_of(job.folder.path))


def test_what_a_job_finds_comes_back_and_a_launcher_that_fails_is_quoted(root: Path) -> None:
    x = torch.randn(50, 6)
    made = bench(plain_net(), labelled(50), root)
    expected = made.predict(x).result()
    found = made.predict(x, strategy="launch", devices=2).result()
    assert len(found) == 7
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))

    job = made.fit(strategy="launch", devices=2, launch={"rdzv_backend": "pigeons"})
    with pytest.raises(LaunchError, match=r"(?s)output\.log ends with.*pigeons"):
        job.result()
    assert job.folder is not None
    run = Run.open(job.folder.path)
    assert run.status == "failed"
    assert "pigeons" in (run.error or "")
    assert not (job.folder.path / "launch").exists()
    assert made.fit(max_steps=2).result().step == 2  # the bench is as it was


@pytest.mark.slow  # a timeout of 12 s; the pool's is tested with fewer
def test_a_rank_that_hangs_ends_the_job_with_where_it_was(root: Path) -> None:
    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if os.environ.get("RANK") == "1":
            _sleeps_for_ever()
        return F.cross_entropy(output, y)

    def _sleeps_for_ever() -> None:
        time.sleep(1000)

    job = bench(plain_net(), labelled(64), root, loss=loss, rank_timeout=12.0).fit(
        strategy="launch", devices=2
    )
    with pytest.raises(
        TimeoutError, match=r"(?s)for 12 s \(rank_timeout\).*rank 1 was here:.*_sleeps_for_ever"
    ):
        job.result()
    assert job.folder is not None
    assert Run.open(job.folder.path).status == "failed"
    wait_for(lambda: not processes_of(job.folder.path))
