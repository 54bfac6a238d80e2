"""Several optimizers, manual steps and LBFGS on two ranks: as one process on the batches of both."""

import pytest
import torch
from torch import nn

from tests.lightning.ranks.rank_fits import Net, alone, each, ranks, same

pytestmark = pytest.mark.usefixtures("one_thread")


class Pair(Net):
    """Two networks that learn from each other, and nothing drawn: a generator and a discriminator in all but chance."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(1, 1)

    def losses(self, batch, which):
        x, y = batch
        made = self.net(x)
        if which == 0:
            return (self.other(made) - 1).square().mean() + (made - y).square().mean()
        return self.other(made.detach()).square().mean() + (self.other(y) - 1).square().mean()

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.net.parameters(), lr=0.01),
            torch.optim.SGD(self.other.parameters(), lr=0.1),
        ]


class InTurn(Pair):
    """Both at each update."""

    def training_step(self, batch, batch_idx, optimizer_idx):
        return self.losses(batch, optimizer_idx)


class ByFrequency(InTurn):
    """Two updates of the one, one of the other."""

    def configure_optimizers(self):
        first, second = super().configure_optimizers()
        return [{"optimizer": first, "frequency": 2}, {"optimizer": second, "frequency": 1}]


class Manual(Pair):
    """As Lightning's documentation writes it."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for which, optimizer in enumerate(self.optimizers()):
            self.toggle_optimizer(optimizer)
            loss = self.losses(batch, which)
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, 0.5, "norm")
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen.append(batch_idx)


class SometimesManual(Manual):
    """One of them at every second batch alone."""

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        self.manual_backward(self.losses(batch, 0))
        first.step()
        first.zero_grad()
        second.zero_grad()
        if batch_idx % 2:
            self.manual_backward(self.losses(batch, 1))
            second.step()
            second.zero_grad()


class Closures(Net):
    """LBFGS evaluates a batch several times."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)


class ClosuresSeen(Closures):
    def on_after_backward(self):
        self.seen.append(self.net[0].weight.grad.norm().item())


WAYS = [InTurn, ByFrequency, Manual, SometimesManual, Closures, ClosuresSeen]


def as_one_process(makes, samples, **settings):
    for make, found in zip(makes, each(makes, samples, **settings), strict=True):
        other = alone(make, samples, **settings)
        same(found[0], other)
        assert found[0]["seen"] == found[1]["seen"] == pytest.approx(other["seen"], rel=1e-3)


def test_as_one_process():
    as_one_process(WAYS, 24)


def test_windows():
    as_one_process([InTurn, Manual], 32, accumulate_grad_batches=2, gradient_clip_val=0.3)


def test_a_rank_without_a_batch():
    as_one_process([InTurn, Closures, ClosuresSeen], 20)


def test_manual_rounds_that_do_not_go_round():
    """A step that some ranks alone would take is left out, and said."""
    found = ranks(Manual, 20)
    assert [len(rank["loss"]) for rank in found] == [4, 4]
    assert [rank["seen"] for rank in found] == [[0, 1, 0, 1]] * 2
    assert any("left out" in text for text in found[0]["said"])
    same(found[0], alone(Manual, 20, limit_train_batches=2))
