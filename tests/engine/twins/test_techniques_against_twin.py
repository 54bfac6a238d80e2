"""Every technique that changes an update against the slow twin of `tests/reference/techniques.py`."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import workbench as wb
from tests.engine.learners import (
    Learner,
    assert_same,
    checker,
    copied,
    fitted,
    step_of,
    supervised,
    twin_run,
)
from tests.engine.problems import SAM, adamw, labelled, noisy_net, plain_net, sgd
from tests.reference import loop
from tests.reference.technique_parts import Scheduled, multiplier, one_cycle, updates_in
from tests.reference.techniques import train

pytestmark = pytest.mark.usefixtures("one_thread")
CE = F.cross_entropy
BATCHES = 7  # of 8, the last one of 2: every tail is uneven


def classify(
    make, tmp_path, *, net=plain_net, epochs=3, techniques=None, exact=True, val=None, **settings
):
    """A classifier's run and its twin's, compared. `techniques`: the twin's, or a function of its optimizer."""
    model, data = net(), labelled()
    twin = copied(model)
    run = fitted(
        model, data, tmp_path, loss=CE, optimizer=make, val=val, max_epochs=epochs, **settings
    )
    optimizer = make(twin.parameters(), lr=0.05)
    extra = techniques(optimizer) if callable(techniques) else techniques or {}
    record = twin_run(twin, data, supervised(twin, CE), [optimizer], epochs=epochs, **extra)
    assert_same(run, record, model, exact=exact)
    return run, record


# -- accumulation


@pytest.mark.parametrize("windows", [{0: 3, 1: 1, 2: 4}, {1: 2}, {0: 4, 2: 2}, 5], ids=str)
@pytest.mark.parametrize("net", [plain_net, noisy_net], ids=["plain", "batchnorm-dropout"])
def test_windows_by_epoch(windows, net, tmp_path):
    given = dict(windows) if isinstance(windows, dict) else windows
    run, _ = classify(adamw, tmp_path, net=net, epochs=4, techniques={"accumulate": windows},
                      accumulate_grad_batches=given)  # fmt: skip
    assert run.step == updates_in(BATCHES, windows, 4)
    assert given == windows  # the user's own dict stays as it is


@pytest.mark.parametrize("windows", [1, 3, {0: 2, 1: 4}], ids=str)
def test_batches_that_say_their_weight(windows, tmp_path):
    model, data = Learner(weighted=True), labelled()
    twin = copied(model)
    run = fitted(model, data, tmp_path, accumulate_grad_batches=windows)
    record = twin_run(twin, data, step_of(twin), [twin.configure_optimizers()], accumulate=windows)
    assert_same(run, record, model)


@pytest.mark.parametrize("windows", [1, 3])
def test_steps_that_return_none_are_left_out(windows, tmp_path):
    """Batch 1 of each epoch (in a window of three) and batch 6 (alone in the last window, which is no update)."""
    model, data = Learner(drops=(1, 6)), labelled()
    twin = copied(model)
    run = fitted(model, data, tmp_path, accumulate_grad_batches=windows)
    number = iter(list(range(BATCHES)) * 3)

    def step(batch, optimizer, hiddens):
        return twin.training_step(batch, next(number))

    record = twin_run(
        twin, data, step, [twin.configure_optimizers()], accumulate=windows, weigh=lambda batch: 1.0
    )
    # The engine may divide what is left once, the twin divides it all: float tolerance.
    assert_same(run, record, model, exact=windows == 1)
    assert run.step == 3 * (5 if windows == 1 else 2)


def whole_or_none(samples):
    """A collate function that has nothing to say of the short batch at the end (of 4; the dry step asks for 2)."""
    return None if len(samples) == 4 else torch.utils.data.default_collate(samples)


@pytest.mark.parametrize("windows", [1, 2, 4])
def test_batches_that_are_none_are_left_out(windows, tmp_path):
    """The last batch of each epoch is None: alone in its window there is no update, in company it does not count."""
    model, data = plain_net(), labelled(52)
    twin = copied(model)
    run = fitted(
        model, data, tmp_path, loss=CE, collate_fn=whole_or_none, accumulate_grad_batches=windows
    )
    loader = loop.loader_of(data, 8, collate_fn=whole_or_none)
    record = train(
        twin,
        loader,
        supervised(twin, CE),
        [sgd(twin.parameters(), lr=0.05)],
        epochs=3,
        accumulate=windows,
    )
    assert_same(run, record, model)
    assert run.step == 3 * {1: 6, 2: 3, 4: 2}[windows]


