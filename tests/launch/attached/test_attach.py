"""`wb.attach` on runs that were not launched: those that are over, those of this process, those of a process that died."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F

import workbench as wb
from tests.engine.problems import bench, labelled, plain_net
from tests.runs.records import read_events
from tests.waiting import wait_for
from workbench.commands import Change, Checkpoint, Command, Mailbox, Pause, Stop
from workbench.events import Message, RunEnded, RunStarted, StepsDone, pack, to_line
from workbench.launch.accelerate import private_file
from workbench.launch.accelerate.failure_files import LaunchError
from workbench.runs.folder import control
from workbench.runs.store import RunFolder

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_finished_run_is_there_at_once(tmp_path: Path) -> None:
    made = bench(plain_net(), labelled(32), tmp_path, max_epochs=2)
    run = made.fit().result()
    job = wb.attach(run.id, tmp_path)
    assert job.done()
    assert (job.status, job.kind, job.updates) == ("finished", "fit", run.step)
    assert job.settings == made.jobs[0].settings
    assert job.result(0) == run
    assert [*map(to_line, job.events)] == [*map(to_line, made.jobs[0].events)]
    for late in (job.pause, job.stop):
        with pytest.raises(RuntimeError, match=f"too late: fit {run.id} has finished"):
            late()


def test_what_finders_and_checks_found(tmp_path: Path) -> None:
    data = labelled(32)
    made = wb.Workbench(
        plain_net(),
        train=data,
        val=data,
        loss=F.cross_entropy,
        root=tmp_path,
        accelerator="cpu",
        batch_size=8,
    )
    curve = made.find_lr(num_training=20)
    found = wb.attach(curve.id, tmp_path).result()
    assert found.suggestion == curve.result().suggestion
    assert list(found.losses) == list(curve.result().losses)
    scored = made.validate()
    assert wb.attach(scored.id, tmp_path).result() == scored.result()
    with pytest.raises(RuntimeError, match=r"pause\(\) is for fits"):
        wb.attach(scored.id, tmp_path).pause()


def test_a_run_of_a_version_that_takes_no_commands_says_where_it_can_be_asked(
    tmp_path: Path,
) -> None:
    header = {"kind": "fit", "host": "node7", "pid": 123}
    with RunFolder.create(tmp_path, "0001-fit", header) as folder:
        folder.append(RunStarted("0001-fit", "fit", {}, "cpu"))
        job = wb.attach("0001-fit", tmp_path)
        assert job.status == "running"
        for command in (
            job.stop,
            job.pause,
            job.resume,
            job.validate,
            job.checkpoint,
            lambda: job.change(lr=0.1),
        ):
            with pytest.raises(
                RuntimeError,
                match=r"does not reach 0001-fit: an older version.*Ask its own job, in process 123 on node7",
            ):
                command()
        assert not (folder.path / "control").exists()
        folder.append(RunEnded("stopped", 0, 0.5))
        assert job.wait(200)


def test_what_is_on_the_disk_is_there_at_once(tmp_path: Path) -> None:
    with RunFolder.create(
        tmp_path, "0001-fit", {"kind": "fit", "takes_commands": True, "settings": {}}
    ) as folder:
        assert wb.attach("0001-fit", tmp_path).events == []  # its processes start
        folder.append(RunStarted("0001-fit", "fit", {}, "cpu"))
        rows, losses = 50_000, pack([1.0] * 50_000)
        for number in range(30):  # more than is read at once
            folder.append(StepsDone(number * rows, rows, rows, 0, 1.0, {"loss": losses}))
        assert (folder.path / "metrics.jsonl").stat().st_size > 1 << 22
        job = wb.attach("0001-fit", tmp_path)
        assert len(job.events) == 31
        assert not job.done()
        folder.append(RunEnded("finished", 30 * rows, 1.0))
        assert job.wait(200)


def test_an_interrupt_of_a_wait_ends_the_wait_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunFolder.create(
        tmp_path, "0001-fit", {"kind": "fit", "takes_commands": True, "settings": {}}
    ) as folder:
        folder.append(RunStarted("0001-fit", "fit", {}, "cpu"))
        job = wb.attach("0001-fit", tmp_path)

        def interrupted(timeout: float | None) -> bool:
            raise KeyboardInterrupt

        monkeypatch.setattr(job, "_watch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job.wait()
        assert job.status == "running"
        job.stop()
        wait_for(lambda: list((folder.path / control.CONTROL).glob("[0-9]*.json")))
        assert list(control.take(folder.path)) == [Stop()]  # the one that was asked for
        folder.append(RunEnded("stopped", 0, 0.5))
        assert job._ended.wait(200)
        assert job.status == "stopped"


def test_what_is_asked_is_a_line_of_code_that_asks_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for root, words in ((".workbench", "'0001-fit'"), ("else where", "'0001-fit', 'else where'")):
        with RunFolder.create(
            Path(root), "0001-fit", {"kind": "fit", "takes_commands": True, "settings": {}}
        ) as folder:
            folder.append(RunStarted("0001-fit", "fit", {}, "cpu"))
            job = wb.attach("0001-fit", root)
            lines: list[str] = []
            job.on_request(lines.append)  # type: ignore[attr-defined]
            job.pause()
            job.change(lr=1e-4)
            assert lines == [f"wb.attach({words}).pause()", f"wb.attach({words}).change(lr=1e-4)"]
            wait_for(lambda: len(list((folder.path / control.CONTROL).glob("[0-9]*.json"))) == 2)
            # two jobs follow it then, and each leaves its command in its own time
            for there, line in enumerate(lines, 3):
                exec(line, {"wb": wb})
                wait_for(
                    lambda there=there: (
                        len(list((folder.path / control.CONTROL).glob("[0-9]*.json"))) == there
                    )
                )
            asked = list(control.take(folder.path))
            assert asked[:2] == asked[2:] == [Pause(), Change({"lr": 1e-4})]
            folder.append(RunEnded("stopped", 0, 0.5))
            assert job.wait(200)


def test_what_is_asked_as_the_run_ends_leaves_no_file_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end comes into the record while a command waits to be sent: nobody would read its file."""
    take = Mailbox.take

    def ends_first(inbox: Mailbox) -> Command | None:
        if inbox and len(read_events(folder.path)) == 1:
            inbox.put(Checkpoint())
            folder.append(RunEnded("finished", 3, 0.5))
        return take(inbox)

    with RunFolder.create(
        tmp_path, "0001-fit", {"kind": "fit", "takes_commands": True, "settings": {}}
    ) as folder:
        folder.append(RunStarted("0001-fit", "fit", {}, "cpu"))
        job = wb.attach("0001-fit", tmp_path)
        monkeypatch.setattr(Mailbox, "take", ends_first)
        job.pause()
        assert job.wait(200)
        assert list(control.take(folder.path)) == [Pause()]  # was on its way
    assert [event.text for event in job.events if isinstance(event, Message)] == [
        "fit 0001-fit ended before it did what was asked: job.checkpoint()."
    ]


