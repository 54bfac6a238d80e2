"""`Run`: the same whether heard or read back; its tables and words."""

from __future__ import annotations

import csv
import io
import math
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.events import (
    ENDED_EARLY,
    Changed,
    CurveEnded,
    CurvePoint,
    Event,
    Logged,
    Message,
    Resumed,
    RunEnded,
    RunStarted,
    Saved,
    SearchEnded,
    StatusChanged,
    StepsDone,
    Suggestion,
    Trial,
    Validated,
    pack,
)
from workbench.runs.run import Run
from workbench.runs.store import RunFolder
from workbench.settings import Settings
from workbench.units import duration

SETTINGS = Settings.make(lr=0.1, gradient_clip_val=1.0).model_dump()


def a_fit(id: str = "a", *, ended: bool = True) -> list[Event]:
    events: list[Event] = [
        RunStarted(id, "fit", SETTINGS, "cpu", ("conv", "head"), 6, 2),
        StatusChanged("running"),
    ]
    for epoch in range(2):
        t = np.arange(3) + 3 * epoch
        columns = {
            "loss": pack(1 / (t + 1)),
            "lr": pack(np.full(3, 0.1)),
            "grad_norm": pack(t + 0.5),
            "grad_norm_clipped": pack(np.minimum(t + 0.5, 1)),
            "layer_norms": pack(np.stack([t, t], 1)),
        }
        events.append(StepsDone(3 * epoch, 1, 3, epoch, 1.0 + epoch, columns))
        events.append(
            Validated(3 * epoch + 3, epoch, {"val_loss": math.nan if epoch == 0 else 0.25})
        )
    events += [Changed(4, {"lr": 0.01}), Message("done")]
    if ended:
        events.append(RunEnded("finished", 6, 2.5, None, {"val_accuracy": 0.75}))
    return events


def recorded(root: Path, events: list[Event]) -> Path:
    with RunFolder.create(root, "a", {"kind": "fit"}) as folder:
        for event in events:
            folder.append(event)
    return folder.path


@pytest.mark.parametrize("ended", [True, False])
def test_heard_and_read_back_are_equal(tmp_path: Path, ended: bool) -> None:
    heard = Run.from_events(iter(a_fit(ended=ended)))
    read = Run.open(recorded(tmp_path, a_fit(ended=ended)))
    assert heard == read
    assert hash(heard) == hash(read)
    assert repr(heard) == repr(read)
    assert heard._repr_html_() == read._repr_html_()
    assert heard.metrics == read.metrics
    for name in heard.history:
        np.testing.assert_array_equal(heard.history[name], read.history[name])
    for name in heard.validation:
        np.testing.assert_array_equal(heard.validation[name], read.validation[name])
    assert heard != Run.from_events(a_fit(ended=not ended))
    assert pickle.loads(pickle.dumps(read)) == read
    assert read == Run.from_events(a_fit(ended=ended), read.folder)


def test_what_a_run_knows() -> None:
    run = Run.from_events(a_fit())
    assert (run.id, run.kind, run.status, run.step, run.seconds, run.error) == (
        "a",
        "fit",
        "finished",
        6,
        2.5,
        None,
    )
    assert run.settings == Settings.make(lr=0.1, gradient_clip_val=1.0)
    assert run.metrics == {"loss": pytest.approx(1 / 6), "val_loss": 0.25, "val_accuracy": 0.75}
    assert run.changes == (Changed(4, {"lr": 0.01}),)
    assert run.epochs == 2
    for word in (
        "a",
        "finished",
        "6 updates",
        "2 epochs",
        "loss 0.1667",
        "val_loss 0.25",
        "2.5 s",
        "lr 0.1",
        "batch_size 32",
    ):
        assert word in repr(run)
    unfinished = Run.from_events(a_fit(ended=False))
    assert (unfinished.status, unfinished.step, unfinished.seconds) == ("running", 6, 2.0)


