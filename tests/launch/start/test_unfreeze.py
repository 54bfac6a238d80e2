"""Layers that were frozen train from the checkpoint on: as a plain loop that adds them to its optimizer there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from workbench.events import Message, Resumed
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda parameters, lr: torch.optim.AdamW(parameters, lr),
    "sgd, momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
}
NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    made[0].requires_grad_(False)
    return made


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(5, 6, generator=generator), torch.randint(0, 3, (5,), generator=generator))
        for _ in range(7)
    ]


def bench_of(folder: Path, **given: Any) -> wb.Workbench:
    return wb.Workbench(
        net(),
        train=wb.batches(data()),
        loss=F.cross_entropy,
        root=folder,
        shuffle=False,
        accelerator="cpu",
        lr=0.05,
        **given,
    )


def epoch_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """The losses of an epoch."""
    losses = []
    for x, y in data():
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_hand(make: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Two epochs of the last layer, then two of all."""
    model, losses = net(), []
    optimizer = make([p for p in model.parameters() if p.requires_grad], 0.05)
    for epoch in range(4):
        if epoch == 2:
            model.requires_grad_(True)
            state = optimizer.state
            optimizer = make(list(model.parameters()), 0.05)
            optimizer.state.update(state)
        losses += epoch_by_hand(model, optimizer)
    return losses, model.state_dict()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_unfrozen_layers_train_from_the_checkpoint_on(optimizer: str, tmp_path: Path) -> None:
    losses, weights = by_hand(OPTIMIZERS[optimizer])
    with bench_of(tmp_path, optimizer=OPTIMIZERS[optimizer]) as bench:
        bench.fit(max_epochs=2).result()
        bench.model.requires_grad_(True)
        run = bench.fit(start="continue", max_epochs=3).result()
        again = bench.fit(start="continue", max_epochs=4).result()
        assert again.history["loss"].tolist() == np.float32(losses).tolist()
        assert all(
            torch.equal(value, weights[name]) for name, value in bench.model.state_dict().items()
        )
        (resumed,) = run.resumes
        assert resumed.unfrozen == ("0.weight", "0.bias")
        assert [one.unfrozen for one in again.resumes] == [resumed.unfrozen, ()]
        assert any(
            event.text.startswith("0.weight, 0.bias will train from here on")
            and event.level == "warning"
            for event in run.events
            if isinstance(event, Message)
        )
        norms = {name: again.history[f"grad_norm/{name}"] for name in NAMES}
        assert [int(np.isnan(column).sum()) for column in norms.values()] == [14, 14, 0, 0]
        assert not again.health
        with pytest.raises(
            wb.ExportError,
            match=r"trains layers \(0\.weight, 0\.bias\) that were frozen until update 14.*bench\.load\('0001-fit'\)",
        ):
            bench.export(tmp_path / "train.py")


def test_the_record_of_the_frozen_run_stays(tmp_path: Path) -> None:
    with bench_of(tmp_path) as bench:
        first = bench.fit(max_epochs=1).result()
        bench.model.requires_grad_(True)
        bench.fit(start="continue", max_epochs=2).result()
    found = Run.open(tmp_path / "runs" / first.id)
    assert [name for name in found.history if name.startswith("grad_norm/")] == [
        "grad_norm/2.weight",
        "grad_norm/2.bias",
    ]
    assert not [event for event in found.events if isinstance(event, Resumed)]


class Summed(torch.optim.SGD):
    """Makes its state when it is made."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        for p in self.param_groups[0]["params"]:
            self.state[p]["sum"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                self.state[p]["sum"].add_(p.grad.square())
                p.addcdiv_(
                    p.grad, self.state[p]["sum"].sqrt() + 1e-8, value=-self.param_groups[0]["lr"]
                )


class Counted(Summed):
    """Makes its state at its first step alone, for all parameters together."""

    def __init__(self, parameters: Any, lr: float) -> None:
        torch.optim.SGD.__init__(self, parameters, lr)
        self.param_groups[0]["steps"] = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if not self.param_groups[0]["steps"]:
            for p in self.param_groups[0]["params"]:
                self.state[p]["sum"] = torch.zeros_like(p)
        self.param_groups[0]["steps"] += 1
        super().step()


def test_optimizers_that_make_their_state_early(tmp_path: Path) -> None:
    losses, _ = by_hand(Summed)
    with bench_of(tmp_path, optimizer=Summed) as bench:
        bench.fit(max_epochs=2).result()
        bench.model.requires_grad_(True)
        assert (
            bench.fit(start="continue", max_epochs=4).result().history["loss"].tolist()
            == np.float32(losses).tolist()
        )
    with bench_of(tmp_path / "counted", optimizer=Counted) as bench:
        bench.fit(max_epochs=1).result()
        bench.model.requires_grad_(True)
        with pytest.raises(
            wb.TaskError,
            match=r"Counted cannot step with the state of the checkpoint and the parameters that were frozen until now",
        ):
            bench.fit(start="continue", max_epochs=2).result()


class Thaws(nn.Module):
    """Its forward unfreezes a layer for which there is no optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.net[0].requires_grad_(True)
        return self.net(x)


