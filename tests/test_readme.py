"""The README is true where a machine can tell: its links lead somewhere, its settings are those there are."""

from __future__ import annotations

import re
from pathlib import Path

from workbench.settings import Settings

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_all_settings_are_named() -> None:
    table = TEXT[TEXT.index("## Settings") : TEXT.index("## Install")]
    named = {name for line in table.splitlines() if line.startswith("|") for name in re.findall(r"`(\w+)`", line)}
    assert named == set(Settings.model_fields)