def test_a_run_cannot_be_changed() -> None:
    run = Run.from_events(a_fit())
    with pytest.raises(AttributeError):
        run.status = "failed"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        run.history["loss"][0] = 7
    run.history.clear()
    run.metrics.clear()
    assert len(run.history["loss"]) == 6
    assert run.metrics


def test_why_a_run_ended_early_is_in_its_text() -> None:
    ended = [
        *a_fit(ended=False),
        Message(f"{ENDED_EARLY}: val_loss did not improve on 0.25 in 3 validations.", "info", 6),
    ]
    run = Run.from_events(ended)
    assert run.ended_early == "val_loss did not improve on 0.25 in 3 validations"
    assert (
        "6 updates · ended early: val_loss did not improve on 0.25 in 3 validations · 2 epochs"
        in repr(run)
    )
    assert "did not improve on 0.25" in run._repr_html_()
    assert Run.from_events([*ended, Resumed(6, "a", "00000006")]).ended_early == "", (
        "the run goes on after it"
    )


def test_printed_it_is_a_small_table() -> None:
    lines = str(
        Run.from_events(
            [RunStarted("0001-fit", "fit", {"lr": 0.1}, "cpu"), RunEnded("stopped", 3, 2.0)]
        )
    ).split("\n")
    assert lines[0].split() == ["Run", "0001-fit", "fit", "stopped"]
    assert {tuple(line.split(maxsplit=1)) for line in lines[1:]} == {
        ("updates", "3"),
        ("time", "2 s"),
        ("lr", "0.1"),
    }


def test_html_is_escaped() -> None:
    run = Run.from_events(
        [RunStarted("<b>", "fit", {}, "cpu"), RunEnded("failed", 0, 0.0, "Trace\nError: <script>")]
    )
    assert "<script>" not in run._repr_html_()
    assert "&lt;script&gt;" in run._repr_html_()
    assert "Error: <script>" in repr(run)


def test_a_folder_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        Run.open(tmp_path)


def test_settings_of_a_newer_version_do_not_hinder() -> None:
    run = Run.from_events([RunStarted("a", "fit", {"lr": 0.5, "warp": 9}, "cpu")])
    assert run.settings.lr == 0.5
    assert "warp" not in repr(run)


@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@sum", "\ta", "\ra"])
def test_a_name_in_csv_is_no_formula(name: str) -> None:
    run = Run.from_events(
        [
            RunStarted("a", "fit", {}, "cpu"),
            StepsDone(0, 1, 1, 0, 1.0, {"loss": pack([-1.5]), name: pack([-2.0])}),
        ]
    )
    text = io.StringIO()
    run.to_csv(text)
    names, values = csv.reader(io.StringIO(text.getvalue()))
    assert names[-1] == (f"'{name}" if name != "\ra" else r"\ra")
    assert [float(value) for value in values if value][2:] == [-1.5, -2.0]  # numbers stay numbers


def test_csv_has_updates_and_checks_side_by_side(tmp_path: Path) -> None:
    run = Run.from_events(a_fit())
    run.to_csv(tmp_path / "run.csv")
    text = io.StringIO()
    run.to_csv(text)
    assert (tmp_path / "run.csv").read_text() == text.getvalue()
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert [int(r["step"]) for r in rows] == [0, 1, 2, 3, 4, 5]
    assert [int(r["epoch"]) for r in rows] == [0, 0, 0, 1, 1, 1]
    got = np.array([r["loss"] for r in rows], np.float32)
    np.testing.assert_array_equal(got, run.history["loss"])  # every digit that matters
    assert [r["val_loss"] for r in rows] == ["", "", "", "", "", "0.25"]
    assert rows[1]["grad_norm/conv"] == "1.0"


def test_the_same_table_as_a_data_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    run = Run.from_events(a_fit())
    run.to_csv(tmp_path / "run.csv")
    pandas.testing.assert_frame_equal(
        run.to_pandas(), pandas.read_csv(tmp_path / "run.csv"), check_dtype=False
    )
    frame = Run.from_events(of_two()).to_pandas()
    assert frame.groupby("epoch")["val_loss"].last().to_dict() == {0: 1.0, 1: 0.9}, (
        "each epoch has its own validation"
    )
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_pandas\(\) needs pandas.*pip install pandas"):
        run.to_pandas()


