"""The buttons of a study's view, and that it follows the study."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.bench import study_parts
from tests.ui.canvas.study.clock import Clock
from tests.waiting import wait_for
from workbench.runs.study.record import TrialProposal
from workbench.runs.study.write import add_trial
from workbench.ui.canvas.study import feed
from workbench.ui.canvas.study.feed import StudyFeed
from workbench.ui.controls.notice import Notice


class View:
    """What the view has been sent."""

    def __init__(self, study: wb.Study) -> None:
        self.values: dict[str, Any] = {}
        self.notice = Notice(lambda name, value: None)
        self.feed = StudyFeed(study, self.take, self.notice)

    def take(self, values: Mapping[str, Any]) -> None:
        self.values.update(values)

    def press(self, code: str) -> None:
        assert self.feed.hear({"what": "study", "code": code})


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    view = View(study_parts.recorded(tmp_path))
    yield view
    view.feed.close()


@pytest.mark.filterwarnings("ignore:no worker works on")
def test_a_button_carries_out_its_line_and_shows_it(view: View) -> None:
    view.press("study.more(4)")
    wait_for(lambda: view.values.get("study_now", {}).get("budget") == 16.0)
    assert view.values["code"] == "study.more(4)"
    level, text = view.notice.lines[0]
    assert level == "warning"
    assert "no worker works on 0001-study" in text


def test_an_error_is_shown_with_its_line(view: View) -> None:
    view.press("study.stop(99)")
    wait_for(lambda: bool(view.notice.lines))
    assert view.notice.lines == [
        ("error", "study.stop(99): study.stop(99): its trials are 1 to 12.")
    ]
    view.press("study.record.path.rmdir()")
    wait_for(lambda: "it only runs calls of" in view.notice.lines[0][1])


def test_it_follows_what_another_process_does(view: View) -> None:
    view.feed.follow()
    wait_for(lambda: "study_trial.12" in view.values)
    add_trial(view.feed.study.path, TrialProposal(13, {"lr": 1e-3}, "by hand"))  # type: ignore[attr-defined]
    wait_for(lambda: "study_trial.13" in view.values)


def test_a_loaded_machine_does_not_put_off_the_next_look(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes long where others have the machine; that is no reason for a longer pause."""

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            view.feed.close()
            return True

    pauses: list[float | None] = []
    clock = Clock()
    monkeypatch.setattr(feed, "time", clock)
    monkeypatch.setattr(view.feed, "_changed", Waits())
    monkeypatch.setattr(view.feed, "look", lambda: clock.passes(100.0, own=0.01) or "running")
    view.feed._follow()
    assert pauses == [1.0]


def test_a_failed_look_is_said_until_one_succeeds(view: View) -> None:
    def refuse(values: Mapping[str, Any]) -> None:
        raise OSError("the disk is away")

    view.feed._put = refuse
    view.feed.follow()
    wait_for(lambda: "the disk is away" in str(view.notice.lines))
    view.feed._put = view.take
    view.press("study.pause()")
    wait_for(lambda: view.notice.lines == [])
    assert view.values["study_now"]["paused"]
