"""A class made on the fly that writes down every call of its hooks, and what the hook found when it was called."""

import enum
import importlib
import inspect
from collections.abc import Mapping

import torch
from torch import Tensor

core = importlib.import_module("lightning.pytorch.core.module")

_EVALUATION = [
    f"on_{stage}_{moment}"
    for stage in ("validation", "test", "predict")
    for moment in ("start", "end", "epoch_start", "epoch_end", "batch_start", "batch_end", "model_eval", "model_train",
                   "model_zero_grad")
]  # fmt: skip
EVALUATION = [name for name in _EVALUATION if hasattr(core.LightningModule, name)]
OF_A_FIT = [
    f"on_{what}_{moment}"
    for what in ("fit", "train", "train_epoch", "train_batch")
    for moment in ("start", "end")
]
OF_AN_UPDATE = [
    "on_before_zero_grad", "optimizer_zero_grad", "on_before_backward", "backward", "on_after_backward",
    "on_before_optimizer_step", "optimizer_step", "configure_gradient_clipping", "lr_scheduler_step",
]  # fmt: skip
TRANSFER = ["on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"]
STEPS = ["training_step", "validation_step", "test_step", "predict_step"]
ASKED = [
    "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "configure_optimizers",
    "configure_model", "configure_callbacks",
]  # fmt: skip
"""What is asked for, as often as anybody wants to know."""
AROUND = ["prepare_data", "setup", "teardown"]
ALL = [*OF_A_FIT, *OF_AN_UPDATE, *EVALUATION, *TRANSFER, *STEPS, *ASKED, *AROUND]
_OWN_ALONE = {*STEPS, *ASKED[:5]}
"""What an object has only where somebody wrote it: none may come to be because it is written down."""
_LOOKS = {
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
}
"""Where people look at gradients."""


class Tape:
    """The calls in their order; the indent says within which other hooks one was made."""

    def __init__(self):
        self.lines = []
        self.depth = 0

    def names(self):
        return [line.split()[0] for line in self.lines]


def recorded(cls, tape, hooks=ALL, *, values=True):
    """A subclass whose hooks write to `tape`. values: what the losses and gradients are, too."""
    members = {name: _wrapped(cls, name, tape, values) for name in hooks if _has(cls, name)}
    return type(cls.__name__, (cls,), {**members, "__module__": __name__})


def _has(cls, name):
    found = getattr(cls, name, None)
    return callable(found) and (
        name not in _OWN_ALONE or not found.__module__.startswith("lightning.pytorch.core")
    )


def _wrapped(cls, name, tape, values):
    its = getattr(cls, name)

    def hook(self, *args, **kwargs):
        told = inspect.signature(its).bind(self, *args, **kwargs)
        told.apply_defaults()
        words = [
            name,
            *(_word(key, value, values) for key, value in list(told.arguments.items())[1:]),
        ]
        words += _found(self, name, values)
        tape.lines.append("  " * tape.depth + " ".join(word for word in words if word))
        tape.depth += 1
        try:
            return its(self, *args, **kwargs)
        finally:
            tape.depth -= 1

    hook.__name__, hook.__qualname__ = name, f"{cls.__name__}.{name}"
    hook.__signature__ = inspect.signature(its)
    return hook


def _found(self, name, values):
    """How things stand when the hook is called."""
    if not isinstance(self, core.LightningModule) or name in AROUND or name in ASKED:
        return []
    trainer = self.trainer
    flags = ("training", "validating", "testing", "predicting", "sanity_checking")
    words = [
        f"@{self.current_epoch}.{self.global_step}",
        *(flag for flag in flags if getattr(trainer, flag)),
    ]
    words.append("mode=train" if self.training else "mode=eval")
    words.append("grad" if torch.is_grad_enabled() else "no_grad")
    if name in _LOOKS:
        there = [p.grad for p in self.parameters() if p.grad is not None]
        size = (
            f":{float(torch.stack([g.norm() for g in there]).norm()):.4g}"
            if there and values
            else ""
        )
        words.append(f"gradients={len(there)}{size}")
    return words


def _word(key, value, values):
    short = _short(value, values or key == "batch")
    return key if short == "function" else f"{key}={short}"


def _short(value, values):
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, torch.optim.Optimizer):
        return f"optimizer(lr={value.param_groups[0]['lr']:.4g})"
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        return type(value).__name__
    if isinstance(value, Tensor):
        return f"{float(value.detach().double().sum()):.4g}" if values else "tensor"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{_short(v, values)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_short(v, values) for v in value) + "]"
    if callable(value):
        return "function"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
