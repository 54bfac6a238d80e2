"""A writer killed at any moment leaves a record that reads to its last whole line, and a run that failed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import count
from tests.runs.records import read_record
from workbench.events import RunStarted, StepsDone, pack
from workbench.runs.read import list_runs
from workbench.runs.run import Run
from workbench.runs.store import RunFolder


def flush(i: int) -> StepsDone:
    """The i-th flush: large enough that a kill often comes in the middle of its line."""
    values = np.full(20000, float(i))
    return StepsDone(i * 20000, 1, 20000, 0, float(i), {"loss": pack(values), "lr": pack(values)})


MOST = 500
"""Flushes that are written at most, of 200 kB each: whoever kills may be late."""


def write(root: str) -> None:
    """What the process that is killed does: write, as fast as it can."""
    folder = RunFolder.create(Path(root), "a", {"kind": "fit"})
    folder.append(RunStarted("a", "fit", {"lr": 0.1}, "cpu"))
    print("go", flush=True)
    for i in range(MOST):
        folder.append(flush(i))
    while True:
        time.sleep(60)


@pytest.mark.parametrize("seed", range(count(5, 100)))
def test_killed_at_a_random_moment(tmp_path: Path, seed: int) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from test_killed_writer import write; write(sys.argv[2])"
    here = str(Path(__file__).parent)
    writer = subprocess.Popen(
        [sys.executable, "-c", code, here, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    with writer, writer.stdout:
        assert writer.stdout.readline() == b"go\n"
        time.sleep(random.Random(seed).uniform(0.01, 0.3))
        assert list_runs(tmp_path)[0].status == "running"
        writer.kill()
    folder = tmp_path / "runs" / "a"
    record = read_record(folder)
    assert record.skipped == 0
    assert record.events == [
        RunStarted("a", "fit", {"lr": 0.1}, "cpu"),
        *map(flush, range(len(record.events) - 1)),
    ]
    run = Run.open(folder)
    assert run.status == "failed"
    assert str(writer.pid) in (run.error or "")
    assert run.step == 20000 * (len(record.events) - 1)
    assert list_runs(tmp_path)[0].status == "failed"
    # Cut further back, anywhere in the last line: what reads is one event less.
    data = (folder / "metrics.jsonl").read_bytes()
    whole = data[: data.rindex(b"\n") + 1]
    (folder / "metrics.jsonl").write_bytes(whole[: -random.Random(seed).randrange(1, 2000)])
    assert read_record(folder).events == record.events[:-1]
