"""LightningModules with several optimizers, manual optimisation, watched metrics and hidden state, in whole fits.

Where Lightning's Trainer can still do it, it is the twin; else a plain loop is.
"""

import importlib
import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.engine.problems import same_weights
from tests.task.lightning.test_lightning import Losses, bench, rows, seeded, trainer
from workbench.engine.setup import open_session
from workbench.engine.validation.predict import predict
from workbench.settings import Settings
from workbench.task.factory import task_of

pl = importlib.import_module("lightning.pytorch")
boring = importlib.import_module("lightning.pytorch.demos.boring_classes")

pytestmark = pytest.mark.usefixtures("one_thread")


# -- manual optimisation, beside Lightning's own Trainer


class Manual(boring.ManualOptimBoringModel):
    """Lightning's demo model, on the same rows each time."""

    def train_dataloader(self):
        return DataLoader(rows(), batch_size=4)

    val_dataloader = None
    validation_step = None


def test_lightnings_own_manual_model(tmp_path):
    ours, theirs = seeded(Manual), seeded(Manual)
    attributes = sorted(vars(ours))
    run = bench(ours, tmp_path).fit().result()
    assert sorted(set(vars(ours)) - {"_hparams"}) == attributes
    seen = Losses()
    trainer(callbacks=[seen]).fit(theirs)
    assert np.array_equal(run.history["loss"], np.float32(seen.values))
    np.testing.assert_allclose(run.history["lr"], [0.1] * 32, rtol=1e-6)  # nobody steps its StepLR
    assert same_weights(ours, theirs)


class Gan(pl.LightningModule):
    """Two networks that work against each other, and a scheduler for each that the module steps."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.g, self.d = nn.Linear(32, 32), nn.Linear(32, 1)
        self.lr = 0.05
        self.steps = 0

    def forward(self, x):
        return self.d(self.g(x))

    def training_step(self, batch, batch_idx):
        g, d = self.optimizers()
        first, second = self.lr_schedulers()
        with g.toggle_model():
            loss = F.softplus(-self(batch)).mean()
            g.zero_grad()
            self.manual_backward(loss)
            g.step()
        self.toggle_optimizer(d)
        against = F.softplus(self(batch)).mean() + F.softplus(-self.d(batch)).mean()
        d.zero_grad()
        self.manual_backward(against)
        d.step()
        self.untoggle_optimizer(d)
        first.step()
        if batch_idx % 2:
            second.step(0.0)
        self.log("g_loss", loss)

    def configure_optimizers(self):
        g = torch.optim.Adam(self.g.parameters(), lr=self.lr)
        d = torch.optim.SGD(self.d.parameters(), lr=2 * self.lr, momentum=0.9)
        first = torch.optim.lr_scheduler.ExponentialLR(g, 0.9)
        return [g, d], [
            first,
            torch.optim.lr_scheduler.ReduceLROnPlateau(d, patience=1, factor=0.5),
        ]

    def train_dataloader(self):
        return DataLoader(rows(), batch_size=8)


class Rates(pl.Callback):
    """The rates of both optimizers at each batch."""

    def __init__(self):
        self.values = []

    def on_train_batch_start(self, trainer, module, batch, index):
        self.values.append([o.param_groups[0]["lr"] for o in trainer.optimizers])


def test_a_gan_is_trained_as_by_lightning(tmp_path):
    ours, theirs = seeded(Gan), seeded(Gan)
    b = bench(ours, tmp_path)
    assert b.settings.lr == 0.05
    run = b.fit().result()
    seen = Rates()
    trainer(callbacks=[seen]).fit(theirs)
    assert same_weights(ours, theirs)
    assert run.step == 16
    np.testing.assert_allclose(run.history["lr.0"], np.array(seen.values)[:, 0], rtol=1e-6)
    np.testing.assert_allclose(run.history["lr.1"], np.array(seen.values)[:, 1], rtol=1e-6)
    assert np.isfinite(run.history["loss.0"]).all()
    assert np.isfinite(run.history["loss.1"]).all()


def test_a_gan_accumulates_and_clips(tmp_path):
    """Each optimizer steps at the window's end, with the mean gradient of the window, clipped on its own."""
    ours, twin = seeded(Gan), seeded(Gan)
    run = (
        bench(ours, tmp_path, max_epochs=1)
        .fit(accumulate_grad_batches=2, gradient_clip_val=0.1)
        .result()
    )
    g = torch.optim.Adam(twin.g.parameters(), lr=0.05)
    d = torch.optim.SGD(twin.d.parameters(), lr=0.1, momentum=0.9)
    falling = torch.optim.lr_scheduler.ExponentialLR(g, 0.9)
    watching = torch.optim.lr_scheduler.ReduceLROnPlateau(d, patience=1, factor=0.5)
    batches = list(DataLoader(rows(), batch_size=8))
    for window in zip(batches[::2], batches[1::2], strict=True):
        sums = [torch.zeros_like(p) for p in twin.parameters()]
        # The discriminator's gradient on the last batch is that behind the generator's step, as in the module.
        for number, batch in enumerate(window):
            parts = torch.autograd.grad(
                F.softplus(-twin(batch)).mean() / 2, list(twin.g.parameters())
            )
            for total, part in zip(sums, parts, strict=False):
                total += part
            if number == 1:
                for parameter, total in zip(twin.g.parameters(), sums, strict=False):
                    parameter.grad = total
                nn.utils.clip_grad_norm_(twin.g.parameters(), 0.1)
                g.step()
                falling.step()
            against = F.softplus(twin(batch)).mean() + F.softplus(-twin.d(batch)).mean()
            for total, part in zip(
                sums[2:], torch.autograd.grad(against / 2, list(twin.d.parameters())), strict=True
            ):
                total += part
        for parameter, total in zip(twin.d.parameters(), sums[2:], strict=True):
            parameter.grad = total
        nn.utils.clip_grad_norm_(twin.d.parameters(), 0.1)
        d.step()
        watching.step(0.0)
    assert run.step == 4
    for ours_, theirs in zip(ours.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours_, theirs, rtol=1e-5, atol=1e-6)


