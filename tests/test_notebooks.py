"""The notebooks run to the end with no screen, and are committed without outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from nbclient import NotebookClient

from tests.combinations import every

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
pytestmark = pytest.mark.timeout(1800)
# Seconds for a kernel to start, for a cell, and for what it has printed to arrive: of the last, four are usual, and what comes
# later is left out.
STARTS, CELL, ARRIVES = 300, 900, 300


def executed(notebook: Any, folder: Path) -> None:
    client = NotebookClient(notebook, timeout=CELL, startup_timeout=STARTS, iopub_timeout=ARRIVES, kernel_name="python3",
                            resources={"metadata": {"path": folder}})  # fmt: skip
    client.execute()


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem != "quickstart"], ids=lambda path: path.stem)
def test_runs_and_leaves_pictures(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    executed(notebook, tmp_path)
    kinds = [set(output.get("data", ())) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in kind for kind in kinds)
    nbformat.validate(notebook)


def test_the_quickstart_leaves_a_script_and_pictures_under_papermill(tmp_path: Path) -> None:
    after = tmp_path / "quickstart.run.ipynb"
    papermill.execute_notebook(str(FOLDER / "quickstart.ipynb"), str(after), cwd=str(tmp_path), kernel_name="python3", progress_bar=False,
                               start_timeout=STARTS, iopub_timeout=ARRIVES)  # fmt: skip
    done = nbformat.read(after, as_version=4)
    kinds = [set(output.get("data", ())) for cell in done.cells for output in cell.get("outputs", ())]
    assert any("image/png" in kind for kind in kinds)
    stills = [o["data"]["text/html"] for c in done.cells for o in c.get("outputs", ()) if "wb-still" in o.get("data", {}).get("text/html", "")]
    assert stills
    assert all("data:image/png;base64," in still and "finished" in still for still in stills)
    text = (tmp_path / "train.py").read_text()
    assert "class DigitNet" in text
    assert "import workbench" not in text
    assert (tmp_path / "train.start.safetensors").exists()


SHORT = [
    "import torch, workbench as wb\nfrom workbench.ui.static_output import StaticOutput\n"
    "data = torch.randn(64, 3), torch.randn(64, 1)\n"
    "bench = wb.Workbench(torch.nn.Linear(3, 1), train=data, loss=torch.nn.functional.mse_loss)\nbench",
    "import time\npng = StaticOutput._png\nStaticOutput._png = lambda self, run: (time.sleep(2), png(self, run))[1]",
    "bench.fit(max_epochs=2).result();",
]
"""Its last cell is over as soon as the fit is."""


@pytest.mark.parametrize("last", every(2, ["bench.close()", ""]))
def test_a_slow_picture_is_there_after_the_last_cell(tmp_path: Path, last: str) -> None:
    cells = [*SHORT[:-1], SHORT[-1] + last]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    executed(notebook, tmp_path)
    html = "".join(output.get("data", {}).get("text/html", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "wb-still" in html
    assert "data:image/png;base64," in html


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
