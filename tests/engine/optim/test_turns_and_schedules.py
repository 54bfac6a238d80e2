"""Several optimizers with turns of their own: a built-in schedule falls to its end over each one's own turns."""

import numpy as np
import pytest
import torch
from torch import nn

import workbench as wb
from tests.engine.problems import labelled

pytestmark = pytest.mark.usefixtures("one_thread")


class Duel(nn.Module):
    def __init__(self, frequencies):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.frequencies = nn.Linear(6, 1), nn.Linear(6, 1), frequencies

    def training_step(self, batch, batch_idx, optimizer_idx):
        x, _ = batch
        return (self.one(x) - self.two(x) + optimizer_idx).square().mean()

    def configure_optimizers(self):
        return [
            {"optimizer": torch.optim.SGD(part.parameters(), lr=0.01), "frequency": frequency}
            for part, frequency in zip((self.one, self.two), self.frequencies, strict=True)
        ]


@pytest.mark.parametrize("frequencies", [(2, 1), (1, 3), (1, 1)])
def test_each_has_a_schedule_of_its_own_turns(tmp_path, frequencies):
    run = wb.Workbench(
        Duel(frequencies), train=labelled(48), root=tmp_path, batch_size=4, max_epochs=2, lr_schedule="linear", warmup=2,
        num_sanity_val_steps=0,
    ).fit().result()  # fmt: skip
    owners = np.array([i for i, f in enumerate(frequencies) for _ in range(f)])[
        np.arange(24) % sum(frequencies)
    ]
    for index in (0, 1):
        rates = run.history[f"lr.{index}"][owners == index]
        turns = len(rates)
        expected = [
            0.01 * ((k + 1) / 2 if k < 2 else (turns - k) / (turns - 2)) for k in range(turns)
        ]
        np.testing.assert_allclose(rates, expected, rtol=1e-6)


class Falling(Duel):
    """The second's rate falls at the end of each epoch."""

    def configure_optimizers(self):
        first, second = super().configure_optimizers()
        falls = {
            "scheduler": torch.optim.lr_scheduler.StepLR(second["optimizer"], 1),
            "interval": "epoch",
        }
        return [first, {**second, "lr_scheduler": falls}]


class FallingByHand(Falling):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()


SWA = {"weight_averaging": "swa", "swa_epoch_start": 1, "swa_lrs": 0.1}


@pytest.mark.parametrize(("kind", "settings"), [(Falling, {}), (FallingByHand, {}), (Duel, SWA)])
def test_one_without_a_turn_yet_is_no_mistake(tmp_path, kind, settings):
    """Its schedule falls with the epochs: torch would warn, and a warning from the workbench is an error here."""
    run = wb.Workbench(
        kind((4, 1)), train=labelled(16), root=tmp_path, batch_size=8, max_epochs=4, accelerator="cpu", **settings,
    ).fit().result()  # fmt: skip
    assert run.status == "finished"


def test_a_mistake_of_ones_own_is_warned_of(tmp_path):
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.automatic_optimization, self.net = False, nn.Linear(6, 1)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 100)]

        def training_step(self, batch, batch_idx):
            self.lr_schedulers().step()
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.net(batch[0]).square().mean())
            optimizer.step()

    bench = wb.Workbench(
        Wrong(), train=labelled(16), root=tmp_path, batch_size=8, max_epochs=1, accelerator="cpu"
    )
    with pytest.warns(UserWarning, match=r"before `optimizer\.step\(\)`"):
        bench.fit().wait()
