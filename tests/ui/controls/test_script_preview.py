"""The script before it is written: whole in the browser, whatever its length, in messages of bounded size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workbench.ui.canvas.transport.messages import LIMIT
from workbench.ui.controls.export import MOST, ScriptPreview


def shown(text: str) -> tuple[dict[str, object], str]:
    state: dict[str, object] = {}
    preview = ScriptPreview(state.__setitem__)
    preview.show("0012-fit", text)
    assert preview.run == "0012-fit"
    about = state["script"]
    assert isinstance(about, dict)
    parts: list[Any] = [state[f"script.{number}"] for number in range(about["parts"])]
    assert all(len(json.dumps({"script.0": part})) < LIMIT - 400 for part in parts)
    assert {part["of"] for part in parts} == {about["of"]}
    preview.show("0012-fit", "short")
    assert state["script"] != about, (
        "another showing: what is left of the first is not put together with it"
    )
    preview.hide()
    assert set(state.values()) == {None}
    assert preview.run == ""
    return about, "".join(part["text"] for part in parts)


@pytest.mark.parametrize(
    "text", ["import torch\n", "x = 'ä\U0001f600\"\\'\n" * 9000, "y = 1\n" * 20_000]
)
def test_the_whole_text_arrives(text: str) -> None:
    about, arrived = shown(text)
    assert arrived == text
    assert about["lines"] == text.count("\n") + 1


def test_what_is_too_long_says_so() -> None:
    text = "z = 123456789\n" * 60_000
    about, arrived = shown(text)
    assert about["parts"] == MOST
    assert len(arrived) < len(text)
    assert arrived.endswith("# … cut here; the written file is complete.\n")
