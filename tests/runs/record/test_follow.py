"""Following a record: every event once, in order, to the last whole line, whatever the writer is at."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from tests import warm
from tests.runs.records import read_events
from tests.server.records import Record
from workbench.events import Event, Message, StepsDone, pack, to_line
from workbench.runs.record import follow
from workbench.runs.record.follow import Tail
from workbench.runs.store import RunFolder


def test_a_record_is_heard_while_it_is_written(tmp_path: Path) -> None:
    def write() -> None:
        with RunFolder.create(tmp_path, "a", {"kind": "fit"}) as folder:
            step = 0
            for i in range(300):
                values = pack(np.full(1 + 37 * i, float(i)))
                folder.append(StepsDone(step, 1, 1 + 37 * i, 0, 0.1, {"loss": values}))
                step += 1 + 37 * i

    path, heard = tmp_path / "runs" / "a", list[Event]()
    tail = Tail(path)
    assert tail.new() == []  # before there is a folder
    writer = threading.Thread(target=write)
    writer.start()
    while len(heard) < 300:
        heard += tail.new()
    writer.join()
    assert heard == read_events(path)
    assert tail.new() == []


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    line = to_line(Message("a text with an umlaut: ä")).encode() + b"\n"
    file = tmp_path / "metrics.jsonl"
    tail = Tail(tmp_path)
    for cut in range(1, len(line)):
        file.write_bytes(line + line[:cut])
        tail = Tail(tmp_path)
        assert len(tail.new()) == 1
        assert tail.new() == []
        file.write_bytes(line + line)
        assert len(tail.new()) == 1


def test_lines_longer_than_a_block_and_unreadable_ones(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(follow, "_BLOCK", 64)
    events = [Message("x" * n) for n in (10, 500, 10, 64, 128)]
    lines = [to_line(event) + "\n" for event in events]
    (tmp_path / "metrics.jsonl").write_text(lines[0] + lines[1] + "{}\n" + "".join(lines[2:]))
    tail, heard = Tail(tmp_path), list[Event]()
    while new := tail.new():
        heard += new
    assert heard == events
    assert tail.skipped == 1


def test_a_thread_may_read_when_the_process_ends(tmp_path: Path) -> None:
    """The interpreter runs last what was registered first."""
    path = Record(tmp_path, "a").steps().path
    code = (
        "import atexit, sys\natexit.register(lambda: print(len(tail.new()), flush=True))\n"
        "from pathlib import Path\nfrom workbench.runs.record.follow import Tail\n"
        "tail = Tail(Path(sys.argv[1]))\nassert tail.new()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=warm.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("0\n", "")
