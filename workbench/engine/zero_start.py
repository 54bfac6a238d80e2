"""What DeepSpeed is given before it starts: the root module as it takes it, and the optimizers that it can step."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from packaging.version import Version

from workbench.engine.distributed.shards import Root
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.task.errors import TaskError

_SINCE = "0.19"
"""The first version whose gradients can be asked for between the backward and the step as it is done here."""
_BY_ELEMENT = ("Adadelta", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
"""torch's optimizers that treat each element by itself, and so a flat partition as the parameters that it is of."""


class Listing(Root):
    """A task's steps, each with what it returns in a list, where DeepSpeed looks for tensors and lets all else be."""

    def forward(self, step: str, *arguments: Any, **extra: Any) -> list[Any]:
        return [super().forward(step, *arguments, **extra)]


def refuse(opt: OptimizerHandle) -> None:
    """Optimizers that would do something else to flat partitions than to the parameters in them."""
    kind = type(opt.optimizer)
    if kind.__module__.startswith("torch.optim") and kind.__name__ not in _BY_ELEMENT:
        raise TaskError(
            f"optimizer {kind.__name__}: DeepSpeed lays parameters end to end in flat partitions, which it does not treat as it does "
            f"parameters. Take one that treats each element by itself ({', '.join(_BY_ELEMENT)}), or data-parallel ranks (MULTI_GPU)."
        )
    if any(not any(p.requires_grad for p in group["params"]) for group in opt.optimizer.param_groups):
        raise TaskError(f"a parameter group of the {kind.__name__} has no parameter that requires a gradient, which DeepSpeed cannot take: leave it out.")
    if opt.optimizer.state:
        raise TaskError(f"the {kind.__name__} has state already, which DeepSpeed would not take over: make it anew for the run.")


def imported(device: torch.device) -> Any:
    """The package, for this device. TaskError: it is not there, or too old."""
    if device.type == "cpu":  # or it would take a GPU that is there
        os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        import deepspeed
    except ImportError as error:
        raise TaskError("the accelerate config asks for DeepSpeed, which is not installed: pip install deepspeed") from error
    if Version(deepspeed.__version__) < Version(_SINCE):
        raise TaskError(f"deepspeed {deepspeed.__version__} is installed, and the bench needs {_SINCE} or later: pip install -U deepspeed")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed
