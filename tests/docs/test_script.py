"""The page with one script in full has the script as it comes out now."""

from __future__ import annotations

import re

from tests.docs import script


def test_the_script_in_the_docs_is_the_one_that_is_exported() -> None:
    """Checksums may differ: other versions and processors make other weights."""
    found, there = (
        re.sub(r'"[0-9a-f]{8}"', '"…"', text)
        for text in (script.page(), script.PAGE.read_text(encoding="utf-8"))
    )
    assert found == there, "python -m tests.docs.script writes it"
