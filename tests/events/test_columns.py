"""Columns: numbers packed as bytes are the same numbers when unpacked."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workbench import events as ev


@given(st.lists(st.floats(width=32), max_size=50))
def test_pack_and_unpack_are_inverse(values: list[float]) -> None:
    np.testing.assert_array_equal(ev.unpack(ev.pack(values)), np.array(values, np.float32))
    assert ev.pack(np.array(values)) == ev.pack(values)
