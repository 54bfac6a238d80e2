"""What tests of parcels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workbench.share.buffer_cache import Shelf


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    yield made
    made.close()
