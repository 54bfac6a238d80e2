"""Writes the page with one exported script in full: `python -m tests.docs.script`. A test compares the page with what this module makes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import DOCS, ROOT, blocks

PAGE = DOCS / "howto" / "script.md"


def page() -> str:
    """The page as it is, with the script that its program exports now."""
    program, old = (block.code for block in blocks(PAGE))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "notebook.py").write_text(program, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "notebook.py"], cwd=folder, capture_output=True, text=True, timeout=300,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr)
        new = (Path(folder) / "train.py").read_text(encoding="utf-8")
    return PAGE.read_text(encoding="utf-8").replace(old, new)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
