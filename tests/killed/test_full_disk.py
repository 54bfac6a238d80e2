"""A disk that is full, or turns read-only, or is shared: training goes on, says so, and nothing saved before is lost."""

import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled
from tests.killed.test_resume_after_kill import begin, end, live
from workbench.events import Message, RunEnded, StepsDone, pack
from workbench.runs.checkpoints import list_checkpoints
from workbench.runs.read import list_runs
from workbench.runs.run import Run
from workbench.runs.store import RunFolder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def disk(tmp_path):
    """A file system of 700 kB of its own."""
    folder = tmp_path / "a small 'disk'"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 900), nn.Tanh(), nn.Linear(900, 3))


def bench(root, **settings):
    return wb.Workbench(
        wide(), train=labelled(), val=labelled(20), loss=F.cross_entropy, root=root, accelerator="cpu", batch_size=8,
        max_epochs=3, lr=0.01, **settings,
    )  # fmt: skip


def told(run):
    return [
        event.text
        for event in run.events
        if type(event).__name__ == "Message" and event.level == "warning"
    ]


def test_a_full_disk_keeps_training_and_every_earlier_checkpoint(disk, tmp_path):
    with bench(tmp_path / "whole") as b:
        whole = b.fit().result()
    with bench(disk, checkpoint_every=1, save_top_k=-1, val_check_interval=1) as b:
        job = b.fit()
        run = job.result()
        assert run.status == "finished"
        np.testing.assert_array_equal(run.history["loss"], whole.history["loss"])
        assert any("checkpoint" in text and "space" in text for text in told(run))
        assert len(told(run)) <= 3  # it is said, and not at every update
    folder = disk / "runs" / job.id
    kept = list_checkpoints(folder)
    assert 1 < len(kept) < run.step
    assert [one.resumable for one in kept] == [True] * len(kept)
    left = [path.name for path in (folder / "checkpoints").iterdir() if path.name.startswith(".")]
    assert left == []
    # From the last that found room, on another disk's bench, the rest comes to the same end.
    (tmp_path / "other" / "runs").mkdir(parents=True)
    subprocess.run(["cp", "-r", str(folder), str(tmp_path / "other" / "runs")], check=True)
    with bench(tmp_path / "other") as b:
        on = b.fit(start=f"{job.id}@{kept[-1].step}").result()
    known = len(on.history["loss"])
    assert known >= whole.step - kept[-1].step
    np.testing.assert_array_equal(on.history["loss"][-known:], whole.history["loss"][-known:])


def fill(disk):
    """Leave no byte; what makes room again."""
    rest = disk / "filled"
    with rest.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    return rest


@pytest.mark.parametrize("frees", [True, False])
def test_a_failed_append_does_not_end_the_record(disk, frees):
    filled = []

    def listen(event):
        if type(event).__name__ == "StepsDone" and event.step >= 20 and not filled:
            filled.append(fill(disk))
        if type(event).__name__ == "Validated" and event.epoch == 8 and filled and frees:
            filled[0].unlink(missing_ok=True)

    with bench(disk, listeners=[listen], save_top_k=0, track_grad_norm=None) as b:
        job = b.fit(max_epochs=12)
        run = job.result()
    assert run.status == "finished"
    there = Run.open(disk / "runs" / job.id)
    assert there.status == "finished"
    assert there.metrics["val_loss"] == run.metrics["val_loss"]
    np.testing.assert_array_equal(
        run.history["loss"][: len(there.history["loss"])], there.history["loss"]
    )
    assert sum("cannot be written now" in text for text in told(run)) == 1
    lacks = [text for text in told(there) if "lacks" in text]
    if frees or len(there.history["loss"]) == run.step:
        np.testing.assert_array_equal(run.history["loss"], there.history["loss"])
        assert lacks == []
    else:
        assert f"to {run.step - 1}" in lacks[0]


def test_the_end_of_a_long_run_finds_room_on_a_disk_that_stays_full(disk):
    big = StepsDone(0, 1, 20_000, 0, 1.0, {"loss": pack(np.ones(20_000))})
    with RunFolder.create(disk, "a", {"kind": "fit"}) as folder:
        folder.append(big)
        fill(disk)
        for at in range(20_000, 100_000, 20_000):
            with pytest.raises(OSError):
                folder.append(replace(big, step=at))
        lacks = folder.catch_up(0.0)
        folder.append(Message(lacks))
        folder.append(RunEnded("finished", 100_000, 2.0))
    assert lacks == "the measurements of updates 20000 to 99999"
    assert Run.open(folder.path).status == "finished"
    assert list_runs(disk)[0].status == "finished"


def test_a_read_only_root_keeps_training_and_says_that_nothing_is_kept(disk, tmp_path):
    with bench(tmp_path / "whole") as b:
        whole = b.fit().result()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with bench(disk, checkpoint_every=2) as b:
        run = b.fit().result()
        assert run.status == "finished"
        np.testing.assert_array_equal(run.history["loss"], whole.history["loss"])
        assert any("cannot be written" in text for text in told(run))
        assert run.checkpoints == []
        on = b.fit(start="continue", max_epochs=1).result()
    assert on.history["loss"][0] < whole.history["loss"][0]  # from the weights as they are
    assert any("weights" in getattr(event, "text", "") for event in on.events)


def test_a_checkpoint_folder_that_goes_away_in_the_middle(tmp_path):
    with bench(tmp_path / "whole") as b:
        whole = b.fit().result()
    moved = []

    def move(event):
        if type(event).__name__ == "Saved" and not moved:
            folder = next((tmp_path / "run" / "runs").glob("[!.]*")) / "checkpoints"
            moved.append(folder.rename(folder.with_name("away")))
            folder.write_text("in the way")

    with bench(tmp_path / "run", checkpoint_every=2, listeners=[move]) as b:
        run = b.fit().result()
    assert run.status == "finished"
    np.testing.assert_array_equal(run.history["loss"], whole.history["loss"])
    assert told(run)
    assert list(moved[0].glob("*/state.pt"))


def test_two_processes_on_one_root(tmp_path):
    assert live(tmp_path / "alone", "fresh") == 0
    root = tmp_path / 'one "root" for two'
    both = [begin(root, "fresh") for _ in range(2)]
    assert [end(process) for process in both] == [0, 0]
    (alone,), runs = list_runs(tmp_path / "alone"), list_runs(root)
    assert len({run.id for run in runs}) == 2
    for found in runs:
        one, other = Run.open(found.path), Run.open(alone.path)
        np.testing.assert_array_equal(one.history["loss"], other.history["loss"])
        assert [c.name for c in list_checkpoints(found.path)] == [
            c.name for c in list_checkpoints(alone.path)
        ]
