"""Models whose classes override `train()` or `eval()`: a fit calls them as a plain loop does, and modes are never set past them."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled

pytestmark = pytest.mark.usefixtures("one_thread")

X, Y = labelled(64).tensors


class Merging(nn.Linear):
    """A LoRA layer that adds its product to the frozen weight for evaluation, and subtracts it again for training."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.requires_grad_(False)
        self.first, self.second = (
            nn.Parameter(0.3 * torch.randn(2, inputs)),
            nn.Parameter(torch.zeros(outputs, 2)),
        )
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * self.second.data @ self.first.data
            self.merged = not mode
        return self

    def forward(self, x):
        out = F.linear(x, self.weight, self.bias)
        return out if self.merged else out + x @ self.first.T @ self.second.T


class Turning(Merging):
    """The same, and only its mode says whether the weights are merged."""

    def train(self, mode=True):
        self.merged = not self.training
        return super().train(mode)


class Frozen(nn.Module):
    """Its body stays in evaluation mode as long as it is frozen."""

    def __init__(self):
        super().__init__()
        self.body, self.head = (
            nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)),
            nn.Linear(8, 3),
        )
        self.frozen = True

    def train(self, mode=True):
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self

    def forward(self, x):
        return self.head(self.body(x))


def merging(layer=Merging):
    torch.manual_seed(0)
    return nn.Sequential(layer(6, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 3))


def bench(model, root, **settings):
    options = {
        "max_epochs": 3,
        "batch_size": 16,
        "lr": 0.1,
        "shuffle": False,
        "accelerator": "cpu",
        **settings,
    }
    return wb.Workbench(
        model,
        train=(X, Y),
        val=(X, Y),
        loss=F.cross_entropy,
        optimizer=torch.optim.SGD,
        root=root,
        **options,
    )


def plain(model, epochs=3):
    """The validation losses of a plain loop."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(epochs):
        model.train()
        for x, y in zip(X.split(16), Y.split(16), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            losses.append(F.cross_entropy(model(X), Y).item())
    model.train()
    return losses


@pytest.mark.parametrize("layer", [Merging, Turning])
@pytest.mark.parametrize("sanity", [0, 2])
def test_a_fit_trains_what_a_plain_loop_trains(layer, sanity, tmp_path):
    model, twin = merging(layer), merging(layer)
    run = bench(model, tmp_path, num_sanity_val_steps=sanity).fit().result()
    np.testing.assert_allclose(run.validation["val_loss"], plain(twin), rtol=1e-6)
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )
    assert model[0].second.abs().max() > 0.01
    assert not model[0].merged


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A bench after a fit of three epochs."""
    torch.set_num_threads(1)
    model = merging()
    made = bench(model, tmp_path_factory.mktemp("fitted"), weight_decay=0.01)
    return SimpleNamespace(bench=made, model=model, run=made.fit().result())


@pytest.mark.parametrize("call", [
    lambda b: b.validate(), lambda b: b.predict(X), lambda b: b.find_lr(num_training=10), lambda b: b.find_lr(num_training=30, race=True, race_updates=200),
    lambda b: b.find_batch_size(max_trials=2), lambda b: b.find_weight_decay(updates=200),
])  # fmt: skip
def test_another_job_leaves_the_weights_to_the_bit_and_the_mode_that_belongs_to_them(fitted, call):
    before = copy.deepcopy(fitted.model.state_dict())
    call(fitted.bench).result()
    now = fitted.model.state_dict()
    assert all(torch.equal(now[name], value) for name, value in before.items())
    assert fitted.model.training
    assert not fitted.model[0].merged


def test_evaluation_mode_between_two_fits_is_no_change_of_the_weights(fitted):
    """The user looks at the model in evaluation mode, where other weights are merged into the frozen ones."""
    fitted.model.eval()
    job = fitted.bench.fit()
    run = job.result()
    np.testing.assert_array_equal(run.history["loss"], fitted.run.history["loss"])
    assert not [event.text for event in job.events if type(event).__name__ == "Message"]
    assert fitted.model[0].merged
    assert not fitted.model.training
    assert F.cross_entropy(fitted.model(X), Y).item() == pytest.approx(
        run.metrics["val_loss"], rel=1e-5
    )
    longer = fitted.bench.fit(start="continue", max_epochs=4).result()
    assert len(longer.resumes) == 1
    fitted.bench.load(run, "last")
    assert F.cross_entropy(fitted.model(X), Y).item() == pytest.approx(
        run.metrics["val_loss"], rel=1e-5
    )
    fitted.model.train()


def test_continuing_equals_the_fit_that_did_not_end(tmp_path):
    parts = bench(merging(), tmp_path / "parts")
    parts.fit(max_epochs=2).result()
    whole = bench(merging(), tmp_path / "whole").fit(max_epochs=4).result()
    np.testing.assert_array_equal(
        parts.fit(start="continue", max_epochs=4).result().history["loss"], whole.history["loss"]
    )


def test_a_body_that_train_keeps_in_evaluation_mode_stays_there_until_it_is_unfrozen(tmp_path):
    torch.manual_seed(0)
    model = Frozen()
    mean = model.body[1].running_mean
    made = bench(model, tmp_path)
    made.find_lr(num_training=10).result()
    made.fit().result()
    assert torch.equal(mean, torch.zeros(8))
    model.frozen = False
    made.fit(start="continue", max_epochs=4).result()
    assert not torch.equal(mean, torch.zeros(8))


@pytest.mark.parametrize("averaging", [None, "ema", "swa"])
def test_a_part_that_the_user_holds_in_evaluation_mode_stays_there(averaging, tmp_path):
    model = merging()
    model[2].eval()
    bench(model, tmp_path, weight_averaging=averaging).fit().result()
    assert torch.equal(model[2].running_mean, torch.zeros(16))
    assert not model[2].training
    assert model[0].training


def test_an_overridden_eval_is_called_for_each_evaluation(tmp_path):
    class Counting(nn.Linear):
        modes = ()

        def eval(self):
            self.modes += ("eval",)
            return super().eval()

    model = Counting(6, 3)
    bench(model, tmp_path, num_sanity_val_steps=0).fit().result()
    assert model.modes.count("eval") == 3
    assert model.training


@pytest.mark.parametrize("averaging", ["ema", "swa"])
def test_averaged_weights_are_merged_for_their_validation(averaging, tmp_path):
    model = merging()
    run = bench(model, tmp_path, weight_averaging=averaging).fit().result()
    assert not model[0].merged
    assert F.cross_entropy(model.eval()(X), Y).item() == pytest.approx(
        run.metrics["val_loss_averaged"], rel=1e-5
    )


def test_ranks_call_it_too(tmp_path):
    model = merging()
    with bench(model, tmp_path, devices=2, batch_size=8) as made:
        run = made.fit().result()
    assert model[0].second.abs().max() > 0.01
    assert not model[0].merged
    assert F.cross_entropy(model.eval()(X), Y).item() == pytest.approx(
        run.metrics["val_loss"], rel=1e-4
    )
