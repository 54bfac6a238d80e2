"""The time to the end of the first update: from the call in a kernel that is at rest, and of the first job of a new one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks.launched.problems import MARKS


def seconds(launcher: str, ranks: int, times: int) -> list[float]:
    """Of several calls in one kernel, where the bench is there; the first one is the cold one."""
    return [
        value
        for (value,) in _told(
            "kernel", "start", launcher, "--ranks", str(ranks), "--times", str(times)
        )
    ]


def of_a_new_kernel(launcher: str, ranks: int) -> tuple[float, float]:
    """From the first import on, and from when the bench or the trainer is about to be made."""
    ((imports, made),) = _told("fresh", launcher, str(ranks))
    return imports, made


def _told(module: str, *arguments: str) -> list[list[float]]:
    """The numbers in the lines that a process of this package prints."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            MARKS: str(Path(folder, "marks")),
            "RANKS_ROOT": str(Path(folder, "runs")),
        }
        command = [sys.executable, "-m", f"tests.benchmarks.launched.{module}", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    found = [
        [float(word) for word in line[2:].split()]
        for line in done.stdout.splitlines()
        if line.startswith("@ ")
    ]
    if not found:
        raise RuntimeError(done.stderr.strip()[-600:])
    return found


HEAD = f"{'seconds to the first update':24}{'ranks':>6}{'imports on':>12}{'bench on':>10}{'first call':>12}{'later':>11}"


def row(launcher: str, ranks: int, kernels: int = 3, times: int = 4) -> str:
    """The medians over kernels: of the first job of a new one, of the first call, and of all later ones."""
    runs, new = [], []
    for _ in range(kernels):
        try:
            new.append(of_a_new_kernel(launcher, ranks))
            runs.append(seconds(launcher, ranks, times))
        except RuntimeError as error:
            return f"{launcher:24}{ranks:6}   failed: {str(error).splitlines()[-1][:110]}"
    cold, warm = median(run[0] for run in runs), median(value for run in runs for value in run[1:])
    imports, made = median(one[0] for one in new), median(one[1] for one in new)
    return f"{launcher:24}{ranks:6}{imports:10.2f} s{made:8.2f} s{cold:10.2f} s{warm:9.3f} s"