# -- schedules


@pytest.mark.parametrize("warmup", [0, 4, 0.25], ids=lambda w: f"warmup={w}")
@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("windows", [1, 3])
def test_built_in_schedules(kind, warmup, windows, tmp_path):
    updates = updates_in(BATCHES, windows, 3)
    run, _ = classify(sgd, tmp_path, accumulate_grad_batches=windows, lr_schedule=kind, warmup=warmup,
                      techniques={"accumulate": windows, "multiplier": multiplier(kind, updates, warmup)})  # fmt: skip
    if warmup:
        assert run.history["lr"][0] < 0.05
    if kind != "constant":
        assert run.history["lr"][-1] < 0.5 * run.history["lr"].max()


@pytest.mark.parametrize("warmup", [0, 5, 0.5], ids=lambda w: f"warmup={w}")
@pytest.mark.parametrize(
    "make", [sgd, adamw, torch.optim.SGD], ids=["momentum", "betas", "neither"]
)
def test_one_cycle(make, warmup, tmp_path):
    classify(make, tmp_path, lr_schedule="one_cycle", warmup=warmup,
             techniques=lambda o: {"schedules": [Scheduled(one_cycle(o, 21, warmup))]})  # fmt: skip


def test_schedules_over_max_steps_and_windows_by_epoch(tmp_path):
    """Nine updates are fewer than the twelve of five epochs: the rate would be 0 at the tenth."""
    windows = {0: 3, 2: 4}
    run, _ = classify(
        sgd, tmp_path, epochs=5, max_steps=9, accumulate_grad_batches=windows, lr_schedule="linear",
        techniques={"max_steps": 9, "accumulate": windows, "multiplier": multiplier("linear", 9, 0)},
    )  # fmt: skip
    assert run.history["lr"][-1] == pytest.approx(0.05 / 9)


@pytest.mark.parametrize("settings", [
    {"lr_schedule": "cosine", "warmup": BATCHES},
    {"lr_schedule": "linear", "scheduler": lambda o, n: lr_scheduler.StepLR(o, 2)},
], ids=["a warm-up of the whole run", "two schedules"])  # fmt: skip
def test_schedules_that_are_refused(settings, tmp_path):
    with pytest.raises(ValueError, match=r"warmup|schedule"):
        fitted(plain_net(), labelled(), tmp_path, loss=CE, max_epochs=1, **settings)


@pytest.mark.parametrize("frequency", [1, 2])
def test_a_schedule_per_epoch(frequency, tmp_path):
    def scheduler(optimizer, updates):
        return wb.Schedule(lr_scheduler.ExponentialLR(optimizer, 0.5), "epoch", frequency)

    run, _ = classify(
        sgd, tmp_path, epochs=5, scheduler=scheduler, accumulate_grad_batches=2,
        techniques=lambda o: {
            "accumulate": 2, "schedules": [Scheduled(lr_scheduler.ExponentialLR(o, 0.5), "epoch", frequency)],
        },
    )  # fmt: skip
    assert len(set(run.history["lr"].tolist())) == (5 if frequency == 1 else 3)


def test_a_schedule_every_third_update(tmp_path):
    classify(
        sgd, tmp_path, accumulate_grad_batches=2,
        scheduler=lambda o, n: wb.Schedule(lr_scheduler.ExponentialLR(o, 0.5), "step", 3),
        techniques=lambda o: {"accumulate": 2, "schedules": [Scheduled(lr_scheduler.ExponentialLR(o, 0.5), "step", 3)]},
    )  # fmt: skip


def test_plateau_steps_after_each_check(tmp_path):
    def plateau(optimizer):
        return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.3)

    val = labelled(21, seed=5)
    run, _ = classify(
        sgd, tmp_path, epochs=5, scheduler=lambda o, n: plateau(o), val=val,
        techniques=lambda o: {
            "schedules": [Scheduled(plateau(o), "check")], "check": checker(val, lambda m, b: CE(m(b[0]), b[1])),
        },
    )  # fmt: skip
    assert run.history["lr"][-1] < 0.05


def test_several_schedules(tmp_path):
    def both(o):
        return lr_scheduler.LinearLR(o, 0.1, total_iters=10), lr_scheduler.StepLR(o, 1, 0.5)

    def scheduler(optimizer, updates):
        per_update, per_epoch = both(optimizer)
        return [per_update, wb.Schedule(per_epoch, "epoch")]

    def techniques(optimizer):
        per_update, per_epoch = both(optimizer)
        return {"schedules": [Scheduled(per_update), Scheduled(per_epoch, "epoch")]}

    classify(sgd, tmp_path, scheduler=scheduler, techniques=techniques)


# -- precision


@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_bf16_mixed(windows, clip, tmp_path):
    val = labelled(21, seed=5)
    run, _ = classify(
        adamw, tmp_path, net=noisy_net, precision="bf16-mixed", accumulate_grad_batches=windows, gradient_clip_val=clip,
        val=val, techniques={
            "precision": "bf16-mixed", "accumulate": windows, "clip": clip,
            "check": checker(val, lambda m, b: CE(m(b[0]), b[1])),
        },
    )  # fmt: skip
    plain = fitted(noisy_net(), labelled(), tmp_path / "32", loss=CE, optimizer=adamw)
    assert not np.array_equal(run.history["loss"][:3], plain.history["loss"][:3])


def test_16_mixed_is_refused_on_the_cpu(tmp_path):
    with pytest.raises(ValueError, match="bf16-mixed"):
        fitted(plain_net(), labelled(), tmp_path, loss=CE, precision="16-mixed")


# -- closures


class Counting(torch.optim.LBFGS):
    """LBFGS that keeps the gradient of each evaluation."""

    def step(self, closure):
        self.seen = []

        def watched():
            loss = closure()
            self.seen.append(
                torch.cat(
                    [p.grad.flatten() for g in self.param_groups for p in g["params"]]
                ).clone()
            )
            return loss

        return super().step(watched)


@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs(windows, clip, search, tmp_path):
    make = functools.partial(torch.optim.LBFGS, max_iter=4, line_search_fn=search)
    classify(make, tmp_path, epochs=2, accumulate_grad_batches=windows, gradient_clip_val=clip,
             techniques={"accumulate": windows, "clip": clip})  # fmt: skip


@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_step_that_expects_gradients_and_evaluates_once_more(windows, clip, tmp_path):
    """SAM, on a model with dropout: both evaluations draw."""
    settings = {"accumulate_grad_batches": windows, "gradient_clip_val": clip}
    techniques = {"accumulate": windows, "clip": clip}
    classify(SAM, tmp_path, net=noisy_net, epochs=2, techniques=techniques, **settings)


def test_each_evaluation_begins_from_zero(tmp_path):
    """A rate of nearly 0 evaluates the same point again: the gradients are equal, not 1, 2, 3 times the first."""
    made = []

    def make(parameters, lr):
        made.append(Counting(parameters, lr=lr, max_iter=4, tolerance_change=0, tolerance_grad=0))
        return made[-1]

    fitted(
        plain_net(),
        labelled(8),
        tmp_path,
        loss=CE,
        optimizer=make,
        lr=1e-12,
        max_steps=1,
        max_epochs=None,
    )
    first, *others = made[-1].seen
    assert len(others) >= 2
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-6)


# -- sparse gradients


class Words(torch.nn.Module):
    """Means of embeddings; a sparse table's gradient has only the rows that a batch used, some of them twice."""

    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = torch.nn.Embedding(10, 4, sparse=sparse), torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_clip_val": 0.1},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"accumulate_grad_batches": 3},
    ],
    ids=str,
)
def test_a_sparse_gradient_trains_and_measures_as_the_dense_one(settings, tmp_path):
    torch.manual_seed(1)
    data = TensorDataset(torch.randint(0, 10, (50, 3)), torch.randint(0, 3, (50,)))
    runs = [
        fitted(
            Words(sparse),
            data,
            tmp_path / str(sparse),
            loss=CE,
            optimizer=torch.optim.SGD,
            lr=0.5,
            max_epochs=2,
            **settings,
        )
        for sparse in (True, False)
    ]
    for name in runs[0].history:
        np.testing.assert_allclose(
            runs[0].history[name], runs[1].history[name], rtol=1e-5, err_msg=name
        )
