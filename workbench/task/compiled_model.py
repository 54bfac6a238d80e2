"""A model that the user has compiled (`torch.compile(model)`): the model itself, and what compiles it as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_WRAPPED = "_orig_mod."


def uncompiled(model: Any) -> tuple[Any, Callable[..., Any] | None]:
    """The model within, and how its calls are compiled; None: it is not compiled.

    The weights are those of the model within, under their own names. While a job runs, its calls go through the same
    compiler (engine/torch_compile.py); the trial of two samples does without.
    """
    dynamo = sys.modules.get("torch._dynamo")  # whoever has compiled a model has imported it
    if dynamo is None or not isinstance(model, dynamo.OptimizedModule):
        return model, None
    inner, _ = uncompiled(model._orig_mod)
    return inner, model.dynamo_ctx


def own_name(name: str) -> str:
    """The name of a parameter as the model has it, without what a compiled part puts before it."""
    return name.replace(_WRAPPED, "")
