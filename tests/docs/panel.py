"""Makes the pictures of the panel in docs/ that no block of the gallery draws, from those that the browser tests have left.

`make pictures` runs these tests, and then this: `python -m tests.docs.panel`.
"""

from __future__ import annotations

import io

from PIL import Image

from tests.browser.lab import ARTEFACTS
from tests.docs.pages import DOCS

PICTURES = {
    "panel-dark": ("panel-dark", None), "panel-wide": ("plots-1600", None), "panel-diverged": ("trouble-diverged", 668),
    "lab-run": ("run-pane-beside", 740), "lab-panel": ("panel-beside", None),
}  # fmt: skip
"""By picture, that of a test, and how many pixels of its height are shown."""


def small(png: bytes, height: int | None = None) -> bytes:
    """A picture with a palette of 256 colours, and of its height so many pixels; None: all."""
    smaller = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        shown = picture.convert("RGB").crop(
            (0, 0, picture.width, min(height or picture.height, picture.height))
        )
    shown.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE).save(
        smaller, "png", optimize=True
    )
    return smaller.getvalue()


if __name__ == "__main__":
    for name, (artefact, height) in PICTURES.items():
        path = DOCS / f"{name}.png"
        path.write_bytes(small((ARTEFACTS / f"{artefact}.png").read_bytes(), height))
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
