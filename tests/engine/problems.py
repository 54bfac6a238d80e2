"""Small models and data that the tests of the engine share."""

import copy
import functools
import os
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import workbench as wb

sgd = functools.partial(torch.optim.SGD, momentum=0.9)
adamw = torch.optim.AdamW
adam = torch.optim.Adam


def plain_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def noisy_net(seed=0):
    """BatchNorm has buffers that a forward moves, dropout draws from the global generator."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
    )


class HalfUsed(nn.Module):
    """`unused` never gets a gradient."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8)
        self.unused = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def stepped_by_hand(model, loss, batch_idx):
    """One of two optimizers at each batch, the other at every third, whose gradients add up until then; whether it was."""
    one, two = model.optimizers()
    model.manual_backward(loss)
    one.step()
    one.zero_grad()
    if batch_idx % 3 != 2:
        return False
    two.step()
    two.zero_grad()
    return True


def labelled(n=50, seed=1):
    """Three classes that can be told apart, n samples of 6 numbers."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    x = torch.randn(n, 6, generator=g)
    x[:, :3] += 2 * F.one_hot(y, 3)
    return TensorDataset(x, y)


class Stream(IterableDataset):
    """Samples with noise of a generator of its own. `knows`: it can say where it is, and go on there."""

    def __init__(self, data, knows=False):
        self.data, self.at, self.knows, self.generator = (
            data,
            0,
            knows,
            torch.Generator().manual_seed(7),
        )
        if knows:
            self.state_dict, self.load_state_dict = self._state, self._load

    def __iter__(self):
        for at in range(self.at, len(self.data)):
            x, y = self.data[at]
            self.at = at + 1 if self.knows else 0
            yield x + 0.1 * torch.randn(x.shape, generator=self.generator), y
        self.at = 0

    def _state(self):
        return {"at": self.at, "generator": self.generator.get_state()}

    def _load(self, state):
        self.at = state["at"]
        self.generator.set_state(state["generator"])


class SizedStream(Stream):
    """A stream that says how many samples it has."""

    def __len__(self):
        return len(self.data)


class Shares(Stream):
    """Each rank reads its own share, as people write it: the last rank (`most_first`: the first) twice as many samples
    as each other. They have noise of the process's generator, too.
    """

    def __init__(self, data, knows=False, most_first=False):
        super().__init__(data, knows)
        self.most_first = most_first

    def __iter__(self):
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        numbers = self.numbers(rank, world)
        for at in range(self.at, len(numbers)):
            x, y = self.data[numbers[at]]
            self.at = at + 1 if self.knows else 0
            noise = torch.randn(x.shape, generator=self.generator) + torch.randn(x.shape)
            yield x + 0.1 * noise, y
        self.at = 0

    def numbers(self, rank, world):
        """The numbers of the samples that this rank reads."""
        rank = world - 1 - rank if self.most_first else rank
        return [n for n in range(len(self.data)) if min(n % (world + 1), world - 1) == rank]


class Augmented(Dataset):
    """Each sample draws noise from torch, numpy and python, as augmentations do."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        import random

        import numpy as np

        x, y = self.data[index]
        noise = (
            0.1 * torch.randn_like(x) + 0.1 * float(np.random.randn()) + 0.1 * random.gauss(0, 1)
        )
        return x + noise, y


def bench(model, data, root, optimizer=sgd, **settings):
    ready = isinstance(data, torch.utils.data.DataLoader) and data.batch_size is None
    # these have batches of their own
    size = {} if ready or isinstance(data, Iterator) else {"batch_size": 8}
    settings = {"accelerator": "cpu", **size, "lr": 0.05, **settings}
    loss = settings.pop("loss", F.cross_entropy)
    return wb.Workbench(model, train=data, loss=loss, optimizer=optimizer, root=root, **settings)


def two_groups(parameters, lr):
    """SGD with two parameter groups, of which the second has a tenth of the rate."""
    parameters = list(parameters)
    return torch.optim.SGD(
        [{"params": parameters[:2], "lr": lr}, {"params": parameters[2:], "lr": lr / 10}]
    )


def loss_of(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def twin_of(model):
    return copy.deepcopy(model)


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same_weights(a, b):
    a, b = (x if isinstance(x, dict) else x.state_dict() for x in (a, b))
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization (Foret et al. 2021) in the usual form: its step expects gradients and evaluates once more."""

    def __init__(self, params, lr=1e-3, rho=0.05, **options):
        super().__init__(params, {"lr": lr, "rho": rho})
        self.base = torch.optim.SGD(self.param_groups, lr=lr, momentum=0.9, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack(
            [
                p.grad.norm()
                for group in self.param_groups
                for p in group["params"]
                if p.grad is not None
            ]
        ).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["before"] = p.detach().clone()
                    p.add_(p.grad * (group["rho"] / (norm + 1e-12)))

    @torch.no_grad()
    def step(self, closure=None):
        if closure is None:
            raise ValueError("SAM needs a closure")
        self.first_step()
        with torch.enable_grad():
            closure()
        for p, state in self.state.items():
            p.copy_(state.pop("before"))
        self.base.step()
