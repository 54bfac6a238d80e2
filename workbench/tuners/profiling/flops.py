"""Counts the floating-point operations of an update, and relates them to what the device can do
(MFU, model FLOPs utilization).

Only matrix products, convolutions and attention are counted, as usual: they are nearly all of a
model's operations. What a model recomputes (activation checkpointing) counts as well.
Source: Chowdhery et al. (2022), "PaLM", appendix B.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from workbench.engine.session import Session
from workbench.engine.step import train_step
from workbench.instruments.peak_flops import Arithmetic, device_name, peak_flops


class Flops(NamedTuple):
    """The operations of an update. `in_update` None: they are not known, and `reason` says why."""

    in_update: float | None
    reason: str = ""
    in_convolutions: bool = False
    """Whether most of them are in convolutions."""


class Utilization(NamedTuple):
    """The share of the device's operations that the updates use, from 0 to 1; None: it is not
    known, and `reason` says why.
    """

    share: float | None
    reason: str = ""


def count_flops(session: Session, window: Sequence[Any]) -> Flops:
    """Take an update with these batches, without the other ranks, and count its operations. The
    caller restores the session.
    """
    if session.weights.sharded:
        return Flops(None, f"operations are not counted with {session.weights.shard_strategy}")
    counter = FlopCounterMode(display=False)
    try:
        with session.alone(), torch.compiler.set_stance("force_eager"), counter:
            train_step(session, window)
    except Exception as error:  # noqa: BLE001  # the reason is a part of the result
        return Flops(
            None, f"torch cannot count its operations ({type(error).__name__}: {error})"[:300]
        )
    total = float(counter.get_total_flops())
    if not total:
        return Flops(None, "an update has no matrix product, convolution or attention to count")
    by_operator = counter.get_flop_counts()["Global"]
    convolutions = sum(n for operator, n in by_operator.items() if "convolution" in str(operator))
    return Flops(total, "", convolutions > total / 2)


def utilization(session: Session, flops: Flops, seconds: float) -> Utilization:
    """The share of the device's operations that updates of so many seconds use."""
    if flops.in_update is None:
        return Utilization(None, flops.reason)
    if session.device.type == "cpu":
        return Utilization(None, "the table of devices has no CPU")
    arithmetic = _arithmetic(session, flops)
    if arithmetic is None:
        return Utilization(None, "the table of devices has no float64")
    name = device_name(session.device)
    peak = peak_flops(name, arithmetic)
    if peak is None:
        return Utilization(None, f"the table of devices has no {name}")
    return Utilization(flops.in_update / seconds / peak)


def _arithmetic(session: Session, flops: Flops) -> Arithmetic | None:
    """The arithmetic of most of the operations; None: float64."""
    kinds = {p.dtype for p in session.parameters.values()}
    if session.settings.precision.startswith(("16", "bf16")) or kinds <= {
        torch.float16,
        torch.bfloat16,
    }:
        return "half"
    if torch.float64 in kinds:
        return None
    tf32 = (
        torch.backends.cudnn.allow_tf32
        if flops.in_convolutions
        else torch.get_float32_matmul_precision() != "highest"
    )
    return "tf32" if tf32 else "float32"
