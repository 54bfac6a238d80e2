"""The notebooks to begin with: each runs as it is."""

from __future__ import annotations

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
    assert {path.stem for path in Path(templates.__file__).parent.glob("*.ipynb")} == {*templates.NAMES}


@pytest.mark.parametrize("name", templates.NAMES)
def test_it_runs_as_it_is(name, tmp_path, monkeypatch):
    notebook = nbformat.from_dict(templates.notebook(name))
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    run = next((tmp_path / ".workbench" / "runs").glob("*-fit"))
    assert (run / "metrics.jsonl").read_text().count('"RunEnded"') == 1
    assert any("yours" in cell.source for cell in notebook.cells if cell.cell_type == "markdown")
