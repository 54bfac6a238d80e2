"""The view of a study in a notebook's cells: which of its displays are drawn again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.bench import study_parts
from tests.waiting import wait_for
from workbench.ui import study_panel
from workbench.ui.study_panel import StudyPanel


class Ended(wb.Study):
    status = "ended"


def test_only_the_latest_displays_are_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updated: list[int] = []

    class Handle:
        def __init__(self, number: int) -> None:
            self.number = number

        def update(self, page: dict[str, str], raw: bool) -> None:
            assert "the page" in page["text/html"]
            updated.append(self.number)

    def display(data: Any, raw: bool, display_id: bool = False) -> Handle | None:
        numbers.append(len(numbers))
        return Handle(len(numbers)) if display_id else None

    numbers: list[int] = []
    monkeypatch.setattr(study_panel, "display", display)
    study = Ended(study_parts.recorded(tmp_path).path)
    page = {"text/html": "the page", "text/plain": "text"}
    panel = StudyPanel(study, lambda: page, lambda: len(study.record.changes))
    for _ in range(5):  # the view, and the page below it
        panel.show()
    panel.feed.hear({"what": "study", "code": "study.more(1)"})
    wait_for(lambda: updated == [6, 8, 10])
    panel.close()
