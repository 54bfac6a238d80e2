"""The checkpoint of each epoch, from which `--resume` continues to the last bit."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import gather_object

from workbench.export.program.constants import CHANGED, LENGTH, LOGS


def save_checkpoint(config, settings, stateful, generators, accelerator, epoch, step):
    """Write all that the rest of the training depends on, whole or not at all.

    settings: those that the training began with.
    """
    device = torch.get_device_module(accelerator.device)
    on_device = device.get_rng_state() if hasattr(device, "get_rng_state") else None
    name, keys, *rest = np.random.get_state()
    numbers = (
        random.getstate(),
        (name, np.asarray(keys).tolist(), *rest),
        torch.get_rng_state(),
        on_device,
    )
    state = {
        "settings": {
            name: value for name, value in settings.items() if name not in ("output", "resume")
        },
        "stateful": {name: part.state_dict() for name, part in stateful.items()},
        "generators": [generator.get_state() for generator in generators],
        "random": gather_object([numbers]),  # one from each process
        "epoch": epoch,
        "step": step,
    }
    if CHANGED:
        state["changed"] = {name: value for name, value in vars(config).items() if name in CHANGED}
    if LOGS:
        log = Path(config.log_file)
        state["log_size"] = log.stat().st_size if log.is_file() else 0
    path = config.output / "checkpoint.pt"
    accelerator.save(state, path.with_suffix(".part"))
    if accelerator.is_main_process:
        path.with_suffix(".part").replace(path)


def load_checkpoint(config, stateful, generators, accelerator):
    """Restore what `save_checkpoint` wrote; returns the number of epochs and of updates that are
    done.
    """
    try:
        state = torch.load(
            config.resume, map_location={"cuda:0": str(accelerator.device)}, weights_only=True
        )
        parts, random_states = state["stateful"], state["random"]
    except Exception as error:  # of many types
        raise SystemExit(
            f"{config.resume} is no checkpoint of this script:"
            f" {type(error).__name__}: {error}\n"
            f"Its checkpoints are {config.output / 'checkpoint.pt'}."
        ) from error
    if len(random_states) != accelerator.num_processes:
        raise SystemExit(
            f"{config.resume} was written by {len(random_states)} processes: resume with as many."
        )
    for name, value in state["settings"].items():
        if LENGTH:  # a schedule was made for it
            is_fixed = True
        else:
            is_fixed = name not in ("max_epochs", "max_steps")
        if is_fixed and getattr(config, name, value) != value:
            raise SystemExit(
                f"{name} is {getattr(config, name)!r}, and {config.resume} was trained with"
                f" {value!r}: resume with --{name} {value!r}."
            )
    try:
        for name, part in stateful.items():
            part.load_state_dict(parts[name])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise SystemExit(f"{config.resume} is of another script: {error}") from error
    if CHANGED:
        vars(config).update(state["changed"])
    for generator, value in zip(generators, state["generators"]):
        generator.set_state(value)
    python, numpy, cpu, on_device = random_states[accelerator.process_index]
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if on_device is not None:
        torch.get_device_module(accelerator.device).set_rng_state(on_device)
    if LOGS and accelerator.is_main_process and Path(config.log_file).is_file():
        with open(config.log_file, "r+b") as file:
            file.truncate(state["log_size"])  # it may have lines of updates that come again
    epoch, step = state["epoch"], state["step"]
    accelerator.print(f"Continuing after epoch {epoch} (update {step}) from {config.resume}")
    return epoch, step
