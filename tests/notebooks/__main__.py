"""Executes the notebooks, and writes them and their thumbnails: `python -m tests.notebooks [NAME ...]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat

from tests.notebooks import NOTEBOOKS, THUMBNAILS, execute, thumbnail, tidy


def main(names: list[str]) -> None:
    """Execute these notebooks, or all, and write them."""
    for path in NOTEBOOKS:
        if names and path.stem not in names:
            continue
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, Path(folder))
        tidy(notebook)
        nbformat.write(notebook, path)
        (THUMBNAILS / f"{path.stem}.png").write_bytes(thumbnail(notebook, path.stem))
        print(f"{path.name}: {path.stat().st_size // 1000} kB")


main(sys.argv[1:])
