"""A Lightning module's fit as one rank takes it, or the only process; and both, held against each other."""

import os
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.engine.fit_results import Heard
from tests.lightning.both import pl
from tests.on_ranks import on_ranks
from workbench.commands import Mailbox
from workbench.engine.dry_run.dry_run import dry_run
from workbench.events import Logged, Message, StepsDone, Validated
from workbench.launch.assignments import FitAssignment
from workbench.settings import Settings
from workbench.task.factory import task_of
from workbench.task.ranks import RANK

QUIET = {"max_epochs": 2, "lr": 0.05, "num_sanity_val_steps": 0}


class Net(pl.LightningModule):
    """A small network without chance; `seen`: what its hooks wrote down."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lr = 0.05
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.seen: list[Any] = []

    def loss(self, batch):
        x, y = batch
        return (self.net(x) - y).square().mean()

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def pairs(n, seed=1):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.sum(1, keepdim=True).sin())


def batches(n, size, seed=1):
    """The same order each time."""
    return DataLoader(pairs(n, seed), batch_size=size)


def made(module, train, val=None, **settings):
    """The task and the settings as the process has them that owns the bench, which is no rank."""
    none = dict.fromkeys(("test", "loss", "scheduler", "metrics", "collate_fn"))
    mark = os.environ.pop(RANK, None)
    try:
        task = task_of(module, train=train, val=val, optimizer=torch.optim.AdamW, **none)
        chosen = Settings.make(**{**task.implied, **QUIET, **settings})
        dry_run(task, chosen)
        return task, chosen
    finally:
        if mark is not None:
            os.environ[RANK] = mark


def fit(module, train, val=None, trackers=(), **settings) -> dict[str, Any]:
    """What came of a fit: losses, what was logged, checks, weights, and what the module has seen."""
    torch.set_num_threads(1)
    task, chosen = made(module, train, val, **settings)
    task.use_trackers(trackers)
    module.seen.clear()
    heard = Heard()
    done = FitAssignment(task, chosen)(heard, Mailbox())
    steps = [event for event in heard if isinstance(event, StepsDone)]
    names = {name for event in steps for name in event.columns} & {"x", "x_step", "synced", "worst"}
    return {
        "status": done.status,
        "loss": np.concatenate([s.array("loss") for s in steps]) if steps else np.empty(0),
        "steps": {
            name: np.concatenate([s.array(name) for s in steps if name in s.columns])
            for name in names
        },
        "epochs": [(e.step, e.metrics) for e in heard if isinstance(e, Logged)],
        "checks": [(e.step, e.metrics) for e in heard if isinstance(e, Validated)],
        "said": [e.text for e in heard if isinstance(e, Message)],
        "weights": {
            name: value.detach().clone() for name, value in task.model.state_dict().items()
        },
        "seen": list(module.seen),
    }


def ranks(make, train, val=None, world=2, **settings) -> list[dict[str, Any]]:
    """The fit of each rank; train, val: how many samples, in batches of 4. All ranks have the same in the end."""
    (found,) = each([make], train, val, world, **settings)
    return found


def each(makes, train, val=None, world=2, **settings) -> list[list[dict[str, Any]]]:
    """`ranks` of several modules, one after the other in the same processes."""

    def rank():
        held_out = None if val is None else batches(val, 4, 2)
        return [fit(make(), batches(train, 4), held_out, **settings) for make in makes]

    found = [list(of_one) for of_one in zip(*on_ranks(world, rank), strict=True)]
    for first, *others in found:
        for other in others:
            torch.testing.assert_close(other["weights"], first["weights"], rtol=0, atol=0)
            for name in ("status", "epochs", "checks"):
                assert other[name] == first[name]
    return found


def alone(make, train, val=None, world=2, **settings) -> dict[str, Any]:
    """The same in one process, with batches as large as those of all ranks together."""
    return fit(
        make(),
        batches(train, 4 * world),
        None if val is None else batches(val, 4 * world, 2),
        **settings,
    )


def same(one, other):
    """Losses and weights are equal to float tolerance."""
    np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-4)
    torch.testing.assert_close(one["weights"], other["weights"], rtol=1e-3, atol=1e-5)
