"""Losses and gradients that are not finite: stopped or left out, and where it began is said."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import workbench as wb
from workbench.engine import nonfinite
from workbench.engine.metrics import flush
from workbench.engine.replay import Replay
from workbench.engine.state import TrainState
from workbench.events import Message, StepsDone, pack
from workbench.instruments.finite import NonFiniteError
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")
BATCH = 5


class Fragile(nn.Module):
    """A logarithm that fails on the samples whose first number is above 90; dropout moves the random numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.drop, self.last = nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 2)

    def forward(self, x):
        broken = (x[:, :1] > 90).float()
        hidden = self.drop(self.first(x / (1 + 99 * broken)).tanh())
        return self.last(hidden + torch.log(1 - 2 * broken))


def data(bad=(12,), n=30):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=g)
    x[list(bad), 0] = 99.0
    return TensorDataset(x, torch.randint(0, 2, (n,), generator=g))


def bench(tmp_path, samples, **settings):
    calm = {"max_epochs": 2, "batch_size": BATCH, "shuffle": False, "root": tmp_path}
    return wb.Workbench(Fragile(), train=samples, loss=F.cross_entropy, **{**calm, **settings})


def test_stop_says_at_which_update_and_where_it_began(tmp_path):
    b = bench(tmp_path, data())
    job = b.fit()
    with pytest.raises(
        NonFiniteError,
        match=r"loss not finite \(nan\) at update 2, first in log, of `return self.last.*was skipped",
    ) as caught:
        job.result()
    assert "at update 2, epoch 0" in "".join(caught.value.__notes__)
    assert all(bool(torch.isfinite(p).all()) for p in b.model.parameters())


