"""Several optimizers, taking turns or stepped by hand, against the slow twin."""

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import workbench as wb
from tests.engine.learners import (
    TwoSided,
    assert_same,
    checker,
    copied,
    fitted,
    step_of,
    twin_run,
)
from tests.engine.problems import adam, labelled, sgd
from tests.reference import loop
from tests.reference.technique_parts import Scheduled, multiplier

pytestmark = pytest.mark.usefixtures("one_thread")


# -- several optimizers


def two_sided(
    tmp_path, *, exact=True, frequencies=None, make=sgd, techniques=None, weighted=False, **settings
):
    model, data = TwoSided(make=make, frequencies=frequencies, weighted=weighted), labelled()
    twin = copied(model)
    run = fitted(model, data, tmp_path, **settings)
    optimizers = twin.configure_optimizers()
    if frequencies is not None:
        optimizers = [entry["optimizer"] for entry in optimizers]
    record = twin_run(
        twin, data, step_of(twin, ["optimizer_idx"]), optimizers, frequencies=frequencies or (), weigh=lambda batch: 1.0,
        **(techniques or {}),
    )  # fmt: skip
    assert_same(run, record, model, exact=exact, columns=[
        n for n in record.columns if n != "skipped" and "grad_norm" not in n])  # fmt: skip
    # norms of norms: their order is free
    for name in (n for n in record.columns if "grad_norm" in n):
        np.testing.assert_allclose(run.history[name], record.columns[name], rtol=1e-6, err_msg=name)
    return model, run, record


@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize("make", [sgd, adam], ids=["sgd", "adam"])
def test_two_optimizers_take_turns_in_each_update(windows, make, tmp_path):
    techniques = {"accumulate": windows}
    model, run, _ = two_sided(
        tmp_path, make=make, accumulate_grad_batches=windows, techniques=techniques
    )
    assert all(p.requires_grad for p in model.parameters())
    np.testing.assert_array_equal(run.history["lr.1"], run.history["lr"] / 2)


@pytest.mark.parametrize(("by", "clip"), [("norm", 0.3), ("value", 0.02)])
@pytest.mark.parametrize("windows", [1, 4])
def test_each_optimizer_clips_its_own(by, clip, windows, tmp_path):
    _, run, record = two_sided(
        tmp_path, accumulate_grad_batches=windows, gradient_clip_val=clip, gradient_clip_algorithm=by,
        techniques={"accumulate": windows, "clip": clip, "clip_by": by},
    )  # fmt: skip
    if by == "norm":
        assert max(record.columns["grad_norm_clipped.0"]) <= clip * (1 + 1e-5)
        assert max(record.columns["grad_norm_clipped.1"]) <= clip * (1 + 1e-5)
        assert run.history["grad_norm_clipped"].max() > clip  # of both together


@pytest.mark.parametrize("frequencies", [(1, 1), (3, 1), (1, 4)], ids=str)
def test_frequencies(frequencies, tmp_path):
    _, run, _ = two_sided(tmp_path, frequencies=frequencies)
    took = ~np.isnan(run.history["loss.0"])
    cycle = [True] * frequencies[0] + [False] * frequencies[1]
    assert took.tolist() == [cycle[s % len(cycle)] for s in range(21)]
    assert np.isnan(run.history["loss.1"]).tolist() == took.tolist()


def test_two_optimizers_with_weights_and_a_schedule(tmp_path):
    two_sided(tmp_path, weighted=True, accumulate_grad_batches=2, lr_schedule="cosine", warmup=3,
              techniques={"accumulate": 2, "multiplier": multiplier("cosine", 12, 3)})  # fmt: skip


def test_each_optimizer_has_its_schedules(tmp_path):
    """As Lightning lists them: one that steps per update, one per epoch (its default), one that watches a metric."""

    class Scheduling(TwoSided):
        def configure_optimizers(self):
            return self.made()[:2]

        def made(self):
            coder, head = super().configure_optimizers()
            per_update = lr_scheduler.ExponentialLR(head, 0.9)
            per_epoch = lr_scheduler.ExponentialLR(coder, 0.5)
            plateau = lr_scheduler.ReduceLROnPlateau(head, factor=0.1, patience=0, threshold=0.3)
            listed = [
                {"scheduler": per_update, "interval": "step", "frequency": 2}, per_epoch,
                {"scheduler": plateau, "monitor": "val_loss"},
            ]  # fmt: skip
            return [coder, head], listed, (per_update, per_epoch, plateau)

    model, data, val = Scheduling(), labelled(), labelled(21, seed=5)
    twin = copied(model)
    run = fitted(model, data, tmp_path, val=val, max_epochs=4)
    optimizers, _, (per_update, per_epoch, plateau) = twin.made()
    record = twin_run(
        twin, data, step_of(twin, ["optimizer_idx"]), optimizers, epochs=4, check=checker(val, lambda m, b: m.validation_step(b, 0)),
        schedules=[Scheduled(per_update, "batch", 2), Scheduled(per_epoch, "epoch"), Scheduled(plateau, "check")],
    )  # fmt: skip
    assert_same(run, record, model, columns=["loss", "loss.0", "loss.1", "lr.0", "lr.1"])
    assert run.history["lr.0"][-1] == np.float32(0.05 / 8)


