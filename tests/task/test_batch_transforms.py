"""`batch_transform=wb.mixup(0.2)`, against plain loops with the formulas of the papers."""

from __future__ import annotations

import copy
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import workbench as wb
from tests.reference import loop
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


def images(n: int = 40) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    return torch.randn(n, 2, 6, 5, generator=draw), torch.randint(0, 3, (n,), generator=draw)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(48, 3)
    )


def make(root: Path, transform: Any, **settings: Any) -> wb.Workbench:
    settings = {"train": images(), "loss": F.cross_entropy, "model": net(), **settings}
    return wb.Workbench(
        settings.pop("model"), batch_size=8, max_epochs=2, accelerator="cpu", lr=0.01, root=root,
        batch_transform=transform, **settings,
    )  # fmt: skip


LBFGS = functools.partial(torch.optim.LBFGS, max_iter=3)


def drawn(alpha: float) -> float:
    both = torch.tensor([alpha])
    return float(torch.distributions.Beta(both, both).sample(()))


def mixed_up(alpha: float, model: nn.Module, batch: Any, smoothing: float = 0.0) -> Tensor:
    """The loss as in mixup's paper."""
    x, y = batch
    lam = drawn(alpha)
    output = model(x.roll(1, 0) * (1 - lam) + x * lam)
    first, second = (F.cross_entropy(output, t, label_smoothing=smoothing) for t in (y, y.roll(1)))
    return lam * first + (1 - lam) * second


def cut_mixed(alpha: float, model: nn.Module, batch: Any) -> Tensor:
    """The loss as in CutMix's paper, with torchvision's draws."""
    x, y = batch
    lam = drawn(alpha)
    column, row = int(torch.randint(5, (1,))), int(torch.randint(6, (1,)))
    half = 0.5 * math.sqrt(1 - lam)
    inside = torch.zeros(6, 5, dtype=torch.bool)
    for i in range(6):
        for j in range(5):
            by_row = row - int(half * 6) <= i < row + int(half * 6)
            inside[i, j] = by_row and column - int(half * 5) <= j < column + int(half * 5)
    output = model(torch.where(inside, x.roll(1, 0), x))
    share = 1 - int(inside.sum()) / 30
    return share * F.cross_entropy(output, y) + (1 - share) * F.cross_entropy(output, y.roll(1))


def either(model: nn.Module, batch: Any) -> Tensor:
    if int(torch.randint(2, (1,))):
        return cut_mixed(1.0, model, batch)
    return mixed_up(0.4, model, batch)


