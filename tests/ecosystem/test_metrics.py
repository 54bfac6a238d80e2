"""torchmetrics over a check, against the package itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.ecosystem.twins import refused_by_name

tm = pytest.importorskip("torchmetrics")


def data(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    return x, torch.randint(0, 3, (n,), generator=generator)


METRICS = {
    "AUROC": lambda: tm.AUROC(task="multiclass", num_classes=3),
    "macro F1": lambda: tm.F1Score(task="multiclass", num_classes=3, average="macro"),
    "accuracy": lambda: tm.Accuracy(task="multiclass", num_classes=3),
    "kappa": lambda: tm.CohenKappa(task="multiclass", num_classes=3),
    "average precision": lambda: tm.AveragePrecision(task="multiclass", num_classes=3),
}


@pytest.mark.parametrize("name", METRICS)
def test_over_the_check(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    net, val = nn.Linear(5, 3), data(50, 1)
    bench = wb.Workbench(net, train=data(32, 0), val=val, loss=F.cross_entropy, metrics={"m": METRICS[name]()}, root=tmp_path,
                         batch_size=16, accelerator="cpu")  # fmt: skip
    # updated by batch: of each batch torchmetrics asks anew whether it holds probabilities
    expected = METRICS[name]()
    for x, y in zip(val[0].split(16), val[1].split(16), strict=True):
        expected.update(net(x).detach(), y)
    for _ in range(2):  # it is reset between
        assert bench.validate().result()["val_m"] == pytest.approx(
            expected.compute().item(), rel=1e-5
        )


def test_regression_and_a_collection(tmp_path: Path) -> None:
    net, (x, _) = nn.Linear(5, 1), data(50, 1)
    y = x.sum(1, keepdim=True)
    collection = tm.MetricCollection({"r2": tm.R2Score(), "mae": tm.MeanAbsoluteError()})
    try:
        bench = wb.Workbench(
            net,
            train=(x, y),
            val=(x, y),
            loss=F.mse_loss,
            metrics=collection,
            root=tmp_path,
            accelerator="cpu",
        )
    except Exception as error:
        refused_by_name(error, "metrics")
        return
    found = bench.validate().result()
    net.eval()
    expected = tm.R2Score()(net(x), y).item()
    assert found["val_r2"] == pytest.approx(expected, rel=1e-4)


def test_a_matrix_is_refused_or_recorded_as_one(tmp_path: Path) -> None:
    net = nn.Linear(5, 3)
    metrics: dict[str, Any] = {"confusion": tm.ConfusionMatrix(task="multiclass", num_classes=3)}
    with pytest.raises(Exception, match=r"confusion.*3.?[x×,].?3|shape") as error:
        wb.Workbench(
            net,
            train=data(32, 0),
            val=data(32, 1),
            loss=F.cross_entropy,
            metrics=metrics,
            root=tmp_path,
        ).validate().result()
    assert len(str(error.value)) < 1000


def test_a_metric_as_the_loss_of_a_part_of_the_model(tmp_path: Path) -> None:
    """A metric inside of the model is no parameter and survives a fit."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.seen = nn.Linear(5, 3), tm.MeanMetric()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.line(x)
            self.seen.update(out.detach().mean())
            return out

    net = Net()
    run = (
        wb.Workbench(
            net,
            train=data(32, 0),
            loss=F.cross_entropy,
            root=tmp_path,
            max_epochs=1,
            accelerator="cpu",
        )
        .fit()
        .result()
    )
    assert run.status == "finished"
    assert torch.isfinite(net.seen.compute())
