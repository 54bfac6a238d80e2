"""The reference says what the code says."""

from __future__ import annotations

import ast
import contextlib
import pydoc
import re
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from pydantic import TypeAdapter

import workbench
from tests.docs.generate import PAGES, examples
from tests.docs.pages import DOCS, blocks, name_of
from tests.docs.pages import PAGES as ALL
from workbench import events
from workbench.launch.start.start_spec import StartSpec
from workbench.settings import Settings
from workbench.task.lightning.unsupported import CALLBACKS
from workbench.trackers.select import choices


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_the_code_defines_is_in_the_page(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page](), "run: python -m tests.docs.generate"


def test_every_setting_and_every_event_is_there() -> None:
    settings = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    assert [name for name in Settings.model_fields if f"| `{name}` |" not in settings] == []
    page = (DOCS / "reference" / "events.md").read_text(encoding="utf-8")
    assert [
        kind.__name__ for kind in get_args(events.BenchEvent) if f"## {kind.__name__}\n" not in page
    ] == []


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_setting_takes_its_examples(name: str) -> None:
    field = Settings.model_fields[name]
    taken = TypeAdapter(Annotated[field.annotation, *field.metadata])
    values = [taken.validate_python(ast.literal_eval(code)) for code in examples(name)]
    assert values
    assert field.default not in values


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(
        r"^::: ([\w.]+)$", (DOCS / "reference" / "api.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [name for name in named if not callable(pydoc.locate(name))] == []
    assert {f"workbench.{name}" for name in workbench.__all__} - {*named} == {
        "workbench.Settings",
        "workbench.__version__",
    }


def test_what_replaces_lightnings_callbacks_is_what_their_refusal_says() -> None:
    text = (DOCS / "lightning.md").read_text(encoding="utf-8")
    table = re.search(
        r"(?:^\|.*\n)+", text[text.index("## Callbacks and loggers") :], flags=re.MULTILINE
    )
    assert table is not None
    rows = {
        row.split("|")[1]: row.split("|")[2] for row in table[0].splitlines() if "---" not in row
    }
    named = {
        name: here
        for cell, here in rows.items()
        for name in re.findall(r"\b[A-Z]\w+", cell)
        if name != "Lightning" and "Logger" not in name
    }
    assert {"ModelCheckpoint", "EarlyStopping", "Timer"} <= named.keys() <= CALLBACKS.keys()
    for name, here in named.items():
        instead = set(re.findall(r"\w+_\w+", here)) - {"val_loss"}
        assert any(word in CALLBACKS[name] for word in instead) or CALLBACKS[name].startswith(
            "nothing"
        ), name


def given() -> dict[str, list[Any]]:
    """What blocks that are not run give by each keyword, where that is plain data."""
    left_out = [block.code for page in ALL for block in blocks(page) if block.why_not]
    found: dict[str, list[Any]] = {}
    for node in (node for code in left_out for node in ast.walk(ast.parse(code))):
        if isinstance(node, ast.keyword) and node.arg:
            with contextlib.suppress(ValueError):
                found.setdefault(node.arg, []).append(ast.literal_eval(node.value))
    return found


def test_values_in_blocks_that_are_not_run_are_understood(tmp_path: Path) -> None:
    found = given()
    settings = {name: values for name, values in found.items() if name in Settings.model_fields}
    assert {"strategy", "launch", "devices"} <= settings.keys()
    for name, values in settings.items():
        for value in values:
            Settings.make(**{"strategy": "launch", name: value})
    assert all(StartSpec.of(start) for start in found.get("start", ()))
    trackers = [one for one in found["trackers"] if "wandb" not in one]
    assert [choice.name for one in trackers for choice in choices(one, tmp_path)] == ["mlflow"]
