"""What the attack tests share: a bench that trains in a moment, and files as a stranger would have written them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from workbench.events import Event, Message
from workbench.launch.job import AnyJob


def bench(root: Path, **settings: Any) -> wb.Workbench:
    """16 samples, two updates an epoch; they are the validation data too."""
    generator = torch.Generator().manual_seed(0)
    train = torch.randn(16, 3, generator=generator), torch.randint(0, 2, (16,), generator=generator)
    model = nn.Linear(3, 2)
    usual = {"accelerator": "cpu", "batch_size": 8, "max_epochs": 1, "loss": F.cross_entropy}
    return wb.Workbench(model, train=train, val=train, root=root, **{**usual, **settings})


def poison_checkpoints(run: Path, **settings: Any) -> None:
    """Write these settings into every checkpoint and into the record of a run, as if it had been trained with them."""
    for state in (run / "checkpoints").glob("*/state.pt"):
        held = torch.load(state, weights_only=True)
        held["settings"] |= settings
        torch.save(held, state)
    header = json.loads((run / "run.json").read_text())
    header["settings"] |= settings
    (run / "run.json").write_text(json.dumps(header))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    for event in events:
        if event["type"] == "RunStarted":
            event["settings"] |= settings
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def of(job: AnyJob, kind: type[Event]) -> list[Any]:
    return [event for event in job.events if isinstance(event, kind)]


def messages(job: AnyJob) -> list[str]:
    return [event.text for event in of(job, Message)]
