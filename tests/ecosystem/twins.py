"""Slow twins: what a plain PyTorch loop does with the same objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import workbench as wb

_STARTS: WeakKeyDictionary[nn.Module, dict[str, Tensor]] = WeakKeyDictionary()
"""The weights that models had before their first fit here."""


def fit(tmp_path: Path, model: Any, **given: Any) -> wb.Run:
    """A short fit on the CPU; data that are no loader are read without shuffling, in batches of eight."""
    _STARTS.setdefault(
        model, {name: value.detach().clone() for name, value in model.state_dict().items()}
    )
    usual: dict[str, Any] = {"lr": 1e-2, "max_epochs": 2, "accelerator": "cpu"}
    if not isinstance(given["train"], DataLoader) and type(given["train"]).__name__ != "WebLoader":
        usual["batch_size"] = 8
    if "batch_size" in usual and not isinstance(given["train"], IterableDataset):
        usual["shuffle"] = False
    return wb.Workbench(model, root=tmp_path, **{**usual, **given}).fit().result()


def losses(run: wb.Run) -> list[float]:
    """The loss of each update."""
    return [float(value) for value in run.history["loss"]]


def plain(
    model: nn.Module, batches: Iterable[Any], loss_of: Callable[[nn.Module, Any], Tensor], *, epochs: int = 2, lr: float = 1e-2,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, modes: bool = False,
) -> list[float]:  # fmt: skip
    """The losses of a copy of `model` trained in a loop, from the weights that it had before it was fitted.

    modes: the optimizer has train() and eval().
    """
    start = _STARTS.get(model)
    model = copy.deepcopy(model)
    if start is not None:
        model.load_state_dict(start)
    opt = optimizer([p for p in model.parameters() if p.requires_grad], lr=lr)
    if modes:
        opt.train()  # type: ignore[attr-defined]
    model.train()
    found = []
    for _ in range(epochs):
        for batch in batches:
            loss = loss_of(model, batch)
            loss.backward()
            opt.step()
            opt.zero_grad()
            found.append(float(np.float32(loss.item())))
    return found


def in_batches(
    samples: Any, collate: Callable[[list[Any]], Any] | None = None, size: int = 8
) -> list[Any]:
    """The batches of a plain DataLoader in order."""
    return list(DataLoader(samples, size, collate_fn=collate))


def refused_by_name(error: Exception, *names: str) -> None:
    """The other half of the rule: what is not used is refused in a few lines that name it and say what to do."""
    text = str(error)
    assert type(error).__module__.startswith("workbench."), (
        f"not refused, but failed: {type(error).__name__}: {text[:300]}"
    )
    assert any(name in text for name in names), text[:500]
    assert len(text) < 1500, f"{len(text)} characters"
