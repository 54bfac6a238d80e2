"""Writes a model with the weights of a run by the model's own `save_pretrained` (transformers,
diffusers, peft).
"""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from workbench.engine.checkpoint.files import load_tensors, mismatch, read_weights, tensors_of
from workbench.runs.checkpoints import Checkpoint
from workbench.task.errors import TaskError
from workbench.task.modules import uncompiled

_OF_LOSS = re.compile(r"loss_*\.")
"""The prefix of the weights of a trained loss, which are not part of the model."""


def reference(model: Any) -> Callable[[], Any]:
    """Weak reference to the model, so that a run does not keep it in memory: a function that
    returns it, or None once it is gone.
    """
    try:
        return weakref.ref(model)
    except TypeError:
        return lambda: model


def save(model: Any, run: str, point: Checkpoint, folder: Path) -> None:
    """Write a copy of the model with the weights of this checkpoint. Raises TaskError where it
    has no `save_pretrained`, or other weights.
    """
    if model is None:
        raise TaskError(
            f"run {run} does not know its model: make the bench again, and take the run from it,"
            f" bench.runs[{run!r}].save_pretrained({str(folder)!r})."
        )
    inner, _ = uncompiled(model)
    if not isinstance(inner, nn.Module) or not callable(getattr(inner, "save_pretrained", None)):
        raise TaskError(f"{type(inner).__name__} has no save_pretrained: {_instead(inner, run)}")
    stored = read_weights(point.path / "model.safetensors")
    here = tensors_of(inner)
    weights = {
        name: value for name, value in stored.items() if name in here or not _OF_LOSS.match(name)
    }
    wrong = mismatch(inner, weights)
    if wrong is not None:
        raise TaskError(
            f"the weights of run {run} are those of another model: {wrong}. Make the bench with the"
            " model of that run."
        )
    try:
        copied: Any = _copy(inner)
    except Exception as error:
        raise TaskError(
            f"{type(inner).__name__} cannot be copied ({type(error).__name__}: {error}): call"
            f" bench.load({run!r}, {point.step}), then bench.model.save_pretrained(folder)."
        ) from error
    load_tensors(copied, weights)
    copied.save_pretrained(str(folder))


def _instead(model: Any, run: str) -> str:
    parts = model.named_children() if isinstance(model, nn.Module) else ()
    name = next(
        (name for name, module in parts if callable(getattr(module, "save_pretrained", None))), None
    )
    load = f"bench.load({run!r})"
    if name is not None:
        return (
            f"its part {name!r} has. Call {load}, then bench.model.{name}.save_pretrained(folder)."
        )
    return (
        f"only models of transformers, diffusers and the like have. Call {load}, then"
        " torch.save(bench.model.state_dict(), path), or run.to_lightning(path)."
    )


def _copy(model: nn.Module) -> nn.Module:
    """A copy in host memory, without the values of its parameters, which the caller fills in."""
    known: dict[int, Any] = {}
    for parameter in model.parameters():
        if type(parameter) is nn.Parameter and not parameter.is_meta:
            known[id(parameter)] = nn.Parameter(
                parameter.detach().new_empty(parameter.shape, device="cpu"), parameter.requires_grad
            )
    for buffer in model.buffers():
        known[id(buffer)] = buffer.detach().to("cpu", copy=True)
    return copy.deepcopy(model, known)
