"""Links, pipes and half-written files in a run's folder: nothing of somebody else's is read, written or removed by them."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.attacks.strangers import bench, messages, of
from tests.waiting import wait_for
from workbench.commands import Pause, Stop
from workbench.engine.checkpoint import files as checkpoint
from workbench.events import Validated
from workbench.launch.accelerate import command as accelerate
from workbench.launch.accelerate import private_file
from workbench.launch.accelerate.command import LaunchPlan
from workbench.runs.checkpoints import keep, list_checkpoints
from workbench.runs.folder import control, files
from workbench.runs.folder.files import Folder
from workbench.runs.store import RunFolder

pytestmark = pytest.mark.skipif(
    not hasattr(os, "O_NOFOLLOW"), reason="links are told from folders by O_NOFOLLOW"
)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of somebody else, with files that look as ours do."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name in ("0001.json", "package.json", "tsconfig.json", ".json"):
        (folder / name).write_text('{"type": "Stop"}')
    return folder


def in_time(action: Callable[[], Any]) -> Any:
    """What it gives. A pipe that is opened to be read would hold it for ever: then the test fails."""
    found: Future[Any] = Future()

    def do() -> None:
        try:
            found.set_result(action())
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return found.result(60)


@pytest.fixture(params=["by number", "by path"])
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to work in a folder: Windows has the second alone."""
    monkeypatch.setattr(files, "_BY_NUMBER", request.param == "by number")


@pytest.mark.usefixtures("opened")
def test_control_as_a_link_removes_nothing_where_it_leads(tmp_path: Path, theirs: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "control").symlink_to(theirs, target_is_directory=True)
    before = {path.name: path.read_text() for path in theirs.iterdir()}
    (told,) = control.take(run)
    assert isinstance(told, str)
    assert "no command reaches this run" in told
    with pytest.raises(OSError, match="link"):
        control.send(run, Stop())
    assert {path.name: path.read_text() for path in theirs.iterdir()} == before


def test_control_that_becomes_a_link_while_it_is_read(tmp_path: Path, theirs: Path) -> None:
    """Between two commands somebody puts a link in its place: what is removed next is still in the folder that was opened."""
    run = tmp_path / "run"
    run.mkdir()
    control.send(run, Pause())
    control.send(run, Stop())
    (theirs / max(path.name for path in (run / "control").iterdir())).write_text("theirs")
    before = {path.name for path in theirs.iterdir()}
    commands = control.take(run)
    assert next(commands) == Pause()
    (run / "control").rename(tmp_path / "aside")
    (run / "control").symlink_to(theirs, target_is_directory=True)
    assert list(commands) == [Stop()]
    assert {path.name for path in theirs.iterdir()} == before
    assert list((tmp_path / "aside").iterdir()) == []


