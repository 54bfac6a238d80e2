"""What is said of an error that ended a job: where memory ran out, with the lines of code that help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import workbench as wb
from workbench.ui.canvas.model import CanvasModel
from workbench.ui.canvas.requests import remedy


class SmallBatches(torch.nn.Module):
    """A model that has memory for 16 samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.layer(x)


def failed(bench: wb.Workbench, **settings: Any) -> dict[str, Any]:
    """What the stage shows of a fit that fails."""
    job = bench.fit(max_steps=2, **settings)
    with pytest.raises(torch.OutOfMemoryError):
        job.result()
    model = CanvasModel()
    for event in job.events:
        model.draw(event)
    failure: dict[str, Any] = model.outbox._values["failure"]
    return failure


def test_where_memory_ran_out_a_click_takes_half_of_the_batch(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    bench = wb.Workbench(SmallBatches(), train=data, loss=mse_loss, root=tmp_path)
    bench.set(batch_size=32, accumulate_grad_batches=2)
    failure = failed(bench)
    assert failure["advice"].startswith("Memory ran out at batch_size=32: take a smaller one")
    halve, find = failure["remedies"]
    assert halve == "bench.set(batch_size=16, accumulate_grad_batches=4)"
    assert remedy(find) == ("find_batch_size", {})
    by_epoch = failed(bench, accumulate_grad_batches={0: 2, 4: 1})
    assert by_epoch["remedies"] == [find], "no one number replaces a schedule"
    method, values = remedy(halve)
    getattr(bench, method)(**values)
    assert bench.fit(max_steps=1).result().status == "finished"
