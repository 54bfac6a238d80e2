"""What an accelerate config, and launch=, say of DeepSpeed, before anything starts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from workbench.engine import deepspeed_config
from workbench.settings import Settings, SettingsError

_FILE = "deepspeed_config_file"
_OFFLOADS = {"offload_optimizer": "offload_optimizer_device", "offload_param": "offload_param_device"}
_SAYS = ("gradient_accumulation_steps", "gradient_clipping")
_WITHOUT_EFFECT = {
    "zero3_init_flag": "the model is made before DeepSpeed is there, and each rank has the whole weights at the start",
    "zero3_save_16bit_model": "checkpoints are of whole float32 weights, for any number of ranks",
}


def config_of(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's own config, as far as it is said: in a file, or by accelerate's options. SettingsError: of the file."""
    asked = _options(given, config)
    file = asked.get(_FILE)
    if file in (None, "none"):
        zero: dict[str, Any] = {"stage": int(asked.get("zero_stage", 2))}
        zero |= {name: {"device": str(asked[option]).lower()} for name, option in _OFFLOADS.items() if asked.get(option)}
        return {"zero_optimization": zero, **{name: asked[name] for name in _SAYS if asked.get(name)}}
    try:
        with open(os.path.expanduser(str(file)), encoding="utf-8") as text:
            found = json.load(text)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{_FILE}={file!r} cannot be taken: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("zero_optimization"), dict):
        raise SettingsError(f"{_FILE}={file!r} has no 'zero_optimization': give it one, {{'stage': 2}} say.")
    return found


def stage(asked: Mapping[str, Any]) -> int:
    """The stage of ZeRO; 0: plain data-parallel training."""
    found = asked["zero_optimization"].get("stage", 0)
    return 2 if found == "auto" else int(found)


def check(asked: Mapping[str, Any]) -> None:
    """SettingsError: it cannot be."""
    if find_spec("deepspeed") is None:
        raise SettingsError("the accelerate config asks for DeepSpeed, which is not installed: pip install deepspeed")
    deepspeed_config.refuse(asked)


def notes(given: Mapping[str, Any], config: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """What of it does not hold."""
    asked = config_of(given, config)
    yield from deepspeed_config.notes(asked, settings)
    options = _options(given, config)
    for name, instead in _WITHOUT_EFFECT.items():
        if stage(asked) == 3 and str(options.get(name, False)).lower() == "true":
            yield f"{name}={options[name]!r} has no effect: {instead}."


def _options(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the config, and those of launch=, which go before."""
    return {**(config.get("deepspeed_config") or {}), **given}
