"""Knows how many floating-point operations a device can do in a second, by its name.

The numbers are of dense matrix products, in TFLOP/s, from the data sheets of the makers. Where a
data sheet gives the number "with sparsity", the table has half of it. GPUs that run below the
clocks of their data sheet reach less.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import torch

Arithmetic = Literal["float32", "tf32", "half"]
"""float32: without tensor cores; tf32: float32 on tensor cores; half: float16 and bfloat16."""

_TFLOPS: Mapping[str, tuple[float, float, float]] = {
    # NVIDIA HGX B200 data sheet, 2024 (per GPU)
    r"B200": (75.0, 1100.0, 2250.0),
    # NVIDIA H200 data sheet, 2024; GH200 has the same compute
    r"G?H200( NVL)?": (67.0, 494.7, 989.4),
    # NVIDIA H100 data sheet, 2023: PCIe, NVL, and SXM ("NVIDIA H100 80GB HBM3")
    r"H100 PCIe": (51.0, 378.0, 756.0),
    r"H100 NVL": (60.0, 417.5, 835.5),
    r"H100": (67.0, 494.7, 989.4),
    # NVIDIA A100 data sheet, 2021; SXM4 and PCIe have the same compute
    r"A100": (19.5, 156.0, 312.0),
    # NVIDIA A10 and A30 data sheets, 2021
    r"A10": (31.2, 62.5, 125.0),
    r"A30": (10.3, 82.0, 165.0),
    # NVIDIA L4, L40 and L40S data sheets, 2023
    r"L4": (30.3, 60.0, 121.0),
    r"L40": (90.5, 90.5, 181.0),
    r"L40S": (91.6, 183.0, 362.0),
    # NVIDIA V100 data sheet, 2020, and Tesla T4 data sheet, 2019: no TF32
    r"V100-SXM\d": (15.7, 15.7, 125.0),
    r"V100-PCIE": (14.0, 14.0, 112.0),
    r"T4": (8.1, 8.1, 65.0),
    # NVIDIA Ada (2022) and Ampere GA102 (2020) white papers: half with float32 accumulation
    r"RTX 4090": (82.6, 82.6, 165.2),
    r"RTX 3090": (35.6, 35.6, 71.0),
    # AMD Instinct MI250X and MI300X data sheets, 2021 and 2023 (MI250X: of one of its two devices)
    r"MI250X?": (23.9, 23.9, 191.5),
    r"MI300X": (163.4, 653.7, 1307.4),
}
_COLUMN: Mapping[Arithmetic, int] = {"float32": 0, "tf32": 1, "half": 2}


def device_name(device: torch.device) -> str:
    """The name by which the table knows a device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_flops(name: str, arithmetic: Arithmetic) -> float | None:
    """The most floating-point operations that the device of this name can do in a second; None:
    the table does not have it.
    """
    for pattern, teraflops in _TFLOPS.items():
        if re.search(rf"(?<![\w-]){pattern}(?![\w])", name):
            return teraflops[_COLUMN[arithmetic]] * 1e12
    return None
