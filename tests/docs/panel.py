"""Makes the pictures of the panel in docs/ from those that the browser tests have left: `python -m tests.docs.panel`.

The tests before: `python -m pytest tests/browser/panel/test_quickstart.py tests/browser/panel/test_plots.py tests/browser/panel/test_trouble.py
tests/browser/test_lab_extension.py tests/browser/runs/test_run_pane.py`.
"""

from __future__ import annotations

from PIL import Image

from tests.browser.lab import ARTEFACTS
from tests.docs.pages import DOCS

PICTURES = {
    "panel": ("panel", None), "panel-dark": ("panel-dark", None), "panel-wide": ("plots-1600", None), "panel-diverged": ("trouble-diverged", 1092),
    "lab-run": ("run-pane-beside", None), "lab-panel": ("panel-beside", None),
}  # fmt: skip
"""By picture, that of a test, and how many pixels of its height are shown."""

if __name__ == "__main__":
    for name, (artefact, height) in PICTURES.items():
        with Image.open(ARTEFACTS / f"{artefact}.png") as picture:
            shown = picture.convert("RGB").crop(
                (0, 0, picture.width, min(height or picture.height, picture.height))
            )
        path = DOCS / f"{name}.png"
        shown.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE).save(
            path, optimize=True
        )
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
