"""In the kernel: what other displays cost a training loop, each against the same loop without it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.benchmarks.panels.inside import Timed, against, timed
from tests.benchmarks.step_overhead import cnn, data

results: dict[str, dict[str, Any]] = {}
Show = Callable[[int, float], None]


def loop(steps: int, show: Show | None, numbers: Any = None) -> None:
    """A plain loop that tells `show` of each update."""
    model = cnn()
    loader = DataLoader(
        TensorDataset(*data()), 64, shuffle=True, generator=torch.Generator().manual_seed(0)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = _again(loader)
    for step in range(steps) if numbers is None else numbers:
        x, y = next(batches)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if show is not None:
            show(step, loss.item())


def plotly(traces: int, rounds: int, steps: int) -> None:
    """Lines of 2000 points, replaced ten times a second."""
    import numpy as np
    import plotly.graph_objects as go
    from IPython.display import display

    lines = np.random.default_rng(0).normal(size=(traces, 2000)).cumsum(axis=1)
    figure = go.FigureWidget([go.Scatter(y=line) for line in lines])
    display(figure)
    drawn = [0.0]

    def show(step: int, loss: float) -> None:
        lines[:, step % 2000] = loss
        if time.monotonic() >= drawn[0] + 0.1:
            drawn[0] = time.monotonic()
            with figure.batch_update():
                for trace, line in zip(figure.data, lines, strict=True):
                    trace.y = line.copy()

    _compare(
        f"plotly FigureWidget, {traces} x 2000 at 10 Hz", lambda: loop(steps, show), steps, rounds
    )


def fastprogress(rounds: int, steps: int) -> None:
    """The bars as fastai's ProgressCallback moves them: the loss behind the bar at every update."""
    try:
        from fastprogress.fastprogress import master_bar, progress_bar
    except ImportError as error:
        results["fastai's bars (fastprogress)"] = {"missing": f"left out: {error}"}
        return

    def shown() -> None:
        over = master_bar(range(1))
        bar = progress_bar(range(steps), parent=over)
        for _ in over:
            loop(steps, lambda step, loss: setattr(bar, "comment", f"{loss:.4f}"), bar)

    _compare("fastai's bars (fastprogress)", shown, steps, rounds)


def lightning(rounds: int, steps: int) -> None:
    """The Trainer with its progress bar against the Trainer without."""
    import logging

    import lightning as pl

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = cnn()

        def training_step(self, batch: Any, index: int) -> Any:
            loss = F.cross_entropy(self.model(batch[0]), batch[1])
            self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    loader = DataLoader(TensorDataset(*data()), 64, shuffle=True)

    def fit(bar: bool) -> None:
        pl.Trainer(
            max_steps=steps, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=bar, enable_model_summary=False,
        ).fit(Module(), loader)  # fmt: skip

    _compare("Lightning's progress bar", lambda: fit(True), steps, rounds, lambda: fit(False))


def _compare(
    name: str,
    shown: Callable[[], None],
    steps: int,
    rounds: int,
    plain: Callable[[], None] | None = None,
) -> None:
    def without() -> None:
        if plain is None:
            loop(steps, lambda step, loss: None)
        else:
            plain()

    def one(work: Callable[[], None]) -> Timed:
        return timed(work, steps)

    results[name] = against(lambda: one(shown), lambda: one(without), rounds)


def _again(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader
