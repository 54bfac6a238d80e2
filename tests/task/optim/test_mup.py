"""`wb.mup(build, base_width=16)`: muP's initial weights and rates, against plain loops with both made by hand."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import workbench as wb
from tests.engine.problems import labelled
from tests.reference import loop
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")
FEATURES = labelled()[0][0].numel()
SGD = functools.partial(torch.optim.SGD, momentum=0.9)


def build(width: int = 64, std: float = 0.0) -> nn.Module:
    """An MLP; std: of its hidden weights, at every width; 0: torch's own."""
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(FEATURES, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Linear(width, 3),
    )
    if std:
        nn.init.normal_(model[3].weight, std=std)  # type: ignore[arg-type]
    return model


def bench(root: Path, factory: Any, **settings: Any) -> wb.Workbench:
    usual = {"lr": 0.05, "batch_size": 8, "max_epochs": 2, "shuffle": False, "accelerator": "cpu"}
    return wb.Workbench(
        factory, train=labelled(), loss=F.cross_entropy, root=root, **{**usual, **settings}
    )


def twin(width: int, make: Any, scales: dict[str, float], std: float = 0.0) -> list[float]:
    """The losses of a raw loop at 4 times the base width. scales: of the rate, by kind."""
    torch.manual_seed(0)
    model = build(width, std)
    with torch.no_grad():
        model[6].weight.mul_(4**-0.5)
        if std:
            model[3].weight.mul_(4**-0.5)
    kinds = {
        "input": [model[1].weight],
        "hidden": [model[3].weight],
        "output": [model[6].weight],
        "vector": [model[1].bias, model[3].bias, *model[4].parameters()],
        "fixed": [model[6].bias],
    }
    groups = [
        {
            "params": parameters,
            "lr": 0.05 * scales.get(kind, 1.0),
            "weight_decay": 0.1 / scales.get(kind, 1.0),
        }
        for kind, parameters in kinds.items()
    ]
    batches = loop.loader_of(labelled(), 8, shuffle=False)
    losses: list[float] = loop.fit(model, loop.cross_entropy, make(groups), batches, 2)["loss"]
    return losses


@pytest.mark.parametrize(
    ("make", "scales"),
    [
        (torch.optim.AdamW, {"hidden": 1 / 4, "output": 1 / 4}),
        (SGD, {"input": 4.0, "vector": 4.0, "output": 1 / 4}),
    ],
)
def test_the_losses_are_those_of_muP_by_hand(
    tmp_path: Path, make: Any, scales: dict[str, float]
) -> None:
    factory = wb.mup(build, base_width=16)
    run = bench(tmp_path, factory, width=64, optimizer=make, weight_decay=0.1).fit().result()
    assert np.array_equal(run.history["loss"], np.float32(twin(64, make, scales)))


def test_hidden_weights_of_one_size_shrink_with_the_width(tmp_path: Path) -> None:
    scales = {"hidden": 1 / 4, "output": 1 / 4}
    trained = bench(tmp_path, wb.mup(build, base_width=16), width=64, std=0.3, weight_decay=0.1)
    losses = np.float32(twin(64, torch.optim.AdamW, scales, 0.3))
    assert np.array_equal(trained.fit().result().history["loss"], losses)


def test_at_the_base_width_it_is_the_model_itself(tmp_path: Path) -> None:
    plain = bench(tmp_path, build, width=32, lr_schedule="one_cycle").fit().result()
    scaled = bench(tmp_path, wb.mup(build, base_width=32), width=32, lr_schedule="one_cycle")
    run = scaled.fit().result()
    assert np.array_equal(run.history["loss"], plain.history["loss"])
    assert not np.array_equal(scaled.fit(width=64).result().history["loss"], plain.history["loss"])


class Parts(nn.Module):
    """A layer of each kind whose weights have dimensions in an order of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, width)
        self.place = nn.Parameter(torch.zeros(1, 9, width))
        self.depthwise = nn.Conv1d(width, width, 3, groups=width)
        self.conv = nn.Conv1d(width, 2 * width, 3)
        self.up = nn.ConvTranspose1d(2 * width, 4, 3)
        self.attention = nn.MultiheadAttention(width, max(1, width // 8))
        self.rnn = nn.GRU(4, width)
        self.readout = nn.Parameter(torch.randn(width, 5))
        nn.init.xavier_normal_(self.conv.weight)


def test_the_kind_of_each_weight() -> None:
    factory = wb.mup(Parts, base_width=16, outputs="readout")
    kinds = {name: scaling.kind for name, scaling in factory.scalings().items()}
    assert {name: kind for name, kind in kinds.items() if kind not in ("vector", "fixed")} == {
        "embed.weight": "input",
        "place": "input",
        "depthwise.weight": "input",
        "conv.weight": "hidden",
        "up.weight": "output",
        "attention.in_proj_weight": "hidden",
        "attention.out_proj.weight": "hidden",
        "rnn.weight_ih_l0": "input",
        "rnn.weight_hh_l0": "hidden",
        "readout": "output",
    }
    assert (kinds["up.bias"], kinds["depthwise.bias"]) == ("fixed", "vector")


class Tied(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, width), nn.Linear(width, 5)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (lambda: wb.mup(lambda depth=2: build(), base_width=16), "no parameter width, only depth"),
        (lambda: wb.mup(lambda width=64: build(), base_width=16), "makes the same shapes"),
        (lambda: wb.mup(lambda width=64: build(width + 10), base_width=16), "neither the same nor"),
        (lambda: wb.mup(lambda width=64: build(min(width, 40)), base_width=16), "instead|neither"),
        (lambda: wb.mup(Tied, base_width=16), "embed.weight .* and head.weight .* are one weight"),
        (lambda: wb.mup(build, base_width=0), "base_width=0: give a whole number"),
        (lambda: wb.mup(build, base_width=16, outputs="head"), "outputs='head' is no part"),
        (lambda: functools.partial(wb.mup(build, base_width=16), std=1.0), "is a partial of"),
        (lambda: wb.mup(build(), base_width=16), "build is a Sequential"),
    ],
)
def test_what_has_no_muP_is_named(tmp_path: Path, factory: Any, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        bench(tmp_path, factory(), width=64)


def test_an_optimizer_whose_updates_have_no_known_size_is_named(tmp_path: Path) -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float = 0.1) -> None:
            super().__init__(params, {"lr": lr})

        def step(self, closure: Any = None) -> None: ...

    with pytest.raises(TaskError, match="does not know how large the updates of Own are"):
        bench(tmp_path, wb.mup(build, base_width=16), width=64, optimizer=Own)


def test_attention_whose_heads_grow_is_named(tmp_path: Path) -> None:
    class Heads(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.inner = nn.Linear(FEATURES, width)
            self.attention = nn.MultiheadAttention(width, 2)
            self.head = nn.Linear(width, 3)

        def forward(self, x: Tensor) -> Any:
            x = self.inner(x.flatten(1))[None]
            return self.head(self.attention(x, x, x)[0][0])

    with pytest.warns(UserWarning, match="head_dim is 8 at width=16 and 16 at width=32"):
        bench(tmp_path, wb.mup(Heads, base_width=16), width=32)
