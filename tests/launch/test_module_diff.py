"""What a job has left in a task's modules, put into the same task in another process: who is whom stays as it was."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.launch.pools import bench
from workbench.launch.module_diff import ModuleDiff
from workbench.share.package import pack, unpack
from workbench.task.protocol import Task


def sent(value: Any, lists: bool = False) -> Any:
    with pack(value, lists=lists) as package:
        return unpack(package)


@pytest.fixture
def away(tmp_path: Any) -> Callable[[nn.Module, Callable[[Any], None]], None]:
    """Do something to a model in a copy of its task, and bring home what that has left."""

    def do(model: nn.Module, change: Callable[[Any], None]) -> None:
        task: Task = bench(model, tmp_path, devices=1, strategy="thread")._task
        there = sent(task, lists=True)
        changes = ModuleDiff.since_now(there)
        change(there.model)
        sent(changes()).put(task)

    return do


def train(model: nn.Module) -> None:
    """An update, by hand."""
    model(torch.ones(2, 5)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.ones_like(parameter))
            parameter.grad = None


class Net(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers, nn.Linear(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def test_weights_that_something_else_holds_too_stay_those(away: Any) -> None:
    class Recurrent(Net):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(5, 5)
            self.first = [self.layers[0].weight]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.cell(x)[0])

    model = Recurrent()
    before = model.cell.weight_ih_l0.clone()
    away(model, train)
    assert torch.equal(model.cell.weight_ih_l0, before + 1)
    assert all(
        flat is own
        for flat, own in zip(model.cell._flat_weights, model.cell.parameters(), strict=True)
    )
    assert model.first[0] is model.layers[0].weight


def test_a_layer_with_two_names_is_one(away: Any) -> None:
    model = Net(nn.Linear(5, 5))
    model.again = model.layers[0]
    bias = model.layers[0].bias
    before = bias.clone()
    away(model, train)
    assert model.again is model.layers[0]
    assert model.again.bias is bias
    assert torch.equal(bias, before + 1)


def test_a_tensor_that_took_the_place_of_another_is_not_written_into_that(away: Any) -> None:
    def step(model: Any) -> None:
        for _ in range(3):
            model.past, model.now = model.now, model.now + 1
        model.kept.add_(1)

    model = Net()
    model.now = model.past = first = torch.zeros(2)
    model.kept = kept = torch.zeros(2)
    away(model, step)
    assert [float(tensor[0]) for tensor in (model.now, model.past, first, model.kept)] == [
        3.0,
        2.0,
        0.0,
        1.0,
    ]
    assert model.kept is kept


def test_an_expanded_buffer(away: Any) -> None:
    def step(model: Any) -> None:
        model.mask = model.mask.clone().add_(1)[:1].expand(4, 2)

    model = Net()
    model.register_buffer("mask", torch.zeros(1, 2).expand(4, 2))
    mask = model.mask
    away(model, step)
    assert model.mask is mask
    assert torch.equal(mask, torch.ones(4, 2))


def test_a_module_with_parametrizations(away: Any) -> None:
    model = Net(
        parametrizations.spectral_norm(nn.Linear(5, 5)),
        parametrizations.weight_norm(nn.Linear(5, 5)),
    )
    there: list[nn.Module] = []
    away(model, lambda copied: (train(copied), there.append(copied)))
    assert type(model.layers[1]) is not type(there[0].layers[1])
    torch.testing.assert_close(model.state_dict(), there[0].state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(model.layers[1].weight, there[0].layers[1].weight, rtol=0, atol=0)


def test_a_long_list_of_a_module_is_a_list_there_and_comes_back(away: Any) -> None:
    def note(model: Any) -> None:
        assert float(torch.stack(model.outputs).sum()) == 3000.0
        model.outputs.append(torch.tensor(2.0))
        model.by_name["step"].append(7)

    model = Net()
    model.outputs, model.by_name = (
        [torch.tensor(1.0) for _ in range(3000)],
        {"step": [*range(3000)]},
    )
    kept = model.outputs
    away(model, note)
    assert model.outputs is kept
    assert len(kept) == 3001
    assert model.by_name["step"][-2:] == [2999, 7]


def test_a_layer_that_was_frozen_is_frozen_here(away: Any) -> None:
    model = Net(nn.Linear(5, 5))

    def freeze(there: Any) -> None:
        there.layers[0].requires_grad_(False)

    away(model, freeze)
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]


def test_an_attribute_that_was_removed_is_gone_here(away: Any) -> None:
    model = Net()
    model.first = True

    def remove(there: Any) -> None:
        del there.first

    away(model, remove)
    assert not hasattr(model, "first")


def test_what_the_objects_of_a_module_hold_comes_home(away: Any) -> None:
    def step(there: Any) -> None:
        there.meter.count += 3
        there.meter.averages[0].add_(1)
        there.meter.by_name["k"][:] = 2
        there.meter.note = "late"

    model = Net()
    model.meter = meter = types.SimpleNamespace(
        count=0, averages=[torch.zeros(2)], by_name={"k": np.zeros(2)}
    )
    average = meter.averages[0]
    away(model, step)
    assert model.meter is meter
    assert meter.averages[0] is average
    assert (meter.count, average.tolist(), meter.by_name["k"].tolist()) == (
        3,
        [1.0, 1.0],
        [2.0, 2.0],
    )
