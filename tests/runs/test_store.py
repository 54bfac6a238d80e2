"""Writing run folders: headers, events, failed writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.runs.records import read_events, read_record, write_run
from workbench.events import Message, RunEnded, RunStarted
from workbench.runs.folder.alive import identity
from workbench.runs.read import list_runs, read_header
from workbench.runs.store import RunFolder


def test_what_is_written_is_read(tmp_path: Path) -> None:
    events = [
        RunStarted("a", "fit", {"lr": 0.1}, "cpu"),
        Message("größe\nline"),
        RunEnded("finished", 3, 0.5),
    ]
    with RunFolder.create(tmp_path, "a", {"kind": "fit", "task": "Net", "seed": 3}) as folder:
        for event in events:
            folder.append(event)
            assert read_events(folder.path)[-1] == event  # at once, not at close
    assert read_events(tmp_path / "runs" / "a") == events
    header = json.loads((tmp_path / "runs" / "a" / "run.json").read_text())
    assert "id" not in header  # the folder's name is the id
    assert header["task"] == "Net"
    assert header["seed"] == 3
    assert header["pid"] == os.getpid()


def test_a_record_that_is_out_of_sight_for_a_moment_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, stat, calls = (
        RunFolder.create(tmp_path, "a", {}),
        os.stat,
        iter([FileNotFoundError, OSError]),
    )

    def unsteady(path: Path, **options: Any) -> os.stat_result:
        error = next(calls, None) if str(path).endswith("metrics.jsonl") else None
        if error is not None:
            raise error
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", unsteady)
    assert [folder.append(Message("one")), folder.append(Message("two"))] == [0, 1]


def test_a_closed_folder_takes_no_more(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "a", {"kind": "fit"})
    folder.close()
    folder.close()
    with pytest.raises(ValueError):
        folder.append(Message("late"))


def test_the_folder_of_checkpoints_is_made_when_asked_for(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "a", {}) as folder:
        assert sorted(os.listdir(folder.path)) == [".reserve", "metrics.jsonl", "run.json"]
        assert folder.checkpoints.is_dir()


def test_a_taken_id_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = write_run(tmp_path, "mine")
    before = (path / "run.json").read_text(), read_events(path)
    with pytest.raises(FileExistsError, match="mine"):
        RunFolder.create(tmp_path, "mine", {})
    assert ((path / "run.json").read_text(), read_events(path)) == before


def test_a_header_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        RunFolder.create(tmp_path, "a", {"task": object()})
    assert list_runs(tmp_path) == []
    RunFolder.create(tmp_path, "a", {}).close()


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "a", {}) as folder:
        threads = [
            threading.Thread(
                target=lambda i=i: [
                    folder.append(Message(f"{i}" * 5000, step=j)) for j in range(50)
                ]
            )
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    record = read_record(folder.path)
    assert (len(record.events), record.skipped) == (200, 0)


FULL = """
import resource, signal, sys
from pathlib import Path
from workbench.events import Message
from workbench.runs.store import RunFolder

folder = RunFolder.create(Path(sys.argv[1]), "a", {"kind": "fit"})
folder.append(Message("first"))
limit = (folder.path / "metrics.jsonl").stat().st_size + 40
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
failed = 0
for i in range(3):
    try:
        folder.append(Message(f"kept {i}"))
    except OSError:
        failed += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
folder.append(Message("last"))
print(failed)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no file size limit to set")
def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "3"
    record = read_record(tmp_path / "runs" / "a")
    assert [e.text for e in record.events if isinstance(e, Message)] == [
        "first",
        "kept 0",
        "kept 1",
        "kept 2",
        "last",
    ]
    assert record.skipped >= 1


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_torn_line_never_glues_or_reads_whole(tmp_path: Path, cut: int) -> None:
    """Each place where a write may be cut, its end without the newline included."""
    folder = RunFolder.create(tmp_path, "a", {})
    folder.append(Message("first"))
    real = folder._record

    class Full:
        """A disk that takes all but the last bytes of the first write, then nothing for one write."""

        calls = 0

        def write(self, data: bytes) -> int:
            self.calls += 1
            if self.calls == 1:
                return real.write(data[: len(data) - cut])
            if self.calls == 2:
                raise OSError(28, "No space left on device")
            return real.write(data)

        def close(self) -> None:
            real.close()

        def fileno(self) -> int:
            return real.fileno()

        closed = False

    folder._record = Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        folder.append(Message("kept"))
    folder.append(Message("last"))
    folder.close()
    record = read_record(folder.path)
    assert [e.text for e in record.events if isinstance(e, Message)] == ["first", "kept", "last"]
    assert record.skipped == 1


def test_another_process_takes_over_the_record_of_a_run(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "a", {"kind": "fit"}) as made:
        made.append(Message("before"))
        made.name_writer(os.getppid())
        header = read_header(made.path)
        assert (header["pid"], header["kind"]) == (os.getppid(), "fit")
        with RunFolder.take_over(made.path) as taken:
            assert read_header(taken.path) == {**header, **identity()}
            taken.append(Message("there"))
        with (made.path / "metrics.jsonl").open("a") as file:
            file.write('{"type":"Message","te')  # it was killed in the middle of a line
        made.write_again()
        made.append(Message("behind"))
    assert [e.text for e in read_events(made.path) if isinstance(e, Message)] == [
        "before",
        "there",
        "behind",
    ]


def test_what_is_no_run_cannot_be_taken_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(FileNotFoundError):
        RunFolder.take_over(tmp_path)
