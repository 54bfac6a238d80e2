"""Hooks on several ranks: each runs them, also one that has no batch, and what they see and change is of all ranks."""

import pytest
import torch

from tests.engine.fit_results import Heard
from tests.lightning.ranks.rank_fits import Net, alone, batches, each, made, ranks, same
from tests.on_ranks import on_ranks
from workbench.commands import Mailbox
from workbench.launch.assignments import EvaluateAssignment, FitAssignment
from workbench.task.lightning import setup as lightning_setup
from workbench.task.ranks import RankOfJob

pytestmark = pytest.mark.usefixtures("one_thread")


class Clamps(Net):
    """Changes gradients behind backward: what comes of it depends on whose they are."""

    def on_after_backward(self):
        for parameter in self.parameters():
            parameter.grad.clamp_(-0.05, 0.05)


class Unused(Clamps):
    """A part of it has no part in the loss: DDP does not serve that."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Linear(2, 2)

    def on_after_backward(self):
        for parameter in self.net.parameters():
            parameter.grad.clamp_(-0.05, 0.05)


class Steps(Net):
    """Takes the step, the clipping and the zeroing in its own hands."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        self.seen.append(batch_idx)
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        self.clip_gradients(optimizer, 0.1, "norm")


class Hand(Net):
    """Evaluates by hand, and steps without a closure."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer_closure()
        self.net[0].bias.grad.mul_(2.0)
        optimizer.step()


class Teacher(Net):
    """A second network follows the first, as of each batch."""

    def __init__(self):
        super().__init__()
        self.teacher = torch.nn.Linear(3, 8).requires_grad_(False)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        for one, other in zip(self.teacher.parameters(), self.net[0].parameters(), strict=True):
            one.data.lerp_(other.data, 0.5)


OWN = [Clamps, Unused, Steps, Hand, Teacher]


@pytest.mark.parametrize("samples", [24, 20], ids=["whole rounds", "one rank has none"])
def test_an_update_is_that_of_one_process(samples):
    """20 samples: in the third round of each epoch rank 1 has no batch, and no gradient of the round before counts."""
    for make, found in zip(OWN, each(OWN, samples), strict=True):
        same(found[0], alone(make, samples))
        assert len(found[0]["loss"]) == len(found[1]["loss"]) == 6
        assert found[0]["seen"] == found[1]["seen"]


def test_windows():
    how = {"accumulate_grad_batches": 2}
    for make, found in zip([Steps, Hand], each([Steps, Hand], 32, **how), strict=True):
        same(found[0], alone(make, 32, **how))


class LeavesOut(Net):
    """One rank has nothing to learn from its second batch; all hear of the step."""

    def training_step(self, batch, batch_idx):
        return None if self.global_rank == 1 and batch_idx == 1 else self.loss(batch)

    def on_before_optimizer_step(self, optimizer):
        self.seen.append(self.net[0].weight.grad.norm().item())


def test_a_batch_that_one_rank_leaves_out():
    """The update is that of the other's batch."""

    class Half(Net):
        def training_step(self, batch, batch_idx):
            x, y = batch
            return self.loss((x[:4], y[:4]) if batch_idx == 1 else batch)

    found = ranks(LeavesOut, 16)
    same(found[0], alone(Half, 16))
    assert found[0]["seen"] == found[1]["seen"]
    assert len(found[0]["seen"]) == 4


class EndsEarly(Net):
    """Rank 1 has enough of the epoch at its second batch."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.global_rank == 1 and batch_idx == 1 else None

    def on_train_epoch_end(self):
        self.seen.append(self.trainer.global_step)


def test_one_rank_ends_the_epoch():
    """The round goes on with the batch that rank 0 has, and is the last of the epoch for all."""

    class Half(Net):
        def training_step(self, batch, batch_idx):
            x, y = batch
            return self.loss((x[:4], y[:4]) if batch_idx == 1 else batch)

    found = ranks(EndsEarly, 32)
    same(found[0], alone(Half, 32, limit_train_batches=2))
    assert found[0]["seen"] == found[1]["seen"] == [2, 4]


class Asks(Net):
    """Where it is, and what all of them have."""

    def setup(self, stage):
        self.trainer.strategy.barrier()

    def on_fit_start(self):
        trainer = self.trainer
        self.seen += [
            (
                self.global_rank,
                self.local_rank,
                trainer.global_rank,
                trainer.node_rank,
                trainer.is_global_zero,
            ),
            (trainer.world_size, trainer.num_devices, trainer.num_nodes, trainer.device_ids),
            self.all_gather({"a": torch.tensor([1.0 + self.global_rank]), "b": self.global_rank}),
            trainer.strategy.broadcast(f"from {self.global_rank}"),
            trainer.strategy.reduce(torch.tensor(1.0 + self.global_rank)).item(),
            trainer.strategy.reduce(torch.tensor(1.0 + self.global_rank), reduce_op="sum").item(),
            trainer.strategy.reduce_boolean_decision(self.global_rank == 0),
            trainer.strategy.reduce_boolean_decision(self.global_rank == 0, all=False),
        ]

    def on_train_end(self):
        self.print("said once")

    def training_step(self, batch, batch_idx):
        """Each rank's loss is made of all ranks' outputs."""
        x, y = batch
        outputs = self.all_gather(self.net(x), sync_grads=True)
        own = (outputs.flatten(0, 1).mean(0) - y.mean(0)).square().sum()
        return own + self.loss(batch)


class Whole(Net):
    """The same of one batch, half by half."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        mean = self.net(x).mean(0)
        return sum((mean - half.mean(0)).square().sum() for half in y.chunk(2)) / 2 + self.loss(
            batch
        )


def test_what_a_module_asks_its_trainer(capfd):
    found = ranks(Asks, 16)
    for rank, told in enumerate(found):
        place, many, gathered, *rest = told["seen"]
        assert place == (rank, rank, rank, 0, rank == 0)
        assert many == (2, 2, 1, [0, 1])
        assert gathered["a"].tolist() == [[1.0], [2.0]]
        assert gathered["b"].tolist() == [0, 1]
        assert rest == ["from 0", 1.5, 3.0, False, True]
    same(found[0], alone(Whole, 16))
    assert capfd.readouterr().out.count("said once") == 1


class Data:
    """A DataModule of a kind, which draws what it validates on."""

    def __init__(self):
        self.calls = []

    def prepare_data(self):
        self.calls.append("prepare_data")

    def setup(self, stage):
        self.calls.append(f"setup {stage}")
        self.drawn = torch.randn(3).tolist()

    def teardown(self, stage):
        self.calls.append(f"teardown {stage}")

    def train_dataloader(self):
        return batches(16, 4)

    def val_dataloader(self):
        return batches(8, 4, 2)


class Scores(Net):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


def test_data_modules():
    """What was set up for fits when the bench was made stays; for an evaluation all set up, and draw the same."""

    def rank():
        torch.manual_seed(torch.distributed.get_rank())
        data, heard = Data(), Heard()
        task, settings = made(Scores(), data)
        FitAssignment(task, settings)(heard, Mailbox())
        drawn = data.drawn
        EvaluateAssignment(task, settings, "val")(heard, Mailbox())
        assert drawn != data.drawn
        return data.calls, data.drawn, heard[-1].metrics

    first, second = on_ranks(2, rank)
    assert first[0] == [
        "prepare_data",
        "setup fit",
        "teardown fit",
        "setup validate",
        "teardown validate",
    ]
    assert first == second
    assert first[2]


@pytest.mark.parametrize(
    ("here", "each", "alone"), [((0, 0), True, True), ((2, 0), True, False), ((3, 1), False, False)]
)
def test_one_process_of_each_machine_prepares(here, each, alone, monkeypatch):
    """Where a job runs on several machines; or one of all, where the data lie in one place."""
    waited = []
    for prepares, expected in ((True, each), (False, alone)):
        data = Data()
        data.prepare_data_per_node = prepares
        task, settings = made(Net(), data)
        data.calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(lightning_setup, "rank_of_job", lambda: RankOfJob(here[0], 4, here[1], 2))
            patch.setattr(lightning_setup, "barrier", lambda: waited.append(1))
            with task.running(settings):
                assert ("prepare_data" in data.calls) == expected
    assert len(waited) == 2
