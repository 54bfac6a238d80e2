"""Formats numbers, bytes, durations and learning rates the same way in panel, tables, messages,
code and plots.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal

BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
"""Decimal units, as disks and GPUs are sold: 1 GB is 1,000,000,000 bytes."""


_EXACT = Context(prec=17, traps=[])
"""A context with all digits of a float, whatever context the user has set."""
RATES = ("lr", "min_lr", "max_lr", "gradient_clip_val", "weight_decay", "swa_lrs")
"""The settings and arguments that `rate` writes."""


def fit_length(share: float) -> str:
    """The length of a trial as a share of a whole fit: "1/3", "whole"."""
    return "whole" if share >= 1 else f"1/{round(1 / share)}"


def counted(number: int, one: str, many: str = "") -> str:
    """Format a count: '1 update', '3 updates'. many: the plural, where it is not `one` with an
    s.
    """
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def rate(value: float, digits: int | None = 3) -> str:
    """Format a learning rate or a similar number, so that Python can read it: '3.2e-3', '0.05',
    '30'. digits: None for all digits.
    """
    exact = Decimal(repr(float(value if digits is None else f"{value:.{digits}g}"))).normalize(
        _EXACT
    )
    if not exact.is_finite():
        return str(float(value))
    if exact == 0 or Decimal("0.01") <= abs(exact) < 100:
        return f"{exact:f}"
    first, *more = map(str, exact.as_tuple().digits)
    return (
        f"{'-' if exact < 0 else ''}{first}{'.' if more else ''}{''.join(more)}e{exact.adjusted()}"
    )


def number(value: float) -> str:
    """Format a loss, a norm or a metric with at most four significant digits: '0.4213', '15230',
    '3.1e-4', '1.12e7'; 'nan', 'inf'.
    """
    if value == 0 or 1e-3 <= abs(value) < 1e5 or not math.isfinite(value):
        return f"{float(f'{value:.4g}'):.6g}"
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def size(value: float) -> str:
    """Format a number of bytes with three significant digits: '42.6 MB'."""
    unit, of = next((pair for pair in BYTES if abs(three_digits(value)) >= pair[1]), BYTES[-1])
    return f"{three_digits(value) / of:.6g} {unit}"


def three_digits(value: float) -> float:
    """Round a value to three significant digits, so that 999.6 becomes 1000 and gets the next
    unit.
    """
    return float(f"{value:.3g}")


def duration(seconds: float) -> str:
    """Format seconds: "0.31 s", "41 s", "1 min 27 s", "2 h 05 min"; a dash where they are not
    finite.
    """
    if not math.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
