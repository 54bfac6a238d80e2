"""A button's line of code: one call of the study with plain values, which is parsed and never executed."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.ui.canvas.study.calls import call_of, is_call


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("study.pause()", ("pause", [], {})),
        ("study.seeds(11, 3)", ("seeds", [11, 3], {})),
        ('study.more("30min")', ("more", ["30min"], {})),
        ("study.space(lr=(1e-3, 0.3))", ("space", [], {"lr": (1e-3, 0.3)})),
        ("study.add(width=64, act='relu')", ("add", [], {"width": 64, "act": "relu"})),
        ('study.export("a.py", trial=7)', ("export", ["a.py"], {"trial": 7})),
    ],
)
def test_a_call_with_plain_values(code: str, call: tuple[str, list[Any], dict[str, Any]]) -> None:
    assert call_of(code) == call


@pytest.mark.parametrize(
    "code",
    [
        "study.result()",
        "study.record.path.unlink()",
        "study.add(lr=open('x'))",
        "study.add(**{'lr': 1})",
        "study.space(width=[…])",
        "study.space(lr=...)",
        "study.stop(), study.stop()",
        "bench.set(lr=1)",
        "getattr(study, 'stop')()",
        "study.stop(" + "(" * 5000,
        "",
    ],
)
def test_anything_else_is_refused(code: str) -> None:
    assert not is_call(code)
    with pytest.raises(ValueError, match="it only runs calls of study"):
        call_of(code)
