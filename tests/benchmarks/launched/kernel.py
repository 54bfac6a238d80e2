"""A process in the place of a notebook's kernel: `python -m tests.benchmarks.launched.kernel WHAT LAUNCHER …`.

It says in lines on stdout where it is, and waits at some of them for a line on stdin.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from pathlib import Path

from tests.benchmarks.launched.launchers import LAUNCHERS, Job
from tests.benchmarks.launched.problems import MARKS, batch_size, data


def at(place: str, *, wait: bool = False) -> None:
    print(f"@ {place}", flush=True)
    if wait:
        sys.stdin.readline()


def memory(
    launcher: str, kind: str, size: float, ranks: int, workers: int, batch: int, jobs: int
) -> None:
    """The last of so many jobs has two epochs, and its ranks wait at its last update; those before have one."""
    # what it imports
    LAUNCHERS[launcher](Job(data(kind, 0 if kind != "list" else 4000), batch_size(kind), 1, ranks))
    at("before the data", wait=True)
    train = data(kind, size)
    at("with the data", wait=True)
    size_of_batch = batch or batch_size(kind)
    batches = len(train) // size_of_batch // ranks  # type: ignore[arg-type]
    for _ in range(jobs - 1):
        LAUNCHERS[launcher](Job(train, size_of_batch, 1, ranks, workers))()
    start = LAUNCHERS[launcher](
        Job(train, size_of_batch, 2, ranks, workers, gate_at=(jobs + 1) * batches)
    )
    start()
    at("done")


def start(launcher: str, ranks: int, times: int) -> None:
    """The time from the call to the end of the first update, several times in one kernel."""
    marks = Path(os.environ[MARKS])
    call = LAUNCHERS[launcher](Job(data("tensor", 0), 64, 1, ranks))
    for _ in range(times):
        marks.write_text("")
        began = time.time()
        call()
        at(f"{min(map(float, marks.read_text().split())) - began}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["memory", "start"])
    parser.add_argument("launcher", choices=LAUNCHERS)
    parser.add_argument("--kind", default="tensor")
    parser.add_argument("--size", type=float, default=0.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--times", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.what == "memory":
        memory(
            given.launcher,
            given.kind,
            given.size,
            given.ranks,
            given.workers,
            given.batch,
            given.jobs,
        )
    else:
        start(given.launcher, given.ranks, given.times)


if __name__ == "__main__":
    main()
