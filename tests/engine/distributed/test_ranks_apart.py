"""What one rank has at an update and another has not: parameters with a gradient, a batch, data of its own length."""

import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler

from tests.engine.fit_results import Heard, fit, same
from tests.engine.learners import Learner
from tests.engine.problems import labelled, plain_net, sgd
from tests.on_ranks import on_ranks
from workbench.commands import Mailbox
from workbench.engine.distributed.process_group import MultiProcessGroup
from workbench.engine.dry_run.dry_run import dry_run
from workbench.launch.assignments import PredictAssignment
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.factory import task_of

SIZE = 4
CE = {"loss": F.cross_entropy, "optimizer": sgd}
PLAIN = {"max_epochs": 2, "lr": 0.05, "num_sanity_val_steps": 0, "batch_size": SIZE}


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Sums repeat."""


def of_two(make, given, **settings):
    """The fit of two ranks, which agree."""
    one, other = on_ranks(
        2, lambda: fit(make(), given() if callable(given) else given, {**PLAIN, **settings})
    )
    np.testing.assert_array_equal(one["loss"], other["loss"])
    np.testing.assert_array_equal(one["lr"], other["lr"])
    assert one["checks"] == other["checks"]
    for name, _ in make().named_parameters():
        assert torch.equal(one["weights"][name], other["weights"][name])
    return one


class Chosen(nn.Module):
    """Which of its layers a batch goes through, the batch decides; when it is tried, all have their part."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.others = nn.Linear(6, 3), nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x):
        if len(x) < SIZE:
            return self.first(x) + sum(other(x) for other in self.others)
        return self.first(x) + self.others[int(x[0, 0] > 0)](x)


@pytest.mark.parametrize("windows", [1, 2])
def test_parameters_that_have_a_gradient_now_and_then(windows):
    given = {"train": labelled(64).tensors, **CE}
    ranks = of_two(Chosen, given, accumulate_grad_batches=windows)
    alone = fit(Chosen(), given, {**PLAIN, "accumulate_grad_batches": 2 * windows})
    # there, no gradient is one of zeros
    ranks["layers"][:2] = np.nan_to_num(ranks["layers"][:2]) + 0 * alone["layers"][:2]
    same(ranks, alone)


class Frozen(Learner):
    """Its first layer does not train in the second epoch."""

    def on_train_epoch_start(self):
        self.net[0].requires_grad_(self.trainer.current_epoch != 1)


class Freezes(Learner):
    """Its first layer trains no more from the third batch on, in the middle of an update."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if batch_idx == 2:
            self.net[0].requires_grad_(False)
        return loss


@pytest.mark.parametrize("kind", [Frozen, Freezes])
def test_parameters_that_are_frozen_on_the_way(kind):
    given = {"train": labelled(40).tensors}
    same(
        of_two(kind, given, max_epochs=3),
        fit(kind(), given, {**PLAIN, "max_epochs": 3, "batch_size": 2 * SIZE}),
    )


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    def forward(self, x):
        return self.net(x)


def some(samples):
    """A collate function that leaves batches out."""
    x, y = torch.utils.data.default_collate(samples)
    return None if (y == 0).sum() >= 2 else (x, y)


@pytest.mark.parametrize("windows", [1, 2])
def test_statistics_travel_where_a_rank_has_no_batch(windows):
    train = DataLoader(labelled(64), SIZE, shuffle=True, collate_fn=some)
    of_two(Normed, {"train": train, **CE}, accumulate_grad_batches=windows)


def test_data_that_split_themselves_unequally_count_alike():
    """The schedule and the checks are of the longest part."""

    def given():
        n = (21, 37)[dist.get_rank()]
        return {"train": labelled(n).tensors, "val": labelled(n - 18, 1).tensors, **CE}

    found = of_two(plain_net, given, val_check_interval=0.5, lr_schedule="one_cycle")
    assert [step for step, _ in found["checks"]] == [2, 4, 7, 9, 10]


class Guesses(Sampler):
    """Its length is more than what it gives."""

    def __len__(self):
        return 30

    def __iter__(self):
        yield from ([n] for n in range(15))


def test_the_length_of_a_sampler_need_not_be_true():
    train = DataLoader(labelled(37), batch_sampler=Guesses())
    assert len(of_two(plain_net, {"train": train, **CE})["loss"]) == 2 * 8


def test_the_clock_goes_on_in_a_validation():
    """What comes next in time is counted from the end of a check, not from the update before it."""

    def rank():
        ranks = MultiProcessGroup(dist.get_rank(), 2)
        ranks.clock = itertools.count(10.0).__next__
        seen = [ranks.seconds for _ in ranks.rounds(range(3))]
        return seen, ranks.seconds

    assert on_ranks(2, rank) == [([10.0, 11.0, 12.0], 13.0)] * 2


class Manual(Learner):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]))
        optimizer.step()


def test_a_manual_step_needs_a_batch_for_each():
    with pytest.raises(TaskError, match="none for each rank"):
        on_ranks(2, lambda: fit(Manual(), {"train": labelled(SIZE).tensors}, PLAIN))


def test_predictions_are_in_order_where_batches_are_left_out():
    def rank():
        torch.set_num_threads(1)
        data = DataLoader(labelled(37), SIZE, collate_fn=some)
        usual = dict.fromkeys(("test", "scheduler", "metrics", "collate_fn"))
        task = task_of(plain_net(), train=labelled(8).tensors, val=data, **usual, **CE)
        settings = Settings(batch_size=SIZE)
        dry_run(task, settings)
        return PredictAssignment(task, settings, task.val)(Heard(), Mailbox()).value

    one, other = on_ranks(2, rank)
    expected = rank()
    assert 1 < len(expected) < 9
    torch.testing.assert_close(one, expected)
    torch.testing.assert_close(other, expected)


class Breaks(torch.optim.SGD):
    """Its second step fails."""

    steps = 0

    def step(self, closure=None):
        self.steps += 1
        if self.steps == 2:
            raise RuntimeError("no second step")
        return super().step(closure)


def broken():
    """The rank, its error and the place that is noted in it."""
    with pytest.raises(RuntimeError, match="no second step") as error:
        fit(
            plain_net(),
            {"train": labelled(3 * SIZE).tensors, "loss": F.cross_entropy, "optimizer": Breaks},
            PLAIN,
        )
    return error.value.__notes__[0]


def test_an_error_on_a_rank_that_has_no_batch_says_so():
    notes = on_ranks(2, broken)
    assert [note.startswith("at update 1, epoch 0, on ") for note in notes] == [True, True]
    assert [note.endswith("on no batch") for note in notes] == [False, True]
