"""Finds the model inside one that the user has compiled (`torch.compile(model)`), and how to compile it again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_WRAPPED = "_orig_mod."


def uncompiled(model: Any) -> tuple[Any, Callable[..., Any] | None]:
    """The model inside, and how its calls are compiled; None: it is not compiled.

    The weights are those of the model inside, under their own names. While a job runs, its calls go through the same
    compiler (engine/torch_compile.py); the dry run does without it.
    """
    dynamo = sys.modules.get("torch._dynamo")  # whoever has compiled a model has imported it
    if dynamo is None or not isinstance(model, dynamo.OptimizedModule):
        return model, None
    inner, _ = uncompiled(model._orig_mod)
    return inner, model.dynamo_ctx


def own_name(name: str) -> str:
    """The name of a parameter as the model has it, without the prefix of a compiled part."""
    return name.replace(_WRAPPED, "")
