"""What tests of packages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workbench.share.buffer_cache import BufferCache


@pytest.fixture
def cache() -> Iterator[BufferCache]:
    made = BufferCache()
    yield made
    made.close()
