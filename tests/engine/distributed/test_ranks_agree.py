"""What one rank hears or meets counts for all: commands, bad numbers, the end of its data."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.engine.fit_results import Heard, fit, same
from tests.engine.problems import labelled, plain_net, sgd
from tests.on_ranks import on_ranks
from workbench.commands import Change, Mailbox, Pause, Resume, Stop
from workbench.engine.dry_run.dry_run import dry_run
from workbench.engine.metrics import meter
from workbench.instruments.finite import NonFiniteError
from workbench.launch.assignments import EvaluateAssignment, PredictAssignment
from workbench.settings import Settings
from workbench.task.factory import task_of

CE = {"loss": F.cross_entropy, "optimizer": sgd}
PLAIN = {"max_epochs": 2, "lr": 0.05, "num_sanity_val_steps": 0, "batch_size": 4}


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Sums repeat."""


def my_rank():
    return torch.distributed.get_rank()


def as_one(ranks):
    first, *others = ranks
    for other in others:
        np.testing.assert_array_equal(first["loss"], other["loss"])
        torch.testing.assert_close(first["weights"], other["weights"], rtol=0, atol=0)
        assert (first["status"], first["changes"]) == (other["status"], other["changes"])
    return first


@pytest.mark.parametrize("where", ["training", "validation"])
def test_a_stop_ends_all_at_one_update(where):
    data = {"train": labelled(64).tensors, "val": labelled(400, 1).tensors, **CE}
    settings = (
        {"max_epochs": 100_000}
        if where == "training"
        else {"max_epochs": 100, "check_val_every_n_epoch": 1}
    )

    def rank():
        return fit(
            plain_net(),
            data,
            {**PLAIN, **settings},
            [Stop()] if my_rank() == 0 else [Change({"lr": 9.0})],
        )

    found = as_one(on_ranks(2, rank))
    assert found["status"] == "stopped"
    assert 0 < len(found["loss"]) < 10_000
    assert not found["changes"]  # only rank 0 is spoken to


def test_changes_and_pauses():
    """By a clock that goes on by 0.01 s whenever it is read: some updates are taken before the time is over, however slow they are."""

    def rank():
        meter.perf_counter = itertools.count(0.0, 0.01).__next__
        commands = [Pause(), Change({"lr": 0.5}), Resume(), Change({"gradient_clip_val": 0.01})]
        settings = {**PLAIN, "max_epochs": None, "max_time": {"seconds": 1}}
        return fit(plain_net(), {"train": labelled(64).tensors, **CE}, settings, commands)

    found = as_one(on_ranks(2, rank))
    (step, lr), (other, clip) = found["changes"]
    assert (lr, clip) == ({"lr": 0.5}, {"gradient_clip_val": 0.01})
    assert step == other
    assert found["lr"][step - 1] == np.float32(0.05)
    assert found["lr"][step] == np.float32(0.5)


class Spoils(nn.Module):
    """Its output is not finite for the sample that is all 9."""

    def __init__(self):
        super().__init__()
        self.net = plain_net()

    def forward(self, x):
        return self.net(x) + torch.where((x == 9).all(1, keepdim=True), float("nan"), 0.0)


def spoiled():
    x, y = labelled(64).tensors
    x = x.clone()
    x[13] = 9
    return x, y


def test_a_bad_number_on_one_rank_ends_all_and_names_its_batch():
    def rank():
        try:
            return fit(Spoils(), {"train": spoiled(), **CE}, {**PLAIN, "shuffle": False})
        except NonFiniteError as error:
            return str(error), bool(getattr(error, "own", False))

    (_, here), (text, there) = on_ranks(2, rank)
    assert (here, there) == (False, True)  # batch 3 is rank 1's
    assert text.startswith("loss not finite (nan) at update 1, first in ")


