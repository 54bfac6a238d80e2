"""Finds the model inside one that the user has compiled (`torch.compile(model)`), and how to compile it again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_WRAPPED = "_orig_mod."


def uncompiled(model: Any) -> tuple[Any, Callable[..., Any] | None]:
    """Return the model inside, and the compiler of its calls; None: it is not compiled.

    The weights are those of the model inside, by their names there. While a job runs, calls of the model go through
    the same compiler (engine/runtime/torch_compile.py), except in the dry run.
    """
    dynamo = sys.modules.get("torch._dynamo")  # whoever has compiled a model has imported it
    if dynamo is None or not isinstance(model, dynamo.OptimizedModule):
        return model, None
    inner, _ = uncompiled(model._orig_mod)
    return inner, model.dynamo_ctx


def own_name(name: str) -> str:
    """Return the name of a parameter in the model, without the prefix of a compiled part."""
    return name.replace(_WRAPPED, "")
