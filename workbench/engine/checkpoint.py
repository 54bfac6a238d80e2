"""Weights to and from a file: safetensors, written aside and renamed, so a file is whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn


def save_weights(model: nn.Module, path: Path) -> None:
    """The model's parameters and persistent buffers; tied ones are stored once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_model(model, str(aside))
        os.replace(aside, path)
    except SafetensorError as error:  # a full disk, in the library's words
        raise OSError(f"{path.name} could not be written: {error}") from error
    finally:
        aside.unlink(missing_ok=True)


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights of `save_weights` into the model, in place, whatever device it is on."""
    load_model(model, str(path), strict=True)