def test_a_bad_number_on_one_rank_is_left_out_by_all():
    def rank():
        return fit(
            Spoils(),
            {"train": spoiled(), **CE},
            {**PLAIN, "shuffle": False, "on_nonfinite": "skip"},
        )

    found = as_one(on_ranks(2, rank))
    alone = fit(
        Spoils(),
        {"train": spoiled(), **CE},
        {**PLAIN, "shuffle": False, "on_nonfinite": "skip", "batch_size": 8},
    )
    same(found, alone)
    assert np.isnan(found["loss"]).sum() == 2


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)
        )

    def forward(self, x):
        return self.net(x)


def test_statistics_are_those_of_all_ranks_behind_an_average():
    settings = {**PLAIN, "weight_averaging": "swa", "swa_epoch_start": 0}

    def rank():
        return fit(
            Normed(),
            {"train": labelled(64).tensors, "val": labelled(20, 1).tensors, **CE},
            settings,
        )

    found = as_one(on_ranks(2, rank))
    with torch.no_grad():  # one more pass over all the batches, by hand
        net = Normed()
        net.load_state_dict(found["weights"])
        x = net.net[0](labelled(64).tensors[0])
    torch.testing.assert_close(
        found["weights"]["net.1.running_mean"], x.mean(0), rtol=1e-3, atol=1e-4
    )
    assert found["weights"]["net.1.num_batches_tracked"] == 16


def test_ranks_draw_different_numbers_and_rank_0_those_of_the_seed():
    def rank():
        seen = []

        class Draws(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = plain_net()

            def forward(self, x):
                if self.training:
                    seen.append(float(torch.rand(())))
                return self.net(x)

        fit(Draws(), {"train": labelled(16).tensors, **CE}, {**PLAIN, "max_epochs": 1})
        return seen[-2:]

    first, other = on_ranks(2, rank)
    assert not set(first) & set(other)


def test_scores_and_predictions_of_all_samples_in_their_order():
    x, y = labelled(19, 1).tensors

    def rank(world=None):
        torch.set_num_threads(1)
        usual = dict.fromkeys(("scheduler", "collate_fn"))
        metrics = {"right": lambda out, y: (out.argmax(1) == y).float().mean()}
        task = task_of(
            plain_net(), train=(x, y), val=(x, y), test=(x, y), metrics=metrics, **usual, **CE
        )
        settings = Settings(batch_size=4)
        dry_run(task, settings)
        heard = Heard()
        EvaluateAssignment(task, settings, "val")(heard, Mailbox())
        outputs = PredictAssignment(task, settings, None)(heard, Mailbox()).value
        return heard[1].metrics, outputs

    (metrics, outputs), (others, _) = on_ranks(2, rank)
    alone, expected = rank()
    assert metrics == others
    assert metrics == pytest.approx(alone)
    assert [len(out) for out in outputs] == [len(out) for out in expected] == [4, 4, 4, 4, 3]
    torch.testing.assert_close(outputs, expected)


def test_sequences_in_pieces():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.GRU(3, 4, batch_first=True)

        def training_step(self, batch, batch_idx, hiddens):
            out, hidden = self.net(batch[0], hiddens)
            return {"loss": ((out.sum(-1) - batch[1]) ** 2).mean(), "hiddens": hidden}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    torch.manual_seed(1)
    data = {"train": (torch.randn(22, 7, 3), torch.randn(22, 7)), "optimizer": torch.optim.AdamW}
    settings = {**PLAIN, "truncated_bptt_steps": 3}
    found = as_one(on_ranks(2, lambda: fit(Counts(), data, settings)))
    assert len(found["loss"]) == 2 * 3 * 3
    assert np.isfinite(found["loss"]).all()


def test_all_validate_with_the_statistics_that_are_handed_over():
    def rank():
        return fit(
            Normed(), {"train": labelled(64).tensors, "val": labelled(20, 1).tensors, **CE}, PLAIN
        )

    found = as_one(on_ranks(2, rank))
    net = Normed().eval()
    net.load_state_dict(found["weights"])
    x, y = labelled(20, 1).tensors
    assert found["checks"][-1][1]["val_loss"] == pytest.approx(
        F.cross_entropy(net(x), y).item(), rel=1e-4
    )
