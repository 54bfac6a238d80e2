"""A fit against a plain PyTorch loop, bit for bit on the CPU."""

import copy
import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.combinations import pairs
from tests.engine.problems import (
    Augmented,
    HalfUsed,
    adamw,
    bench,
    labelled,
    loss_of,
    noisy_net,
    plain_net,
    same_weights,
    sgd,
    twin_of,
    two_groups,
)
from tests.reference import loop
from tests.reference.norms import total_norm_flat
from workbench.events import Message
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")


def f32(values):
    return np.asarray(values, dtype=np.float64).astype(np.float32)


def layers(run):
    """The per-layer norms of a run, rows x layers."""
    return np.concatenate(
        [e.array("layer_norms") for e in run.events if type(e).__name__ == "StepsDone"]
    )


def same(a, b):
    return np.array_equal(f32(a), f32(b), equal_nan=True)


def compare(
    net, make, tmp_path, *, accumulate=1, clip=None, by="norm", p=2.0, n=50, lr=0.05, epochs=3
):
    model, data = net(), labelled(n)
    twin = twin_of(model)
    given = {"norm": "norm", "value": "value"}[by]
    b = bench(
        model, data, tmp_path, make, lr=lr, max_epochs=epochs, accumulate_grad_batches=accumulate,
        gradient_clip_val=clip, gradient_clip_algorithm=given, track_grad_norm=p,
    )  # fmt: skip
    run = b.fit().result()
    expected = loop.fit(
        twin, loss_of, make(twin.parameters(), lr=lr), loop.loader_of(data, 8), epochs,
        accumulate=accumulate, clip=clip, clip_by=by, p=float(p),
    )  # fmt: skip
    assert run.status == "finished"
    assert same(run.history["loss"], expected["loss"])
    assert same(run.history["lr"], expected["lr"])
    assert same(run.history["grad_norm"], expected["grad_norm"])
    assert same(layers(run), expected["layers"])
    if clip is None:
        assert "grad_norm_clipped" not in run.history
    else:
        assert same(run.history["grad_norm_clipped"], expected["grad_norm_clipped"])
    assert same_weights(model, twin)
    return run, expected


