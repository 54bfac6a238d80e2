"""What the accelerate config asks of DeepSpeed, as far as the bench's own settings leave it open.

`accelerate launch` says in the environment what the config says, or names DeepSpeed's own file; accelerate's plugin reads
either. What a setting says is the setting's, and is noted; what would train in another way than the loop is refused by name.
Sources: accelerate.utils.dataclasses.DeepSpeedPlugin, deepspeed.ai/docs/config-json.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from accelerate import DeepSpeedPlugin

from workbench.settings import Settings, SettingsError

NAME = "DeepSpeed"
_SETTINGS = {
    "train_batch_size": "batch_size", "train_micro_batch_size_per_gpu": "batch_size", "optimizer": "optimizer",
    "gradient_accumulation_steps": "accumulate_grad_batches", "gradient_clipping": "gradient_clip_val", "scheduler": "lr_schedule",
}  # fmt: skip
_PRECISIONS = {"fp16": "16-mixed", "bf16": "bf16-mixed", "amp": "16-mixed", "torch_autocast": "bf16-mixed"}
_PASSED = {
    "zero_optimization", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "communication_data_type",
    "prescale_gradients", "gradient_predivide_factor", "comms_logger", "wall_clock_breakdown", "memory_breakdown", "dump_state",
    "activation_checkpointing", "disable_allgather", "steps_per_print", "timers", "log_level", "aio", "checkpoint",
    "dataloader_drop_last", "seq_parallel_communication_data_type",
}  # fmt: skip
_UNLIKE = {
    "zenflow": None, "mics_shard_size": -1, "zero_hpz_partition_size": 1, "zero_quantized_weights": False,
    "zero_quantized_gradients": False, "zero_quantized_nontrainable_weights": False, "elastic_checkpoint": False,
    "legacy_stage1": False,
}  # fmt: skip
"""Of zero_optimization: what shards in ways that are not read back here, and the value that is none of it."""


def of_environment() -> dict[str, Any]:
    """The config for `deepspeed.initialize`. SettingsError: what the environment asks for cannot be."""
    try:
        asked = copy.deepcopy(DeepSpeedPlugin().deepspeed_config)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise SettingsError(f"the DeepSpeed part of the accelerate config cannot be taken: {error}") from error
    refuse(asked)
    passed = {name: value for name, value in asked.items() if name in _PASSED}
    # Clipping is off unless it is said to be: DeepSpeed's own default is a norm of 1. Windows, their shares and the clock are
    # the loop's, so that for DeepSpeed each backward is all there is, and it need not wait for the device to tell the time.
    own = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 0.0}
    usual = {"zero_force_ds_cpu_optimizer": False, "timers": {"throughput": {"enabled": False}}}
    return {**usual, **_without_auto(passed), **own, "steps_per_print": float("inf")}


def refuse(config: Mapping[str, Any]) -> None:
    """SettingsError: the first part of a DeepSpeed config that the loop cannot train by."""
    for name, precision in _PRECISIONS.items():
        if _is_on(config.get(name)):
            raise SettingsError(
                f"the DeepSpeed config has {name}={config[name]!r}: precision is the bench's own, weights stay float32, and products "
                f"are of 16 bits with precision={precision!r}. Take that part out of the config, or say 'auto'."
            )
    known = {*_PASSED, *_SETTINGS, *_PRECISIONS}
    other = next((name for name, value in config.items() if name not in known and value not in ("auto", None, {}, False)), None)
    if other is not None:
        raise SettingsError(f"the DeepSpeed config has {other!r}, which the bench's loop does not know of: take it out of the config.")
    zero = config.get("zero_optimization", {})
    for name, none in _UNLIKE.items():
        if zero.get(name, none) not in (none, None, "auto"):
            raise SettingsError(f"the DeepSpeed config has zero_optimization.{name}={zero[name]!r}, which the bench cannot have: take it out.")
    for name in ("offload_optimizer", "offload_param"):
        own = zero.get(name) or {}
        if own.get("device") == "nvme":
            raise SettingsError(f"the DeepSpeed config has zero_optimization.{name}.device='nvme': the bench takes 'cpu' or 'none' there.")
        if own.get("ratio", 1.0) != 1.0 or own.get("super_offload"):
            raise SettingsError(f"the DeepSpeed config has zero_optimization.{name}={own!r}: the bench knows device and pin_memory there.")


def notes(config: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """What of a DeepSpeed config does not hold, since a setting of the bench says something else."""
    for name, setting in _SETTINGS.items():
        if config.get(name) not in ("auto", None, {}, getattr(settings, setting, None)):
            yield f"the DeepSpeed config has {name}={config[name]!r}; the bench's own {setting}= holds."


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's own default wherever something else was to fill in a value."""
    found = {name: _without_auto(value) if isinstance(value, Mapping) else value for name, value in config.items()}
    return {name: value for name, value in found.items() if value not in ("auto", None)}


def _is_on(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("enabled", False) not in (False, "auto")
