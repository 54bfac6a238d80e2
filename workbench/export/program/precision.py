"""Writes mixed precision."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.program.lines import indented
from workbench.export.script_spec import ScriptSpec

_TYPES = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}


def precision(r: ScriptSpec) -> str:
    """The context manager of each forward pass."""
    if not r.mixed:
        return ""
    return dedent('''\
        def mixed_precision(device):
            """Most products are taken in 16 bits; the weights stay float32."""
            return torch.autocast(device.type, dtype=torch.@@)''').replace("@@", _TYPES[r.settings.precision])


def inside(r: ScriptSpec, lines: list[str], device: str = "accelerator.device") -> list[str]:
    """These lines in mixed precision, where it is on."""
    return [f"with mixed_precision({device}):", *indented(lines)] if r.mixed else lines


def scaled(r: ScriptSpec, loss: str) -> str:
    """The expression for the loss to call backward on."""
    return f"scaler.scale({loss})" if r.scales else loss
