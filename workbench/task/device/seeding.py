"""Seeds the random generators of the process: python's, numpy's and torch's."""

from __future__ import annotations

import random

import numpy as np
import torch

from workbench.task.device import xla


def seed(value: int) -> None:
    """Seed every generator."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
    xla.seed(value)
