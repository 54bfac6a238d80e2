"""What is said above the canvas: which notices stay, and which of them a screen reader says."""

from __future__ import annotations

import re

from workbench.ui.controls.notice import Notice


def announced(notice: Notice) -> list[str]:
    return re.findall(r'role="(?:alert|status)">([^<]*)<', notice._text.value)


def test_an_error_gives_way_to_nothing_but_errors() -> None:
    notice = Notice()
    notice.say("the first", "error")
    for i in range(9):
        notice.say(f"said {i}")
    assert [text for _, text in notice.lines] == ["said 8", "said 7", "said 6", "the first"]
    for i in range(4):
        notice.say(f"error {i}", "error")
    assert [text for _, text in notice.lines] == ["error 3", "error 2", "error 1", "error 0"]
    notice.say("written")
    assert [text for _, text in notice.lines] == ["written", "error 3", "error 2", "error 1"], (
        "what is new is there to be read"
    )


def test_only_what_is_new_is_announced() -> None:
    notice = Notice()
    notice.say("one", "error", about="it")
    notice.say("two", "error")
    assert announced(notice) == ["two"]
    notice.drop("it")
    assert (announced(notice), "two" in notice._text.value) == ([], True)
    notice.say("three")
    assert announced(notice) == ["three"]
