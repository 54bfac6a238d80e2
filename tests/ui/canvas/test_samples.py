"""Samples of predictions on the canvas: which validation is sent, and when; files that are gone, damaged, or of a stranger."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from tests.ui.canvas.test_widget import Screen, started
from workbench.events import Sampled
from workbench.runs.samples import SAMPLES, Item, file_of, write_items


def asked(screen: Screen, **message: Any) -> None:
    screen.view._heard(screen.view, {"type": "ask", **message}, [])
    screen.settle()


def shown(screen: Screen) -> list[dict[str, Any]]:
    """What the browser has of the validation that is shown."""
    state = screen.mirrors[0].state
    parts = [state[f"sample.{number}"] for number in range(state["samples"]["parts"])]
    assert {part["of"] for part in parts} == {state["samples"]["of"]}
    sets: list[dict[str, Any]] = json.loads("".join(part["text"] for part in parts))
    return sets


def test_samples_are_read_for_an_open_tab_alone_and_followed(tmp_path: Path) -> None:
    screen, run = Screen(), tmp_path / "runs" / "r1"
    run.mkdir(parents=True)
    screen.view.search_in(tmp_path)
    asked(screen, what="drawer", tab="")
    screen.draw(started())
    for step in (10, 20, 30):
        for number in range(2):
            items = [Item("said", text=f"{step} by {number}: " + '\\"é' * 9000)]
            write_items(run, file_of(step, number), items, 0)
            screen.draw(Sampled(step, step // 10, f"f{number}", file_of(step, number)))
    screen.settle()
    state = screen.mirrors[0].state
    assert (state["samples"]["count"], state["samples"]["step"]) == (3, 30)
    assert "sample.0" not in state
    asked(screen, what="drawer", tab="samples")
    assert [found["items"][0]["text"][:7] for found in shown(screen)] == ["30 by 0", "30 by 1"]
    asked(screen, what="samples", place=0)
    assert shown(screen)[0]["items"][0]["text"].startswith("10 by 0")
    asked(screen, what="samples", place=99)  # the newest, from now on
    write_items(run, file_of(40, 0), [Item("said", text="40")], 3)
    screen.draw(Sampled(40, 4, "f0", file_of(40, 0)))
    screen.settle()
    ((last),) = shown(screen)
    assert (last["items"][0]["text"], last["left_out"]) == ("40", 3)
    screen.draw(dataclasses.replace(started(), run="r2"))
    screen.settle()
    assert screen.mirrors[0].state["samples"] is None


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    screen = Screen()
    screen.view.search_in(tmp_path)
    (tmp_path / "runs" / "r1" / SAMPLES).mkdir(parents=True)
    (tmp_path / "runs" / "r1" / SAMPLES / file_of(1, 1)).write_text("{")
    asked(screen, what="drawer", tab="samples")
    screen.draw(started())
    for number, file in enumerate((file_of(1, 0), file_of(1, 1), "../../../secret.json")):
        screen.draw(Sampled(1, 0, f"f{number}", file))
    screen.settle()
    gone, damaged, elsewhere = (found["why"] for found in shown(screen))
    assert gone.startswith("Its file is gone")
    assert "not readable JSON" in damaged
    assert "names no file of samples" in elsewhere
    screen.draw(dataclasses.replace(started(), run="../../elsewhere"))
    screen.draw(Sampled(1, 0, "f", file_of(1, 0)))
    screen.settle()
    assert shown(screen)[0]["why"].startswith("Its file is gone")
