"""The time from the call to the end of the first update."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks.launched.problems import MARKS


def seconds(launcher: str, ranks: int, times: int) -> list[float]:
    """Of several calls in one new kernel; the first one is the cold one."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {MARKS: str(Path(folder, "marks")), "RANKS_ROOT": str(Path(folder, "runs"))}
        command = [
            sys.executable, "-m", "tests.benchmarks.launched.kernel", "start", launcher, "--ranks", str(ranks),
            "--times", str(times),
        ]  # fmt: skip
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    found = [float(line[2:]) for line in done.stdout.splitlines() if line.startswith("@ ")]
    if not found:
        raise RuntimeError(done.stderr.strip()[-600:])
    return found


def row(launcher: str, ranks: int, kernels: int = 3, times: int = 4) -> str:
    """The median over kernels of the first call, and over all of the later ones."""
    runs = []
    for _ in range(kernels):
        try:
            runs.append(seconds(launcher, ranks, times))
        except RuntimeError as error:
            return f"{launcher:24}{ranks:6}   failed: {str(error).splitlines()[-1][:110]}"
    cold, warm = median(run[0] for run in runs), median(value for run in runs for value in run[1:])
    return f"{launcher:24}{ranks:6}{cold:9.2f} s{warm:9.3f} s"
