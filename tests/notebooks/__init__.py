"""Executes the notebooks, and makes outputs of them that read well without a kernel."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"
# Seconds for a kernel to start, for a cell, and for what it has printed to arrive: of the last, four are usual, and what comes
# later is left out.
STARTS, CELL, ARRIVES = 300, 900, 300
COLOURS, WIDTH = 64, 900
"""Of a committed picture, at the most: it reads well on a page, at a tenth of the size."""
THUMBNAILS = FOLDER.parent / "docs" / "thumbnails"
THUMBNAIL = 400
"""Pixels of the width of the picture that stands for a notebook on the page of notebooks."""
PICTURES = {"1_quickstart": -1, "6_study": -1, "gan": -1}
"""Which of a notebook's pictures that is; the first, where it is not said."""


def execute(notebook: Any, folder: Path) -> None:
    """Run all cells in a kernel of their own, which works in `folder`."""
    client = NotebookClient(notebook, timeout=CELL, startup_timeout=STARTS, iopub_timeout=ARRIVES, kernel_name="python3",
                            resources={"metadata": {"path": folder}})  # fmt: skip
    client.execute()


def tidy(notebook: Any) -> None:
    """Leave out what a page without a kernel cannot show (progress bars, widgets) and what differs each time."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
    }
    number = 0
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        number += 1
        cell.execution_count = number
        cell.outputs = _joined(output for output in cell.outputs if _stays(output))
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            if "data" in output and "image/png" in output.data:
                output.metadata = {}
                output.data = {
                    "image/png": _small(output.data["image/png"]),
                    "text/plain": output.data.get("text/plain", ""),
                }


def _stays(output: Any) -> bool:
    return output.get("name") != "stderr" and WIDGET not in output.get("data", ())


def _joined(outputs: Iterable[Any]) -> list[Any]:
    """The outputs, with what was printed in a row in one piece: how many pieces came is chance."""
    found: list[Any] = []
    for output in outputs:
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    for output in found:
        if output.output_type == "stream":  # what a bar drew over and over is of its moment
            output.text = re.sub(r"\r[^\r\n]*\n?", "", output.text)
    return [output for output in found if output.get("text") != ""]


def _small(png: str) -> str:
    """The same picture, of so many pixels as a page shows, with few colours."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    picture.thumbnail((WIDTH, picture.height), Image.Resampling.LANCZOS)
    picture = picture.quantize(COLOURS)
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def thumbnail(notebook: Any, name: str) -> bytes:
    """The upper part of one of a notebook's pictures, made small."""
    pictures = [
        output.data["image/png"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", ())
    ]
    png = base64.b64decode(pictures[PICTURES.get(name, 0)])
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, picture.width // 2)))
    picture.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.quantize(COLOURS).save(file, "PNG", optimize=True)
    return file.getvalue()


def shape(notebook: Any) -> list[list[str]]:
    """What the outputs of each code cell are, without what may differ from one machine to the next: numbers, pictures, widths."""
    return [[*_shapes(cell.outputs)] for cell in notebook.cells if cell.cell_type == "code"]


def _shapes(outputs: list[Any]) -> Iterator[str]:
    for output in outputs:
        if output.output_type == "stream":
            yield f"printed: {_words(output.text)}"
        elif output.output_type == "error":
            yield f"error: {output.ename}"
        elif "image/png" in output.data:
            yield "picture"
        else:  # of a result its first line: what follows depends on what was measured
            first = output.data.get("text/plain", "").partition("\n")[0].partition(" · ")[0]
            yield f"{' '.join(sorted(output.data))}: {_words(first)}"


def _words(text: str) -> str:
    # How far a script is run to verify it depends on how fast the machine is.
    text = re.sub(r"verified: \d+ updates?( and a validation)? repeats? the run", "verified", text)
    return " ".join(re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", text).split())
