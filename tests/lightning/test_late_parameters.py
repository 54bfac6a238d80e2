"""Parameters that begin to train in the middle of a fit: unfrozen by a hook, or in a group that it adds."""

import numpy as np
import pytest
import torch
from torch import nn

import workbench as wb
from tests.engine.problems import same_weights
from tests.engine.resuming import Fit, assert_goes_on_as, settings_of
from tests.lightning.both import boring, by_lightning, by_workbench, loader, pl, rows, same_state
from workbench.engine.checkpoint.files import read_state
from workbench.instruments.finite import NonFiniteError
from workbench.task.factory import task_of

pytestmark = pytest.mark.usefixtures("one_thread")

CLIP = 0.05
"""Far below the norms here, so that it is felt at every update."""


class Unfreezes(boring.BoringModel):
    """The last layer rests in the first epoch."""

    at = 1

    def __init__(self):
        super().__init__()
        self.rest = nn.Linear(2, 3)
        self.rest.requires_grad_(False)

    def forward(self, x):
        return self.rest(torch.tanh(self.layer(x)))

    def on_train_epoch_start(self):
        if self.current_epoch >= self.at:
            self.rest.requires_grad_(True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.5)


class First(Unfreezes):
    """The first layer of the model rests, and is the last of the optimizer's."""

    def __init__(self):
        super().__init__()
        self.layer.requires_grad_(False)
        self.rest.requires_grad_(True)

    def on_train_epoch_start(self):
        self.layer.requires_grad_(self.current_epoch >= self.at)


class AtABatch(Unfreezes):
    """It begins to train in the middle of an epoch."""

    def on_train_epoch_start(self):
        pass

    def on_train_batch_start(self, batch, batch_idx):
        if self.current_epoch == 1 and batch_idx == 2:
            self.rest.requires_grad_(True)


class AddsAGroup(Unfreezes):
    """The last layer comes to the optimizer later."""

    def on_train_epoch_start(self):
        if self.current_epoch == self.at:
            self.rest.requires_grad_(True)
            self.optimizers().add_param_group({"params": list(self.rest.parameters()), "lr": 0.05})

    def configure_optimizers(self):
        return torch.optim.SGD(self.layer.parameters(), lr=0.1, momentum=0.5)


class ByHand(Unfreezes):
    """Manual optimisation, which clips as well."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = self.step(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=CLIP, gradient_clip_algorithm="norm")
        optimizer.step()


@pytest.mark.parametrize("algorithm", ["norm", "value"])
@pytest.mark.parametrize("cls", [Unfreezes, First, AtABatch, AddsAGroup])
def test_they_are_clipped_as_lightning_does(cls, algorithm, tmp_path):
    how = {
        "train": loader(), "max_epochs": 3, "gradient_clip_val": CLIP, "gradient_clip_algorithm": algorithm,
        "num_sanity_val_steps": 0,
    }  # fmt: skip
    theirs = by_lightning(cls, hooks=[], **how)
    ours = by_workbench(cls, tmp_path, hooks=[], **how)
    same_state(ours.module, theirs.module)


def test_they_are_clipped_by_hand(tmp_path):
    how = {"train": loader(), "max_epochs": 3, "num_sanity_val_steps": 0}
    theirs = by_lightning(ByHand, hooks=[], **how)
    ours = by_workbench(ByHand, tmp_path, hooks=[], **how)
    same_state(ours.module, theirs.module)


def test_the_total_norm_is_over_them_and_the_columns_are_those_of_the_start(tmp_path):
    ours = by_workbench(
        Unfreezes, tmp_path, hooks=[], train=loader(), max_epochs=2, track_grad_norm=2
    )
    history = ours.extra["result"].history
    columns = [name for name in history if name.startswith("grad_norm/")]
    assert [name.partition("/")[2] for name in columns] == ["layer.weight", "layer.bias"]
    of_layers = np.sqrt(sum(history[name] ** 2 for name in columns))
    np.testing.assert_allclose(history["grad_norm"][:6], of_layers[:6], rtol=1e-5)
    assert (history["grad_norm"][6:] > 1.01 * of_layers[6:]).all()


class Weighs(Unfreezes):
    """Reports the weight of each batch, by which a window is divided behind its backward."""

    def training_step(self, batch, batch_idx):
        return {"loss": self.step(batch), "weight": float(batch_idx + 1)}


def test_a_window_is_divided(tmp_path):
    """Four batches of an epoch in windows of three and one; the plain loop."""
    ours = by_workbench(
        Weighs,
        tmp_path,
        hooks=[],
        train=loader(16),
        max_epochs=3,
        accumulate_grad_batches=3,
        gradient_clip_val=CLIP,
    )
    torch.manual_seed(0)
    model = Weighs()
    optimizer = model.configure_optimizers()
    batches = list(enumerate(rows(16).split(4), 1))
    for epoch in range(3):
        model.rest.requires_grad_(epoch > 0)
        for window in (batches[:3], batches[3:]):
            loss = sum(number * model.step(batch) for number, batch in window) / sum(
                number for number, _ in window
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
    same_state(ours.module, model, exact=False)


class Pair(pl.LightningModule):
    """Two networks and an optimizer each; the second one rests in the first epoch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.one, self.two = nn.Linear(32, 4), nn.Linear(4, 2)
        self.two.requires_grad_(False)
        self.seen = []

    def on_train_epoch_start(self):
        if self.current_epoch:
            self.two.requires_grad_(True)

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            self.toggle_optimizer(optimizer)
            self.seen.append((self.one.weight.requires_grad, self.two.weight.requires_grad))
            loss = self.two(torch.tanh(self.one(batch))).square().mean()
            if loss.requires_grad:
                self.manual_backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.one, self.two)]


