"""The list of runs: by place, slice, id or number, and its table with a sparkline of each loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.runs.tables.test_brief import events, recorded
from workbench.events import RunEnded, StepsDone, Validated, pack
from workbench.runs.folder.annotations import annotate
from workbench.runs.run import Run
from workbench.runs.tables.compare import compare
from workbench.runs.tables.render import sparkline
from workbench.runs.tables.run_list import RunList
from workbench.settings import Settings


def test_a_run_is_found_by_place_slice_id_or_number(tmp_path: Path) -> None:
    for number in (1, 2, 12):
        recorded(tmp_path, events(20, id=f"{number:04d}-fit"), f"{number:04d}-fit")
    recorded(tmp_path, events(20, id="0003-find_lr"), "0003-find_lr", kind="find_lr")
    runs = RunList.of(tmp_path)
    assert [run.id for run in runs] == ["0001-fit", "0002-fit", "0012-fit"]
    assert runs[-1] is runs["0012-fit"] is runs["12"] is runs[np.int64(2)]
    assert [run.id for run in runs[1:]] == ["0002-fit", "0012-fit"]
    assert isinstance(runs[1:], RunList)
    with pytest.raises(
        IndexError,
        match=r"runs\[12\]: the last of 3 is runs\[2\], or runs\[-1\]. The run of this number is runs\['12'\]",
    ):
        runs[12]
    with pytest.raises(KeyError, match="no fit '3': near it are 0001-fit, 0002-fit, 0012-fit"):
        runs["3"]
    with pytest.raises(KeyError, match="no fit 'last': there are none"):
        runs[:0]["last"]
    with pytest.raises(TypeError, match=r"runs\[1.5\]: give a place"):
        runs[1.5]  # type: ignore[call-overload]
    recorded(tmp_path, events(20, id="0012-other"), "0012-other")
    with pytest.raises(KeyError, match="12 is the number of several runs: 0012-fit, 0012-other"):
        RunList.of(tmp_path)["12"]


def test_it_prints_as_a_table(tmp_path: Path) -> None:
    annotate(recorded(tmp_path, events(1000)), name="<b>base</b>", tags=["sgd"], pinned=True)
    recorded(tmp_path, events(20)[:1], "0002-fit")
    runs = RunList.of(tmp_path)
    head, first, second = repr(runs).splitlines()
    assert head.split() == [
        "run",
        "status",
        "updates",
        "time",
        "loss",
        "last",
        "values",
        "name",
        "and",
        "tags",
    ]
    assert first.split()[:5] == ["0001-fit", "finished,", "average", "behind", "1000"]
    assert first.endswith("█▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁  val_loss 0.25  pinned  <b>base</b>  #sgd")
    assert second.split()[0] == "0002-fit"
    assert "&lt;b&gt;base&lt;/b&gt;" in runs._repr_html_()
    assert repr(runs[:0]) == "[]"
    assert "name and tags" not in repr(runs[1:])


def test_a_diverged_run_is_told_as_one(tmp_path: Path) -> None:
    for number, high in ((1, 1.0), (2, 1e9)):
        start, *_ = events(1)
        losses = np.geomspace(2.0, high, 60)
        steps = StepsDone(0, 1, 60, 0, 1.0, {"loss": pack(losses)})
        end = RunEnded("finished", 60, 1.0)
        recorded(tmp_path, [start, steps, end], f"{number:04d}-fit")
    runs = RunList.of(tmp_path)
    healthy, diverged = repr(runs).splitlines()[1:]
    assert "diverged" not in healthy
    assert "finished, diverged" in diverged
    assert str(runs[-1]).splitlines()[0].endswith("fit finished, diverged")
    comparison = compare(*runs)
    assert repr(comparison).splitlines()[1].split() == [
        "status", "finished", "finished,", "diverged"
    ]  # fmt: skip
    assert comparison.to_pandas()["trouble"].tolist() == ["", "diverged"]
    assert [run.id for run in runs.filter("trouble == diverged")] == ["0002-fit"]


def test_runs_are_grouped_by_a_column(tmp_path: Path) -> None:
    for number, lr in ((1, 0.1), (2, 0.1), (3, 0.01)):
        start, steps, *_ = events(40, lr=lr)
        checked = Validated(40, 0, {"val_loss": float(number)})
        end = RunEnded("finished", 40, 2.0, metrics={"val_loss": float(number)})
        recorded(tmp_path, [start, steps, checked, end], f"{number:04d}-fit")
    runs = RunList.of(tmp_path)
    annotate(tmp_path / "runs" / "0003-fit", tags=["a", "b"])
    groups = runs.groupby("lr")
    assert [(value, [run.id for run in inside]) for value, inside in groups] == [
        (0.01, ["0003-fit"]),
        (0.1, ["0001-fit", "0002-fit"]),
    ]
    head, low, high = repr(groups).splitlines()
    assert head.split() == ["lr", "runs", "loss", "val_loss", "time"]
    assert low.split()[:2] == ["0.01", "1"]
    assert "1.5 (1 – 2)" in high
    assert "1.5 (1 – 2)" in groups._repr_html_()
    frame = groups.to_pandas()
    assert frame["count"].tolist() == [1, 2]
    assert frame["val_loss"]["mean"].tolist() == [3.0, 1.5]
    assert [value for value, _ in runs.groupby("tags")] == ["a", "b", None]
    with pytest.raises(ValueError, match="by='lrr': 'lrr' is no column: near it are lr"):
        runs.groupby("lrr")
    with pytest.raises(TypeError, match="give the name of a column"):
        runs.groupby(["lr"])  # type: ignore[arg-type]
    assert repr(runs[:0].groupby("lr")) == "[]"


def test_the_settings_that_differ_are_in_the_table(tmp_path: Path) -> None:
    for number, lr in ((1, 0.1), (2, 0.01)):
        settings = Settings.make(lr=lr).model_dump()
        recorded(tmp_path, events(20, lr=lr), f"{number:04d}-fit", settings=settings)
    head, first, second = repr(RunList.of(tmp_path)).splitlines()
    assert head.split()[4:6] == ["lr", "loss"]
    assert (first.split()[-4], second.split()[-4]) == ("0.1", "0.01")
    assert "lr" not in repr(RunList.of(tmp_path)[:1]), "of one run nothing differs"


def test_a_long_record_is_read_at_a_few_places(tmp_path: Path) -> None:
    start, *_ = events(1)
    flushes = [StepsDone(at, 1, 10, 0, 0.1 * at, {"loss": pack(np.sin((at + np.arange(10)) * 1e-4)), "layer_norms": pack(np.ones((10, 20)))})
               for at in range(0, 31_400, 10)]  # fmt: skip
    path = recorded(tmp_path, [start, *flushes, RunEnded("finished", 31_400, 1.0)])
    assert (path / "metrics.jsonl").stat().st_size > 1 << 21
    assert "▁▃▄▅▆▇████▇▆▅▄▃▁" in repr(RunList.of(tmp_path))


def test_a_sparkline_has_a_bar_a_value() -> None:
    assert sparkline(np.array([0.0, 7.0, np.nan, 3.0, np.inf])) == "▁█ ▄ "
    assert sparkline(np.array([2.0, 2.0])) == "▁▁"
    assert sparkline(np.array([-1.7e308, 1.7e308])) == "▁█"
    assert sparkline(np.array([np.nan])) == ""


def test_it_names_the_place_of_a_run_in_its_study(tmp_path: Path) -> None:
    place = {"id": "0003-study", "trial": 7, "seed": 1, "rung": 2, "length": 1.0}
    recorded(tmp_path, events(20), study=place)
    recorded(tmp_path, events(20, id="0002-fit"), "0002-fit", study={**place, "trial": "all"})
    runs = RunList.of(tmp_path)
    head, first, second = repr(runs).splitlines()
    assert "study" in head.split()
    assert first.rstrip().endswith("0003-study trial 7, seed 1, whole fit")
    assert "0003-study" not in second
    assert "0003-study trial 7, seed 1, whole fit" in runs._repr_html_()
    assert "study" not in repr(runs[1:]).splitlines()[0].split()
    search = recorded(
        tmp_path, events(20), "0003-find_lr", kind="find_lr", study={**place, "trial": 0}
    )
    assert str(Run.open(search).study) == "0003-study search"
