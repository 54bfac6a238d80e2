"""The README is true where a machine can tell: its links lead somewhere, its settings are those there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, get_args

import pytest

import workbench as wb
from workbench.launch.start.start_spec import StartSpec
from workbench.settings import Group, Settings, metadata_of
from workbench.task.lightning.unsupported import CALLBACKS
from workbench.trackers.select import choices

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_the_files_that_are_named_are_there(name: str) -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))[`:]", (ROOT / name).read_text()))
    here = [path.relative_to(ROOT).as_posix() for path in (ROOT / "workbench", ROOT / "tests") for path in path.rglob("*")]
    found = {one for one in named if (ROOT / one).exists() or any(f"/{path}".endswith(f"/{one.rstrip('/')}") for path in here)}
    assert named - found <= {"techniques/lookahead.py"}  # the example of a new technique
    assert len(found) > (20 if name == "ARCHITECTURE.md" else 0)


def test_all_settings_are_named() -> None:
    table = TEXT[TEXT.index("## Settings") : TEXT.index("## Install")]
    named = {name for line in table.splitlines() if line.startswith("|") for name in re.findall(r"`(\w+)`", line)}
    assert named == set(Settings.model_fields)


def test_settings_stand_in_their_groups() -> None:
    table = TEXT[TEXT.index("## Settings") : TEXT.index("## Install")]
    rows = {row.split("|")[1].strip(): re.findall(r"`(\w+)`", row) for row in table.splitlines() if "`" in row and row[0] == "|"}
    assert [*rows] == [*get_args(Group)]
    for group, names in rows.items():
        assert names == [name for name in Settings.model_fields if metadata_of(name).group == group]


def fits() -> list[ast.Call]:
    """The calls of `bench.fit` and `bench.set` in the README's Python."""
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    calls = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) in ("bench.fit", "bench.set")]


@pytest.mark.parametrize("call", fits(), ids=ast.unparse)
def test_what_is_given_to_a_fit_is_taken(call: ast.Call) -> None:
    given = {item.arg: item.value for item in call.keywords if item.arg != "start" and not isinstance(item.value, ast.Attribute)}
    values = {name: eval(ast.unparse(value), {"wb": wb}) for name, value in given.items() if name}
    Settings.make(**values)


def test_what_stands_in_for_lightnings_callbacks_is_what_their_refusal_says() -> None:
    table = TEXT[TEXT.index("| Lightning | here |") : TEXT.index("## Checkpoints")]
    rows = {row.split("|")[1]: row.split("|")[2] for row in table.splitlines()[2:] if row}
    named = {name: here for cell, here in rows.items() for name in re.findall(r"\b[A-Z]\w+", cell) if "Logger" not in name}
    assert {"ModelCheckpoint", "EarlyStopping", "Timer"} <= named.keys() <= CALLBACKS.keys()
    for name, here in named.items():
        instead = set(re.findall(r"\w+_\w+", here)) - {"val_loss"}
        assert any(word in CALLBACKS[name] for word in instead) or CALLBACKS[name].startswith("nothing"), name


def said(keyword: str) -> list[Any]:
    """What the README's Python gives for this keyword, where that is plain data."""
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    found = [node.value for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.keyword) and node.arg == keyword]
    return [ast.literal_eval(value) for value in found if isinstance(value, ast.Constant | ast.Dict)]


def test_starts_and_trackers_are_understood(tmp_path: Path) -> None:
    starts = [StartSpec.of(start) for start in said("start")]
    assert {start.which for start in starts} == {"last", "best", 1500}
    assert [choice.name for given in said("trackers") for choice in choices(given, tmp_path)] == ["tensorboard", "mlflow"]
