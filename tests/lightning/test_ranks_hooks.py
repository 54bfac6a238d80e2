"""Hooks on several ranks: each runs them, also one that has no batch, and what they see and change is of all ranks."""

import pytest
import torch

from tests.lightning.ranked import Net, alone, batches, fit, ranks, same
from tests.ranks import on_ranks

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


@pytest.mark.parametrize("make", [Clamps, Unused, Steps, Hand])
def test_an_update_is_that_of_one_process(make):
    found = ranks(make, 24)
    same(found[0], alone(make, 24))
    assert found[0]["seen"] == found[1]["seen"]


@pytest.mark.parametrize("make", [Steps, Hand])
def test_windows(make):
    """Whose backward it is shows at the last batch of a window alone; without such a hook they agree."""
    same(ranks(make, 32, accumulate_grad_batches=2)[0], alone(make, 32, accumulate_grad_batches=2))


@pytest.mark.parametrize("make", [Clamps, Unused, Steps])
def test_a_rank_without_a_batch(make):
    """Five batches: in the third round of each epoch rank 1 has none, and no gradient of the round before counts."""
    found = ranks(make, 20)
    whole = alone(make, 20)
    same(found[0], whole)
    assert len(found[0]["loss"]) == len(found[1]["loss"]) == 6
    assert found[0]["seen"] == found[1]["seen"]


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
            (self.global_rank, self.local_rank, trainer.global_rank, trainer.node_rank, trainer.is_global_zero),
            (trainer.world_size, trainer.num_devices, trainer.num_nodes, trainer.device_ids),
            self.all_gather({"a": torch.tensor([1.0 + self.global_rank]), "b": self.global_rank}),
            trainer.strategy.broadcast(f"from {self.global_rank}"),
            trainer.strategy.reduce(torch.tensor(1.0 + self.global_rank)).item(),
            trainer.strategy.reduce(torch.tensor(1.0 + self.global_rank), reduce_op="sum").item(),
            trainer.strategy.reduce_boolean_decision(self.global_rank == 0),
            trainer.strategy.reduce_boolean_decision(self.global_rank == 0, all=False),
        ]
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
        return sum((mean - half.mean(0)).square().sum() for half in y.chunk(2)) / 2 + self.loss(batch)


def test_what_a_module_asks_its_trainer():
    found = ranks(Asks, 16)
    for rank, told in enumerate(found):
        place, many, gathered, *rest = told["seen"]
        assert place == (rank, rank, rank, 0, rank == 0)
        assert many == (2, 2, 1, [0, 1])
        assert gathered["a"].tolist() == [[1.0], [2.0]]
        assert gathered["b"].tolist() == [0, 1]
        assert rest == ["from 0", 1.5, 3.0, False, True]
    same(found[0], alone(Whole, 16))


def test_what_is_printed(capfd):
    ranks(Asks, 16, max_epochs=1)
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


def test_data_modules():
    """One of the ranks of a machine prepares, all set up what they evaluate on, and all draw the same."""

    def rank():
        data, net = Data(), Net()
        told = fit(net, data)
        return told["status"], data.calls

    first, second = on_ranks(2, rank)
    assert first == ("finished", ["prepare_data", "setup fit", "teardown fit"])
    assert second == ("finished", ["setup fit", "teardown fit"])


def test_setup_of_an_evaluation_draws_the_same_on_all_ranks():
    from tests.engine.ranked import Heard
    from workbench.commands import Mailbox
    from workbench.launch.assignments import Evaluating
    from workbench.settings import Settings
    from workbench.task.make import task_of

    class Scores(Net):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.loss(batch))

    def rank():
        torch.manual_seed(torch.distributed.get_rank())
        data, none = Data(), dict.fromkeys(("val", "test", "loss", "scheduler", "metrics", "collate_fn"))
        task = task_of(Scores(), train=data, optimizer=torch.optim.AdamW, **none)
        heard = Heard()
        Evaluating("t", task, Settings(), "val")(heard, Mailbox())
        return data.calls, data.drawn, [e.metrics for e in heard if hasattr(e, "metrics")]

    first, second = on_ranks(2, rank)
    assert first[0] == ["prepare_data", *second[0]]
    assert first[0][-2:] == ["setup validate", "teardown validate"]
    assert first[1:] == second[1:]
