"""Named parts of the loss: `return {"loss": …, "reconstruction": …}` is recorded by update, under these names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import workbench as wb
from tests.engine.problems import labelled, plain_net
from tests.lightning.both import boring, loader

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = labelled(26)


def by_parts(output: Tensor, y: Tensor) -> dict[str, Any]:
    fit, size = F.cross_entropy(output, y), output.square().mean()
    return {
        "loss": fit + 0.1 * size,
        "fit": fit,
        "size": size,
        "lr": size.detach(),
        "number": size.item(),
        "count": len(y),
        "rows": output,
        "single": output[:1, :1],
        "right": (output.argmax(1) == y).sum(),
    }


@pytest.mark.parametrize(
    "settings",
    [{"monitor": "size"}, {"early_stopping": wb.EarlyStopping("size")}],
    ids=["monitor", "early stopping"],
)
def test_a_monitor_of_a_part_is_refused_since_training_alone_reports_it(
    settings: dict[str, Any], tmp_path: Any
) -> None:
    made = bench(tmp_path, val=DATA)
    with pytest.raises(
        wb.SettingsError,
        match=r"'size': only training reports it.* metrics of a validation.*metrics=\{'size': …\}.*val_loss, train_loss",
    ):
        made.fit(**settings)


def bench(root: Any, model: Any = None, **more: Any) -> wb.Workbench:
    usual = {
        "train": DATA,
        "loss": by_parts,
        "batch_size": 4,
        "max_epochs": 1,
        "lr": 0.05,
        "shuffle": False,
        "optimizer": torch.optim.SGD,
    }
    return wb.Workbench(model or plain_net(), root=root, accelerator="cpu", **{**usual, **more})


@pytest.mark.parametrize("window", [1, 3])
def test_a_plain_loss(window, tmp_path):
    """Against a plain loop: of a window the mean over its samples, as the loss itself is."""
    with bench(tmp_path, accumulate_grad_batches=window) as made:
        run = made.fit().result()
    model = plain_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    x, y = DATA.tensors
    wanted: dict[str, list[float]] = {"loss": [], "fit": [], "size": []}
    for first in range(0, 26, 4 * window):
        rows = slice(first, first + 4 * window)
        found = by_parts(model(x[rows]), y[rows])
        optimizer.zero_grad()
        found["loss"].backward()
        optimizer.step()
        for name, values in wanted.items():
            values.append(float(found[name].detach()))
    for name, values in wanted.items():
        np.testing.assert_allclose(run.history[name], values, rtol=1e-5)
    np.testing.assert_allclose(run.history["lr"], 0.05)
    np.testing.assert_allclose(run.history["lr_logged"], run.history["size"])
    np.testing.assert_allclose(run.history["number"], run.history["size"])
    assert run.history["right"].max() <= 4 * window
    assert not {"count", "rows", "single"} & set(run.history)
    (drawn,) = run.charts("fit")
    assert len(drawn.series[0].y) == len(wanted["loss"])


class Parts(boring.BoringModel):
    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.log("half", loss / 4)
        self.log("by_epoch", loss, on_step=False, on_epoch=True)
        return {"loss": loss, "double": 2 * loss, "half": loss / 2, "by_epoch": loss, "log": loss}


def test_a_module_that_logs_some_itself(tmp_path):
    """What it logs by itself wins over a part of the same name."""
    with wb.Workbench(
        Parts(), train=loader(), root=tmp_path, accelerator="cpu", max_epochs=1
    ) as made:
        history = made.fit().result().history
    np.testing.assert_allclose(history["double"], 2 * history["loss"], rtol=1e-6)
    np.testing.assert_allclose(history["half"], history["loss"] / 4, rtol=1e-6)
    assert not {"by_epoch", "log"} & set(history)


class ByHand(boring.BoringModel):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return {"loss": loss, "double": 2 * loss}


def test_manual_optimization(tmp_path):
    with wb.Workbench(
        ByHand(), train=loader(), root=tmp_path, accelerator="cpu", max_epochs=1
    ) as made:
        history = made.fit().result().history
    np.testing.assert_allclose(history["double"], 2 * history["loss"], rtol=1e-6)


def test_an_optimizer_that_evaluates_again_has_the_parts_of_the_first_evaluation_as_the_loss(
    tmp_path,
):
    with bench(tmp_path, optimizer=torch.optim.LBFGS, lr=0.1, batch_size=26) as made:
        history = made.fit().result().history
    np.testing.assert_allclose(history["fit"] + 0.1 * history["size"], history["loss"], rtol=1e-6)


def test_two_processes_train_the_same(tmp_path):
    """A part that the loss does not use keeps no process waiting for its gradient."""

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), self.other(x)

    def beside(outputs: tuple[Tensor, Tensor], y: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(outputs[0], y), "other": F.cross_entropy(outputs[1], y)}

    with bench(tmp_path, Beside(), loss=beside, devices=2, batch_size=13) as made:
        history = made.fit().result().history
    x, y = DATA.tensors
    with torch.no_grad():
        of_first_rank = beside(Beside()(x[:13]), y[:13])["other"]
    assert history["other"][0] == pytest.approx(float(of_first_rank), rel=1e-5)
