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


def demo(output: Path) -> bool:
    """Run the whole demo, say in a line what each step has brought, and leave pictures and the
    script in `output`. Returns whether the losses of the script equal those of the run.
    """
    output.mkdir(parents=True, exist_ok=True)
    bench = make_bench(output / ".workbench")
    print(f"{bench.summary}   1437 digits to train on, 360 to validate on\n")

    _begins("Trying batch sizes, each in a process of its own …")
    sizes = bench.find_batch_size().result()
    if sizes.best is None:
        raise SystemExit(f"no batch size passed\n{sizes}")
    bench.set(batch_size=sizes.best)
    _begins("Raising the learning rate from update to update, until the loss diverges …")
    curve = bench.find_lr().result()
    if curve.suggestion is None:
        raise SystemExit(f"no learning rate can be recommended\n{curve}")
    bench.set(lr=curve.suggestion)
    pictures = f"{_save(sizes, output / 'batch_size.png')}, {_save(curve, output / 'lr_curve.png')}"
    print(f"Found     batch size {sizes.best}, learning rate {curve.suggestion:.3g}   {pictures}")

    run = bench.fit().result()
    accuracy = f"{run.metrics['val_accuracy']:.1%} of the validation digits are right"
    print(f"Trained   {run.epochs} epochs; {accuracy}   {_save(run, output / 'run.png')}")

    script = bench.export(output / "train.py", verify=False, log_file=True)  # it runs below
    lines = len(script.read_text().splitlines())
    print(f"Exported  {lines} lines that need torch and accelerate, not this package   {script}")

    _begins(f"accelerate launch {script}")
    losses, recorded = _losses_of(script), np.array(run.history["loss"], dtype=np.float32)
    bench.close()
    equal = np.array_equal(losses, recorded)
    if equal:
        print(
            f"Verified  the script ran: its {len(losses)} losses equal the run's, to the last bit"
        )
    else:
        print(
            f"Failed    the script's losses differ from the run's: {_difference(losses, recorded)}"
        )
    return equal


def _begins(text: str) -> None:
    """Say what begins, where progress is shown."""
    print(text, file=sys.stderr, flush=True)


def _difference(losses: np.ndarray[Any, Any], recorded: np.ndarray[Any, Any]) -> str:
    """Where two lists of losses part."""
    if len(losses) != len(recorded):
        return f"it has {len(losses)}, the run {len(recorded)}"
    update = int(np.flatnonzero(losses != recorded)[0])
    return f"first at update {update + 1}, {losses[update]:g} and {recorded[update]:g}"


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
    # This package may be imported from a source folder, but the script must run without it.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*launch, *options, str(script), "--log_file", str(log)],
        check=False,
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{script} ended with exit code {done.returncode}")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    # the other rows are validations
    return np.array([row["loss"] for row in rows if "loss" in row], dtype=np.float32)


def _save(result: Any, path: Path) -> Path:
    """Draw a result into a picture, and return its path."""
    result.plot().savefig(path, dpi=120)
    return path
