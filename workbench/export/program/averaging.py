"""Averages of the weights."""

from __future__ import annotations

import contextlib

import torch
from accelerate.utils import send_to_device
from torch.optim import swa_utils

from workbench.export.program.constants import (
    AVERAGING,
    BATCH,
    DISTRIBUTED,
    EMA_WARMUP,
    HAS_BUFFERS,
    KEEPS_MODES,
    MAY_BE_EMPTY,
    OWN_AVERAGE,
    PRECISION,
    RESUMES,
    TAKES_NUMBER,
)
from workbench.export.program.model import forward, mixed_precision
from workbench.export.program.user import averaged
from workbench.export.program.validation import random_numbers_kept


class Average:
    """An average of the weights, which the model has where it is evaluated."""

    def __init__(self, modules, decay):
        self.parameters = [p for module in modules for p in module.parameters()]
        if HAS_BUFFERS:
            self.buffers = [b for module in modules for b in module.buffers()]
        self.weights, self.count = [], 0
        if AVERAGING == "ema" and not OWN_AVERAGE:
            self.decay = decay

    @torch.no_grad()
    def update(self):
        """Add the weights as they are now."""
        if self.count == 0:
            self.weights = [p.detach().clone() for p in self.parameters]
        elif OWN_AVERAGE:
            for weight, parameter in zip(self.weights, self.parameters):
                weight.copy_(
                    averaged(
                        weight, parameter.detach(), torch.full((), self.count, device=weight.device)
                    )
                )
        elif AVERAGING == "swa":
            swa_utils.get_swa_multi_avg_fn()(
                self.weights, self.parameters, torch.tensor(self.count)
            )
        else:
            if EMA_WARMUP:
                decay = min(self.decay, (1 + self.count) / (10 + self.count))
            else:
                decay = self.decay
            swa_utils.get_ema_multi_avg_fn(decay)(self.weights, self.parameters, None)
        self.count += 1

    if RESUMES:

        def state_dict(self):
            """The weights and their number."""
            return {"weights": self.weights, "count": self.count}

        def load_state_dict(self, state):
            """Continue from a state."""
            self.weights, self.count = state["weights"], state["count"]

    @torch.no_grad()
    def hand_over(self):
        """Set the model's weights to the average."""
        for parameter, weight in zip(self.parameters, self.weights):
            parameter.copy_(weight)

    @contextlib.contextmanager
    def in_place(self):
        """Inside, the model has the average; afterwards the weights of the training."""
        tensors = [*self.parameters, *self.buffers] if HAS_BUFFERS else self.parameters
        before = [tensor.detach().clone() for tensor in tensors]
        self.hand_over()
        yield
        with torch.no_grad():
            for tensor, value in zip(tensors, before):
                tensor.copy_(value)


@torch.no_grad()
def refresh_batch_norm(network, batches, accelerator):
    """Collect the batch-norm statistics of the present weights in a pass over the training data."""
    norms = [
        layer
        for layer in network.modules()
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
        and (not KEEPS_MODES or layer.training)
    ]
    momenta = {layer: layer.momentum for layer in norms}
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None
    with random_numbers_kept():
        for batch_idx, batch in enumerate(batches):
            if MAY_BE_EMPTY and batch is None:
                continue
            batch = send_to_device(batch, accelerator.device, non_blocking=True)
            with (
                mixed_precision(accelerator.device)
                if PRECISION != "32"
                else contextlib.nullcontext()
            ):
                if BATCH == "step":
                    if TAKES_NUMBER:
                        network.training_step(batch, batch_idx)
                    else:
                        network.training_step(batch)
                else:
                    forward(network, batch)
    if DISTRIBUTED:
        share_statistics(norms, accelerator)
    for layer, momentum in momenta.items():
        layer.momentum = momentum


def share_statistics(norms, accelerator):
    """Batch-norm statistics of each process's batches become those of all batches."""
    for layer in norms:
        if layer.num_batches_tracked is not None:
            seen = layer.num_batches_tracked.double()
            total = accelerator.reduce(seen)
            for statistic in (layer.running_mean, layer.running_var):
                statistic.copy_(accelerator.reduce(statistic * (seen / total).item()))
            layer.num_batches_tracked.copy_(total)


@contextlib.contextmanager
def evaluation_weights(optimizer):
    """Inside, the model has the weights to evaluate; afterwards those of the training, to the
    last bit.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters]
    optimizer.eval()
    yield
    optimizer.train()
    with torch.no_grad():
        for p, value in zip(parameters, before):
            p.copy_(value)