CASES: dict[str, tuple[Any, Any]] = {
    "mixup": (wb.mixup(np.float64(0.4)), functools.partial(mixed_up, 0.4)),
    "cutmix": (wb.cutmix(1.0), functools.partial(cut_mixed, 1.0)),
    "one of them": (wb.one_of(wb.mixup(0.4), wb.cutmix(1.0)), either),
    "smoothed": (
        wb.label_smoothing(0.1),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1),
    ),
    "mixed and smoothed": (
        [wb.mixup(0.4), wb.label_smoothing(0.1)],
        functools.partial(mixed_up, 0.4, smoothing=0.1),
    ),
    "a function": (
        lambda batch: (batch[0] * 2, batch[1]),
        lambda model, batch: F.cross_entropy(model(batch[0] * 2), batch[1]),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_trains_as_a_plain_loop(case: str, tmp_path: Path) -> None:
    transform, loss_of = CASES[case]
    bench = make(tmp_path, transform, val=images())
    run = bench.fit().result()
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(*images())
    out = loop.fit(model, loss_of, optimizer, loop.loader_of(data, 8), 2)
    assert np.array_equal(run.history["loss"], np.float32(out["loss"]))
    x, y = images()
    with torch.no_grad():
        whole = F.cross_entropy(model.eval()(x), y)
    assert run.metrics["val_loss"] == pytest.approx(float(whole), rel=1e-6), "not transformed"


def test_a_run_that_continues_draws_the_same_numbers(tmp_path: Path) -> None:
    bench = make(tmp_path, [wb.mixup(0.4, p=0.7), wb.cutmix(p=0.5)])
    whole = bench.fit().result().history["loss"]
    bench.fit(max_steps=3).result()
    assert np.array_equal(
        bench.fit(start="continue", max_steps=None).result().history["loss"], whole
    )


def test_an_optimizer_that_evaluates_again_has_one_mix_for_each_update(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(60, 3))
    start = copy.deepcopy(model)
    bench = make(tmp_path, wb.mixup(1.0), model=model, optimizer=LBFGS, dry_run=False)
    losses = bench.fit(accumulate_grad_batches=2).result().history["loss"]
    loop.seed_all(0)
    optimizer, plain = LBFGS(start.parameters(), lr=0.01), []
    loader = loop.loader_of(torch.utils.data.TensorDataset(*images()), 8)
    for _ in range(2):
        for window in loop.list_windows(loader, 2):
            targets = [wb.mixup(1.0)(batch) for batch in window]

            def evaluate(targets: Any = targets) -> Tensor:
                optimizer.zero_grad()
                total = torch.zeros(())
                for x, target in targets:
                    loss = target.loss(F.cross_entropy, start(x)) / len(targets)
                    loss.backward()
                    total = total + loss.detach()
                return total

            plain.append(float(optimizer.step(evaluate)))  # type: ignore[arg-type]
    assert np.allclose(losses, plain, rtol=1e-6, atol=0)


def test_mixing_twice_has_the_losses_of_all_partners() -> None:
    x, y = images(5)
    _, target = wb.mixup(0.4)(wb.mixup(0.4)((x, y)))
    shares = torch.zeros(5, 3)
    for of, share in target.shares:
        shares += share * F.one_hot(of, 3)
    output = torch.randn(5, 3)
    assert torch.allclose(target.loss(F.cross_entropy, output), F.cross_entropy(output, shares))


def test_batches_by_name_and_losses_of_several_parts(tmp_path: Path) -> None:
    def loss(output: Tensor, target: Tensor) -> dict[str, Tensor]:
        value = F.cross_entropy(output, target)
        return {"loss": value, "part": value / 2}

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, image: Tensor, other: Tensor) -> Any:
            assert torch.allclose(image.mean((1, 2, 3)), other, atol=1e-6), "mixed as the images"
            return self.net(image)

    x, y = images()
    data = {"image": x, "other": x.mean((1, 2, 3)), "y": y}
    run = make(tmp_path, wb.mixup(0.4), model=Named(), train=data, loss=loss).fit().result()
    plain = make(tmp_path, wb.mixup(0.4)).fit().result()
    assert np.array_equal(run.history["loss"], plain.history["loss"])
    assert np.allclose(run.history["part"], run.history["loss"] / 2)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda: wb.mixup(0), r"mixup\(alpha=0\)"),
        (lambda: wb.cutmix(-1.0), r"cutmix\(alpha=-1.0\)"),
        (lambda: wb.mixup(0.2, p=0), r"mixup\(p=0\)"),
        (lambda: wb.label_smoothing(1.0), r"label_smoothing\(1.0\)"),
        (lambda: wb.mixup(True), r"mixup\(alpha=True\)"),
        (wb.one_of, "give transforms"),
        (lambda: wb.one_of([wb.mixup(), wb.cutmix()]), "one by one"),  # type: ignore[list-item]
    ],
)
def test_a_number_that_cannot_be_drawn_with_is_named(transform: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transform()


@pytest.mark.parametrize(
    ("transform", "settings", "message"),
    [
        (wb.mixup, {}, "is not called"),
        (wb.one_of(wb.one_of(wb.cutmix), wb.mixup()), {}, r"wb\.cutmix is not called"),
        (wb.one_of(wb.one_of(wb.label_smoothing(0.1))), {"loss": nn.NLLLoss()}, "needs loss="),
        (
            [wb.one_of(wb.mixup(), wb.label_smoothing(0.1)), wb.label_smoothing(0.2)],
            {},
            r"\[0\] has wb.label_smoothing\(0.1\), and .*\[1\] has wb.label_smoothing\(0.2\)",
        ),
        (3, {}, "is no function of a batch"),
        (lambda x, y: (x, y), {}, "is no function of a batch"),
        (lambda batch: None, {}, "returned None"),
        (wb.mixup(), {"loss": F.mse_loss}, "loss=mse_loss is for numbers"),
        (wb.mixup(), {"loss": None}, "needs loss="),
        (
            wb.mixup(),
            {
                "loss": lambda output, y: (output.mean(1) - y).square().mean(),
                "train": (images()[0], torch.linspace(-9, 9, 40)),
            },
            "the target is float32 of shape",
        ),
        (wb.cutmix(), {"train": (images()[0].flatten(1), images()[1])}, "mixes images"),
        (wb.mixup(), {"train": (images()[0].long(), images()[1])}, "input number 0 is int64"),
        (
            wb.mixup(),
            {"train": {"image": images()[0], "length": torch.arange(40), "y": images()[1]}},
            "mixes floating-point numbers, and input 'length' is int64 of shape",
        ),
        (wb.label_smoothing(0.1), {"loss": nn.NLLLoss()}, "needs loss=F.cross_entropy"),
        (
            wb.label_smoothing(0.1),
            {"loss": nn.CrossEntropyLoss(label_smoothing=0.2)},
            "without a label_smoothing of its own",
        ),
    ],
)
def test_what_cannot_be_mixed_is_named(
    transform: Any, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match=message):
        make(tmp_path, transform, **settings)