def test_several_optimizers_take_turns(tmp_path):
    how = {"train": loader(), "max_epochs": 2, "num_sanity_val_steps": 0}
    theirs = by_lightning(Pair, hooks=[], **how)
    ours = by_workbench(Pair, tmp_path, hooks=[], **how)
    same_state(ours.module, theirs.module)
    assert ours.module.seen[-12:] == theirs.module.seen[-12:] == [(True, False), (False, True)] * 6


class Breaks(Unfreezes):
    """The gradient of the layer that was unfrozen is not finite from its third update on, and the loss is."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        if self.current_epoch == 1 and batch_idx == 2:
            self.rest.bias.register_hook(lambda grad: grad * float("inf"))
        return loss


def test_one_that_is_not_finite_is_seen_before_the_step(tmp_path):
    torch.manual_seed(0)
    module = Breaks()
    bench = wb.Workbench(module, train=loader(), root=tmp_path, accelerator="cpu", max_epochs=2)
    with pytest.raises(NonFiniteError, match=r"update 8.*rest\.bias"):
        bench.fit().result()
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())


class Stepwise(Unfreezes):
    """Its layers begin one by one, the last one first."""

    def __init__(self):
        super().__init__()
        self.layer.requires_grad_(False)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(torch.tanh(super().forward(x)))

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.rest.requires_grad_(True)
        if self.current_epoch == 2:
            self.layer.requires_grad_(True)


def task_for(cls):
    torch.manual_seed(0)
    return task_of(
        cls(),
        train=loader(),
        val=None,
        test=None,
        loss=None,
        optimizer=torch.optim.AdamW,
        scheduler=None,
        metrics=None,
        collate_fn=None,
    )


@pytest.mark.parametrize("cls", [Unfreezes, Stepwise])
def test_a_run_goes_on_in_the_middle_of_an_epoch(cls, tmp_path):
    given = {"batch_size": 4, "max_epochs": 4, "lr": 0.1, "gradient_clip_val": CLIP}
    whole = Fit(task_for(cls), settings_of(**given), tmp_path / "whole")
    cut = Fit(task_for(cls), settings_of(**given, max_steps=15), tmp_path / "cut")
    state = read_state(cut.checkpoints[-1].path)
    assert (state["step"], state["mid_epoch"]) == (15, True)
    rest = Fit(task_for(cls), settings_of(**given), tmp_path / "rest", state)
    assert_goes_on_as(whole, rest, 15)


def test_the_same_objects_go_on(tmp_path):
    """They are unfrozen already when the run goes on."""

    def benched(name):
        torch.manual_seed(0)
        given = {"max_epochs": 4, "lr": 0.1, "gradient_clip_val": CLIP, "num_sanity_val_steps": 0}
        return wb.Workbench(
            Stepwise(), train=loader(), root=tmp_path / name, accelerator="cpu", **given
        )

    whole, cut = benched("whole"), benched("cut")
    whole.fit().result()
    cut.fit(max_steps=15).result()
    run = cut.fit(start="continue", max_steps=24).result()
    assert run.step == 24
    assert same_weights(whole.model, cut.model)


def test_a_search_freezes_nothing(tmp_path):
    """It tells the module of the first epoch, in which that freezes a layer for good."""

    class Freezes(Unfreezes):
        at = 0

    torch.manual_seed(0)
    module = Freezes()
    bench = wb.Workbench(module, train=loader(), root=tmp_path, accelerator="cpu", max_epochs=1)
    bench.find_lr(num_training=10).result()
    assert not module.rest.weight.requires_grad


def test_a_search_takes_back_a_group_that_a_hook_adds(tmp_path):
    class AtOnce(AddsAGroup):
        at = 0

    losses = []
    for searches in (False, True):
        torch.manual_seed(0)
        with wb.Workbench(
            AtOnce(), train=loader(), root=tmp_path, accelerator="cpu", max_epochs=2
        ) as bench:
            if searches:
                bench.find_lr(num_training=10).result()
                bench.set(lr=0.1)
            losses.append(bench.fit().result().history["loss"].tolist())
    assert losses[1] == losses[0]


def test_a_run_goes_on_with_a_group_that_a_hook_added(tmp_path):
    def benched():
        torch.manual_seed(0)
        return wb.Workbench(
            AddsAGroup(), train=loader(), root=tmp_path, accelerator="cpu", max_epochs=4
        )

    with benched() as one:
        whole = one.fit().result()
    with benched() as one:
        cut = one.fit(max_steps=15).result()
    with benched() as one:
        rest = one.fit(start=cut.id, max_steps=None).result()
    assert rest.history["loss"].tolist() == whole.history["loss"].tolist()
