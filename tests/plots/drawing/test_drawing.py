"""Both libraries draw every chart, the odd ones too; matplotlib from many threads and without pyplot."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.combinations import every
from workbench.events import Suggestion, Trial
from workbench.plots.chart import Axis, Chart
from workbench.plots.drawing import matplotlib as to_matplotlib
from workbench.plots.drawing import plotly as to_plotly
from workbench.plots.drawing.drawable import Drawable
from workbench.plots.palette import POINTS
from workbench.plots.searches.batch_size import batch_size
from workbench.plots.searches.lr_curve import lr_curve
from workbench.plots.training.loss import loss
from workbench.plots.training.run import Best, RunData
from workbench.plots.training.time_spent import time_spent

PNG = b"\x89PNG\r\n\x1a\n"


def a_run(rows: int = 300, layers: int = 4, name: str = "model.{}.weight") -> list[Chart]:
    rng = np.random.default_rng(0)
    step = np.arange(rows)
    norms = {f"grad_norm/{name.format(i)}": rng.lognormal(size=rows) for i in range(layers)}
    history = {
        "step": step,
        "loss": 2 + rng.normal(0, 0.1, rows),
        "grad_norm": rng.lognormal(size=rows),
        **norms,
    }
    validation = {"step": np.array([rows]), "val_loss": np.array([2.0])}
    changes = [(rows // 2, {"lr": 1e-4}), (rows // 2, {"gradient_clip_val": 2.0})]
    return RunData(history, validation, changes, 1.0).whole()


def several(rows: int = 300, *, turns: bool = True) -> RunData:
    """A run of two optimizers with averaged weights."""
    rng = np.random.default_rng(1)
    history = {
        "step": np.arange(rows),
        "lr": np.full(rows, 1e-3),
        "loss": np.ones(rows),
        "grad_norm": np.ones(rows),
    }
    for i in range(2):
        turn = np.where(np.arange(rows) % 2 == i, 1.0, np.nan) if turns else np.ones(rows)
        norm = turn * rng.lognormal(size=rows)
        history |= {f"loss.{i}": turn * (1 + i), f"lr.{i}": turn * 10.0 ** (-3 - i)}
        history |= {f"grad_norm.{i}": norm, f"grad_norm_clipped.{i}": np.fmin(norm, turn)}
    checks = {
        "step": np.array([0, rows]),
        "val_loss": np.ones(2),
        "val_loss_averaged": np.array([np.nan, 0.5]),
    }
    return RunData(history, checks, [(rows // 2, {"lr": 1e-2, "batch_size": 64})], 1.0)


def all_kinds(rows: int = 300, name: str = "acc") -> list[Chart]:
    """A value that was logged for updates, epochs and checks, raw and averaged; resumed twice, with a best checkpoint."""
    step = np.arange(rows)
    values = np.where(step % 3 == 0, np.linspace(0, 1, rows), np.nan)
    history = {"step": step, "loss": np.ones(rows), "lr": np.ones(rows), f"{name}_step": values}
    epochs = {
        "step": np.array([rows]),
        "epoch": np.array([0]),
        f"{name}_epoch": np.array([0.5]),
        name: np.array([0.5]),
    }
    checks = {
        "step": np.array([rows]),
        "epoch": np.array([0]),
        name: np.array([0.75]),
        f"{name}_averaged": np.array([0.8]),
    }
    changes = [
        (rows // 3, "resumed, monitor → $x_1$ <b>"),
        (rows // 2, "resumed"),
        (rows // 2, {"lr": 1e-2}),
    ]
    told = RunData(
        history,
        checks,
        changes,
        logged=epochs,
        by_model=[f"{name}_step"],
        best=Best(rows, f"{name}_averaged", 0.8),
    )
    return [*told.loss(), *told.lr(), *told.named(name)]


def a_curve() -> Chart:
    lrs = np.geomspace(1e-5, 10, 100)
    losses = 2 - 1 / (1 + lrs**-0.5) + lrs**2
    rules = [
        Suggestion("landmarks", 0.01, None, "<b>why</b> $x$"),
        Suggestion("valley", 0.02, 50, ""),
    ]
    return lr_curve(lrs, losses, losses, rules, 0.01, ["a note " * 40])


def a_search() -> list[Chart]:
    trials = [Trial(2**i, True, 1.0, 100.0 * i, 2**20 * i) for i in range(1, 6)]
    return batch_size([*trials, Trial(64, False, error="out of memory")], 16, 32)


NAN = np.full(5, np.nan)
CHARTS: dict[str, Callable[[], Chart | list[Chart]]] = {
    "run": a_run,
    "one update": lambda: a_run(1, 1),
    "long": lambda: a_run(20_000, 2),
    "many layers": lambda: a_run(20, 150, "encoder.layers.{}.attention.query.weight"),
    "names like mathematics": lambda: a_run(20, 3, "$\\frac{{{}}}$ <b> & _x^"),
    "no updates": lambda: a_run(0, 2),
    "nothing but nan": lambda: RunData(
        {"step": np.arange(5), "loss": NAN, "grad_norm": NAN, "grad_norm/a": NAN}, {}
    ).whole(),
    "several optimizers": lambda: several().whole(),
    "several at once": lambda: several(turns=False).whole(),
    "learning rates": lambda: several().lr(),
    "clipping": lambda: several().clipping(),
    "clipping, no updates": lambda: (
        RunData(several(0).history, {}, (), 1.0).loss() + several(0).lr()
    ),
    "clipping switched off": lambda: RunData(several().history, {}).clipping(),
    "what was logged": all_kinds,
    "what was logged once": lambda: all_kinds(1),
    "what was logged never": lambda: all_kinds(0),
    "what was logged under an odd name": lambda: all_kinds(30, "$\\frac{1}$ <b>/ " * 20),
    "curve": a_curve,
    "curve that broke at once": lambda: lr_curve(
        np.array([1e-5]), np.array([np.nan]), np.array([np.nan]), (), 1e-3
    ),
    "empty curve": lambda: lr_curve(np.empty(0), np.empty(0), np.empty(0)),
    "search": a_search,
    "search without success": lambda: batch_size([Trial(1, False, error="model does not fit")]),
    "empty search": lambda: batch_size([]),
    "infinite loss": lambda: loss(np.arange(4), np.array([1.0, np.inf, -np.inf, np.nan])),
}


@pytest.mark.parametrize("name", every(3, [*CHARTS]))
def test_matplotlib_draws_it(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fig = to_matplotlib.figure(CHARTS[name]())
        file = io.BytesIO()
        fig.savefig(file, format="png")
    assert file.getvalue().startswith(PNG)


@pytest.mark.parametrize("name", CHARTS)
def test_plotly_draws_it(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fig = to_plotly.figure(CHARTS[name]())
        assert fig.to_json()
    assert fig.to_dict()["layout"]["height"] > 200


def test_plotly_shows_what_the_chart_says() -> None:
    chart = a_curve()
    fig = to_plotly.figure(chart)
    names = [trace.name for trace in fig.data]
    assert names == ["each update", "smoothed", "valley 0.02", "recommended 0.01"]
    assert fig.layout.xaxis.type == "log"
    assert [s.name for s in fig.layout.shapes] == ["÷2 to ×2"]
    texts = " ".join(a.text for a in fig.layout.annotations)
    assert "Learning-rate finder" in texts
    assert "a note" in texts
    assert "&lt;b&gt;why" in fig.data[-1].hovertemplate
    fig = to_plotly.figure(a_run())
    assert [trace.type for trace in fig.data] == ["scatter"] * 3 + ["heatmap"] + ["scatter"] * 2
    assert len(fig.layout.shapes) == 2  # two changes at one update, in the loss and in the norm
    assert (
        max(len(t.x) for t in to_plotly.figure(a_run(20_000, 2)).data if t.type == "scatter")
        <= POINTS
    )


def test_matplotlib_labels_its_axes() -> None:
    fig = to_matplotlib.figure(a_search())
    speed, memory = fig.axes
    assert speed.get_ylabel() == "speed (samples/s)"
    assert memory.get_ylabel() == "peak above idle (MB)"
    assert memory.get_xlabel() == "batch size (samples)"


def test_a_mark_of_a_bar_is_a_word_above_it() -> None:
    chart = time_spent({"forward": 3.0, "backward": 1.0})
    axes = to_matplotlib.figure(chart).axes[0]
    assert {"75%", "25%"} <= {text.get_text() for text in axes.texts}
    assert axes.get_legend() is None
    words = to_plotly.figure(chart).layout.annotations
    assert {"75%", "25%"} <= {word.text for word in words}


def test_long_names_of_an_axis_have_several_lines() -> None:
    names = tuple(f"adamw, lr=0.01, weight_decay=0.3, warmup=0.0{place}" for place in range(5))
    chart = Chart("Recipes", Axis("recipe", ticks=names), Axis("loss"))
    labels = to_matplotlib.figure(chart).axes[0].get_xticklabels()
    assert [label.get_text().replace("\n", " ") for label in labels] == list(names)
    assert max(len(line) for label in labels for line in label.get_text().splitlines()) < 25


def test_a_figure_shows_itself_in_jupyter() -> None:
    """In a fresh process: nothing else may have taught IPython about figures."""
    code = """
