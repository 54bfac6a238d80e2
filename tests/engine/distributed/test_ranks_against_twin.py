"""n ranks with batches of N take the updates of one process with batches of n·N; every rank alike."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.engine.fit_results import fit, same
from tests.engine.learners import Learner
from tests.engine.problems import labelled, plain_net, sgd
from tests.on_ranks import on_ranks

SIZE = 4


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Sums repeat."""


def both(make, given, settings, world=2, size=SIZE):
    """The fit on ranks (all of which must agree to the bit) and in one process on the global batch."""

    def rank():
        return fit(make(), given, {**settings, "batch_size": size})

    first, *others = on_ranks(world, rank)
    for other in others:
        np.testing.assert_array_equal(first["loss"], other["loss"])
        np.testing.assert_array_equal(first["norm"], other["norm"])
        assert first["checks"] == other["checks"]
        torch.testing.assert_close(first["weights"], other["weights"], rtol=0, atol=0)
    return first, fit(make(), given, {**settings, "batch_size": size * world})


PLAIN = {"max_epochs": 2, "lr": 0.05, "num_sanity_val_steps": 0}
CE = {"loss": F.cross_entropy, "optimizer": sgd}


def twin(net, data, size, epochs, lr):
    """The loop that everybody writes."""
    order = torch.Generator().manual_seed(0)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*data), size, shuffle=True, generator=order
    )
    opt, losses = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9), []
    for _ in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
    return losses


def test_the_loop_that_everybody_writes():
    data = labelled(37).tensors
    momentum = functools.partial(torch.optim.SGD, momentum=0.9)
    given = {"train": data, "loss": F.cross_entropy, "optimizer": momentum}
    ranks, _ = both(plain_net, given, PLAIN)
    losses = twin(plain_net(), data, 2 * SIZE, 2, 0.05)
    np.testing.assert_allclose(ranks["loss"], losses, rtol=1e-4)


def in_float64(output, y):
    return F.cross_entropy(output.double(), y)


def test_a_float64_loss_of_a_float32_model_is_kept():
    """In updates and checks it is the mean of the ranks' own to the last bit; in the last update rank 1 has no batch."""
    x, y = labelled(9).tensors
    given = {"train": (x, y), "val": (x[:8], y[:8]), "loss": in_float64, "optimizer": sgd}
    ranks, one = both(plain_net, given, {**PLAIN, "max_epochs": 1, "shuffle": False})
    assert ranks["loss"].dtype == one["loss"].dtype == np.float64
    np.testing.assert_allclose(ranks["loss"], one["loss"], rtol=1e-5)

    def mean(net):
        return sum(in_float64(net(x[part]), y[part]).item() for part in (slice(4), slice(4, 8))) / 2

    net = plain_net()
    assert ranks["loss"][0] == mean(net)
    net.load_state_dict(ranks["weights"])
    assert ranks["checks"][-1][1]["val_loss"] == mean(net)


@pytest.mark.parametrize("n", [32, 37, 34, 33, 3], ids=lambda n: f"{n} samples")
@pytest.mark.parametrize("world", [2, 3])
def test_tails(n, world):
    data = labelled(n).tensors
    size = SIZE if n > SIZE * world else 1
    same(
        *both(plain_net, {"train": data, "val": labelled(19, 1).tensors, **CE}, PLAIN, world, size)
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate_grad_batches": 3},
        {"accumulate_grad_batches": {0: 1, 1: 2}, "gradient_clip_val": 0.05},
        {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"},
        {"lr_schedule": "one_cycle"},
        {"lr_schedule": "cosine", "warmup": 2, "max_epochs": None, "max_steps": 7},
        {"weight_averaging": "ema", "ema_decay": 0.5},
        {"weight_averaging": "swa", "swa_epoch_start": 0, "max_epochs": 3},
        {"val_check_interval": 2, "check_val_every_n_epoch": 1},
        {"early_stopping": "val_loss", "max_epochs": 4},
        {"precision": "bf16-mixed"},
        {"track_grad_norm": "inf", "log_every_n_steps": 2},
        {"limit_train_batches": 3, "limit_val_batches": 1},
        {"drop_last": True},
        {"detect_anomaly": True},
    ],
    ids=str,
)
def test_techniques(settings):
    given = {"train": labelled(37).tensors, "val": labelled(19, 1).tensors, **CE}
    ranks, alone = both(plain_net, given, {**PLAIN, **settings})
    if "limit_val_batches" in settings:
        ranks["checks"] = alone["checks"] = []  # as many batches, of half the size
    same(ranks, alone, 2e-2 if "precision" in settings else 2e-4)


@pytest.mark.parametrize("what", [{"weighted": True}, {"picky": True}, {"drops": (1,)}], ids=str)
def test_weights_and_batches_left_out(what):
    """A batch counts as its step says; one that a rank leaves out is missing on that rank alone."""

    def rank():
        return fit(Learner(**what), {"train": labelled(37).tensors}, {**PLAIN, "batch_size": SIZE})

    def rounds():
        return fit(
            Learner(**what),
            {"train": labelled(37).tensors},
            {**PLAIN, "batch_size": SIZE, "accumulate_grad_batches": 2},
        )

    first, other = on_ranks(2, rank)
    torch.testing.assert_close(first["weights"], other["weights"], rtol=0, atol=0)
    if "drops" not in what:  # there the numbers of the batches differ
        same(first, rounds())
    assert np.isfinite(first["loss"]).all()


class Half(nn.Module):
    """A layer without a part in the loss, and one that is trained from the second epoch on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.unused = plain_net(), nn.Linear(3, 3)

    def forward(self, x):
        return self.net(x)


def test_parameters_without_a_gradient():
    ranks, alone = both(Half, {"train": labelled(37).tensors, **CE}, PLAIN)
    same(ranks, alone)
    torch.testing.assert_close(ranks["weights"]["unused.weight"], Half().unused.weight.detach())