def test_a_closure_and_a_plain_object(tmp_path):
    """Not an nn.Module, and Lightning is nowhere in it."""

    class Plain:
        automatic_optimization = False

        def __init__(self):
            torch.manual_seed(0)
            self.net = nn.Linear(32, 1)

        def training_step(self, batch):
            optimizer: Any = self.optimizers()  # type: ignore[attr-defined]

            def closure():
                optimizer.zero_grad()
                loss = self.net(batch).square().mean()
                self.manual_backward(loss)  # type: ignore[attr-defined]
                return loss

            optimizer.step(closure=closure)

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=0.1)

    thing = Plain()
    twin = Plain()
    run = (
        bench(thing, tmp_path, train=rows(), batch_size=16, max_epochs=2, shuffle=False)
        .fit()
        .result()
    )
    optimizer = twin.configure_optimizers()
    losses = []
    for batch in [*rows().split(16)] * 2:
        loss = twin.net(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.array_equal(run.history["loss"], np.float32(losses))
    assert same_weights(thing.net, twin.net)
    assert "optimizers" not in vars(thing)


def test_clipping_by_hand_holds_for_the_step_behind_it_and_is_recorded(tmp_path):
    class Clips(Manual):
        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self(batch).square().mean())
            if batch_idx % 2 == 0:
                self.clip_gradients(
                    optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm"
                )
            optimizer.step()

    module, twin = seeded(Clips), seeded(Clips)
    run = bench(module, tmp_path).fit().result()
    (optimizer,), _ = twin.configure_optimizers()
    batches = list(twin.train_dataloader())
    assert run.step % len(batches) == 0
    assert len(batches) % 2 == 0
    after = []
    for number, batch in enumerate(batches * (run.step // len(batches))):
        optimizer.zero_grad()
        twin(batch).square().mean().backward()
        if number % 2 == 0:
            after.append(
                float(torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.05).clamp(max=0.05))
            )
        optimizer.step()
    assert same_weights(module, twin)
    clipped = run.history["grad_norm_clipped"]
    assert np.isnan(clipped[1::2]).all()
    np.testing.assert_allclose(clipped[::2], after, rtol=1e-4)


def test_find_lr_leaves_a_manual_module_as_it_is(tmp_path):
    alone, module = seeded(Gan), seeded(Gan)
    expected = bench(alone, tmp_path / "a").fit().result()
    b = bench(module, tmp_path / "b")
    assert len(b.find_lr(num_training=6, max_lr=0.1).result().lrs) == 6
    assert np.array_equal(b.fit().result().history["loss"], expected.history["loss"])
    assert same_weights(alone, module)


# -- several optimizers as in Lightning 1


class Turns(pl.LightningModule):
    """`training_step` is told whose loss it is."""

    def __init__(self, frequencies=None):
        super().__init__()
        self.first, self.second = nn.Linear(32, 4), nn.Linear(4, 1)
        self.frequencies = frequencies

    def loss(self, batch, index):
        return (self.second(self.first(batch)) - index).square().mean()

    def training_step(self, batch, batch_idx, optimizer_idx):
        return self.loss(batch, optimizer_idx)

    def configure_optimizers(self):
        first = torch.optim.SGD(self.first.parameters(), lr=0.05)
        second = torch.optim.Adam(self.second.parameters(), lr=0.02)
        scheduler = {
            "scheduler": torch.optim.lr_scheduler.ExponentialLR(second, 0.9),
            "interval": "step",
        }
        made = [{"optimizer": first}, {"optimizer": second, "lr_scheduler": scheduler}]
        for entry, frequency in zip(made, self.frequencies or (), strict=False):
            entry["frequency"] = frequency
        return made


@pytest.mark.parametrize("frequencies", [None, (1, 2)])
def test_optimizers_take_turns(frequencies, tmp_path):
    ours, twin = seeded(lambda: Turns(frequencies)), seeded(lambda: Turns(frequencies))
    run = bench(ours, tmp_path, train=rows(), batch_size=8, shuffle=False).fit().result()
    first, second = (entry["optimizer"] for entry in twin.configure_optimizers())
    falling = torch.optim.lr_scheduler.ExponentialLR(second, 0.9)
    turns = itertools.cycle([(0, 1)] if frequencies is None else [(0,), (1,), (1,)])
    losses = []
    for batch, turn in zip([*rows().split(8)] * 2, turns, strict=False):
        row = [float("nan")] * 2
        for index in turn:
            loss = twin.loss(batch, index)
            twin.zero_grad()
            loss.backward()
            (first, second)[index].step()
            if index == 1:
                falling.step()
            row[index] = loss.item()
        losses.append(row)
    np.testing.assert_array_equal(
        [run.history["loss.0"], run.history["loss.1"]], np.float32(losses).T
    )
    assert same_weights(ours, twin)
    assert all(p.requires_grad for p in ours.parameters())


def test_rates_of_several_optimizers_keep_their_ratio(tmp_path):
    """They are written in the code: asked for another, all are scaled as the first is."""
    b = bench(seeded(Turns), tmp_path, train=rows(), batch_size=8, max_steps=1)
    assert b.settings.lr == 0.05
    run = b.fit(lr=0.1).result()
    assert (run.history["lr.0"][0], run.history["lr.1"][0]) == (np.float32(0.1), np.float32(0.04))


# -- a watched metric


class Watching(boring.BoringModel):
    def train_dataloader(self):
        return DataLoader(rows(), batch_size=8)

    def val_dataloader(self):
        return DataLoader(rows(32, 2), batch_size=8)

    def validation_step(self, batch, batch_idx):
        self.log("checked", self.step(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        watching = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=0, threshold=0.5, factor=0.3
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": watching, "monitor": "checked", "strict": True},
        }


def test_a_watched_metric_as_lightning_watches_it(tmp_path):
    ours, theirs = seeded(Watching), seeded(Watching)
    run = bench(ours, tmp_path, max_epochs=5).fit().result()
    seen = Losses()
    trainer(callbacks=[seen], max_epochs=5).fit(theirs)
    assert len(set(seen.lrs)) > 2
    np.testing.assert_allclose(run.history["lr"], seen.lrs, rtol=1e-6)
    assert same_weights(ours, theirs)


# -- weights, hidden state


def test_weighted_batches_accumulate_like_one(tmp_path):
    """A loss per token, with another number of tokens in each batch: two of 8 are one of 16."""

    class Tokens(boring.BoringModel):
        def training_step(self, batch, batch_idx):
            x, kept = batch
            each = self.layer(x).square().mean(1)
            return {"loss": (each * kept).sum() / kept.sum(), "weight": kept.sum()}

        def validation_step(self, batch, batch_idx):
            return {**self.training_step(batch, batch_idx)}

        def train_dataloader(self):
            row = torch.arange(64)
            kept = (row % 8 < row // 8 % 5 + 2).float()
            return DataLoader(TensorDataset(rows(), kept), batch_size=8)

        val_dataloader = train_dataloader

    whole, parts = seeded(Tokens), seeded(Tokens)
    one = bench(whole, tmp_path / "a", batch_size=16).fit().result()
    two = bench(parts, tmp_path / "b", accumulate_grad_batches=2).fit().result()
    np.testing.assert_allclose(one.history["loss"], two.history["loss"], rtol=1e-5)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert one.metrics["val_loss"] == pytest.approx(two.metrics["val_loss"], rel=1e-5)


class Sequence(pl.LightningModule):
    """As Lightning 1 had it: `truncated_bptt_steps` on the module, `hiddens` in and out."""

    def __init__(self, **attributes):
        super().__init__()
        self.truncated_bptt_steps = 3
        self.net = nn.RNN(2, 4, batch_first=True)
        self.out = nn.Linear(4, 1)
        vars(self).update(attributes)

    def training_step(self, batch, batch_idx, hiddens):
        x, y = batch
        output, hiddens = self.net(x, hiddens)
        return {"loss": F.mse_loss(self.out(output), y), "hiddens": hiddens}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def pieces_of_two(batch, split_size):
    assert split_size == 3
    x, y = batch
    return [[a, b] for a, b in zip(x.split(2, 1), y.split(2, 1), strict=True)]


@pytest.mark.parametrize("own", [False, True])
def test_truncated_bptt(own, tmp_path):
    torch.manual_seed(3)
    x, y = torch.randn(12, 8, 2), torch.randn(12, 8, 1)
    attributes = {"tbptt_split_batch": pieces_of_two} if own else {}
    ours, twin = seeded(lambda: Sequence(**attributes)), seeded(Sequence)
    b = bench(ours, tmp_path, train=(x, y), batch_size=4, shuffle=False, max_epochs=1)
    assert b.settings.truncated_bptt_steps == 3
    run = b.fit().result()
    optimizer = twin.configure_optimizers()
    losses = []
    for start in range(0, 12, 4):
        hiddens = None
        length = 2 if own else 3
        for at in range(0, 8, length):
            part = [v[start : start + 4, at : at + length] for v in (x, y)]
            found = twin.training_step(part, 0, hiddens)
            hiddens = found["hiddens"].detach()
            optimizer.zero_grad()
            found["loss"].backward()
            optimizer.step()
            losses.append(found["loss"].item())
    assert np.array_equal(run.history["loss"], np.float32(losses))
    assert same_weights(ours, twin)


# -- prediction


def test_predictions_as_lightning_makes_them():
    class Predicts(boring.BoringModel):
        def predict_dataloader(self):
            return DataLoader(rows(20, 5), batch_size=8)

    class Other(Predicts):
        def predict_step(self, batch, batch_idx):
            return self(batch).argmax(1) + 10 * batch_idx

    for kind in (Predicts, Other):
        module = seeded(kind)
        task = task_of(module, train=None, val=None, test=None, loss=None, optimizer=torch.optim.AdamW, scheduler=None,
                       metrics=None, collate_fn=None)  # fmt: skip
        settings = Settings(accelerator="cpu", batch_size=8)
        assert task.predict is not None
        with open_session(task, settings) as session:
            found = [output for _, output in predict(session, task.predict.loader(settings))]
        expected = trainer().predict(module)
        assert len(found) == len(expected) == 3
        assert all(torch.equal(a, e) for a, e in zip(found, expected, strict=True))
