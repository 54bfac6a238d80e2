"""Stands for the user's code, which takes its place in a script: a small network and its data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

torch.manual_seed(0)
network: Any = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
train_data: Any = torch.utils.data.TensorDataset(torch.randn(100, 8), torch.randint(0, 3, (100,)))
val_data: Any = train_data
val_sets: Any = {"first": train_data}
loss_function: Any = nn.functional.cross_entropy
make_optimizer: Any = torch.optim.AdamW
rules: Any = "no_decay_norm_bias"
batch_transform: Any = None
train_sampler: Any = None
train_batch_sampler: Any = None
train_generator: Any = None
train_worker_init: Any = None
val_sampler: Any = None
val_batch_sampler: Any = None
val_generator: Any = None
val_worker_init: Any = None
datamodule: Any = None
epoch_parts: Any = ()
sampler_generators: Any = ()
collate: Any = None
val_collate: Any = None
averaged: Any = None


def accuracy(output: Any, target: Any) -> Any:
    """The share of samples whose class is right."""
    return (output.argmax(-1) == target).float().mean()


metrics: Any = {"accuracy": accuracy}


def make_scheduler(optimizer: Any, updates: int) -> Any:
    """A scheduler of the user's."""
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def should_average(step: int, epoch: int) -> bool:
    """Whether the weights are averaged after this update."""
    return step % 2 == 0
