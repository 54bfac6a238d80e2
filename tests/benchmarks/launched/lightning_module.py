"""The little model for Lightning; importable, since its spawned ranks must be able to."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch.nn.functional as F

from tests.benchmarks.launched.problems import Little, Marked


class Module(pl.LightningModule):
    def __init__(self, gate_at: int) -> None:
        super().__init__()
        self.net = Little(gate_at)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> Any:
        return Marked(self.parameters(), lr=1e-3)
