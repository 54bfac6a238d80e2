"""Numbers as a person reads them: no exponents where a unit or plain digits do."""

from __future__ import annotations

import pytest

from workbench.ui.format import count, number, pace, size


@pytest.mark.parametrize(("made", "said"), [
    (number(15234), "15230"), (number(99_999), "100000"), (number(123_456), "1.23e5"), (number(0.00123456), "0.001235"),
    (number(0.00031), "3.1e-4"), (number(-0.5), "-0.5"), (number(0.0), "0"), (number(float("inf")), "not finite"), (number(None), "–"),
    (count(312), "312"), (count(9_999), "10 k"), (count(999_700), "1 M"), (count(11_181_642), "11.2 M"), (count(2e12), "2000 G"),
    (size(999), "999 B"), (size(999_700_000), "1 GB"), (size(42_600_000), "42.6 MB"), (size(3e12), "3000 GB"),
    (pace(7.62), "7.62"), (pace(99.96), "100"), (pace(1234.5), "1234"), (pace(25_400), "25.4 k"),
])  # fmt: skip
def test_numbers(made: str, said: str) -> None:
    assert made == said
