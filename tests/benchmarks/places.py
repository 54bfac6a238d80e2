"""The losses of one training on two processes, by what started them: a table for docs/measurements.md.

    python -m tests.benchmarks.places

What is not installed is left out (SLURM, Open MPI).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.launch.joined.test_joined import TORCHRUN, environment
from tests.slurm import cluster

PROGRAM = """
import json
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import workbench as wb

if __name__ == "__main__":
    torch.manual_seed(0)
    pictures, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pictures, dtype=torch.float32) / 16, torch.tensor(labels)
    layers = nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)
    bench = wb.Workbench(
        nn.Sequential(*layers), train=(x[:1400], y[:1400]), val=(x[1400:], y[1400:]), loss=nn.CrossEntropyLoss(),
        lr=1e-3, max_epochs=20, gradient_clip_val=1.0, accelerator="cpu", **json.loads(sys.argv[1]),
    )
    run = bench.fit(enable_progress_bar=False).result()
    losses = run.history["loss"].tolist(), run.validation["val_loss"].tolist()
    with open("losses.json", "w") as file:  # the ranks have the same
        json.dump(losses, file)
    bench.close()
"""
MPI = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable)
ACCELERATE = (
    sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
    "--mixed_precision=no", "--dynamo_backend=no",
)  # fmt: skip


def losses(
    command: Sequence[str], variables: Mapping[str, str] | None = None, **settings: object
) -> tuple[list[float], list[float]]:
    """The losses of all updates and of all validations."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(PROGRAM)
        ended = subprocess.run(
            [*command, str(script), json.dumps(settings)],
            cwd=folder,
            env=environment() | dict(variables or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(ended.stderr)
        updates, validations = json.loads(script.with_name("losses.json").read_text())
        return updates, validations


def main() -> None:
    """Print the table."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        slurm: dict[str, str] = {}
        if cluster.installed():
            slurm = stack.enter_context(cluster.slurm(Path(folder)))
        here = (sys.executable,)
        rows = [("`devices=2` in a notebook", lambda: losses(here, devices=2))]
        rows.append(('`strategy="launch"`', lambda: losses(here, devices=2, strategy="launch")))
        rows.append(("`torchrun`", lambda: losses(TORCHRUN)))
        rows.append(("`accelerate launch`", lambda: losses(ACCELERATE)))
        if slurm:
            srun = ("srun", "-n", "2", sys.executable)
            rows.append(("`srun`", lambda: losses(srun, slurm)))
        if shutil.which("mpirun"):
            rows.append(("`mpirun`", lambda: losses(MPI)))
        reference: list[float] = []
        print("| started by | last loss | last val_loss | greatest difference of a loss |")
        print("|---|---|---|---|")
        for name, train in rows:
            updates, validations = train()
            reference = reference or updates
            difference = max(abs(a - b) for a, b in zip(updates, reference, strict=True))
            print(f"| {name} | {updates[-1]:.9f} | {validations[-1]:.9f} | {difference:.1e} |")


if __name__ == "__main__":
    main()
