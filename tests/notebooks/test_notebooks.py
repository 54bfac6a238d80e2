"""The notebooks run to the end with no screen, and are committed with the outputs that they have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest

from tests.combinations import every
from tests.notebooks import ARRIVES, FOLDER, NOTEBOOKS, STARTS, WIDGET, execute, shape, tidy
from tests.short_trials import SHORT_TRIALS

pytestmark = pytest.mark.timeout(1800)
PLACE = re.compile(
    r"(?<![\w.:/\\-])/(?:root|work|home|Users|tmp|var|usr)/\w+|0x[0-9a-f]{6,}|https?://\d"
)
LARGEST = 300_000
"""Bytes of a committed notebook at most: a page shows it at once."""


def same_as_committed(notebook: Any, path: Path) -> None:
    """What came out now is what is committed, but for numbers and pictures: `python -m tests.notebooks` writes them anew."""
    tidy(notebook)
    nbformat.validate(notebook)
    assert shape(notebook) == shape(nbformat.read(path, as_version=4))


OFTEN = ("7_resume_after_a_kill",)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if path.stem in OFTEN else pytest.mark.slow)
        for path in NOTEBOOKS
        if path.stem != "1_quickstart"
    ],
    ids=lambda path: path.stem,
)
@pytest.mark.usefixtures("forked_kernels")
def test_runs_with_the_outputs_that_are_committed(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    execute(notebook, tmp_path)
    same_as_committed(notebook, path)


@pytest.mark.usefixtures("forked_kernels")
def test_the_quickstart_leaves_a_script_and_pictures_under_papermill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "trials.py").write_text(SHORT_TRIALS)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    after = tmp_path / "quickstart.run.ipynb"
    papermill.execute_notebook(str(FOLDER / "1_quickstart.ipynb"), str(after), cwd=str(tmp_path), kernel_name="python3", progress_bar=False,
                               start_timeout=STARTS, iopub_timeout=ARRIVES)  # fmt: skip
    done = nbformat.read(after, as_version=4)
    kinds = [
        set(output.get("data", ())) for cell in done.cells for output in cell.get("outputs", ())
    ]
    assert any("image/png" in kind for kind in kinds)
    panel = next(
        c.outputs
        for c in done.cells
        if any(WIDGET in o.get("data", ()) for o in c.get("outputs", ()))
    )
    stay = [o["data"] for o in panel if o.output_type == "display_data" and WIDGET not in o["data"]]
    assert ["text/html" in data and data["text/html"].count("finished") == 3 for data in stay] == [
        True,
        False,
    ]
    assert ["image/png" in data for data in stay] == [False, True]
    same_as_committed(done, FOLDER / "1_quickstart.ipynb")
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
@pytest.mark.usefixtures("forked_kernels")
def test_a_slow_picture_is_there_after_the_last_cell(tmp_path: Path, last: str) -> None:
    cells = [*SHORT[:-1], SHORT[-1] + last]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    execute(notebook, tmp_path)
    stay = [output.data for output in notebook.cells[0].outputs if "data" in output]
    assert any("wb-still" in data.get("text/html", "") for data in stay)
    assert any("image/png" in data for data in stay)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_reads_well_on_a_page(path: Path) -> None:
    """Prose and results, of a size that a page shows, with nothing that is true on one machine alone."""
    text = path.read_text(encoding="utf-8")
    assert len(text) < LARGEST
    notebook = nbformat.read(path, as_version=4)
    assert notebook.cells[0].source.startswith("# ")
    assert sum(cell.cell_type == "markdown" for cell in notebook.cells) >= 4
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert outputs
    assert not any(
        output.output_type == "error"
        or output.get("name") == "stderr"
        or WIDGET in output.get("data", ())
        for output in outputs
    )
    for output in outputs:
        told = "".join(
            [
                output.get("text", ""),
                *(
                    data
                    for kind, data in output.get("data", {}).items()
                    if kind.startswith("text/")
                ),
            ]
        )
        assert not PLACE.search(told), told
