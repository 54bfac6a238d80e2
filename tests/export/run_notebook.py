"""Runs the cells of a notebook in IPython, exports its last fit, and writes down what that did: `run_notebook.py CELLS.json`."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch
from IPython.core.interactiveshell import InteractiveShell

import workbench as wb

FAILS = "# raises\n"
"""What a cell begins with that may end in an error, as cells do while somebody works."""


def main(cells: list[str]) -> None:
    torch.set_num_threads(1)
    sys.path.insert(0, "")  # as a kernel does: modules lie beside the notebook
    shell = InteractiveShell.instance()
    shell.run_line_magic("colors", "NoColor")
    for cell in cells:
        ran = shell.run_cell(cell, store_history=True)
        if not cell.startswith(FAILS):
            ran.raise_error()
    bench = shell.user_ns["bench"]
    run = shell.user_ns.get("run") or bench.fit().result()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            bench.export("out/train.py", checks=True, log_file=True)
        except wb.ExportError:  # a headless script has neither
            bench.export("out/train.py")
    notes = [str(warning.message) for warning in caught]
    torch.save(
        {
            "loss": torch.from_numpy(run.history["loss"].copy()),
            "weights": bench.model.state_dict(),
            "notes": notes,
        },
        "run.pt",
    )
    bench.close()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
