"""Fits with weights in shards over ranks, and the same ones in one process: what tests of FSDP compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.engine.fit_results import fit
from tests.on_ranks import on_ranks

FSDP = {
    "WORKBENCH_SHARDS": "FSDP", "FSDP_VERSION": "1", "FSDP_SHARDING_STRATEGY": "FULL_SHARD", "FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
    "FSDP_MIN_NUM_PARAMS": "20", "FSDP_SYNC_MODULE_STATES": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
}  # fmt: skip
"""What `accelerate launch` sets for a config of version 1, and the bench for its ranks."""


def sharded(
    make: Callable[[], Any],
    given: dict[str, Any],
    settings: dict[str, Any],
    world: int = 2,
    size: int = 4,
    **environment: str,
) -> dict[str, Any]:
    """What came of a fit on ranks, which must agree to the bit."""

    def rank() -> dict[str, Any]:
        return fit(
            make(), given, {**settings, "batch_size": size}, environment={**FSDP, **environment}
        )

    first, *others = on_ranks(world, rank)
    for other in others:
        np.testing.assert_array_equal(first["loss"], other["loss"])
        np.testing.assert_array_equal(first["layers"], other["layers"])
        assert first["checks"] == other["checks"]
        torch.testing.assert_close(first["weights"], other["weights"], rtol=0, atol=0)
    return first


def alone(
    make: Callable[[], Any], given: dict[str, Any], settings: dict[str, Any], size: int = 8
) -> dict[str, Any]:
    """The same in one process, on the batches of all ranks."""
    return fit(make(), given, {**settings, "batch_size": size})