def test_a_run_whose_process_died(tmp_path: Path) -> None:
    header = {
        "kind": "fit",
        "pid": 1,
        "pid_started": -1.0,
        "settings": {"lr": 0.5, "of_another_version": 1},
    }
    with RunFolder.create(tmp_path, "a", header) as folder:
        folder.append(RunStarted("a", "fit", {"lr": 0.5}, "cpu"))
        folder.append(
            StepsDone(0, 1, 3, 0, 0.5, {"loss": pack([3.0, 2.0, 1.0]), "lr": pack([0.5] * 3)})
        )
    (folder.path / "output.log").write_text("first\n" * 100 + "Killed\n")
    job = wb.attach("a", tmp_path)
    assert isinstance(job.exception(200), RuntimeError)
    assert (job.status, job.updates, job.settings.lr) == ("failed", 3, 0.5)
    with pytest.raises(RuntimeError, match=r"(?s)ended without ending the run.*Killed"):
        job.result()
    with pytest.raises(RuntimeError, match="too late"):
        job.change(lr=1.0)


def test_the_error_of_a_run_that_failed_is_told_in_its_words(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "a", {"kind": "fit"}) as folder:
        folder.append(RunStarted("a", "fit", {}, "cpu"))
        folder.append(Message("in rank 1 of 2:\nTraceback: it was blue", "error"))
        folder.append(Message("a warning", "warning"))
        folder.append(RunEnded("failed", 7, 1.0, "ValueError: too blue"))
    job = wb.attach("a", tmp_path)
    assert job.done()
    assert job.status == "failed"
    assert job.updates == 7
    with pytest.raises(RuntimeError, match="a failed: ValueError: too blue") as caught:
        job.result()
    assert "it was blue" in str(caught.value.__cause__)


class Trap(ValueError):
    """Does something when it is unpacked."""

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self),)


@pytest.mark.parametrize("says_so", [True, False])
def test_nothing_that_lies_in_the_folder_is_run(tmp_path: Path, says_so: bool) -> None:
    """A folder that somebody handed over, say; its files are one's own, and closed to others."""
    trap = tmp_path / "trap"
    with RunFolder.create(
        tmp_path, "a", {"kind": "fit", "takes_commands": True, "pid": 1, "pid_started": -1.0}
    ) as folder:
        folder.append(RunStarted("a", "fit", {}, "cpu"))
        private_file.write(folder.path / "launch" / "error-0", Trap(str(trap)))
        if says_so:
            folder.append(RunEnded("failed", 7, 1.0, f"Trap: {trap}"))
    with pytest.raises(LaunchError):
        wb.attach("a", tmp_path).result(200)
    assert not trap.exists()


def test_where_there_is_no_such_run_those_that_are_there_are_named(tmp_path: Path) -> None:
    root = tmp_path / "wb"
    with pytest.raises(
        FileNotFoundError,
        match=r"no run '0009-fit' in .*; there are: none\. Another root: wb\.attach\('0009-fit', root=…\)",
    ):
        wb.attach("0009-fit", root)
    assert not root.exists()
    RunFolder.create(root, "0001-fit", {"kind": "fit"}).close()
    with pytest.raises(FileNotFoundError, match="there are: 0001-fit"):
        wb.attach("0009-fit", root)


@pytest.mark.parametrize("id", ["../secret", "/etc", "a/b", "", ".", "..", "a\0b"])
def test_an_id_leads_nowhere_else(tmp_path: Path, id: str) -> None:
    (tmp_path / "wb" / "runs").mkdir(parents=True)
    RunFolder.create(tmp_path, "secret", {"kind": "fit"}).close()
    with pytest.raises(ValueError, match="cannot be a run's id"):
        wb.attach(id, tmp_path / "wb")
