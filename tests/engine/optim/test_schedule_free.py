"""Schedule-free optimizers train one set of weights and evaluate another: which the model has when."""

import functools

import pytest
import schedulefree
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.combinations import pairs
from tests.engine.problems import labelled, noisy_net, plain_net
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")

DATA, HELD_OUT = labelled(40), labelled(16, seed=2)
KINDS = [schedulefree.SGDScheduleFree, schedulefree.AdamWScheduleFree, schedulefree.RAdamScheduleFree,
         functools.partial(schedulefree.SGDScheduleFree, lr=0.5, warmup_steps=3)]  # fmt: skip


def bench(root, make=schedulefree.SGDScheduleFree, model=None, **options):
    options = {
        "loss": F.cross_entropy,
        "max_steps": 10,
        "batch_size": 8,
        "shuffle": False,
        "val": HELD_OUT,
        **options,
    }
    return wb.Workbench(
        model or plain_net(), train=DATA, root=root, accelerator="cpu", optimizer=make, **options
    )


def twin(make, lr, updates=10):
    """A plain loop: losses, the weights to evaluate, and what they score, each 5 updates (from copies, which no rounding moves)."""
    model = plain_net()
    optimizer = make(model.parameters(), lr=lr)
    optimizer.train()
    losses, scores = [], []
    for step in range(updates):
        x, y = DATA[8 * (step % 5) : 8 * (step % 5) + 8]
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 5 == 4:
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.eval()
            weights = [p.detach().clone() for p in model.parameters()]
            with torch.no_grad():
                scores.append(F.cross_entropy(model(HELD_OUT[:][0]), HELD_OUT[:][1]).item())
                optimizer.train()
                for p, value in zip(model.parameters(), before, strict=True):
                    p.copy_(value)
    return losses, scores, weights


def equal(model, weights):
    return all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True))


@pytest.mark.parametrize("make", KINDS)
def test_it_trains_validates_and_hands_over_as_a_plain_loop(make, tmp_path):
    with bench(tmp_path, make) as b:
        losses, scores, weights = twin(make, b.settings.lr)
        run = b.fit().result()
        assert run.history["loss"].tolist() == pytest.approx(losses, rel=1e-7)
        assert run.validation["val_loss"].tolist() == pytest.approx(scores, rel=1e-6)
        assert equal(b.model, weights)
        assert b.validate().result()["val_loss"] == pytest.approx(scores[-1], rel=1e-6)
        b.load(run)
        assert equal(b.model, weights)
        b.load(run, "best")
        assert b.validate().result()["val_loss"] == pytest.approx(min(scores), rel=1e-6)


@pytest.mark.parametrize("make", KINDS)
def test_how_often_it_is_validated_or_saved_changes_nothing(make, tmp_path):
    with bench(tmp_path / "seldom", make, val=None) as b:
        b.fit().result()
        weights = [p.detach().clone() for p in b.model.parameters()]
    with bench(tmp_path / "often", make, val_check_interval=1, checkpoint_every=2) as b:
        b.fit().result()
        assert equal(b.model, weights)


@pairs("make, start", KINDS, ["id", "continue"])
def test_a_fit_goes_on_exactly(make, start, tmp_path):
    with bench(tmp_path / "whole", make, max_steps=8) as b:
        whole = b.fit().result()
        weights = [p.detach().clone() for p in b.model.parameters()]
    with bench(tmp_path / "parts", make, max_steps=3) as b:
        first = b.fit().result()
        run = b.fit(start=first.id if start == "id" else "continue", max_steps=8).result()
        assert run.history["loss"].tolist() == whole.history["loss"].tolist()
        assert equal(b.model, weights)


def test_searches_leave_no_trace(tmp_path):
    with bench(tmp_path / "alone") as b:
        b.fit().result()
        weights = [p.detach().clone() for p in b.model.parameters()]
    with bench(tmp_path / "searched") as b:
        before = [p.detach().clone() for p in b.model.parameters()]
        assert len(b.find_lr(num_training=5).result().lrs)
        assert equal(b.model, before)
        b.fit().result()
        assert equal(b.model, weights)


def test_a_fit_that_fails_leaves_the_weights_to_evaluate(tmp_path):
    seen = []

    def loss(output, y):
        if torch.is_grad_enabled():
            seen.append(y)
            if len(seen) == 4:
                raise RuntimeError("enough")
        return F.cross_entropy(output, y)

    with bench(tmp_path / "whole", max_steps=3) as b:
        b.fit().result()
        weights = [p.detach().clone() for p in b.model.parameters()]
    with bench(tmp_path / "failed", loss=loss, val=None) as b:
        with pytest.raises(RuntimeError, match="enough"):
            b.fit().result()
        assert equal(b.model, weights)


class Own(nn.Module):
    """An object that makes the optimizer itself, and puts it into its modes where it likes."""

    def __init__(self, moves):
        super().__init__()
        self.net, self.moves = plain_net(), moves

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        self.made = schedulefree.SGDScheduleFree(self.net.parameters(), lr=0.3)
        return self.made

    def on_validation_epoch_start(self):
        if self.moves:
            self.made.eval()

    def on_validation_epoch_end(self):
        if self.moves:
            self.made.train()


@pytest.mark.parametrize("moves", [True, False])
def test_an_object_that_calls_the_modes_itself(moves, tmp_path):
    losses, scores, weights = twin(schedulefree.SGDScheduleFree, 0.3)
    with wb.Workbench(Own(moves), train=DATA, val=HELD_OUT, root=tmp_path, accelerator="cpu", max_steps=10, batch_size=8,
                      shuffle=False) as b:  # fmt: skip
        run = b.fit().result()
        assert run.history["loss"].tolist() == pytest.approx(losses, rel=1e-7)
        assert run.validation["val_loss"].tolist() == pytest.approx(scores, rel=1e-6)
        assert equal(b.model.net, weights)


def test_what_cannot_go_with_it(tmp_path):
    with pytest.raises(TaskError, match=r"weight_averaging='ema' cannot go with SGDScheduleFree"):
        bench(tmp_path, weight_averaging="ema")
    with bench(tmp_path, model=noisy_net(), max_steps=1) as b:
        job = b.fit()
        job.result()
        assert any(
            "BatchNorm layers" in event.text
            for event in job.events
            if type(event).__name__ == "Message"
        )


class AsksForAMode(torch.optim.SGD):
    def train(self, mode): ...

    def eval(self): ...


class Refuses(torch.optim.SGD):
    def train(self):
        raise ValueError("not today")

    def eval(self): ...


@pytest.mark.parametrize(
    ("make", "why"),
    [(AsksForAMode, "missing 1 required positional"), (Refuses, "ValueError: not today")],
)
def test_modes_that_cannot_be_called(make, why, tmp_path):
    with pytest.raises(
        TaskError, match=rf"optimizer: {make.__name__}\.train\(\) failed with .*{why}.*train = None"
    ):
        bench(tmp_path, make)


def test_on_two_processes(tmp_path):
    """The ranks move their weights alike, and hand over those to evaluate."""
    with bench(tmp_path / "one", max_steps=4) as b:
        b.fit().result()
        weights = [p.detach().clone() for p in b.model.parameters()]
    with bench(tmp_path / "two", max_steps=4, batch_size=4, devices=2, strategy="pool") as b:
        run = b.fit().result()
        assert all(
            torch.allclose(p, q, atol=1e-5)
            for p, q in zip(b.model.parameters(), weights, strict=True)
        )
        handed_over = [p.detach().clone() for p in b.model.parameters()]
        b.load(run)
        assert equal(b.model, handed_over)
