"""`groups=wb.freeze("head", unfreeze_at_epoch=2)`, against plain loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled, noisy_net
from tests.reference import loop
from workbench.events import Message
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


def make(root: Path, groups: Any, **settings: Any) -> wb.Workbench:
    return wb.Workbench(
        noisy_net(), train=labelled(), loss=F.cross_entropy, batch_size=10, max_epochs=3,
        accelerator="cpu", lr=0.05, weight_decay=0.1, gradient_clip_val=0.3, groups=groups,
        root=root, **settings,
    )  # fmt: skip


def messages(run: wb.Run) -> list[str]:
    return [event.text for event in run.events if isinstance(event, Message)]


RULES = [
    wb.freeze("0", unfreeze_at_epoch=2),
    wb.freeze(lambda name, p: p.requires_grad and name[0] in "01", unfreeze_at_epoch=1),
]


def test_frozen_layers_train_as_in_a_plain_loop(tmp_path: Path) -> None:
    bench = make(tmp_path, RULES)
    run = bench.fit().result()
    model = noisy_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)

    def freeze(step: int, _: Any, clip: float) -> float:
        for name, parameter in model.named_parameters():
            ends = {"0": 10, "1": 5}.get(name.partition(".")[0], 0)
            parameter.requires_grad_(step >= ends)
        return clip

    out = loop.fit(
        model, loop.cross_entropy, optimizer, loop.loader_of(labelled(), 10), 3, clip=0.3, before_update=freeze,
    )  # fmt: skip
    assert np.array_equal(run.history["loss"], np.float32(out["loss"]))
    assert np.array_equal(run.history["grad_norm"], np.float32(out["grad_norm"]))
    assert all(p.requires_grad for p in bench.model.parameters())
    assert messages(run) == [
        "Frozen from epoch 0 on: 4 parameters (0, 1).",
        "Training from epoch 1 on: 2 parameters (1).",
        "Training from epoch 2 on: 2 parameters (0).",
    ]


@pytest.mark.parametrize("cut", [3, 5, 12])
def test_a_run_that_continues_has_the_same_layers_frozen(cut: int, tmp_path: Path) -> None:
    bench = make(tmp_path, RULES)
    whole = bench.fit().result().history["loss"]
    bench.fit(max_steps=cut).result()
    assert np.array_equal(
        bench.fit(start="continue", max_steps=None).result().history["loss"], whole
    )


def test_they_neither_change_nor_decay(tmp_path: Path) -> None:
    bench = make(tmp_path, wb.freeze("0", unfreeze_at_epoch=3), optimizer="muon")
    run = bench.fit().result()
    assert messages(run) == [
        "Frozen from epoch 0 on: 2 parameters (0). Frozen to the end of this run, which has 3"
        " epochs: 2 parameters (0). Give a smaller unfreeze_at_epoch, or a longer run."
    ]
    after, before = bench.model.state_dict(), noisy_net().state_dict()
    assert torch.equal(after["0.weight"], before["0.weight"])
    assert not torch.equal(after["4.weight"], before["4.weight"])


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (wb.freeze("body", unfreeze_at_epoch=1), "matches no parameter"),
        (wb.freeze("*", unfreeze_at_epoch=1), "freezes all 6 parameters"),
        ([wb.freeze(part, unfreeze_at_epoch=1) for part in "014"], "freezes all 6 parameters"),
        (wb.freeze("0", unfreeze_at_epoch=0), "unfreeze_at_epoch=0.*at least 1"),
        (wb.freeze("0", unfreeze_at_epoch=1.5), "unfreeze_at_epoch=1.5"),  # type: ignore[arg-type]
        (wb.freeze("0", unfreeze_at_epoch=None), "unfreeze_at_epoch=None.*give the first epoch"),  # type: ignore[arg-type]
        (wb.freeze(nn.Linear(1, 1), unfreeze_at_epoch=1), "by its name"),
        (wb.freeze(3, unfreeze_at_epoch=1), "give a part of the model"),  # type: ignore[arg-type]
    ],
)
def test_a_rule_that_cannot_hold_is_named(rules: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=message):
        make(tmp_path, rules)
