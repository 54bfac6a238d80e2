"""Commands through a run's folder: whole, in order, once; what is none is told and left out."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from workbench.commands import Change, Command, Pause, Resume, Stop, from_line, to_line
from workbench.events import RunEnded, RunStarted, Status
from workbench.runs.folder import control
from workbench.runs.folder.files import Folder
from workbench.runs.read import summary
from workbench.runs.store import RunFolder

ALL: list[Command] = [Pause(), Resume(), Change({"lr": 0.1, "gradient_clip_val": None}), Stop()]


def test_commands_arrive_in_order_and_once(tmp_path: Path) -> None:
    assert list(control.take(tmp_path)) == []
    for command in ALL:
        control.send(tmp_path, command)
    assert list(control.take(tmp_path)) == ALL
    assert list(control.take(tmp_path)) == []
    assert list((tmp_path / "control").iterdir()) == []


def test_those_of_several_threads_are_all_there_each_in_its_order(tmp_path: Path) -> None:
    def send(sender: int) -> None:
        for number in range(1, 21):
            control.send(tmp_path, Change({"lr": sender + number / 100}))

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    found: list[float] = []
    while len(found) < 80:
        for command in control.take(tmp_path):
            assert isinstance(command, Change)
            assert command.values["lr"] is not None
            found.append(command.values["lr"])
    for thread in threads:
        thread.join()
    for sender in range(4):
        mine = [value for value in found if int(value) == sender]
        assert mine == sorted(mine)
        assert len(mine) == 20


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"type": "Format"}', '{"type": 3}', '{"type": "Stop", "now": true}', '{"type": "Change"}',
     '{"type": "Change", "values": {}}', '{"type": "Change", "values": {"lr": "high"}}', '{"type": "Change", "values": {"lr": [true]}}',
     '{"type": "Change", "values": {"lr": 1}, "code": 2}', "[" * 100_000, "\xff" * 70_000],
)  # fmt: skip
def test_what_is_no_command_is_told_and_removed(tmp_path: Path, text: str) -> None:
    control.send(tmp_path, Pause())
    (tmp_path / "control" / "0.json").write_text(text, encoding="latin-1")
    told, command = control.take(tmp_path)
    assert isinstance(told, str)
    assert "0.json" in told
    assert "is no command" in told
    assert command == Pause()
    assert list(control.take(tmp_path)) == []


def test_links_folders_and_half_written_files_are_not_read(tmp_path: Path) -> None:
    folder, secret = tmp_path / "control", tmp_path / "secret"
    secret.write_text(to_line(Stop()))
    folder.mkdir()
    (folder / "0.json").symlink_to(secret)
    (folder / "1.json").mkdir()
    (folder / ".2.json").write_text(to_line(Stop()))
    (told,) = control.take(tmp_path)
    assert isinstance(told, str)
    assert "0.json" in told
    assert secret.exists()
    assert (folder / ".2.json").exists()


def test_a_command_that_cannot_be_removed_is_told_and_holds_up_none_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be carried out by each look. A file of another user's in a sticky folder, say."""
    control.send(tmp_path, Pause())
    (stays,) = (tmp_path / "control").iterdir()
    control.send(tmp_path, Stop())
    remove = Folder.remove

    def refuse(folder: Folder, name: str) -> None:
        if name == stays.name:
            raise PermissionError(1, "not permitted", name)
        remove(folder, name)

    monkeypatch.setattr(Folder, "remove", refuse)
    told, command = control.take(tmp_path)
    assert isinstance(told, str)
    assert f"{stays.name} in control/ cannot be removed" in told
    assert command == Stop()
    assert list(control.take(tmp_path)) == [told]


# -- who takes them


@pytest.mark.parametrize(
    ("header", "end", "why", "of_pause"),
    [
        ({"kind": "fit", "takes_commands": True}, None, "", ""),
        # of the version before, whose launched processes read commands
        ({"kind": "fit", "launched": True}, None, "", ""),
        ({"kind": "find_lr", "takes_commands": True}, None, "", "pause() is for fits; a find_lr job can only be stopped."),
        ({"kind": "fit", "takes_commands": True}, "stopped", "{} comes too late: fit a has stopped.", "{} comes too late: fit a has stopped."),
        (
            {"kind": "fit", "takes_commands": True, "pid": 1, "pid_started": -1.0}, None, "{} comes too late: fit a has failed.",
            "{} comes too late: fit a has failed.",
        ),
        *[
            (
                {"kind": "fit", "host": "node7", "pid": 123, **says}, None,
                *["{} does not reach a: an older version trains it, which takes no commands from its folder. Ask its own job, in process 123 on node7."] * 2,
            )
            for says in ({}, {"launched": False}, {"takes_commands": False})
        ],
    ],
)  # fmt: skip
def test_why_a_run_takes_no_command_now(
    tmp_path: Path, header: dict[str, Any], end: Status | None, why: str, of_pause: str
) -> None:
    with RunFolder.create(tmp_path, "a", header) as folder:
        folder.append(RunStarted("a", header["kind"], {}, "cpu"))
        if end is not None:
            folder.append(RunEnded(end, 0, 0.5))
        for run in (folder.path, summary(folder.path)):
            assert control.why_not_taken(run) == why.format("A command")
            assert control.why_not_taken(run, Stop()) == why.format("stop()")
            assert control.why_not_taken(run, Pause()) == of_pause.format("pause()")
            if of_pause:
                with pytest.raises(RuntimeError, match=re.escape(of_pause.format("pause()"))):
                    control.check_taken(run, Pause())
            else:
                control.check_taken(run, Pause())


@pytest.mark.parametrize("command", ALL)
def test_a_command_is_one_line_of_plain_data(command: Command) -> None:
    line = to_line(command)
    assert "\n" not in line
    assert json.loads(line)["type"] == type(command).__name__
    assert from_line(line) == command