@pytest.mark.usefixtures("opened")
def test_a_pipe_among_the_commands_holds_nobody(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    os.mkfifo(tmp_path / "control" / "0.json")
    control.send(tmp_path, Stop())
    told, command = in_time(lambda: list(control.take(tmp_path)))
    assert "0.json" in str(told)
    assert command == Stop()
    assert list((tmp_path / "control").iterdir()) == []


def test_control_as_a_link_does_not_command_a_fit_and_is_told_once(
    tmp_path: Path, theirs: Path
) -> None:
    """The link stays, and is found at each look."""
    before = {path.name: path.read_text() for path in theirs.iterdir()}
    first, waits = bench(tmp_path), bench(tmp_path)
    job, after = first.fit(max_epochs=100_000), waits.fit()
    for one in (job, after):
        (tmp_path / "runs" / one.id / "control").symlink_to(theirs, target_is_directory=True)
    wait_for(lambda: messages(job))
    job.validate()
    wait_for(lambda: any(event.asked for event in of(job, Validated)))
    assert job.status == "running", "the Stop of another folder is not for it"
    job.stop()
    for one in (job, after):
        one.result()
        assert [
            text for text in messages(one) if "no command reaches this run" in text
        ] == messages(one)
        assert len(messages(one)) == 1
    assert {path.name: path.read_text() for path in theirs.iterdir()} == before


def test_what_is_no_command_does_not_hold_up_those_after_it(tmp_path: Path, theirs: Path) -> None:
    b = bench(tmp_path)
    job = b.fit(max_epochs=100_000)
    folder = tmp_path / "runs" / job.id / "control"
    folder.mkdir(exist_ok=True)
    (folder / ".huge").write_bytes(b"[" * (1 << 24))
    # the names of all three come before those of commands, which begin with the time
    (folder / ".huge").rename(folder / "000.json")
    (folder / "00.json").symlink_to(theirs / "0001.json")
    os.mkfifo(folder / "0.json")
    control.send(folder.parent, Pause())
    wait_for(lambda: job.status == "paused")
    assert {text.split()[0] for text in messages(job)} == {"0.json", "00.json", "000.json"}
    assert list(folder.iterdir()) == []
    assert (theirs / "0001.json").exists()
    control.send(folder.parent, Stop())
    assert in_time(job.result).status == "stopped"


@pytest.mark.parametrize("name", ["info.json", "state.pt", "model.safetensors"])
def test_a_pipe_in_a_checkpoint_holds_nobody(tmp_path: Path, name: str) -> None:
    b = bench(tmp_path)
    run = b.fit().result()
    point = run.checkpoints[-1]
    (point.path / name).unlink()
    os.mkfifo(point.path / name)
    other = bench(tmp_path)
    with pytest.raises((RuntimeError, FileNotFoundError)):
        in_time(lambda: other.fit(start=f"{run.id}@{point.name}", max_epochs=2).result())


@pytest.mark.usefixtures("opened")
def test_a_folder_that_is_a_link_is_not_opened(tmp_path: Path, theirs: Path) -> None:
    (tmp_path / "link").symlink_to(theirs, target_is_directory=True)
    with pytest.raises(OSError), Folder.opened(tmp_path / "link"):
        pass


def test_the_folder_of_checkpoints_is_no_link(tmp_path: Path, theirs: Path) -> None:
    with RunFolder.create(tmp_path, "0001-fit", {"kind": "fit"}) as folder:
        (folder.path / "checkpoints").symlink_to(theirs, target_is_directory=True)
        with pytest.raises(OSError, match="link"):
            _ = folder.checkpoints


def test_checkpoints_as_a_link_are_not_cleared_away(tmp_path: Path) -> None:
    """Half-written checkpoints go when the next one is written: not those of another run."""
    other = tmp_path / "other"
    (other / ".00000003.7.part").mkdir(parents=True)
    folder = tmp_path / "checkpoints"
    folder.symlink_to(other, target_is_directory=True)
    with pytest.raises(OSError, match="link"):
        checkpoint.write(folder, "00000004", {"w": torch.zeros(2)}, None, {})
    with pytest.raises(OSError, match="link"):
        checkpoint.save_weights(nn.Linear(2, 2), folder / "start.safetensors")
    assert [path.name for path in other.iterdir()] == [".00000003.7.part"]


def test_a_fit_whose_folder_was_tampered_with_trains_and_says_so(
    tmp_path: Path, theirs: Path
) -> None:
    b = bench(tmp_path)
    first = b.fit(max_epochs=100_000)
    job = b.fit()  # its folder lies there while it waits
    (tmp_path / "runs" / job.id / "checkpoints").symlink_to(theirs, target_is_directory=True)
    before = sorted(path.name for path in theirs.iterdir())
    first.stop()
    assert job.result().step == 2
    assert sorted(path.name for path in theirs.iterdir()) == before
    assert any("is a link" in text for text in messages(job))


@pytest.mark.parametrize("aside", [".info.json", ".info.json.{pid}"])
def test_a_link_beside_info_is_not_written_through(tmp_path: Path, aside: str) -> None:
    """A checkpoint of a stranger holds a link where we would have written aside: the run that continues takes it over."""
    b = bench(tmp_path / "root")
    run = b.fit().result()
    point = run.checkpoints[-1]
    profile = tmp_path / "profile"
    profile.write_text("mine")
    (point.path / aside.format(pid=os.getpid())).symlink_to(profile)
    on = b.fit(start=run.id, max_epochs=2).result()
    for one in [point, *on.checkpoints]:
        keep(one)
    assert profile.read_text() == "mine"
    assert on.folder is not None
    assert all(one.kept for one in list_checkpoints(on.folder))
    for one in on.checkpoints:
        assert sorted(path.name for path in one.path.iterdir()) == [
            "info.json",
            "model.safetensors",
            "state.pt",
        ]


def test_what_is_launched_writes_through_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "profile"
    profile.write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / accelerate.OUTPUT).symlink_to(profile)
    (run / accelerate.SCRIPT).symlink_to(profile)
    plan = LaunchPlan(("--num_machines=2",), 2, 2, True)
    monkeypatch.setattr(
        accelerate.subprocess, "Popen", lambda *_, **__: pytest.fail("it was started")
    )
    with pytest.raises(OSError):
        accelerate.start(plan, run)
    accelerate.write_script(plan, run)  # takes the place of the link
    assert "exec" in (run / accelerate.SCRIPT).read_text()
    (run / "launch").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(OSError, match="link"):
        private_file.write(run / "launch" / "job", 1)
    assert profile.read_text() == "mine"


