"""README and the pages for developers are true where a machine can tell: what they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/contributing.md"])
def test_the_files_that_are_named_are_there(name: str) -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))[`:]", (ROOT / name).read_text()))
    places = [ROOT / "workbench", ROOT / "tests", *ROOT.glob("extensions/*/src")]
    here = [path.relative_to(ROOT).as_posix() for place in places for path in place.rglob("*")]
    found = {
        one
        for one in named
        if (ROOT / one).exists() or any(f"/{path}".endswith(f"/{one.rstrip('/')}") for path in here)
    }
    # the examples of a new technique, search and plot
    assert named - found <= {
        "techniques/gradient_noise.py",
        "tuners/momentum_search.py",
        "plots/training/memory.py",
    }
    assert len(found) > (0 if name == "CONTRIBUTING.md" else 20)


def test_the_files_that_comments_name_are_there() -> None:
    """Paths, and the lists of files in docstrings, name files of the package."""
    here = [f"/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "workbench").rglob("*.*")]
    named = {
        (path.name, name)
        for path in (ROOT / "workbench").rglob("*.py")
        for pair in re.findall(
            r"(?:^|[`( ])((?:[a-z_]+/)+[a-z_]+\.py)(?=[`:,) .])|^([a-z_]+\.py)(?= )",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        for name in pair
        if name and not name.startswith(("tests/", "torch/"))
    }
    assert len(named) > 30
    assert [one for one in named if not any(file.endswith(f"/{one[1]}") for file in here)] == []


@pytest.mark.parametrize("folder", ["attacks", "browser"])
def test_the_tests_that_a_table_names_are_there(folder: str) -> None:
    tests = ROOT / "tests"
    named = re.findall(
        r"`((?:\w+/)*test_\w+\.py)(?:::(\w+))?`",
        (tests / folder / "README.md").read_text(encoding="utf-8"),
    )
    assert len(named) > 20
    assert [
        one for one in named if f"def {one[1]}" not in (tests / one[0]).read_text(encoding="utf-8")
    ] == []


def test_what_make_is_asked_for_is_a_target() -> None:
    asked = set(re.findall(r"(?:^|; )make (\w+)", TEXT, re.MULTILINE))
    assert {"demo", "test", "docs"} <= asked
    assert asked <= set(
        re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 125
