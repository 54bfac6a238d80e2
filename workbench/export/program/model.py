"""The model: the weights at its start, and how a batch becomes a loss."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, load_model

from workbench.export.program.constants import (
    BATCH,
    COMPILE_OPTIONS,
    COMPILED,
    LOSS,
    LOSS_IN_DICT,
    LOSS_PREFIX,
    MAY_BE_EMPTY,
    METRICS,
    PRECISION,
    START,
    TARGET,
    TRAINS_LOSS,
    TRANSFORMS,
    WEIGHS,
)
from workbench.export.program.user import batch_transform, loss_function


def load_start(network):
    """Load the weights that the run began with."""
    path = Path(__file__).with_name(START)
    if not path.exists():
        print(f"There is no {path}: the training begins with the weights that the code makes.")
        return
    try:
        load_model(network._orig_mod if COMPILED else network, path, strict=not TRAINS_LOSS)
        if TRAINS_LOSS:
            own = {
                name: value
                for name, value in load_file(path).items()
                if name.startswith(LOSS_PREFIX)
            }
            loss_function.load_state_dict(
                {name.removeprefix(LOSS_PREFIX): value for name, value in own.items()}
            )
    except RuntimeError as error:
        raise SystemExit(f"{path} has the weights of another model.\n{error}") from error


class Together(torch.nn.Module):
    """Model and loss as one module, so that DistributedDataParallel follows the parameters of
    both.
    """

    def __init__(self, network, loss):
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, batch):
        return forward(self.network, batch)


class TrainingStep(torch.nn.Module):
    """`training_step` as a forward pass, so that DistributedDataParallel can wrap it."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, *batch):
        result = self.network.training_step(*batch)
        return result["loss"] if isinstance(result, dict) else result


def forward(model, batch):
    """Pass a batch through the model, up to its loss."""
    if BATCH == "pair":
        inputs, target = batch
        output = model(inputs)
    elif BATCH == "tuple" and LOSS:
        *inputs, target = batch
        output = model(*inputs)
    elif BATCH == "tuple":
        target = batch[-1]
        output = model(*batch)
    elif BATCH == "dict" and LOSS:
        inputs = {name: value for name, value in batch.items() if name != TARGET}
        target = batch[TARGET]
        output = model(**inputs)
    elif BATCH == "dict":
        target = batch.get(TARGET)
        output = model(**batch)
    else:
        target = None
        output = model(batch)
    if LOSS and (MAY_BE_EMPTY or LOSS_IN_DICT or WEIGHS):
        if TRANSFORMS:
            result = loss_of(output, target)
        else:
            result = loss_function(output, target)
        if MAY_BE_EMPTY and (LOSS_IN_DICT or WEIGHS):
            loss = None if result is None else result["loss"]
        elif LOSS_IN_DICT or WEIGHS:
            loss = result["loss"]
        else:
            loss = result
        if WEIGHS:
            weight = None if MAY_BE_EMPTY and result is None else result["weight"]
            return (loss, weight, output, target) if METRICS else (loss, weight)
    elif LOSS and TRANSFORMS:
        loss = loss_of(output, target)
    elif LOSS:
        loss = loss_function(output, target)
    else:
        loss = output["loss"] if isinstance(output, dict) else output.loss
    return (loss, output, target) if METRICS else loss


def loss_of(output, target):
    """The loss, also of a target that is mixed of several."""
    if hasattr(target, "loss"):
        return target.loss(loss_function, output)
    return loss_function(output, target)


def transformed(batch):
    """The batch as it is trained on."""
    several = isinstance(batch_transform, (list, tuple))
    for transform in batch_transform if several else [batch_transform]:
        batch = transform(batch)
    return batch


def forward_prepared(model, batch):
    """The same in training, through what it has prepared: the model, or it and its loss
    together.
    """
    return model(batch) if TRAINS_LOSS else forward(model, batch)


def compile_calls(module):
    """Calls of the module go through torch.compile, which looks into torch's own classes only
    from a function.
    """

    def call(*args, **kwargs):
        return module._call_impl(*args, **kwargs)

    own = not type(module).forward.__module__.startswith("torch.")
    calls = module._call_impl if own else call
    module._compiled_call_impl = torch.compile(calls, **COMPILE_OPTIONS)


def mixed_precision(device):
    """Most products are taken in 16 bits; the weights stay float32."""
    return torch.autocast(device.type, torch.bfloat16 if PRECISION == "bf16" else torch.float16)
