"""A script with every call of a bench; each rank writes down what it got."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

import workbench as wb


def main() -> None:
    rank = next(
        (
            os.environ[name]
            for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
            if name in os.environ
        ),
        "0",
    )
    devices = 2 if "devices" in sys.argv else "auto"
    torch.manual_seed(0)
    x = torch.randn(120, 8)
    y = (x[:, 0] * x[:, 1] > 0).long()
    # other weights on each rank: all begin with those of rank 0
    torch.manual_seed(int(rank))
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 2))
    bench = wb.Workbench(
        model,
        train=(x[:100], y[:100]),
        val=(x[100:], y[100:]),
        loss=nn.CrossEntropyLoss(),
        batch_size=8,
        accelerator="cpu",
        devices=devices,
    )
    run = bench.fit(max_epochs=2, lr=1e-2, gradient_clip_val=1.0).result()
    metrics = bench.validate().result()
    outputs = bench.predict((x[100:], y[100:])).result()
    curve = bench.find_lr(num_training=20).result()
    sizes = bench.find_batch_size(max_val=16, steps_per_trial=2).result()
    profile = bench.profile(updates=2).result()
    continued = bench.fit("continue", max_epochs=3).result()
    if devices == "auto":
        bench.export("train.py", run)
    numbers = {
        "id": run.id,
        "loss": run.history["loss"].tolist(),
        "validated": list(metrics.values()),
        "predicted": torch.cat(outputs).sum(0).tolist(),
        "lr": curve.suggestion,
        "sizes": [trial.size for trial in sizes.trials],
        "profile": [profile.verdict, profile.flops, str(profile.trace)],
        "continued": continued.history["loss"].tolist(),
    }
    Path(f"rank{rank}.json").write_text(json.dumps(numbers))
    bench.close()


if __name__ == "__main__":
    main()
