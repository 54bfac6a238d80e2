"""What tests of parcels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workbench.share.shelf import Shelf


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    yield made
    made.close()