def test_layers_that_the_run_itself_unfroze_are_not_taken_for_the_users(tmp_path: Path) -> None:
    with wb.Workbench(
        Thaws(),
        train=wb.batches(data()),
        loss=F.cross_entropy,
        root=tmp_path,
        accelerator="cpu",
        dry_run=False,
    ) as bench:
        bench.fit(max_epochs=1).result()
        with pytest.raises(wb.TaskError, match="the optimizer has other parameters here"):
            bench.fit(start="continue", max_epochs=2).result()


def test_an_optimizer_with_one_state_for_all_parameters(tmp_path: Path) -> None:
    with bench_of(
        tmp_path, optimizer=lambda parameters, lr: torch.optim.LBFGS(parameters, lr, max_iter=2)
    ) as bench:
        bench.fit(max_epochs=1).result()
        bench.model.requires_grad_(True)
        with pytest.raises(
            wb.TaskError, match=r"the optimizer has other parameters here.*bench\.load\(run\)"
        ):
            bench.fit(start="continue", max_epochs=2).result()


def freezing_by_hand(make: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """An epoch of all layers, two of the last, one of all, with one optimizer that has all: torch passes over a parameter without a gradient."""
    model, losses = net(), []
    optimizer = make(list(model.requires_grad_(True).parameters()), 0.05)
    for epoch in range(4):
        model[0].requires_grad_(epoch not in (1, 2))
        losses += epoch_by_hand(model, optimizer)
    return losses, model.state_dict()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_layers_that_were_trained_and_are_frozen_now(optimizer: str, tmp_path: Path) -> None:
    losses, weights = freezing_by_hand(OPTIMIZERS[optimizer])
    with bench_of(tmp_path, optimizer=OPTIMIZERS[optimizer]) as bench:
        bench.model.requires_grad_(True)
        bench.fit(max_epochs=1).result()
        bench.model[0].requires_grad_(False)
        run = bench.fit(start="continue", max_epochs=2).result()
        assert (run.resumes[0].frozen, run.resumes[0].unfrozen) == (("0.weight", "0.bias"), ())
        assert any(
            event.text.startswith("0.weight, 0.bias will not train from here on")
            for event in run.events
            if isinstance(event, Message)
        )
        assert [name for name in run.history if name.startswith("grad_norm/")] == [
            "grad_norm/2.weight",
            "grad_norm/2.bias",
        ]
        with pytest.raises(
            wb.ExportError,
            match=r"freezes layers \(0\.weight, 0\.bias\) that were trained until update 7",
        ):
            bench.export(tmp_path / "train.py")
        again = bench.fit(start="continue", max_epochs=3).result()
        # only where they were frozen
        assert (
            sum(
                "will not train" in event.text
                for event in again.events
                if isinstance(event, Message)
            )
            == 1
        )
        bench.model.requires_grad_(True)
        last = bench.fit(start="continue", max_epochs=4).result()
        assert last.history["loss"].tolist() == np.float32(losses).tolist()
        assert all(
            torch.equal(value, weights[name]) for name, value in bench.model.state_dict().items()
        )
        assert [(one.frozen, one.unfrozen) for one in last.resumes] == [
            (("0.weight", "0.bias"), ()),
            ((), ()),
            ((), ("0.weight", "0.bias")),
        ]


def test_one_layer_is_frozen_and_another_one_trains(tmp_path: Path) -> None:
    make = OPTIMIZERS["adamw"]
    model, losses = net(), []
    model[2].bias.requires_grad_(False)
    model[0].requires_grad_(True)
    optimizer = make([model[0].weight, model[0].bias, model[2].weight], 0.05)
    for epoch in range(2):
        if epoch:
            model[0].requires_grad_(False)
            model[2].bias.requires_grad_(True)
            optimizer.add_param_group({"params": [model[2].bias]})
        losses += epoch_by_hand(model, optimizer)
    with bench_of(tmp_path, optimizer=make) as bench:
        bench.model[0].requires_grad_(True)
        bench.model[2].bias.requires_grad_(False)
        bench.fit(max_epochs=1).result()
        bench.model[0].requires_grad_(False)
        bench.model[2].bias.requires_grad_(True)
        run = bench.fit(start="continue", max_epochs=2).result()
    assert run.history["loss"].tolist() == np.float32(losses).tolist()
    assert (run.resumes[0].frozen, run.resumes[0].unfrozen) == (("0.weight", "0.bias"), ("2.bias",))


@pytest.mark.parametrize(
    "settings", [{"devices": 2}, {"weight_averaging": "ema", "ema_decay": 1e-30}]
)
def test_a_frozen_layer_on_ranks_and_in_an_average(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """With hardly a decay the average, which the model has in the end, is the last weights."""
    with bench_of(tmp_path, **settings) as bench:
        bench.model.requires_grad_(True)
        bench.fit(max_epochs=1).result()
        before = {name: value.clone() for name, value in bench.model.state_dict().items()}
        bench.model[0].requires_grad_(False)
        bench.fit(start="continue", max_epochs=2).result()
        assert [
            torch.equal(value, before[name]) for name, value in bench.model.state_dict().items()
        ] == [True, True, False, False]


def test_an_optimizer_with_one_state_takes_no_frozen_layer(tmp_path: Path) -> None:
    """Its next step would move the frozen layer along the gradients of before."""
    with bench_of(
        tmp_path, optimizer=lambda parameters, lr: torch.optim.LBFGS(parameters, lr, max_iter=2)
    ) as bench:
        bench.model.requires_grad_(True)
        bench.fit(max_epochs=1).result()
        bench.model[0].requires_grad_(False)
        with pytest.raises(
            wb.TaskError, match=r"the optimizer has other parameters here.*bench\.load\(run\)"
        ):
            bench.fit(start="continue", max_epochs=2).result()


class NeedsGradients(torch.optim.SGD):
    """Reads every gradient."""

    def step(self, closure: Any = None) -> None:
        assert (
            sum(float(p.grad.sum()) for group in self.param_groups for p in group["params"])
            is not None
        )
        super().step()


def test_an_optimizer_that_needs_every_gradient_takes_no_frozen_layer(tmp_path: Path) -> None:
    with bench_of(tmp_path, optimizer=NeedsGradients) as bench:
        bench.model.requires_grad_(True)
        bench.fit(max_epochs=1).result()
        bench.model[0].requires_grad_(False)
        with pytest.raises(
            wb.TaskError,
            match=r"NeedsGradients cannot step while some parameters have no gradient, because they are frozen now.*bench\.load\(run\)",
        ):
            bench.fit(start="continue", max_epochs=2).result()


def test_one_of_two_frozen_layers_trains_again(tmp_path: Path) -> None:
    """The optimizer has both layers all the time; the record says what happened to each."""
    with bench_of(tmp_path) as bench:
        bench.model.requires_grad_(True)
        bench.fit(max_epochs=1).result()
        bench.model[0].requires_grad_(False)
        bench.fit(start="continue", max_epochs=2).result()
        bench.model[0].bias.requires_grad_(True)
        run = bench.fit(start="continue", max_epochs=3).result()
        told = [event.text.partition(":")[0] for event in run.events if isinstance(event, Message)]
        assert told == [
            "0.weight, 0.bias will not train from here on",
            "0.bias will train from here on",
        ]


class OwnState(torch.optim.Adam):
    """Nobody knows how its state belongs to the parameters."""

    def state_dict(self) -> Any:
        return super().state_dict()


@pytest.mark.parametrize(
    "optimizer",
    [OwnState, lambda parameters, lr: torch.optim.LBFGS(parameters, lr, max_iter=2)],
    ids=["own", "lbfgs"],
)
def test_a_layers_state_is_not_given_to_another_one_of_its_shape(
    optimizer: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    model[2].requires_grad_(False)
    with wb.Workbench(
        model,
        train=wb.batches(data()),
        loss=F.cross_entropy,
        root=tmp_path,
        accelerator="cpu",
        optimizer=optimizer,
    ) as bench:
        bench.fit(max_epochs=1).result()
        model[0].requires_grad_(False)
        model[2].requires_grad_(True)
        with pytest.raises(wb.TaskError, match="the optimizer has other parameters here"):
            bench.fit(start="continue", max_epochs=2).result()
