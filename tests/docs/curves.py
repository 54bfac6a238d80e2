"""Draws the four learning-rate curves of docs/howto/learning-rate.md: `python -m tests.docs.curves`."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import workbench as wb
from tests.docs.pages import DOCS
from workbench.plots.drawing.matplotlib import draw, small_png
from workbench.plots.searches.lr_curve import lr_curve

FOLDER = DOCS / "howto"
CURVES = {
    "good": ({}, {}),
    "flat": ({}, {"min_lr": 1e-7, "max_lr": 1e-5}),
    "noisy": ({"batch_size": 2}, {}),
    "diverging": ({}, {"min_lr": 0.3}),
}
"""By picture, the arguments of the bench and those of the search."""


def curve(bench: dict[str, object], search: dict[str, float]) -> wb.LRCurve:
    """The curve of a small classifier of handwritten digits, almost as in notebooks/2_learning_rate_curve.ipynb."""
    pictures, labels = load_digits(return_X_y=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    train = torch.tensor(pictures, dtype=torch.float32) / 16, torch.tensor(labels)
    with (
        tempfile.TemporaryDirectory() as root,
        wb.Workbench(model, train=train, loss=F.cross_entropy, root=root, **bench) as made,
    ):
        return made.find_lr(**search).result()


def picture(found: wb.LRCurve, title: str) -> bytes:
    """A small PNG of the curve with its suggestion, without the other rules and the notes."""
    chart = lr_curve(found.lrs, found.losses, found.smoothed, suggestion=found.suggestion)
    figure = Figure(figsize=(5.6, 2.8), layout="constrained", facecolor="white")
    draw(replace(chart, title=title), figure.subplots())
    return small_png(figure)


if __name__ == "__main__":
    for name, (bench, search) in CURVES.items():
        path = FOLDER / f"curve-{name}.png"
        found = curve(bench, search)
        without = "" if found.suggestion is not None else ": no recommendation"
        path.write_bytes(picture(found, f"{name.capitalize()}{without}"))
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