import sys, numpy as np
from IPython.core.formatters import DisplayFormatter
from workbench.plots.training.loss import loss
from workbench.plots.drawing.matplotlib import figure
data, about = DisplayFormatter().format(figure(loss(np.arange(9), np.ones(9))))
assert data["image/png"][:4] == b"\\x89PNG", data
assert about["image/png"]["width"] == 900, about
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-W", "error:::workbench", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_it_may_be_drawn_into_axes_of_one_s_own() -> None:
    from matplotlib.figure import Figure

    for chart in (a_curve(), *a_run(), *a_search()):
        fig = Figure()
        ax = fig.subplots()
        assert to_matplotlib.draw(chart, ax) is ax
        fig.savefig(io.BytesIO(), format="png")


def _pixels(make: Callable[[], Chart | list[Chart]]) -> bytes:
    file = io.BytesIO()
    to_matplotlib.figure(make()).savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def test_threads_draw_at_once_and_alike() -> None:
    import matplotlib

    kinds: list[Any] = [a_curve, a_search]
    before = dict(matplotlib.rcParams)
    alone = [_pixels(kind) for kind in kinds]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(_pixels, kinds * 2))
    assert together == alone * 2
    assert dict(matplotlib.rcParams) == before


def test_a_picture_is_saved(tmp_path: Path) -> None:
    to_matplotlib.figure(a_run()).savefig(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)


def test_both_are_saved_in_one_call_without_a_browser(tmp_path: Path) -> None:
    chart = a_curve()
    for name, beginning in ("a.png", PNG), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF"):
        for figure in to_matplotlib.figure(chart), to_plotly.figure(chart):
            (tmp_path / name).unlink(missing_ok=True)
            assert figure.save(tmp_path / name) == tmp_path / name
            assert (tmp_path / name).read_bytes().startswith(beginning)
    page = to_plotly.figure(chart).save(tmp_path / "a.html").read_text()
    assert "Plotly.newPlot" in page
    assert "kaleido" not in sys.modules
    with pytest.raises(ValueError, match="a copy of a figure can only be saved as"):
        type(to_plotly.figure(chart))(to_plotly.figure(chart)).save("b.png")


class Result(Drawable):
    def _charts(self) -> list[Chart]:
        return a_run()

    def __repr__(self) -> str:
        return "Result: <best> 3"


def test_a_result_shows_its_picture_and_its_words() -> None:
    page = Result()._repr_html_()
    encoded = page.partition("base64,")[2].partition("'")[0]
    assert base64.b64decode(encoded).startswith(PNG)
    assert "Result: &lt;best&gt; 3" in page
