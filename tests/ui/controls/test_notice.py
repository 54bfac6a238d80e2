"""What is said above the stage: which notices stay, and what their buttons do."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from workbench.ui.controls.notice import Notice


@pytest.fixture
def sent() -> dict[str, Any]:
    return {}


@pytest.fixture
def notice(sent: dict[str, Any]) -> Notice:
    return Notice(sent.__setitem__)


def test_an_error_gives_way_to_nothing_but_errors(notice: Notice) -> None:
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


def test_a_line_keeps_its_number_so_that_it_is_announced_once(
    notice: Notice, sent: dict[str, Any]
) -> None:
    notice.say("one", "error", about="it")
    notice.say("two", "error")
    [two, one] = [line["number"] for line in sent["notices"]]
    assert two > one
    notice.drop("it")
    assert [line["number"] for line in sent["notices"]] == [two]
    notice.say("three")
    assert [line["text"] for line in sent["notices"]] == ["three", "two"]
    assert sent["notices"][1]["number"] == two


def test_the_button_of_a_notice_acts_as_long_as_the_notice_is_there(
    notice: Notice, sent: dict[str, Any]
) -> None:
    done: list[str] = []
    actions = {text: partial(done.append, text) for text in ("Stop it", "Wait")}
    notice.say("it waits", "warning", about="it", actions=actions)
    [line] = sent["notices"]
    assert (line["text"], line["offers"]) == ("it waits", ["Stop it", "Wait"])
    notice.answer(line["number"] + 1, "Wait")
    notice.answer(line["number"], "Go")
    assert done == []
    notice.answer(line["number"], "Wait")
    assert done == ["Wait"]
    notice.clear()
    notice.answer(line["number"], "Wait")
    assert done == ["Wait"]