def test_a_validation_whose_update_was_not_recorded_has_a_row_of_its_own() -> None:
    thinned: list[Event] = [
        StepsDone(0, 2, 2, 0, 1.0, {"loss": pack([1, 2]), "lr": pack([1, 1])}),
        Validated(4, 0, {"val_loss": 0.5}),
    ]
    text = io.StringIO()
    Run.from_events([Validated(0, 0, {"val_loss": 2.0}), *thinned]).to_csv(text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert {r["step"]: r["val_loss"] for r in rows} == {"-1": "2.0", "0": "", "2": "", "3": "0.5"}


def test_csv_of_nothing_is_a_header() -> None:
    text = io.StringIO()
    Run.from_events([]).to_csv(text)
    assert text.getvalue() == "step,epoch,loss,lr\n"


def test_charts_of_each_kind() -> None:
    assert [c.title for c in Run.from_events(a_fit()).charts()] == [
        "Loss",
        "Gradient norm by layer",
        "Total gradient norm",
    ]
    points: list[Event] = [CurvePoint(i, 10.0 ** (i - 5), 2.0, 2.0) for i in range(6)]
    curve = [*points, CurveEnded("end", (Suggestion("valley", 1e-3, 2, "steep"),), 1e-3)]
    assert [c.title for c in Run.from_events(curve).charts()] == ["Learning-rate finder"]
    search: list[Event] = [
        Trial(2, True, 1.0, 5.0, 100),
        Trial(4, False, error="no"),
        SearchEnded(2, 2, "done"),
    ]
    assert [c.title for c in Run.from_events(search).charts()] == ["Speed", "Memory"]


def of_two(*, clip: float | None = 1.0, **settings: Any) -> list[Event]:
    """Two optimizers that take turns; some updates are left out; averaged weights from the second check on."""
    nan = math.nan
    made = Settings.make(gradient_clip_val=clip, **settings).model_dump()
    together = {"loss": pack([1, 2, 3, 4]), "lr": pack([0.1] * 4), "skipped": pack([0, 1, nan, 0])}
    norms = {"grad_norm": pack([2, 2, 0.5, 2]), "grad_norm_clipped": pack([1, 2, 0.5, 1])}
    each = {
        "loss.0": pack([1, nan, 3, nan]), "loss.1": pack([nan, 2, nan, 4]),
        "lr.0": pack([0.1] * 4), "lr.1": pack([0.2] * 4),
        "grad_norm.0": pack([2, nan, 0.5, nan]), "grad_norm.1": pack([nan, 2, nan, 2]),
        "grad_norm_clipped.0": pack([1, nan, 0.5, nan]), "grad_norm_clipped.1": pack([nan, 2, nan, 1]),
    }  # fmt: skip
    return [
        RunStarted("a", "fit", made, "cpu", (), 8, 2),
        StepsDone(0, 1, 4, 0, 1.0, together | norms | each),
        Validated(4, 0, {"val_loss": 1.0}),
        StepsDone(4, 1, 1, 1, 2.0, {"loss": pack([5]), "lr": pack([0.1]), "odd": pack([1, 2, 3])}),
        Validated(5, 1, {"val_loss": 0.9, "val_loss_averaged": 0.8}),
        RunEnded("finished", 5, 2.5),
    ]


def test_every_column_and_every_metric_is_kept_with_gaps(tmp_path: Path) -> None:
    run = Run.open(recorded(tmp_path, of_two()))
    nan = math.nan
    np.testing.assert_array_equal(run.history["loss.1"], np.float32([nan, 2, nan, 4, nan]))
    np.testing.assert_array_equal(run.history["lr.1"], np.float32([0.2, 0.2, 0.2, 0.2, nan]))
    np.testing.assert_array_equal(run.history["skipped"], np.float32([0, 1, nan, 0, 0]))
    assert np.isnan(run.history["odd"]).all(), "a table of an unknown name is no column"
    np.testing.assert_array_equal(run.validation["val_loss_averaged"], [nan, 0.8])
    assert {len(values) for values in run.history.values()} == {5}
    text = io.StringIO()
    run.to_csv(text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert [r["loss.0"] for r in rows] == ["1.0", "", "3.0", "", ""]
    assert [r["skipped"] for r in rows][:2] == ["0.0", "1.0"]
    assert rows[-1]["val_loss_averaged"] == "0.8"


def of_a_module(**columns: list[float]) -> list[Event]:
    """A module that logs values of updates, of epochs and of checks, some by the same names."""
    nan = math.nan
    first = {
        "loss": pack([3, 2]),
        "lr": pack([0.1] * 2),
        "acc_step": pack([0.25, nan]),
        "both": pack([1, 2]),
    }
    second = {
        "loss": pack([1]),
        "lr": pack([0.1]),
        "both": pack([3]),
        **{k: pack(v) for k, v in columns.items()},
    }
    return [
        RunStarted("a", "fit", SETTINGS, "cpu", ("conv",), 3, 2),
        StepsDone(0, 1, 2, 0, 1.0, first, ("acc_step",)),
        Validated(2, 0, {"val_loss": 0.5, "both": 20.0}),
        Logged(2, 0, {"acc_epoch": 0.125, "acc": 0.125, "both": 10.0}),
        StepsDone(2, 1, 1, 1, 2.0, second),
        Validated(3, 1, {"val_loss": 0.75, "both": 30.0}),
        Logged(3, 1, {"acc_epoch": 0.375, "acc": 0.375, "Verlust, ∑": 7.0}),
        RunEnded("finished", 3, 2.5, None, {"loss": 1.0, "val_loss": 0.75, "both": 30.0}),
    ]


def test_what_a_model_logged_is_in_the_history_and_over_epochs(tmp_path: Path) -> None:
    nan = math.nan
    run = Run.open(recorded(tmp_path, of_a_module()))
    assert run == Run.from_events(of_a_module())
    np.testing.assert_array_equal(run.history["acc_step"], np.float32([0.25, nan, nan]))
    assert [*run.logged] == ["step", "epoch", "acc_epoch", "acc", "both", "Verlust, ∑"]
    assert run.logged["step"].tolist() == [2, 3]
    assert run.logged["epoch"].tolist() == [0, 1]
    np.testing.assert_array_equal(run.logged["both"], [10.0, nan])
    with pytest.raises(ValueError, match="read-only"):
        run.logged["acc"][0] = 7
    assert run.metrics == {
        "loss": 1.0, "acc_step": 0.25, "both": 30.0, "val_loss": 0.75, "acc_epoch": 0.375, "acc": 0.375, "Verlust, ∑": 7.0,
    }  # fmt: skip
    assert "acc_epoch 0.375" in repr(run)
    assert " acc 0.375" not in repr(run), "it would be told twice"
    text = io.StringIO()
    run.to_csv(text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert [r["acc_step"] for r in rows] == ["0.25", "", ""]
    assert [r["both"] for r in rows] == ["1.0", "2.0", "3.0"]
    assert [r["both (epoch)"] for r in rows] == ["", "10.0", ""]
    assert [r["both (validation)"] for r in rows] == ["", "20.0", "30.0"]
    assert [r["Verlust, ∑"] for r in rows] == ["", "", "7.0"]
    assert Run.from_events(a_fit()).logged.keys() == {"step", "epoch"}


def test_a_logged_value_or_a_metric_can_be_drawn_by_its_name() -> None:
    run = Run.from_events(of_a_module())
    assert [s.name for s in run.charts("acc")[0].series] == [
        "each update",
        "smoothed",
        "over the epoch",
    ]
    assert [s.name for s in run.charts("both")[0].series] == [
        "each update",
        "smoothed",
        "over the epoch",
        "validation",
    ]
    assert [s.name for s in run.charts("val_loss")[0].series] == ["validation"]
    assert run.figure("Verlust, ∑").layout.yaxis.title.text == "Verlust, ∑"
    assert run.charts("loss")[0].title == "Loss"
    with pytest.raises(
        ValueError,
        match=r"no plot 'accuracy'\. It has: 'loss', 'lr', 'acc_step', 'both', 'acc_epoch', 'acc', ",
    ):
        run.plot("accuracy")
    # A layer's norms are its own, whatever a model logs beside them.
    norms = {"grad_norm": [1.0], "layer_norms": [4.0], "grad_norm/head_logged": [9.0]}
    run = Run.from_events(of_a_module(**norms))
    np.testing.assert_array_equal(
        run.history["grad_norm/conv"], np.float32([math.nan, math.nan, 4])
    )
    (heat, _) = run.charts("grad_norm")
    assert heat.heat is not None
    assert heat.heat.rows == ("conv",)
    assert run.metrics["grad_norm/head_logged"] == 9


def resumed() -> list[Event]:
    """The second half of `a_fit` is another run's, which has been resumed itself."""
    first, edited = (
        a_fit(ended=False),
        {"max_epochs": 5, "lr": 0.01, "early_stopping": [{"monitor": "f1", "mode": "max"}]},
    )
    until = next(i for i, e in enumerate(first) if isinstance(e, Validated)) + 1
    joint = [Saved(3, 1, "00000003", True, "val_loss", 0.5), Resumed(3, "0001-fit", "00000003")]
    again = [
        Resumed(3, "0002-fit", "00000003", edited),
        Changed(3, {"lr": 0.01}),
        Message("it goes on"),
    ]
    return [*first[:until], *joint, *again, *first[until:], RunEnded("finished", 6, 9.0)]


def test_a_resumed_run_is_whole_and_says_where_it_comes_from(tmp_path: Path) -> None:
    run = Run.open(recorded(tmp_path, resumed()))
    assert run == Run.from_events(resumed())
    assert [(e.run, e.step) for e in run.resumes] == [("0001-fit", 3), ("0002-fit", 3)]
    assert run.history["step"].tolist() == [*range(6)]
    assert "resumed from 0002-fit at update 3" in repr(run)
    assert "resumed" not in repr(Run.from_events(a_fit()))
    loss, _, total = run.charts()
    why = "resumed, max_epochs → 5, early_stopping → f1, lr → 0.01"
    at_three = "resumed, max_epochs → 5, …"
    assert [m.label for m in loss.marks] == [at_three, "lr → 0.01", "best checkpoint"]
    assert why in loss.marks[0].why, "a live change is told once"
    assert [m.label for m in total.marks] == [at_three, "lr → 0.01"]
    assert (loss.marks[-1].x, loss.marks[-1].y) == (3, 0.5)
    died = Run.from_events([e for e in resumed()[:9] if not isinstance(e, StepsDone)])
    assert died.step == 3, "the checkpoint says how far it was"


def test_how_much_was_clipped_and_left_out() -> None:
    run = Run.from_events(of_two())
    assert run.skipped == 1
    assert run.clip_share == 0.5
    assert run.clip_shares == (0.5, 0.5)
    assert "clipped 50%" in repr(run)
    assert "skipped 1" in repr(run)
    off = Run.from_events(of_two(clip=None))
    assert (off.clip_share, off.clip_shares) == (None, (None, None))
    assert "clipped" not in repr(off)
    late = Run.from_events([*of_two(clip=None), Changed(3, {"gradient_clip_val": 1.0})])
    assert late.clip_share == 1.0, "of the updates with clipping on"
    plain = Run.from_events(a_fit())
    assert (plain.skipped, plain.clip_share, plain.clip_shares) == (
        0,
        pytest.approx(5 / 6),
        (pytest.approx(5 / 6),),
    )
    assert Run.from_events([]).clip_share is None


def test_norms_of_another_order_say_nothing_of_what_was_clipped() -> None:
    run = Run.from_events(of_two(track_grad_norm=1.0))
    assert (run.clip_share, run.clip_shares) == (None, (None, None))
    assert "clipped" not in repr(run)
    *norms, last = run.charts("clip")
    assert all("is not the 2-norm" in chart.notes[0] for chart in [*norms, last]), (
        "and no chart of the share"
    )
    assert [s.name for s in last.series] == ["before clipping", "after clipping (2-norm)"]


RICH = {
    "early_stopping": [{"monitor": "val_loss", "patience": 5}, "f1"],
    "accumulate_grad_batches": {0: 8, 4: 4},
    "find_lr_at": {10, 0, 5},
    "limit_train_batches": 1,
    "swa_epoch_start": 1.0,
    "max_time": {"minutes": 90},
}


def test_settings_of_every_kind_come_back_equal(tmp_path: Path) -> None:
    heard, read = Run.from_events(of_two(**RICH)), Run.open(recorded(tmp_path, of_two(**RICH)))
    made = Settings.make(gradient_clip_val=1.0, **RICH)
    assert read.settings == heard.settings == made
    assert type(read.settings.limit_train_batches) is int
    assert type(read.settings.swa_epoch_start) is float
    assert repr(read) == repr(heard)
    for word in (
        "early_stopping [{'monitor': 'val_loss', 'patience': 5}, 'f1']",
        "accumulate_grad_batches {0: 8, 4: 4}",
        "find_lr_at 0, 5, 10",
        "limit_train_batches 1 ",
        "swa_epoch_start 1.0",
    ):
        assert word in repr(read)
    assert "find_batch_size_at" not in repr(read)


def test_a_record_with_settings_that_are_refused_now_can_still_be_seen() -> None:
    run = Run.from_events([RunStarted("a", "fit", {"lr": -1.0, "seed": 3}, "cpu")])
    assert "seed 3" in repr(run)


def test_a_part_of_the_picture_may_be_asked_for() -> None:
    from matplotlib.figure import Figure

    run = Run.from_events(of_two())
    assert [c.title for c in run.charts("lr")] == ["Learning rate"]
    assert [c.title for c in run.charts("loss")] == ["Loss"]
    assert [c.title for c in run.charts("clip")][-2:] == [
        "Share of updates clipped",
        "Share of updates that a clip value would cut",
    ]
    assert run.figure("lr").layout.yaxis.type == "log"
    assert isinstance(run.plot("clip"), Figure)
    ax = Figure().subplots()
    assert run.plot("lr", ax) is run.plot("lr", ax=ax) is ax
    with pytest.raises(TypeError, match=r"plot\(ax='val_loss'\): give axes of matplotlib"):
        run.plot("loss", "val_loss")  # type: ignore[arg-type]
    ax = Figure().subplots()
    assert run.plot(ax) is ax
    assert ax.get_title(loc="left") == "Loss"
    with pytest.raises(ValueError, match=r"no plot 'momentum'.*'loss', 'lr', 'grad_norm', 'clip'"):
        run.plot("momentum")
    unmeasured = Run.from_events([e for e in a_fit() if not isinstance(e, StepsDone)])
    with pytest.raises(ValueError, match="track_grad_norm"):
        unmeasured.plot("clip")
    search = Run.from_events([Trial(2, True, 1.0, 5.0, 100)])
    with pytest.raises(ValueError, match="has no plot 'lr'"):
        search.plot("lr")


def test_durations_for_people() -> None:
    assert [duration(s) for s in (0, 0.312, 41.2, 87, 7500)] == [
        "0 s",
        "0.31 s",
        "41 s",
        "1 min 27 s",
        "2 h 05 min",
    ]


def test_a_run_says_on_how_many_devices_it_was() -> None:
    alone = a_fit()
    together = [
        replace(alone[0], device="2 x cuda", ranks=2, settings=SETTINGS | {"devices": [1]}),
        *alone[1:],
    ]
    assert "on 2 x cuda" in repr(Run.from_events(together))
    assert "devices [1]" in repr(Run.from_events(together)), "not 1, which is any one device"
    assert " on " not in repr(Run.from_events(alone))