# 7 batches of 8, the last one of 2: every tail is uneven
@pytest.mark.parametrize("accumulate", [1, 3, 4])
@pytest.mark.parametrize("make", [sgd, adamw], ids=["sgd", "adamw"])
@pytest.mark.parametrize("net", [plain_net, noisy_net], ids=["plain", "batchnorm-dropout"])
def test_equal_to_a_plain_loop(net, make, accumulate, tmp_path):
    run, _ = compare(net, make, tmp_path, accumulate=accumulate)
    assert run.step == 3 * -(-7 // accumulate)


@pairs(
    "make, accumulate, clipping",
    [sgd, adamw],
    [1, 3],
    [("norm", 0.3), ("value", 0.02), ("norm", 1e6), ("value", 0.3)],
)
def test_clipping_is_torchs_own(make, accumulate, clipping, tmp_path):
    by, clip = clipping
    run, expected = compare(noisy_net, make, tmp_path, clip=clip, by=by, accumulate=accumulate)
    if clip < 1:
        assert (run.history["grad_norm_clipped"] < run.history["grad_norm"]).any()
    if by == "norm" and clip < 1:
        assert run.history["grad_norm_clipped"].max() <= clip
        assert max(expected["grad_norm"]) > clip  # measured before the clipping


@pytest.mark.parametrize("p", [1, 3, "inf"])
def test_other_norms(p, tmp_path):
    compare(plain_net, sgd, tmp_path, p=p)


def test_norm_clipping_is_by_the_2_norm_whatever_is_tracked(tmp_path):
    run, _ = compare(plain_net, sgd, tmp_path, p="inf", clip=0.3)
    assert run.history["grad_norm_clipped"].max() == pytest.approx(0.3, rel=1e-4)


def test_norms_agree_with_one_long_vector(tmp_path):
    model, data = plain_net(), labelled()
    twin = twin_of(model)
    run = bench(model, data, tmp_path, max_steps=1).fit().result()
    loss_of(twin, next(iter(loop.loader_of(data, 8)))).backward()
    assert run.history["grad_norm"][0] == pytest.approx(total_norm_flat(twin), rel=1e-6)


def test_a_parameter_without_gradient_has_no_norm(tmp_path):
    model = HalfUsed()
    before = model.unused.weight.detach().clone()
    run = bench(model, labelled(), tmp_path, max_epochs=1, gradient_clip_val=0.1).fit().result()
    names = run.events[0].layers
    assert names == tuple(name for name, _ in model.named_parameters())
    unused = np.array([name.startswith("unused") for name in names])
    table = layers(run)
    assert np.isnan(table[:, unused]).all()
    assert np.isfinite(table[:, ~unused]).all()
    assert np.isfinite(run.history["grad_norm"]).all()
    assert torch.equal(before, model.unused.weight)


def test_norms_off_leaves_training_as_it_is(tmp_path):
    model, data = plain_net(), labelled()
    b = bench(model, data, tmp_path, max_epochs=2, gradient_clip_val=0.2)
    with_norms = b.fit().result()
    trained = twin_of(model)
    without = b.fit(track_grad_norm=None).result()
    assert "grad_norm" not in without.history
    assert same(with_norms.history["loss"], without.history["loss"])
    assert same_weights(model, trained)


def test_every_third_update_is_kept(tmp_path):
    model, data = plain_net(), labelled()
    b = bench(model, data, tmp_path, max_epochs=2, gradient_clip_val=0.2)
    every = b.fit().result()
    trained = twin_of(model)
    third = b.fit(log_every_n_steps=3).result()
    assert third.history["step"].tolist() == [0, 3, 6, 9, 12]
    for name in ("loss", "grad_norm", "grad_norm_clipped", "lr"):
        assert same(third.history[name], every.history[name][::3])
    assert same_weights(model, trained)
    assert third.step == every.step == 14  # updates taken, not updates kept


def test_a_window_of_equal_batches_is_one_big_batch(tmp_path):
    data = labelled(48)
    small, large = plain_net(), plain_net()
    a = (
        bench(small, data, tmp_path / "a", batch_size=4, accumulate_grad_batches=4, max_epochs=2)
        .fit()
        .result()
    )
    b = bench(large, data, tmp_path / "b", batch_size=16, max_epochs=2).fit().result()
    np.testing.assert_allclose(a.history["loss"], b.history["loss"], rtol=1e-5)
    torch.testing.assert_close(small.state_dict(), large.state_dict())


def test_the_short_window_counts_in_full(tmp_path):
    """docs/concepts/techniques.md: K=4, 6 batches of constant gradient 1 gives updates [1.0, 1.0], not [1.0, 0.5]."""

    class One(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return self.w * torch.ones(len(x))

    model = One()
    b = bench(
        model, (torch.zeros(12, 1), torch.zeros(12)), tmp_path, torch.optim.SGD, loss=lambda o, y: (o - 0 * y).mean(),
        batch_size=2, accumulate_grad_batches=4, max_epochs=1, lr=1.0,
    )  # fmt: skip
    run = b.fit().result()
    assert run.history["grad_norm"].tolist() == [1.0, 1.0]
    assert model.w.item() == -2.0


def test_in_the_order_given(tmp_path):
    model, data = plain_net(), labelled()
    twin = twin_of(model)
    run = bench(model, data, tmp_path, shuffle=False, drop_last=True, max_epochs=2).fit().result()
    loader = loop.loader_of(data, 8, shuffle=False, drop_last=True)
    expected = loop.fit(twin, loss_of, sgd(twin.parameters(), lr=0.05), loader, 2)
    assert same(run.history["loss"], expected["loss"])
    assert run.step == 12
    assert same_weights(model, twin)


def test_augmentation_draws_as_in_a_plain_loop(tmp_path):
    model, data = noisy_net(), Augmented(labelled())
    twin = twin_of(model)
    run = bench(model, data, tmp_path, max_epochs=2, seed=7).fit().result()
    expected = loop.fit(
        twin, loss_of, sgd(twin.parameters(), lr=0.05), loop.loader_of(data, 8, seed=7), 2, seed=7
    )
    assert same(run.history["loss"], expected["loss"])
    assert same_weights(model, twin)


def test_a_dataloader_of_the_users_own(tmp_path):
    """Its batch size, order, generator and drop_last are what it says."""
    model, data = noisy_net(), labelled()
    twin = twin_of(model)
    loader = loop.loader_of(data, 12, seed=99, drop_last=True)
    b = bench(
        model,
        loop.loader_of(data, 12, seed=99, drop_last=True),
        tmp_path,
        batch_size=12,
        max_epochs=3,
    )
    run = b.fit().result()
    expected = loop.fit(twin, loss_of, sgd(twin.parameters(), lr=0.05), loader, 3)
    assert same(run.history["loss"], expected["loss"])
    assert same_weights(model, twin)


def test_validation_moves_nothing(tmp_path):
    """A validation with metrics, dropout and an augmented set between epochs: the training is as without."""

    data = labelled()
    alone, checked = noisy_net(), noisy_net()
    first = bench(alone, data, tmp_path / "a", max_epochs=3).fit().result()
    b = wb.Workbench(
        checked, train=data, val=Augmented(labelled(30, seed=5)), loss=F.cross_entropy, optimizer=sgd,
        metrics={"accuracy": lambda output, y: (output.argmax(1) == y).float().mean()},
        root=tmp_path / "b", accelerator="cpu", batch_size=8, lr=0.05, max_epochs=3,
    )  # fmt: skip
    second = b.fit().result()
    assert same(first.history["loss"], second.history["loss"])
    assert same_weights(alone, checked)
    assert second.validation["step"].tolist() == [7, 14, 21]
    assert second.validation["val_accuracy"].shape == (3,)


def test_validation_weighs_by_samples(tmp_path):

    model, data, val = plain_net(), labelled(), labelled(21, seed=5)
    b = wb.Workbench(model, train=data, val=val, loss=F.cross_entropy, optimizer=sgd, root=tmp_path,
                     accelerator="cpu", batch_size=8, lr=0.05, max_epochs=1)  # fmt: skip
    run = b.fit().result()
    x, y = val.tensors
    with torch.no_grad():
        whole = F.cross_entropy(model.eval()(x), y).item()
    assert run.metrics["val_loss"] == pytest.approx(whole, rel=1e-6)
    assert b.validate().result() == pytest.approx({"val_loss": whole}, rel=1e-6)


def test_max_steps_ends_in_the_middle_of_an_epoch(tmp_path):
    model, data = noisy_net(), labelled()
    twin = twin_of(model)
    run = bench(model, data, tmp_path, max_steps=10).fit().result()
    expected = loop.fit(
        twin, loss_of, sgd(twin.parameters(), lr=0.05), loop.loader_of(data, 8), 5, max_steps=10
    )
    assert same(run.history["loss"], expected["loss"])
    assert run.history["epoch"].tolist() == [0] * 7 + [1] * 3
    assert same_weights(model, twin)


SCHEDULES = {
    "cosine": lambda o, n: torch.optim.lr_scheduler.CosineAnnealingLR(o, n),
    "one_cycle": lambda o, n: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=n),
    "warmup": lambda o, n: torch.optim.lr_scheduler.LambdaLR(o, lambda k: min(1.0, k / 5)),
    "sequential": lambda o, n: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=5),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        [5],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.filterwarnings("ignore:The epoch parameter in")
def test_schedules_step_once_per_update(name, accumulate, tmp_path):

    model, data = plain_net(), labelled()
    twin = twin_of(model)
    b = wb.Workbench(model, train=data, loss=F.cross_entropy, optimizer=sgd, scheduler=SCHEDULES[name], root=tmp_path,
                     accelerator="cpu", batch_size=8, lr=0.05, max_epochs=3, accumulate_grad_batches=accumulate)  # fmt: skip
    run = b.fit().result()
    optimizer = sgd(twin.parameters(), lr=0.05)
    updates = 3 * -(-7 // accumulate)
    expected = loop.fit(twin, loss_of, optimizer, loop.loader_of(data, 8), 3, accumulate=accumulate,
                        scheduler=SCHEDULES[name](optimizer, updates))  # fmt: skip
    assert same(run.history["lr"], expected["lr"])
    assert same(run.history["loss"], expected["loss"])
    assert same_weights(model, twin)


@pytest.mark.parametrize("name", ["one_cycle", "cosine"])
def test_a_warm_up_beside_a_schedule(name, tmp_path):
    """The schedule goes on as without it; each of the first steps takes its share of the rate."""
    model, data = plain_net(), labelled()
    twin = twin_of(model)
    b = wb.Workbench(model, train=data, loss=F.cross_entropy, optimizer=two_groups, scheduler=SCHEDULES[name], root=tmp_path,
                     accelerator="cpu", batch_size=8, lr=0.05, max_epochs=3, warmup=0.5)  # fmt: skip
    run = b.fit().result()
    optimizer, rates, shares = two_groups(twin.parameters(), lr=0.05), [], []

    def take_share(optimizer, args, kwargs):
        shares.append(min(1.0, (len(shares) + 1) / 10))
        rates.append([group["lr"] for group in optimizer.param_groups])
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * shares[-1]

    def put_back(optimizer, args, kwargs):
        for group, rate in zip(optimizer.param_groups, rates[-1], strict=True):
            group["lr"] = rate

    optimizer.register_step_pre_hook(take_share)
    optimizer.register_step_post_hook(put_back)
    expected = loop.fit(
        twin,
        loss_of,
        optimizer,
        loop.loader_of(data, 8),
        3,
        scheduler=SCHEDULES[name](optimizer, 21),
    )
    assert same(run.history["lr"], [lr * s for lr, s in zip(expected["lr"], shares, strict=True)])
    assert same(run.history["loss"], expected["loss"])
    assert same_weights(model, twin)


def test_a_search_tries_whole_rates(tmp_path):
    """Whatever the warm-up beside a schedule is."""

    def rates(warmup):
        seen = []

        def noting(params, lr):
            optimizer = sgd(params, lr)
            optimizer.register_step_pre_hook(
                lambda o, args, kwargs: seen.append(o.param_groups[0]["lr"])
            )
            return optimizer

        with wb.Workbench(plain_net(), train=labelled(), loss=F.cross_entropy, optimizer=noting, scheduler=SCHEDULES["cosine"],
                          root=tmp_path, accelerator="cpu", batch_size=8, max_epochs=3, warmup=warmup) as b:  # fmt: skip
            b.find_lr(num_training=20).result()
        return seen

    assert len(rates(10)) >= 20
    assert rates(10) == rates(0)


def test_a_step_that_sets_its_rate_itself_in_a_warm_up(tmp_path):
    """The rate with which it stepped is recorded, and a message says that lr has no effect."""

    class Fixed(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                group["lr"] = 0.02
            return super().step(closure)

    with wb.Workbench(plain_net(), train=labelled(), loss=F.cross_entropy, optimizer=Fixed, scheduler=SCHEDULES["cosine"],
                      root=tmp_path, accelerator="cpu", batch_size=8, max_steps=4, lr=0.05, warmup=3) as b:  # fmt: skip
        run = b.fit().result()
    assert run.history["lr"].tolist() == pytest.approx([0.02] * 4)
    assert any(
        "sets the learning rate" in event.text for event in run.events if isinstance(event, Message)
    )


def test_parameter_groups_keep_their_ratios(tmp_path):
    model, data = plain_net(), labelled()
    twin = twin_of(model)
    run = bench(model, data, tmp_path, two_groups, max_epochs=2).fit(lr=0.2).result()
    expected = loop.fit(
        twin, loss_of, two_groups(twin.parameters(), lr=0.2), loop.loader_of(data, 8), 2
    )
    assert same(run.history["loss"], expected["loss"])
    assert same_weights(model, twin)


def test_weight_decay_reaches_the_optimizer(tmp_path):
    model, data = plain_net(), labelled()
    twin = twin_of(model)
    bench(model, data, tmp_path, adamw, weight_decay=0.3, max_epochs=1).fit().result()
    loop.fit(
        twin,
        loss_of,
        adamw(twin.parameters(), lr=0.05, weight_decay=0.3),
        loop.loader_of(data, 8),
        1,
    )
    assert same_weights(model, twin)


def test_a_seed_is_a_run(tmp_path):
    model, data = noisy_net(), labelled()
    b = bench(model, data, tmp_path, max_epochs=2)
    first, again, other = (b.fit(seed=s).result() for s in (3, 3, 4))
    assert same(first.history["loss"], again.history["loss"])
    assert not same(first.history["loss"], other.history["loss"])


def test_a_frozen_layer_in_eval_mode_stays_as_the_user_left_it(tmp_path):
    """model.train(); model[1].eval() freezes the statistics: the fit, the finder and the dry step respect it."""
    model, data = noisy_net(), labelled()
    model.train()
    model[1].eval()
    twin = twin_of(model)
    b = bench(model, data, tmp_path, max_epochs=1)
    assert not model[1].training
    mean = model[1].running_mean.clone()
    run = b.fit().result()
    torch.manual_seed(0)
    optimizer = sgd(twin.parameters(), lr=0.05)
    losses = []
    for batch in loop.loader_of(data, 8):
        optimizer.zero_grad()
        loss = loss_of(twin, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert same(run.history["loss"], losses)
    assert torch.equal(model[1].running_mean, mean)
    assert [m.training for m in model.modules()] == [m.training for m in twin.modules()]


def test_modes_are_put_back(tmp_path):
    model = noisy_net().eval()
    bench(model, labelled(), tmp_path, max_epochs=1).fit().result()
    assert not any(m.training for m in model.modules())


def test_the_users_gradients_are_put_back(tmp_path):
    model = plain_net()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    kept = [p.grad for p in model.parameters()]
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    b.fit().result()
    b.find_lr(num_training=5).result()
    assert all(
        p.grad is g and torch.equal(g, torch.ones_like(g))
        for p, g in zip(model.parameters(), kept, strict=True)
    )


def test_loss_with_weights_of_its_own_moves_and_stays(tmp_path):
    model = plain_net()
    loss = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    twin = twin_of(model)
    run = bench(model, labelled(), tmp_path, loss=loss, max_epochs=1).fit().result()
    expected = loop.fit(twin, lambda m, b: loss(m(b[0]), b[1]), sgd(twin.parameters(), lr=0.05),
                        loop.loader_of(labelled(), 8), 1)  # fmt: skip
    assert same(run.history["loss"], expected["loss"])


def test_a_summed_loss_weighs_each_batch_as_one(tmp_path):
    """`reduction="sum"` is no mean over samples: batches of a window count alike."""
    model, data = plain_net(), labelled()
    twin = twin_of(model)
    loss = functools.partial(F.cross_entropy, reduction="sum")
    run = (
        bench(model, data, tmp_path, loss=loss, accumulate_grad_batches=4, max_steps=2, lr=1e-3)
        .fit()
        .result()
    )
    means = []
    optimizer = sgd(twin.parameters(), lr=1e-3)
    for window in loop.list_windows(loop.loader_of(data, 8), 4):
        parts = [loss(twin(x), y) / len(window) for x, y in window]
        optimizer.zero_grad()
        sum(parts).backward()
        optimizer.step()
        means.append(sum(part.item() for part in parts))
    np.testing.assert_allclose(run.history["loss"], means, rtol=1e-5)


def test_data_in_other_forms_is_the_same_training(tmp_path):
    """A TensorDataset, tensors, numpy arrays and a dict of arrays: one order, one result."""
    data = labelled()
    x, y = data.tensors

    class Named(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x)

    forms = {
        "dataset": data,
        "tensors": (x, y),
        "arrays": (x.numpy(), y.numpy()),
        "dict": {"x": x, "labels": y},
    }
    losses = []
    for name, form in forms.items():
        run = bench(Named(plain_net()), form, tmp_path / name, max_epochs=1).fit().result()
        losses.append(run.history["loss"])
    assert all(same(losses[0], other) for other in losses[1:])


def test_what_was_measured_is_kept_as_it_was(tmp_path):
    """Losses and norms of a model in double precision are float64 in memory and on disk, to the last bit."""
    model, (x, y) = plain_net().double(), labelled().tensors
    twin, x = copy.deepcopy(model), x.double()
    run = wb.Workbench(
        model, train=(x, y), loss=F.cross_entropy, optimizer=torch.optim.SGD, gradient_clip_val=0.5, shuffle=False,
        root=tmp_path, accelerator="cpu", batch_size=50, max_epochs=3, lr=0.1,
    ).fit().result()  # fmt: skip
    losses, norms = [], []
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(twin(x), y)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5).item())
        losses.append(loss.item())
        optimizer.step()
    for there in (run, Run.open(run.folder)):
        assert {
            name: there.history[name].dtype for name in ("loss", "grad_norm", "grad_norm_clipped")
        } == dict.fromkeys(("loss", "grad_norm", "grad_norm_clipped"), np.dtype(np.float64))
        assert there.history["loss"].tolist() == losses
        np.testing.assert_allclose(there.history["grad_norm"], norms, rtol=1e-14)
        np.testing.assert_array_equal(there.history["loss"], run.history["loss"])
    assert model[0].weight.dtype == torch.float64
    assert not np.array_equal(run.history["loss"], np.float32(run.history["loss"]))


def test_a_float64_loss_of_a_float32_model_is_kept(tmp_path):
    seen = []

    def exact(output, y):
        loss = F.cross_entropy(output.double(), y)
        seen.append(loss.item())
        return loss

    x, y = labelled().tensors
    run = (
        wb.Workbench(
            plain_net(),
            train=(x, y),
            loss=exact,
            root=tmp_path,
            accelerator="cpu",
            batch_size=10,
            max_epochs=1,
        )
        .fit()
        .result()
    )
    assert run.history["loss"].tolist() == seen[-5:]
    assert run.history["lr"].dtype == run.history["grad_norm/0.weight"].dtype == np.float32


@pytest.mark.parametrize("size", [50, 20], ids=["one batch", "uneven batches"])
def test_checks_keep_what_was_measured(tmp_path, size):
    """What a model in double precision comes to over validation data is torch's own float64, to the last bit."""
    model, (x, y) = plain_net().double(), labelled().tensors
    x = x.double()
    metrics = {
        "spread": lambda output, y: output.std(),
        "margin": lambda output, y: output.softmax(1)[:, 0],
    }
    run = wb.Workbench(
        model, train=(x, y), val=(x, y), loss=F.cross_entropy, metrics=metrics, root=tmp_path, accelerator="cpu", batch_size=size,
        max_epochs=2,
    ).fit().result()  # fmt: skip
    with torch.no_grad():
        batches = [(model(a), b) for a, b in zip(x.split(size), y.split(size), strict=True)]
        given = {
            "val_loss": F.cross_entropy,
            **{f"val_{name}": metric for name, metric in metrics.items()},
        }
        means = {
            name: torch.stack([f(output, b).mean() for output, b in batches])
            for name, f in given.items()
        }
    weights = torch.tensor([float(len(b)) for _, b in batches], dtype=torch.float64)
    wanted = {name: float((of * weights).sum() / weights.sum()) for name, of in means.items()}
    if size == len(x):
        assert wanted["val_loss"] == F.cross_entropy(model(x), y).item()
    for there in (run, Run.open(run.folder)):
        assert {name: there.validation[name][-1] for name in wanted} == wanted
        assert {name: there.metrics[name] for name in wanted} == wanted


def test_what_is_float32_stays_so(tmp_path):
    run = bench(plain_net(), labelled(), tmp_path, max_epochs=1).fit().result()
    kinds = {values.dtype for name, values in run.history.items() if name not in ("step", "epoch")}
    assert kinds == {np.dtype(np.float32)}
