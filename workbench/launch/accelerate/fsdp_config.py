"""Reads the FSDP options of an accelerate config and of launch=, and names those without effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.settings import Settings, SettingsError

FSDP = "FSDP"
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""Strategies of FSDP 1; accelerate numbers them from 1."""
_WITHOUT_EFFECT: Mapping[str, tuple[tuple[str, ...], str]] = {
    "fsdp_backward_prefetch": (
        ("backward_pre", "1", "none"),
        "FSDP 2 fetches ahead in its own way",
    ),
    "fsdp_forward_prefetch": (("false", "none"), "FSDP 2 fetches ahead in its own way"),
    "fsdp_state_dict_type": (
        ("sharded_state_dict", "3", "none"),
        "each rank writes its part of a checkpoint, and any number of ranks reads it",
    ),
    "fsdp_use_orig_params": (("true", "none"), "FSDP 2 always does"),
    "fsdp_sync_module_states": (
        ("true", "none"),
        "all ranks always begin with the weights of rank 0",
    ),
    "fsdp_cpu_ram_efficient_loading": (
        ("true", "none"),
        "no rank reads the whole weights into memory",
    ),
    "fsdp_activation_checkpointing_offload": (
        ("false", "none"),
        "activations that are kept stay on the device",
    ),
}
"""Options without effect: for each the values that change nothing, and what is done instead."""


def options(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The FSDP options: those of the config, overridden by those of launch=."""
    theirs = config.get("fsdp_config") or {}
    named = {
        name if name.startswith("fsdp") else f"fsdp_{name}": value for name, value in theirs.items()
    }
    return {**named, **{name: value for name, value in given.items() if name.startswith("fsdp_")}}


def way(
    kind: str, given: Mapping[str, Any], config: Mapping[str, Any], processes: int
) -> str | None:
    """How the processes shard the weights; None: each process has all weights.

    kind: the config's `distributed_type`. processes: how many there are on all machines.
    """
    if kind != FSDP or processes == 1 or _strategy(options(given, config)) == "NO_SHARD":
        return None
    return FSDP


def check(settings: Settings, found: str | None) -> None:
    """Raise SettingsError for settings that do not work with sharded weights."""
    if found is not None and settings.precision == "16-mixed":
        raise SettingsError(
            f"precision='16-mixed' is not supported with {found}, which the accelerate config asks"
            " for: take 'bf16-mixed'."
        )


def notes(
    kind: str, given: Mapping[str, Any], config: Mapping[str, Any], processes: int
) -> list[str]:
    """Messages about options without effect."""
    if kind != FSDP:
        return []
    asked = options(given, config)
    if way(kind, given, config, processes) is None:
        why = "there is only one process" if processes == 1 else "fsdp_sharding_strategy=NO_SHARD"
        return [f"FSDP is asked for, and the weights are not sharded: {why}."]
    messages = []
    if str(asked.get("fsdp_version", 1)) == "1":
        messages.append(
            "FSDP 2 (torch's fully_shard) does what the accelerate config asks of FSDP 1."
        )
    for name, (usual, instead) in _WITHOUT_EFFECT.items():
        if name in asked and str(asked[name]).lower() not in usual:
            messages.append(f"{name}={asked[name]!r} has no effect: {instead}.")
    policy = str(asked.get("fsdp_auto_wrap_policy") or "NO_WRAP").upper()
    if (
        str(asked.get("fsdp_activation_checkpointing", False)).lower() == "true"
        and policy == "NO_WRAP"
    ):
        messages.append(
            "fsdp_activation_checkpointing has no effect without fsdp_auto_wrap_policy, which "
            "chooses the layers."
        )
    return messages


def _strategy(asked: Mapping[str, Any]) -> str | None:
    if str(asked.get("fsdp_version", 1)) != "1":
        return None
    name = str(asked.get("fsdp_sharding_strategy") or "FULL_SHARD").upper()
    return (
        _STRATEGIES[int(name) - 1] if name.isdigit() and 0 < int(name) <= len(_STRATEGIES) else name
    )
