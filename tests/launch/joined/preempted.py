"""A script that continues where it was stopped: `fit("auto")`. Each rank writes down its losses."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from torch import nn

import workbench as wb

DIES = os.environ.get("DIES_AT_FIRST") and (
    os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
)
calls = {"forward": 0}


class Slow(nn.Module):
    """A network that takes its time, so that a signal comes in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.03)
        calls["forward"] += 1
        if DIES and calls["forward"] == 40:
            os._exit(9)
        output: torch.Tensor = self.layers(x)
        return output


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(120, 8)
    y = (x[:, 0] * x[:, 1] > 0).long()
    bench = wb.Workbench(
        Slow(),
        train=(x[:100], y[:100]),
        val=(x[100:], y[100:]),
        loss=nn.CrossEntropyLoss(),
        batch_size=4,
        accelerator="cpu",
        dry_run=False,
        checkpoint_every=10,
    )
    run = bench.fit("auto", max_epochs=8, lr=1e-2, enable_progress_bar=False).result()
    rank = os.environ.get("RANK", "0")
    Path(f"rank{rank}.json").write_text(json.dumps(run.history["loss"].tolist()))
    bench.close()


if __name__ == "__main__":
    main()