def test_a_header_is_not_written_through_a_link(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    profile.write_text("mine")
    with RunFolder.create(tmp_path, "0001-fit", {"kind": "fit"}) as folder:
        for name in ("run.json.new", ".run.json", f".run.json.{os.getpid()}"):
            (folder.path / name).symlink_to(profile)
        folder.name_writer(os.getpid())
        (folder.path / "metrics.jsonl").unlink()
        (folder.path / "metrics.jsonl").symlink_to(profile)
        with pytest.raises(OSError):
            RunFolder.take_over(folder.path)
    assert profile.read_text() == "mine"


# -- whole, and as the umask has it


def test_the_starting_weights_are_on_the_disk_before_they_have_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, Any]] = []
    fsync, replace = os.fsync, os.replace

    def synced(number: int) -> None:
        done.append(("sync", os.fstat(number).st_ino))
        fsync(number)

    def replaced(source: Any, target: Any) -> None:
        done.append(("name", os.stat(source).st_ino))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    path = tmp_path / "start.safetensors"
    checkpoint.save_weights(nn.Linear(2, 2), path)
    file, folder = path.stat().st_ino, tmp_path.stat().st_ino
    assert done == [("sync", file), ("name", file), ("sync", folder)]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_all_files_of_a_checkpoint_have_the_mode_of_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        b = bench(tmp_path)
        b.fit().result()
        b.fit(start="continue", max_epochs=2).result()
    finally:
        os.umask(before)
    found = [
        path for run in b.runs for path in (tmp_path / "runs" / run.id / "checkpoints").rglob("*")
    ]
    assert {path.name for path in found} >= {
        "start.safetensors",
        "model.safetensors",
        "state.pt",
        "info.json",
    }
    assert all(list_checkpoints(tmp_path / "runs" / run.id) for run in b.runs)
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~mask, (
            path
        )


# -- what a checkpoint is read from


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("name", ["state.pt", "model.safetensors"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "folder"])
def test_a_file_of_a_checkpoint_that_is_no_regular_file_is_refused_by_name(
    tmp_path: Path, name: str, kind: str
) -> None:
    b = bench(tmp_path / "root")
    run = b.fit().result()
    file = run.checkpoints[-1].path / name
    moved = file.rename(tmp_path / "theirs")
    if kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(moved if kind == "link" else tmp_path / "nothing")
    why = "it is not a regular file" if kind == "folder" else "it is a link"
    with pytest.raises(
        RuntimeError, match=f"{re.escape(str(file))} cannot be read .{why}.* another checkpoint"
    ):
        bench(tmp_path / "root").fit(start=run.id, max_epochs=2).result()
    if name == "model.safetensors":
        with pytest.raises(RuntimeError, match=f"{re.escape(str(file))} cannot be read .{why}"):
            b.load(run)


@pytest.mark.usefixtures("opened")
def test_the_starting_weights_are_not_read_through_a_link(tmp_path: Path) -> None:
    b = bench(tmp_path / "root")
    run = b.fit().result()
    assert run.folder is not None
    file = run.folder / "checkpoints" / "start.safetensors"
    file.symlink_to(file.rename(tmp_path / "theirs"))
    for read in (lambda: b.load(run, "start"), lambda: b.export(tmp_path / "train.py", run)):
        with pytest.raises(RuntimeError, match=r"start\.safetensors cannot be read .it is a link"):
            read()


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("part", ["checkpoints", "one"])
def test_a_folder_of_checkpoints_that_is_a_link_has_none(tmp_path: Path, part: str) -> None:
    b = bench(tmp_path / "root")
    run = b.fit().result()
    point = run.checkpoints[-1]
    folder = point.path if part == "one" else point.path.parent
    folder.symlink_to(folder.rename(tmp_path / "theirs"), target_is_directory=True)
    assert point not in run.checkpoints
    with pytest.raises(FileNotFoundError, match=f"has no checkpoint {point.name!r}"):
        b.load(run, point.name)
    for read in (
        lambda: checkpoint.read_state(point.path),
        lambda: checkpoint.peek(point.path, "step"),
    ):
        with pytest.raises(
            RuntimeError, match=rf"state\.pt cannot be read .{re.escape(str(folder))} is a link"
        ):
            read()
    with pytest.raises(RuntimeError, match=r"model\.safetensors cannot be read"):
        checkpoint.load_weights(nn.Linear(3, 2), point.path / "model.safetensors")


@pytest.mark.usefixtures("opened")
def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk", target_is_directory=True)
    run = bench(tmp_path / "root").fit().result()
    b = bench(tmp_path / "root")
    assert b.fit(start=run.id, max_epochs=2).result().step == 4
    b.load(run, "start")
    assert [one.id for one in b.runs] == ["0001-fit", "0002-fit"]


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(),
    reason="files are opened by their number where there is /proc",
)
def test_what_takes_the_place_of_a_checked_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    (tmp_path / "theirs").write_text("theirs")
    with Folder.opened(tmp_path) as folder, folder.path_of("file") as path:
        file.unlink()
        file.symlink_to(tmp_path / "theirs")
        assert path.read_text() == "mine"