def test_the_first_layer_with_bad_numbers_is_named(tmp_path):
    class Overflowing(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.calm, self.wild = nn.Linear(3, 4), nn.Linear(4, 2)
            nn.init.constant_(self.wild.weight, 1e38)

        def forward(self, x):
            return self.wild(self.calm(x).square() * (x[:, :1] > 90))

    b = wb.Workbench(
        Overflowing(), train=data(), loss=lambda output, y: output.square().mean(),
        root=tmp_path, batch_size=BATCH, shuffle=False, max_epochs=1,
    )  # fmt: skip
    with pytest.raises(
        NonFiniteError, match=r"loss not finite \(inf\) at update 2, first in `wild`"
    ):
        b.fit().result()


def plain(samples, skip, epochs=2):
    """The twin: the same loop, which takes no step for the batches in `skip`."""
    model = Fragile()
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, step = [], 0
    for _ in range(epochs):
        for i in range(0, len(samples), BATCH):
            x, y = samples[i : i + BATCH]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if step % (len(samples) // BATCH) not in skip:
                optimizer.step()
            losses.append(loss.item())
            step += 1
    return model, losses


@pytest.mark.parametrize("bad", [(12,), (0, 29)])
def test_skip_leaves_out_the_update_alone(tmp_path, bad):
    samples = data(bad)
    b = bench(tmp_path, samples, on_nonfinite="skip")
    run = b.fit().result()
    batches = {i // BATCH for i in bad}
    twin, losses = plain(samples, batches)
    np.testing.assert_array_equal(run.history["loss"], np.float32(losses))
    for mine, its in zip(b.model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, its)
    skipped = np.flatnonzero(run.history["skipped"] == 1)
    assert set(skipped) == {e * 6 + n for e in (0, 1) for n in batches}
    told = [e for e in run.events if isinstance(e, Message)]
    assert [e.step for e in told[:1]] == [int(skipped[0])]
    assert f"{2 * len(batches)} updates were left out" in told[-1].text


def test_skip_holds_the_schedule_and_the_average(tmp_path):
    b = bench(
        tmp_path,
        data(),
        on_nonfinite="skip",
        lr_schedule="linear",
        lr=0.1,
        weight_averaging="ema",
        ema_decay=0.5,
    )
    run = b.fit().result()
    lrs = run.history["lr"]
    assert lrs[2] == lrs[3]  # update 2 was left out, so its rate is used again
    assert lrs[3] > lrs[4]
    assert all(bool(torch.isfinite(p).all()) for p in b.model.parameters())


def test_after_a_few_the_updates_left_out_are_only_counted(tmp_path):
    run = bench(tmp_path, data(range(0, 30, 5)), on_nonfinite="skip").fit().result()
    told = [e.text for e in run.events if isinstance(e, Message)]
    assert len(told) == nonfinite.TOLD + 1
    assert told[-1].startswith("12 updates")


@pytest.mark.parametrize("bad", [False, True])
def test_a_guarded_step_is_left_out_on_the_device(bad):
    """The kernel of a fused optimizer takes the flag: no step, no count, and nobody waits."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    weight.grad = torch.tensor([1.0, float("nan") if bad else 1.0, 1.0])
    opt = SimpleNamespace(
        optimizer=optimizer,
        gradients=lambda: [weight.grad],
        total_norm=lambda gradients, p: torch.linalg.vector_norm(gradients[0], p),
    )
    assert nonfinite.can_guard(opt)
    with nonfinite.guarded(opt, torch.tensor(0.5), None, Replay(torch.device("cpu"))):
        optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(3)) is bad
    assert not hasattr(optimizer, "found_inf")


def test_a_guarded_step_without_gradients_is_no_error():
    """A manual step before any backward."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    opt = SimpleNamespace(optimizer=optimizer, gradients=list)
    with nonfinite.guarded(opt, torch.tensor(0.5), None, Replay(torch.device("cpu"))):
        optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(3))


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("columns", "optimizers", "manual", "order", "wrong"),
    [
        ({"loss": [1, NAN, 1, 1], "grad_norm": [1, 1, NAN, INF]}, 1, False, 2.0, [1, 2, 3]),
        # Sums of such powers overflow long before the gradients do.
        ({"loss": [1, 1, 1, 1], "grad_norm": [1, 1, NAN, INF]}, 1, False, 8.0, [2]),
        # The second has no turn at the first update; at the third its gradient is bad, and the loss is not.
        (
            {"loss": [1, 2, 2, 2], "grad_norm": [1, 2, 1, 2], "loss.0": [1, 1, 1, 1], "grad_norm.0": [1, 1, 1, 1],
             "loss.1": [NAN, 1, 1, 1], "grad_norm.1": [NAN, 1, NAN, 1]}, 2, False, 2.0, [2],
        ),
        # By hand there may be an update without a step: nothing was measured, and nothing is wrong.
        ({"loss": [1, 1], "grad_norm": [NAN, NAN], "layer_norms": [NAN, NAN, NAN, 1]}, 1, True, 2.0, [1]),
    ],
    ids=["one optimizer", "high power", "several optimizers", "by hand"],
)  # fmt: skip
def test_what_a_flush_from_a_device_shows(columns, optimizers, manual, order, wrong):
    rows = len(columns["loss"])
    event = StepsDone(
        0, 1, rows, 0, 0.0, {name: pack(np.float32(values)) for name, values in columns.items()}
    )
    session = SimpleNamespace(
        plan=SimpleNamespace(on_cpu=False, several_optimizers=optimizers > 1, skips_nonfinite=False),
        meter=SimpleNamespace(norm_order=order), precision=SimpleNamespace(scaler=None),
        optimizers=[SimpleNamespace(index=n) for n in range(optimizers)], task=SimpleNamespace(manual=manual),
        settings=wb.Settings(on_nonfinite="skip"),
    )  # fmt: skip
    assert (
        np.flatnonzero(flush.Recorder(session, [].append)._wrong(event, guarded=True)).tolist()
        == wrong
    )


class Drawing(Fragile):
    """Draws from numpy at each forward."""

    def forward(self, x):
        return super().forward(x) + 0.01 * float(np.random.rand())


def test_looking_for_where_it_began_draws_nothing(tmp_path, monkeypatch):
    def losses():
        model = Drawing()
        b = wb.Workbench(model, train=data(), loss=F.cross_entropy, max_epochs=2, batch_size=BATCH, shuffle=False,
                         root=tmp_path, on_nonfinite="skip")  # fmt: skip
        return b.fit().result().history["loss"]

    looked = losses()
    monkeypatch.setattr(nonfinite, "_replayed", lambda *_: None)
    np.testing.assert_array_equal(looked, losses())


class TwoBroken(nn.Module):
    """Two optimizers, and a batch that breaks the losses of both."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)])

    def training_step(self, batch, batch_idx, optimizer_idx):
        x = batch[0]
        return (
            self.parts[optimizer_idx](x / (1 + (x[:, :1] < 90))).mean()
            + torch.log((x[:, 0] < 90).float()).mean()
        )

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in self.parts]


def test_an_update_that_is_left_out_counts_once(tmp_path):
    b = wb.Workbench(TwoBroken(), train=data(), max_epochs=2, batch_size=BATCH, shuffle=False, root=tmp_path,
                     on_nonfinite="skip")  # fmt: skip
    told = [e.text for e in b.fit().result().events if isinstance(e, Message)]
    assert told[-1].startswith("2 updates were left out")


def test_skip_on_a_device_needs_an_optimizer_that_can_be_told(tmp_path):
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(1))])
    session = SimpleNamespace(
        plan=SimpleNamespace(on_cpu=False), device=torch.device("cuda"), precision=SimpleNamespace(scaler=None),
        settings=wb.Settings(on_nonfinite="skip"), optimizers=[SimpleNamespace(optimizer=optimizer)],
    )  # fmt: skip
    with pytest.raises(TaskError, match="fused=True"):
        nonfinite.refuse_unguarded(session)


def test_the_finder_ends_at_bad_numbers_and_says_so(tmp_path):
    curve = (
        bench(tmp_path, data(), optimizer=functools.partial(torch.optim.SGD))
        .find_lr(num_training=10)
        .result()
    )
    assert "finite" in curve.ended
    assert len(curve.losses) == 3


@pytest.mark.parametrize("on_nonfinite", ["stop", "skip"])
def test_a_search_by_closure_that_meets_bad_numbers_is_undone(tmp_path, on_nonfinite):
    """LBFGS moves the weights while it evaluates; where that ends in bad numbers they are those of before the update."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    b = wb.Workbench(
        model, train=TensorDataset(torch.ones(4, 1), torch.zeros(4, 1)), root=tmp_path, max_steps=2, batch_size=4,
        loss=lambda output, y: (output - 0.5).sqrt().mean(), optimizer=torch.optim.LBFGS, lr=2.0, on_nonfinite=on_nonfinite,
    )  # fmt: skip
    if on_nonfinite == "stop":
        with pytest.raises(NonFiniteError, match="update 0"):
            b.fit().result()
    else:
        run = b.fit().result()
        assert run.history["skipped"].tolist() == [1, 1]
        assert run.history["loss"][0] == pytest.approx(0.5**0.5)
    assert model.weight.item() == 1.0


