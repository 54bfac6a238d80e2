"""Writes the page of exported scripts: `python -m tests.docs.script`. A test compares the page with what this module makes.

The first program of the page is followed by its script, each later one by the loop of its script.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests import warm
from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "howto" / "script.md"
_RUN = "import os, runpy, sys, torch\ntorch.set_num_threads(1)\nfor folder in sys.argv[1:]:\n    os.chdir(folder)\n    runpy.run_path(os.path.abspath('notebook.py'), run_name='__main__')\n"


def page() -> str:
    """The page as it is, with what its programs export now."""
    found = [block.code for block in blocks(PAGE)]
    programs, old = found[::2], found[1::2]
    with tempfile.TemporaryDirectory() as there:
        folders = [Path(there, str(number)) for number in range(len(programs))]
        for folder, program in zip(folders, programs, strict=True):
            folder.mkdir()
            (folder / "notebook.py").write_text(program, encoding="utf-8")
        done = warm.python().run("-c", _RUN, *map(str, folders))
        if done.returncode:
            raise RuntimeError(done.stderr)
        whole, *others = [(folder / "train.py").read_text(encoding="utf-8") for folder in folders]
    text = PAGE.read_text(encoding="utf-8")
    for before, now in zip(old, [whole, *map(_loop, others)], strict=True):
        text = text.replace(f"```python\n{before}```", f"```python\n{now}```")
    return text


def _loop(script: str) -> str:
    """The loop over the epochs, as it stands in the script."""
    loop = re.search(
        r"^    for epoch in .*?(?=^    accelerator\.save)", script, re.DOTALL | re.MULTILINE
    )
    assert loop is not None, script
    return re.sub(r"^    ", "", loop[0], flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
