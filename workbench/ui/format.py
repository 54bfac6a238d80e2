"""Formats numbers and states for people."""

from __future__ import annotations

import math
from typing import Any

from workbench.runs import setting_text


def rate(value: float | None) -> str:
    """A learning rate: '3.2e-3', '0.05', '1e-3'."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0 or 0.01 <= abs(value) < 100:
        return f"{value:.3g}"
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


_RATES = ("lr", "gradient_clip_val", "weight_decay", "swa_lrs")
_SETTINGS = {"gradient_clip_val": "clip", "batch_size": "batch size", "accumulate_grad_batches": "accumulated"}


def change(name: str, value: Any) -> str:
    """A setting that changed during the run: 'lr→3.2e-3', 'clip→off', 'batch size→1024', 'monitor→val_acc'."""
    if value is None:
        said = "off"
    else:
        said = rate(value) if name in _RATES else setting_text.recorded(name, value)
    return f"{_SETTINGS.get(name, name)}→{said}"


def number(value: float | None) -> str:
    """A loss, a norm or a metric, four digits at most, as format.ts writes it: '0.4213', '15230', '3.1e-4'."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{float(f'{value:.4g}'):.6g}"
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def count(value: float) -> str:
    """A count of things: '312', '11.2 M'."""
    for bound, unit, of in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e4, "k", 1e3)):
        if _short(value) >= bound:
            return f"{_short(value) / of:.6g} {unit}"
    return f"{value:.0f}"


def size(value: float) -> str:
    """Bytes: '42.6 MB'."""
    for bound, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if _short(value) >= bound:
            return f"{_short(value) / bound:.6g} {unit}"
    return f"{value:.0f} B"


def pace(value: float) -> str:
    """So many a second: '7.6', '1230'."""
    return f"{value:.3g}" if value < 100 else count(value)


def _short(value: float) -> float:
    """Three digits; a number that rounds up to a thousand takes the next unit."""
    return float(f"{value:.3g}")


def clock(seconds: float) -> str:
    """A length of time: '00:41', '1:02:07'."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes:02d}:{whole % 60:02d}"


def percent(fraction: float) -> str:
    """A share: '7%', '0.4%'."""
    return f"{fraction:.1%}" if 0 < fraction < 0.01 else f"{fraction:.0%}"


_JOBS = {
    "": "Job",
    "fit": "Training",
    "find_lr": "Learning-rate finder",
    "find_batch_size": "Batch-size finder",
    "find_num_workers": "Search for loader workers",
    "find_clip_val": "Search for a clip value",
    "find_precision": "Search for a precision",
    "tune": "Tuning",
    "validate": "Validation",
    "test": "Test",
    "predict": "Prediction",
}


def job(kind: str) -> str:
    """The name of a job of this kind, at the start of a sentence."""
    return _JOBS.get(kind, kind.replace("_", " ").capitalize())