def test_statistics_of_a_batch_that_is_left_out_are_put_back(tmp_path):
    """BatchNorm has seen the NaN by then; the twin takes its forward on a copy."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.norm, self.last = nn.BatchNorm1d(3), nn.Linear(3, 2)

        def forward(self, x):
            return self.last(self.norm(x))

    samples = data()
    x, y = samples.tensors
    x[12] = float("nan")
    model, twin = Normed(), Normed()
    wb.Workbench(
        model, train=samples, loss=F.cross_entropy, root=tmp_path, max_epochs=2, batch_size=BATCH, shuffle=False,
        on_nonfinite="skip",
    ).fit().result()  # fmt: skip
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-3)
    for _ in range(2):
        for i in (0, 5, 15, 20, 25):
            optimizer.zero_grad()
            F.cross_entropy(twin(x[i : i + BATCH]), y[i : i + BATCH]).backward()
            optimizer.step()
    for name, value in twin.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("loss", "norms", "told"),
    [
        (
            [1, 1],
            [1, NAN, 1, 1, 1, NAN, NAN, INF],
            "a gradient is not finite at update 1, first in 'third': lower",
        ),
        (
            [1, NAN],
            [1, NAN, 1, 1, 1, NAN, NAN, NAN],
            "loss not finite (nan) at update 1, first in 'third': lower",
        ),
        # A loss that went bad in the last layer makes every gradient bad: the first of them says nothing.
        ([1, NAN], [1, NAN, 1, 1, NAN, NAN, NAN, NAN], "loss not finite (nan) at update 1: lower"),
    ],
)
def test_a_flush_from_a_device_names_the_first_layer(loss, norms, told):
    columns = {"loss": loss, "grad_norm": [1, NAN], "layer_norms": norms}
    event = StepsDone(
        0, 1, 2, 0, 0.0, {name: pack(np.float32(values)) for name, values in columns.items()}
    )
    session = SimpleNamespace(
        plan=SimpleNamespace(on_cpu=False, several_optimizers=False, skips_nonfinite=False), state=TrainState(),
        meter=SimpleNamespace(norm_order=2.0), precision=SimpleNamespace(scaler=None),
        parameters=dict.fromkeys(("first", "second", "third", "fourth")), device=torch.device("mps"), task=SimpleNamespace(manual=False),
        optimizers=[SimpleNamespace(index=0, optimizer=object())], settings=wb.Settings(),
    )  # fmt: skip
    with pytest.raises(NonFiniteError) as caught:
        flush.Recorder(session, [].append)._check_arrived(event)
    assert str(caught.value).startswith(told)
