"""Every Python block of README and docs runs, page by page, as somebody runs it who pastes it from the top."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import workbench as wb
from tests import warm
from tests.docs.pages import PAGES, Block, blocks, name_of, script
from workbench.launch.study import local

RUN = [page for page in PAGES if script(page)]
LEFT_OUT = [(page, block) for page in PAGES for block in blocks(page) if block.why_not]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[types.ModuleType]:
    """An empty `__main__` in a folder of its own; benches that it made are closed afterwards."""
    monkeypatch.chdir(tmp_path)
    # workers of a study have imported torch already
    forked = types.SimpleNamespace(executable=str(warm.python().executable))
    monkeypatch.setattr(local, "sys", forked)
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    yield module
    for value in vars(module).values():
        if isinstance(value, wb.Workbench):
            value.close()
    plt.close("all")


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_the_blocks_of_a_page_run(page: Path, main: types.ModuleType, tmp_path: Path) -> None:
    path = tmp_path / f"{page.stem}.py"
    path.write_text(script(page), encoding="utf-8")
    main.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(main))


@pytest.mark.parametrize(
    ("page", "block"), LEFT_OUT, ids=[f"{name_of(page)}:{block.line}" for page, block in LEFT_OUT]
)
def test_a_block_that_cannot_run_here_is_python_and_says_why(page: Path, block: Block) -> None:
    ast.parse(block.code)
    assert len(block.why_not.split()) >= 3


def test_readme_and_start_have_blocks_that_run() -> None:
    assert {"README.md", "docs/index.md"} <= {name_of(page) for page in RUN}
