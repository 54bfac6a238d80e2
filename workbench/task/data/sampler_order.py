"""Tells whether a sampler gives another order in each pass."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEPTH = 6
"""How many nested samplers are checked."""


def shuffles(sampler: Any, depth: int = _DEPTH) -> bool:
    """Whether a sampler, or one inside it, is made to give another order in each pass."""
    if sampler is None or not depth:
        return False
    if isinstance(sampler, _RANDOM):
        return True
    if getattr(sampler, "shuffle", None) is False:
        return False
    if getattr(sampler, "shuffle", None) is True or callable(getattr(sampler, "set_epoch", None)):
        return True
    if any(isinstance(value, _GENERATORS) for value in getattr(sampler, "__dict__", {}).values()):
        return True
    inside = (getattr(sampler, name, None) for name in ("batches", "batch_sampler", "sampler", "source", "base_sampler"))
    return any(shuffles(part, depth - 1) for part in inside)


def number_of_samples(loader: Any) -> int:
    """How many samples a loader's data set has; 0 if it has no length."""
    try:
        return len(loader.dataset)
    except TypeError:
        return 0
