"""How much memory a job on several ranks takes, relative to its data."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import IO

import psutil

from tests.benchmarks.launched.held import Held, family, held, in_all, of
from tests.benchmarks.launched.problems import GATE, LIST_BATCH

TINY = {"tensor": 0.0, "array": 0.0, "list": 4000.0}
"""Of each kind, what is next to nothing: what a job takes then is not the data's."""
PATIENCE = 300.0


@dataclass(frozen=True)
class Case:
    launcher: str
    kind: str
    size: float
    ranks: int = 2
    workers: int = 0
    batch: int = 0
    """Samples of one; 0: as is usual for the kind."""
    jobs: int = 1
    """The last of so many jobs with the same data is measured."""


@dataclass(frozen=True)
class Measured:
    """MiB, at the last update of a job."""

    data: float
    kernel: Held
    ranks: list[Held]
    workers: list[Held]
    whole: float
    """All processes now."""
    peak: float


class Failed(Exception):
    """The launcher could not do the job; the message is its last line."""


def measure(case: Case) -> Measured:
    """One job, in a kernel of its own."""
    with tempfile.TemporaryDirectory() as folder, open(Path(folder, "errors"), "w+") as errors:
        kernel = _start(case, Path(folder), errors)
        try:
            return _follow(case, kernel, Path(folder))
        except (BrokenPipeError, EOFError):
            kernel.wait()
            errors.seek(0)
            lines = [line for line in errors.read().splitlines() if line.strip()]
            raise Failed(lines[-1][:110] if lines else "it ended without a word") from None
        finally:
            _end(kernel)


def _start(case: Case, folder: Path, errors: IO[str]) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "tests.benchmarks.launched.kernel", "memory", case.launcher, "--kind", case.kind,
        "--size", str(case.size), "--ranks", str(case.ranks), "--workers", str(case.workers), "--batch", str(case.batch), "--jobs", str(case.jobs),
    ]  # fmt: skip
    environment = os.environ | {
        GATE: str(folder),
        "RANKS_MARKS": str(folder / "marks"),
        "RANKS_ROOT": str(folder / "runs"),
        "TQDM_DISABLE": "1",
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment
    )


def _follow(case: Case, kernel: subprocess.Popen[str], folder: Path) -> Measured:
    _until(kernel, "before the data")
    _wait_for_rest(kernel.pid)
    before = held(kernel.pid).proportional
    _go_on(kernel)
    _until(kernel, "with the data")
    # of the kernel alone: a server may be at work all the same
    data = held(kernel.pid).proportional - before
    _go_on(kernel)
    peak, end = 0.0, time.monotonic() + PATIENCE
    while len(ranks := {int(path.name[5:]) for path in folder.glob("rank-*")}) < case.ranks:
        if kernel.poll() is not None or time.monotonic() > end:
            raise EOFError
        peak = max(peak, in_all(of(_family(kernel.pid)).values()))
        time.sleep(0.1)
    time.sleep(0.5)
    there = of(_family(kernel.pid))
    workers = [one for pid, one in there.items() if psutil.Process(pid).ppid() in ranks]
    whole = in_all(there.values())
    found = Measured(
        data, there[kernel.pid], [there[pid] for pid in ranks], workers, whole, max(peak, whole)
    )
    (folder / "measured").touch()
    _until(kernel, "done")
    return found


def _wait_for_rest(pid: int) -> None:
    """Until the memory of all its processes no longer moves: a server may still be starting."""
    seen, since = in_all(of(family(pid)).values()), time.monotonic()
    while time.monotonic() - since < 2.0:
        time.sleep(0.2)
        now = in_all(of(family(pid)).values())
        if abs(now - seen) > 1:
            seen, since = now, time.monotonic()


def _family(pid: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return family(pid)
    return []


def _until(kernel: subprocess.Popen[str], place: str) -> None:
    assert kernel.stdout is not None
    for line in kernel.stdout:
        if line.strip() == f"@ {place}":
            return
    raise EOFError


def _go_on(kernel: subprocess.Popen[str]) -> None:
    assert kernel.stdin is not None
    kernel.stdin.write("\n")
    kernel.stdin.flush()


def _end(kernel: subprocess.Popen[str]) -> None:
    """It and all that it has started, also after a failure."""
    theirs = [psutil.Process(pid) for pid in _family(kernel.pid)[1:]]
    if kernel.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            kernel.wait(10)
        kernel.kill()
        kernel.wait()
    for process in theirs:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for stream in (kernel.stdin, kernel.stdout):
        assert stream is not None
        with suppress(BrokenPipeError):
            stream.close()


def _tried(case: Case) -> Measured:
    """Once again where it fails: gloo now and then aborts a process at its end."""
    try:
        return measure(case)
    except Failed:
        return measure(case)


HEAD = (
    f"{'launcher':24}{'ranks':>6}{'workers':>8}{'data':>10}{'a rank: private':>17}{'proportional':>13}"
    f"{'its worker':>12}{'added':>8}{'at most':>9}"
)


def row(case: Case) -> str:
    """One line: MiB of the data, the rest in times the data, what the same job takes without data taken off."""
    launcher = case.launcher if case.jobs == 1 else f"{case.launcher}, job {case.jobs}"
    start = f"{launcher:24}{case.ranks:6}{case.workers:8}"
    try:
        # As many updates: hundreds of them take memory of their own, whatever the data. Of tensors there are as many anyway.
        batch = max(1, round(LIST_BATCH * TINY["list"] / case.size)) if case.kind == "list" else 0
        tiny = _tried(
            Case(
                case.launcher,
                case.kind,
                TINY[case.kind],
                case.ranks,
                case.workers,
                batch,
                case.jobs,
            )
        )
        big = _tried(case)
    except Failed as error:
        return f"{start}   failed: {error}"
    data = big.data
    private = (
        _mean(rank.private for rank in big.ranks) - _mean(rank.private for rank in tiny.ranks)
    ) / data
    shared = (
        _mean(rank.proportional for rank in big.ranks)
        - _mean(rank.proportional for rank in tiny.ranks)
    ) / data
    worker = (
        _mean(one.private for one in big.workers) - _mean(one.private for one in tiny.workers)
    ) / data
    own = big.data - tiny.data
    added, most = (big.whole - tiny.whole - own) / data, (big.peak - tiny.whole - own) / data
    worker_said = f"{worker:12.2f}" if case.workers else f"{'–':>12}"
    rank = f"{_mean(rank.private for rank in tiny.ranks):4.0f} MiB +{private:5.2f}"
    return f"{start}{data:6.0f} MiB{rank:>17}{shared:13.2f}{worker_said}{added:8.2f}{most:9.2f}"


def _mean(values: Iterable[float]) -> float:
    them = list(values)
    return fmean(them) if them else 0.0