def test_only_the_parameters_whose_turn_it_is_require_gradients(tmp_path):
    seen = []

    class Watched(TwoSided):
        def training_step(self, batch, batch_idx, optimizer_idx):
            seen.append(
                (optimizer_idx, self.coder.weight.requires_grad, self.head.weight.requires_grad)
            )
            if len(seen) > 12:
                raise RuntimeError("in the middle")
            return super().training_step(batch, batch_idx, optimizer_idx)

    model = Watched()
    model.rebuild.bias.requires_grad_(False)
    bench = wb.Workbench(model, train=labelled(), root=tmp_path, accelerator="cpu", batch_size=8)
    seen.clear()
    with pytest.raises(RuntimeError, match="in the middle"):
        bench.fit().result()
    assert seen[:4] == [(0, True, False), (1, False, True)] * 2
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == {"rebuild.bias"}


# -- manual optimisation


class ByHand(TwoSided):
    """`TwoSided` with steps of its own: twice the head for each coder."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        coder, head = self.optimizers()
        for optimizer, number in ((coder, 0), (head, 1)):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx, number))
            optimizer.step()
            self.untoggle_optimizer(optimizer)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_manual_is_automatic_written_out(clip, tmp_path):
    model, data = ByHand(), labelled()
    run = fitted(model, data, tmp_path, gradient_clip_val=clip)
    twin = TwoSided()
    record = twin_run(
        twin, data, step_of(twin, ["optimizer_idx"]), twin.configure_optimizers(), clip=clip
    )
    assert_same(run, record, model, columns=["loss", "lr"])
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("kind", "options"), [("ema", {"ema_decay": 0.9}), ("swa", {"swa_epoch_start": 1})]
)
def test_manual_with_averages(kind, options, tmp_path):
    data, val = labelled(), labelled(21, seed=5)
    settings = {"weight_averaging": kind, **options, "val": val}
    automatic, manual = TwoSided(), ByHand()
    one = fitted(automatic, data, tmp_path / "a", **settings)
    other = fitted(manual, data, tmp_path / "b", **settings)
    np.testing.assert_array_equal(one.history["loss"], other.history["loss"])
    np.testing.assert_array_equal(
        one.validation["val_loss_averaged"], other.validation["val_loss_averaged"]
    )
    for name, value in automatic.state_dict().items():
        assert torch.equal(manual.state_dict()[name], value), name


def test_manual_with_averages_and_batch_norm_is_refused(tmp_path):
    """A pass over the training data for the statistics would take steps."""

    class Normed(ByHand):
        def __init__(self):
            super().__init__()
            self.coder = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8))

    with pytest.raises(ValueError, match="batch norm"):
        fitted(Normed(), labelled(), tmp_path, weight_averaging="ema")


class Asking(torch.nn.Module):
    """Asks for a step at the batches whose number `when` lets through."""

    def __init__(self, when):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.last, self.when = torch.nn.Linear(6, 3), when

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.manual_backward(torch.nn.functional.cross_entropy(self.last(batch[0]), batch[1]))
        if self.when(batch_idx):
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_step_asked_for_early_in_a_window_is_taken_at_its_end(tmp_path):
    """Asked for at the first batch of each window of two alone, it would never come."""
    early, always = (
        fitted(Asking(when), labelled(), tmp_path / name, accumulate_grad_batches=2)
        for name, when in [("early", lambda n: n % 2 == 0), ("always", lambda n: True)]
    )
    np.testing.assert_array_equal(early.history["loss"], always.history["loss"])
    assert early.history["loss"][-1] < early.history["loss"][0]


def test_gradients_that_are_set_to_zero_decay_and_move_as_in_torch(tmp_path):
    """As Lightning's: `zero_grad(set_to_none=False)` leaves gradients of zero, with which momentum and decay act."""

    class Zeroes(torch.nn.Module):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(6, 3)

        def optimizer(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

        def configure_optimizers(self):
            return self.optimizer()

        def play(self, batch, batch_idx, optimizer, backward):
            backward(self.layer(batch[0]).square().mean())
            optimizer.zero_grad(set_to_none=False)
            backward(
                torch.nn.functional.linear(
                    batch[0], self.layer.weight, self.layer.bias if batch_idx % 2 else None
                )
                .square()
                .mean()
            )
            optimizer.step()

        def training_step(self, batch, batch_idx):
            self.play(batch, batch_idx, self.optimizers(), self.manual_backward)

    (x, y), model = labelled(32)[:], Zeroes()
    twin = copied(model)
    wb.Workbench(
        model,
        train=(x, y),
        batch_size=8,
        max_epochs=1,
        shuffle=False,
        root=tmp_path,
        accelerator="cpu",
    ).fit().result()
    optimizer = twin.optimizer()
    for number in range(4):
        twin.play((x[8 * number : 8 * number + 8],), number, optimizer, torch.Tensor.backward)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_manual_steps_wait_for_the_window(tmp_path):
    """In each batch of a window the coder's loss is taken at the same weights; both step at the last batch."""
    model, data = ByHand(), labelled()
    twin = copied(model)
    run = fitted(model, data, tmp_path, accumulate_grad_batches=3)
    coder, head = TwoSided.configure_optimizers(twin)
    losses, loader = [], loop.loader_of(data, 8)
    for _ in range(3):
        for window in loop.list_windows(loader, 3):
            total = 0.0
            for number, batch in enumerate(window, start=1):
                for i, (optimizer, parts) in enumerate(
                    [(coder, [twin.coder, twin.rebuild]), (head, [twin.head])]
                ):
                    own = [p for part in parts for p in part.parameters()]
                    loss = TwoSided.training_step(twin, batch, 0, i) / len(window)
                    for p, g in zip(
                        own, torch.autograd.grad(loss, own, allow_unused=True), strict=True
                    ):
                        if g is not None:
                            p.grad = g if p.grad is None else p.grad + g
                    total += loss.item()
                    if number == len(window):
                        optimizer.step()
                        optimizer.zero_grad()
            losses.append(total)
    np.testing.assert_allclose(run.history["loss"], losses, rtol=1e-5)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
