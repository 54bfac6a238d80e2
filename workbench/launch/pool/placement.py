"""Chooses the device, the environment and the backend of each rank of a pool."""

from __future__ import annotations

import os

import torch

from workbench.engine.runtime.runtime import RANK


def backend(accelerator: str, devices: tuple[int, ...]) -> str:
    """gloo on CPU; NCCL between GPUs, which refuses two ranks on one."""
    if accelerator == "cuda" and len(set(devices)) == len(devices):
        return "cpu:gloo,cuda:nccl"
    return "gloo"


def device(rank: int, accelerator: str, devices: tuple[int, ...]) -> int | None:
    """The number of a rank's GPU among those that its pool sees."""
    return _distinct(devices).index(devices[rank]) if accelerator == "cuda" else None


def environment(rank: int, accelerator: str, devices: tuple[int, ...]) -> dict[str, str]:
    """The changes of this rank's environment from ours."""
    world = len(devices)
    variables: dict[str, str] = {}
    if accelerator == "cuda":
        variables["CUDA_VISIBLE_DEVICES"] = _visible(devices)
        variables["ACCELERATE_TORCH_DEVICE"] = f"cuda:{device(rank, accelerator, devices)}"
        if len(set(devices)) < world:  # a rank's number is not its GPU's
            variables["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
    if world > 1:
        variables |= {
            RANK: str(rank), "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // world)),
        }  # fmt: skip
    return variables


def _distinct(devices: tuple[int, ...]) -> list[int]:
    return list(dict.fromkeys(devices))


def _visible(devices: tuple[int, ...]) -> str:
    """The GPUs of a pool, counted among those that this process sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = (
        [str(number) for number in range(torch.cuda.device_count())]
        if visible is None
        else visible.split(",")
    )
    return ",".join(names[number].strip() for number in _distinct(devices))
