"""A demo on real data: find a batch size and a learning rate, fit, export, and check that the
script repeats the run.

Run it with `workbench demo` (or `make demo`). The data are scikit-learn's handwritten digits: 1797
pictures of 8 x 8 pixels, no download.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import workbench as wb

CLASSES = 10


class DigitNet(nn.Module):
    """A small convolutional network: pictures (n, 1, 8, 8) to scores (n, 10)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.head = nn.Linear(2 * width * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.head(F.dropout(x.flatten(1), 0.2, self.training))  # type: ignore[no-any-return]


def accuracy(output: Tensor, y: Tensor) -> Tensor:
    """The share of samples whose own class has the highest score."""
    return (output.argmax(1) == y).float().mean()


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Pictures and labels to train on (1437) and to validate on (360)."""
    # Imported here, because each trial of the batch-size search imports this module.
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    x = torch.tensor(pictures, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, val = order[:1437], order[1437:]
    return (x[train], y[train]), (x[val], y[val])


def make_bench(root: Path) -> wb.Workbench:
    """Make the bench of the demo."""
    torch.manual_seed(0)
    train, val = digits()
    model = DigitNet()
    return wb.Workbench(
        model,
        train=train,
        val=val,
        loss=F.cross_entropy,
        metrics={"accuracy": accuracy},
        root=root,
        max_epochs=12,
    )


def demo(output: Path) -> dict[str, Any]:
    """Run the whole demo, leave pictures and the script in `output`, and return the results and
    the comparison.
    """
    output.mkdir(parents=True, exist_ok=True)
    bench = make_bench(output / ".workbench")
    print(f"{bench.summary}   1437 digits to train on, 360 to validate on\n")

    sizes = bench.find_batch_size().result()
    _save(sizes.plot(), output / "batch_size.png")
    print(sizes, "\n")
    if sizes.best is None:
        raise SystemExit("no batch size passed")
    bench.set(batch_size=sizes.best)

    curve = bench.find_lr().result()
    _save(curve.plot(), output / "lr_curve.png")
    print(curve, "\n")
    if curve.suggestion is None:
        raise SystemExit("no learning rate can be recommended; see the notes above")
    bench.set(lr=curve.suggestion)

    run = bench.fit().result()
    _save(run.plot(), output / "run.png")
    print(run, "\n")

    script = bench.export(output / "train.py", verify=False, log_file=True)  # it runs below
    losses = _losses_of(script)
    recorded = run.history["loss"]
    compared = min(len(losses), len(recorded))
    bench.close()
    return {
        "lr": bench.settings.lr,
        "batch_size": bench.settings.batch_size,
        "val_accuracy": run.metrics["val_accuracy"],
        "script": str(script),
        "updates_compared": compared,
        "losses_equal": len(losses) == len(recorded) and bool(np.array_equal(losses, recorded)),
    }


def _losses_of(script: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Run the script with accelerate in another process, and return its losses."""
    log = script.with_name("losses.jsonl")
    log.unlink(missing_ok=True)  # a script adds to the file, which may be of an earlier demo
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--num_processes=1",
        "--num_machines=1",
    ]
    options = ["--mixed_precision=no", "--dynamo_backend=no"]
    print("accelerate launch", script)
    # This package may be imported from a source folder, but the script must run without it.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*launch, *options, str(script), "--log_file", str(log)], check=False, env=clean
    )
    if done.returncode:
        raise SystemExit(f"{script} ended with exit code {done.returncode}")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    # the other rows are validations
    return np.array([row["loss"] for row in rows if "loss" in row], dtype=np.float32)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=120)
