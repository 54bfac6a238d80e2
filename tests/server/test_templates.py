"""The notebooks to begin with: each runs as it is."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from workbench.server import templates


async def test_the_launcher_gets_titles_and_notebooks(api):
    shown = await api.get("api/templates")
    assert [one["name"] for one in shown] == list(templates.NAMES)
    for one in shown:
        assert set(one) == {"name", "title", "description"}
        notebook = await api.get(f"api/templates/{one['name']}")
        assert "kernelspec" not in notebook["metadata"]
        nbformat.validate(nbformat.from_dict(notebook))


def test_each_is_in_the_list():
    assert {path.stem for path in Path(templates.__file__).parent.glob("*.ipynb")} == {
        *templates.NAMES
    }


@pytest.mark.usefixtures("forked_kernels")
@pytest.mark.parametrize("name", templates.NAMES)
def test_it_runs_as_it_is(name, tmp_path, monkeypatch):
    notebook = nbformat.from_dict(templates.notebook(name))
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(
        notebook,
        timeout=280,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    run = next((tmp_path / ".workbench" / "runs").glob("*-fit"))
    assert (run / "metrics.jsonl").read_text().count('"RunEnded"') == 1
    assert any("yours" in cell.source for cell in notebook.cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("name", templates.NAMES)
def test_lines_to_paste_use_what_is_imported(name):
    """A block of a text cell has only names that it, or the cells of code before it, define."""
    known = set(dir(builtins))
    for cell in nbformat.from_dict(templates.notebook(name)).cells:
        blocks = (
            [cell.source]
            if cell.cell_type == "code"
            else re.findall(r"```python\n(.*?)```", cell.source, re.DOTALL)
        )
        for block in blocks:
            nodes = list(ast.walk(ast.parse(block)))
            made = {
                alias.asname or alias.name.partition(".")[0]
                for node in nodes
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            made |= {
                node.id
                for node in nodes
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
            }
            made |= {
                node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)
            } | {node.arg for node in nodes if isinstance(node, ast.arg)}
            assert {node.id for node in nodes if isinstance(node, ast.Name)} <= known | made, block
            known |= made
