"""The live canvas: messages small enough, state bounded, and a view that opens late sees what the first one saw."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ui.fakes import LAYERS, FakeBench, FakeJob, flush, sizes, sweep, training
from tests.ui.mirror import Mirror
from workbench.events import (
    Changed,
    CurveEnded,
    Event,
    Logged,
    Message,
    Resumed,
    RunEnded,
    RunStarted,
    Saved,
    Spiked,
    StatusChanged,
    StepsDone,
    Suggestion,
    Trial,
    Validated,
    pack,
)
from workbench.settings import Settings
from workbench.ui.canvas.model import MEASURED
from workbench.ui.canvas.transport.messages import LIMIT, Outbox, cut
from workbench.ui.canvas.widget import LiveView


class Screen:
    """A LiveView with the wire cut: what it sends goes to mirrors."""

    def __init__(self) -> None:
        self.view = LiveView()
        self.view.send = self._send
        self.mirrors = [Mirror()]
        self.sent: list[int] = []

    def _send(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        self.sent.append(len(json.dumps(content)) + sum(map(len, buffers)))
        for mirror in self.mirrors:
            mirror.on_event(content, buffers)

    def draw(self, *events: Event) -> None:
        for event in events:
            self.view.draw(event)

    def settle(self) -> None:
        while self.view.flush():
            pass


def started(layers: tuple[str, ...] = LAYERS, **settings: Any) -> RunStarted:
    return RunStarted("r1", "fit", Settings.make(**settings).model_dump(), "cpu", layers, 1000, 5)


def job(kind: str, **settings: Any) -> FakeJob:
    return FakeJob("r1", kind, Settings.make(**settings), sweep)


def test_a_view_that_opens_late_sees_what_the_first_one_saw() -> None:
    screen = Screen()
    for event in (*sizes(job("find_batch_size")), *sweep(job("find_lr"))):
        screen.draw(event)
    for i, event in enumerate(training(job("fit", gradient_clip_val=1.0), epochs=3, updates=700)):
        screen.draw(event)
        if i % 3 == 0:
            screen.view.flush()
    screen.settle()
    first = screen.mirrors[0]

    late = Mirror()
    screen.mirrors.append(late)
    screen.view._heard(screen.view, {"type": "ready"}, [])
    assert late.state == first.state
    assert {*late.tables} == {
        "fit",
        "heat",
        "picked",
        "val",
        "curve",
        "earlier",
        "rates",
        "past",
        "compared",
        "metrics",
        "clock",
    }
    for name in late.tables:
        np.testing.assert_array_equal(late.rows(name), first.rows(name))
        assert late.tables[name].head == first.tables[name].head
    assert first.gaps == late.gaps == 0


def test_what_comes_between_two_messages_is_drawn_as_if_each_had_its_own() -> None:
    """Of several epochs, with an update that is not finite, ratios that begin on the way, and a value for the progress line."""
    events = [
        e
        for e in training(job("fit", gradient_clip_val=1.0), epochs=3, updates=40)
        if not isinstance(e, Validated)
    ]
    for at, more in (
        (4, {"loss": pack([np.nan] * 7)}),
        (9, {"update_ratios": pack(np.full(7 * len(LAYERS), 1e-3))}),
        (15, {"acc": pack([0.5] * 7)}),
    ):
        event = events[at]
        assert isinstance(event, StepsDone)
        assert event.rows == 7
        events[at] = replace(
            event, columns={**event.columns, **more}, prog_bar=("acc",) if "acc" in more else ()
        )
    at_once, singly = Screen(), Screen()
    for i, event in enumerate(events):
        at_once.draw(event)
        singly.draw(event)
        singly.settle()
        if i % 6 and i < len(events) - 1:
            continue
        at_once.settle()
        one, other = at_once.mirrors[0], singly.mirrors[0]
        for name in one.tables.keys() - {"clock"}:  # a row a flush, and these are flushes joined
            np.testing.assert_allclose(one.rows(name), other.rows(name), rtol=1e-6)
        for name in ("values", "done", "status"):
            assert one.state["progress"][name] == other.state["progress"][name]
        assert one.state["progress"]["words"][0] == other.state["progress"]["words"][0]
    assert one.state["progress"] == other.state["progress"]
    assert one.state["health"] == other.state["health"] != []
    assert one.state["broken"] == other.state["broken"] is not None
    assert one.state["norm"]["caption"] == other.state["norm"]["caption"]


def test_one_that_cannot_be_drawn_takes_no_other_with_it() -> None:
    screen = Screen()
    screen.draw(started(), flush(0, 50))
    screen.draw(flush(50, 5))
    screen.draw(
        replace(flush(55, 5), columns={**flush(55, 5).columns, "loss": b"abc"}), flush(60, 5)
    )
    with pytest.raises(ValueError, match="buffer size"):
        screen.draw(RunEnded("finished", 65, 1.0))
    screen.settle()
    state = screen.mirrors[0].state
    assert (state["progress"]["status"], state["progress"]["done"]) == ("finished", 65)
    loss = screen.mirrors[0].rows("fit")[:, 0]
    assert np.isfinite(loss[:55]).all()
    assert np.isnan(loss[55:60]).all()
    assert np.isfinite(loss[60:65]).all()


def test_a_view_that_missed_a_message_asks_and_then_has_all() -> None:
    screen = Screen()
    screen.draw(started(), flush(0, 50))
    screen.settle()
    late = Mirror()
    screen.mirrors.append(late)
    screen.draw(flush(50, 50))
    screen.settle()
    assert late.gaps > 0
    assert "fit" not in late.tables
    screen.view._heard(screen.view, {"type": "ready"}, [])
    np.testing.assert_array_equal(late.rows("fit"), screen.mirrors[0].rows("fit"))


@pytest.mark.slow  # a million updates
def test_a_million_updates_stay_small() -> None:
    screen = Screen()
    screen.draw(started(tuple(f"layer{i}.weight" for i in range(100)), gradient_clip_val=1.0))
    rows = 20_000
    for step in range(0, 1_000_000, rows):
        screen.draw(
            flush(step, rows, layers=100, total=1_000_000),
            Validated(step + rows, 0, {"val_loss": 1.0}),
        )
        for at in (1, rows // 2, rows):
            screen.draw(Changed(step + at, {"lr": 1e-3, "gradient_clip_val": 1.0}))
        screen.settle()
    fit, heat = screen.mirrors[0].rows("fit"), screen.mirrors[0].rows("heat")
    assert 500 <= len(fit) <= 1000
    assert 256 <= len(heat) <= 512
    assert heat.shape[1] == len(screen.mirrors[0].state["map"]["rows"]) == 34
    assert screen.mirrors[0].tables["fit"].head == {"origin": 0, "width": 1024, "every": 1}
    assert max(screen.sent) <= LIMIT
    assert len(screen.mirrors[0].state["changes"]) == 100

    screen.sent.clear()
    screen.view._heard(screen.view, {"type": "ready"}, [])
    assert max(screen.sent) <= LIMIT
    assert sum(screen.sent) < 4 * LIMIT, "all there is to see"


def test_spikes_survive_the_merging() -> None:
    screen = Screen()
    screen.draw(started())
    loss = np.ones(50_000, np.float32)
    loss[31_337] = 99.0
    for step in range(0, 50_000, 500):
        columns = {"loss": pack(loss[step : step + 500]), "lr": pack(np.full(500, 1e-3))}
        screen.draw(StepsDone(step, 1, 500, 0, 1.0, columns))
    screen.settle()
    fit = screen.mirrors[0].rows("fit")
    width = screen.mirrors[0].tables["fit"].head["width"]
    assert width > 1
    assert fit[31_337 // width, 2] == 99.0  # LOSS_HIGH
    assert fit[:, 0].max() == 1.0  # LOSS_LOW


def test_what_is_not_finite_is_marked() -> None:
    screen = Screen()
    screen.draw(started(("a", "b")))
    nan, inf = np.nan, np.inf
    columns = {
        "loss": pack([1.0, nan, 1.0, 1.0]),
        "lr": pack([1e-3] * 4),
        "grad_norm": pack([1.0, nan, inf, nan]),
        "layer_norms": pack(np.array([[1.0, nan], [nan, nan], [inf, 2.0], [nan, nan]])),
    }
    screen.draw(StepsDone(0, 1, 4, 0, 1.0, columns))
    screen.settle()
    fit, heat = screen.mirrors[0].rows("fit"), screen.mirrors[0].rows("heat")
    assert fit[:, 4].tolist() == [0, 1, 1, 0]
    # A missing norm in a good update is no value; in a bad one it is a broken gradient; the last had no norms at all.
    np.testing.assert_array_equal(heat, [[1, nan], [inf, inf], [inf, 2], [nan, nan]])


def test_nothing_is_sent_when_nothing_is_new() -> None:
    screen = Screen()
    assert screen.view.flush() is False
    screen.draw(started(), flush(0, 3))
    screen.settle()
    count = len(screen.sent)
    assert screen.view.flush() is False
    assert len(screen.sent) == count


def test_only_new_rows_are_sent() -> None:
    screen = Screen()
    screen.draw(started(()), flush(0, 900, layers=1))
    screen.settle()
    screen.draw(flush(900, 5, layers=1))
    screen.settle()
    assert screen.sent[-1] < 1500


def test_a_new_fit_starts_with_an_empty_plot_and_a_search_leaves_it_alone() -> None:
    screen = Screen()
    screen.draw(started(), flush(0, 30), RunEnded("finished", 30, 4.0), *sweep(job("find_lr")))
    screen.settle()
    assert len(screen.mirrors[0].rows("fit")) == 30
    screen.draw(started())
    screen.settle()
    assert len(screen.mirrors[0].rows("fit")) == 0
    assert len(screen.mirrors[0].rows("curve")) > 50


def test_progress_in_words() -> None:
    screen = Screen()
    screen.draw(
        started(),
        *(flush(step, 76) for step in range(0, 304, 76)),
        Validated(304, 1, {"val_loss": 0.4551}),
    )
    screen.settle()
    progress = screen.mirrors[0].state["progress"]
    assert (progress["status"], progress["doing"]) == ("running", "Training")
    assert progress["headline"] == "val_loss 0.4551, the best yet, 1 min 32 s left"
    assert progress["words"] == ["304/1000", "00:40", "7.6 updates/s", "epoch 1/5"]
    assert [name for name, _ in progress["values"]] == ["loss", "val"]
    assert progress["values"][1] == ["val", "0.4551"]
    assert screen.mirrors[0].state["said"] == "Training on cpu."
    screen.draw(Validated(380, 2, {"val_loss": 0.5}), Validated(456, 3, {"val_loss": math.nan}))
    screen.settle()
    headline = screen.mirrors[0].state["progress"]["headline"]
    assert headline == "val_loss not finite, best 0.4551 at epoch 2, 1 min 32 s left"

    screen.draw(StatusChanged("paused"))
    screen.settle()
    assert screen.mirrors[0].state["said"] == "Training: paused."
    screen.draw(
        RunEnded("failed", 310, 41.0, "Traceback …\n  line 3\nValueError: the loss is not finite")
    )
    screen.settle()
    assert screen.mirrors[0].state["said"] == "Training: failed."
    assert screen.mirrors[0].state["failure"]["message"] == "the loss is not finite"


def test_columns_that_nobody_knows_break_nothing() -> None:
    screen = Screen()
    screen.draw(started())
    plain = flush(0, 20)
    for name, values in (
        ("loss.0", np.ones(20)),
        ("grad_norm.1", np.full(20, np.nan)),
        ("odd", np.ones(7)),
    ):
        plain.columns[name] = pack(values)
    screen.draw(plain)
    del (later := flush(20, 20)).columns["lr"]
    later.columns["grad_norm_clipped"] = pack(np.ones(3))
    screen.draw(later)
    screen.settle()
    assert len(screen.mirrors[0].rows("fit")) == 40


def test_averaged_validation_has_a_line_of_its_own() -> None:
    screen = Screen()
    screen.draw(started(), Validated(10, 0, {"val_loss_averaged": 7.0, "val_loss": 0.5}))
    screen.draw(
        Validated(20, 1, {"val_loss": 0.4}),
        Validated(30, 2, {"val_loss": float("nan"), "val_loss_averaged": 0.2}),
    )
    screen.settle()
    nan = np.nan
    np.testing.assert_array_equal(
        screen.mirrors[0].rows("val"), np.float32([[10, 0.5, 7], [20, 0.4, nan], [30, nan, 0.2]])
    )
    assert screen.mirrors[0].state["val"] == {"name": "val_loss", "averaged": "averaged"}
    assert ["averaged", "0.2"] in screen.mirrors[0].state["progress"]["values"]
    screen.draw(started())
    screen.settle()
    assert screen.mirrors[0].state["val"]["averaged"] == ""


def test_how_many_devices_train_is_said_where_they_are_several() -> None:
    screen = Screen()
    screen.draw(dataclasses.replace(started(), device="2 x cpu", ranks=2), flush(0, 76))
    screen.settle()
    assert screen.mirrors[0].state["said"] == "Training on 2 x cpu."
    assert screen.mirrors[0].state["progress"]["words"][-1] == "on 2 x cpu"
    screen.draw(started(), flush(0, 76))
    screen.settle()
    assert not any("cpu" in word for word in screen.mirrors[0].state["progress"]["words"])


def test_a_run_without_a_length_counts_without_a_total() -> None:
    screen = Screen()
    screen.draw(
        RunStarted("r1", "fit", Settings.make().model_dump(), "cpu"), flush(0, 76), flush(76, 76)
    )
    screen.settle()
    progress = screen.mirrors[0].state["progress"]
    assert progress["total"] is None
    assert progress["words"] == ["152", "00:20", "7.6 updates/s", "epoch 1"]


def test_what_a_validation_found_stands_in_its_line() -> None:
    screen = Screen()
    many = {f"val_{i}": float(i) for i in range(20)}
    screen.draw(
        RunStarted("r1", "validate", {}, "cpu"),
        Validated(0, 0, {"val_loss": 0.25, **many}),
        RunEnded("finished", 0, 1.0),
    )
    screen.settle()
    values = screen.mirrors[0].state["progress"]["values"]
    assert values[:2] == [["val_loss", "0.25"], ["val_0", "0"]]
    assert len(values) == MEASURED
    screen.draw(RunStarted("r2", "test", {}, "cpu"))
    screen.settle()
    assert screen.mirrors[0].state["progress"]["values"] == []


def test_updates_that_were_left_out_are_said() -> None:
    screen = Screen()
    screen.draw(started(), flush(0, 10))
    screen.settle()
    assert not any("skipped" in word for word in screen.mirrors[0].state["progress"]["words"])
    for step, left_out in ((10, [0, 1, np.nan]), (13, [1, 1, 0])):
        event = flush(step, 3)
        event.columns["skipped"] = pack(left_out)
        screen.draw(event)
        screen.settle()
        words = screen.mirrors[0].state["progress"]["words"]
        assert words[-1] == ("1 update skipped" if step == 10 else "3 updates skipped")


def test_spikes_are_marked() -> None:
    screen = Screen()
    screen.draw(
        started(), Spiked(3, 0, 9.0, 0.5), Spiked(7, 0, 8.0, 0.5, action="rollback", back_to=1)
    )
    screen.settle()
    assert screen.mirrors[0].state["changes"] == [[3, "spike"], [7, "spike, rolled back"]]


def test_changes_on_the_way_are_said_in_words() -> None:
    screen = Screen()
    screen.draw(started(), Changed(3, {"batch_size": 1024, "gradient_clip_val": None, "lr": 3e-4}))
    screen.settle()
    assert screen.mirrors[0].state["changes"] == [[3, "batch size→1024, clip→off, lr→3e-4"]]
    assert screen.mirrors[0].state["clips"] == [[0, None], [3, None]]


def test_a_resumed_run_is_drawn_whole_and_its_line_is_about_what_is_done_now() -> None:
    """The past comes in a burst, at the pace of another process; then it goes on at half that pace."""
    screen = Screen()
    edited = {
        "lr": 3e-4,
        "max_epochs": 9,
        "early_stopping": [{"monitor": "val_acc", "mode": "max"}],
    }
    screen.draw(dataclasses.replace(started(), resumed_at=304))
    screen.settle()
    for event in (flush(0, 76), Validated(76, 0, {"val_loss": 9.0}), flush(76, 76)):
        progress = screen.mirrors[0].state["progress"]
        assert (progress["done"], progress["words"]) == (304, ["304/1000"])
        assert (progress["headline"], progress["values"]) == ("", [])
        screen.draw(event)
        screen.settle()
    screen.draw(flush(152, 76), flush(228, 76), Validated(304, 0, {"val_loss": 0.5}))
    screen.draw(Saved(304, 1, "00000304", True, "val_loss", 0.5))
    screen.draw(Resumed(304, "0001-fit", "00000304", edited), Changed(304, {"lr": 3e-4}))
    screen.settle()
    state = screen.mirrors[0].state
    # no speed yet
    assert state["progress"]["words"] == ["304/1000", "00:40", "epoch 1/5", "saved at 304"]
    assert state["progress"]["headline"].startswith("val_loss 0.5, ")
    assert state["said"] == "Training continues at update 304."
    assert state["changes"] == [[304, "resumed, lr→3e-4, max_epochs→9, early_stopping→val_acc"]]
    assert len(screen.mirrors[0].rows("fit")) == 304
    for step in (304, 380):
        event = flush(step, 76)
        screen.draw(dataclasses.replace(event, seconds=40 + (step + 76 - 304) / 3.8))
    screen.settle()
    progress = screen.mirrors[0].state["progress"]
    assert progress["words"][:3] == ["456/1000", "01:20", "3.8 updates/s"]
    assert progress["headline"].endswith("2 min 23 s left")
    screen.draw(Saved(456, 1, "00000456-end"), RunEnded("finished", 456, 80.0))
    screen.settle()
    assert screen.mirrors[0].state["progress"]["words"] == [
        "456/1000",
        "01:20",
        "3.8 updates/s",
        "epoch 1/5",
    ]


def test_what_was_saved_last_is_said_while_there_is_more_to_lose() -> None:
    screen = Screen()
    screen.draw(started(), flush(0, 30), Saved(20, 0, "00000020"))
    screen.settle()
    assert screen.mirrors[0].state["progress"]["words"][-1] == "saved at 20"
    screen.draw(RunEnded("failed", 30, 4.0, "ValueError: the data is broken"))
    screen.settle()
    assert screen.mirrors[0].state["progress"]["words"][-1] == "saved at 20"
    screen.draw(started(), flush(0, 5))
    screen.settle()
    assert not any("saved" in word for word in screen.mirrors[0].state["progress"]["words"])


def test_the_line_shows_what_the_model_wants_shown() -> None:
    screen = Screen()
    event = flush(0, 4)
    event.columns["acc"], event.columns["secret"] = (
        pack([0.1, np.nan, 0.25, np.nan]),
        pack([7.0] * 4),
    )
    screen.draw(started(), dataclasses.replace(event, prog_bar=("acc",)))
    screen.draw(
        Validated(
            4,
            0,
            {"val_loss": 0.5, "val_acc": 0.75, "val_acc_averaged": 0.875, "f1": 1.0},
            ("val_loss", "val_acc"),
        )
    )
    screen.draw(Logged(4, 0, {"train_acc_epoch": 0.5, "other": 3.0}, ("train_acc_epoch",)))
    screen.draw(
        Logged(
            4,
            0,
            {f"{'very' * 20}{i}": 1.0 for i in range(20)},
            tuple(f"{'very' * 20}{i}" for i in range(20)),
        )
    )
    screen.settle()
    values = screen.mirrors[0].state["progress"]["values"]
    assert values[1:6] == [
        ["val", "0.5"], ["acc", "0.25"], ["val_acc", "0.75"], ["val_acc_averaged", "0.875"], ["train_acc_epoch", "0.5"],
    ]  # fmt: skip
    assert len(values) == 10
    assert all(len(name) <= 40 for name, _ in values)
    assert len({name for name, _ in values}) == 10, "long names are told apart"
    screen.draw(started())
    screen.settle()
    assert screen.mirrors[0].state["progress"]["values"] == []


def test_marks_stay_small_whatever_they_say() -> None:
    screen = Screen()
    screen.draw(started())
    for i in range(120):
        screen.draw(
            Resumed(i, "0001-fit", "00000001", {"monitor": "内存不足" * 100, "lr": 0.1}),
            Message("read me"),
        )
    screen.settle()
    assert len(screen.mirrors[0].state["changes"]) == 100
    assert max(screen.sent) <= LIMIT


def test_accumulation_by_epoch_is_drawn_like_any_other() -> None:
    screen = Screen()
    screen.draw(
        started(accumulate_grad_batches={0: 8, 4: 4}, early_stopping="val_loss"), flush(0, 5)
    )
    screen.settle()
    assert len(screen.mirrors[0].rows("fit")) == 5


def test_a_queued_job_does_not_disturb_the_running_one() -> None:
    screen = Screen()
    screen.draw(started(), flush(0, 3), StatusChanged("queued"))
    screen.settle()
    assert screen.mirrors[0].state["progress"]["status"] == "running"


def test_messages_hold_no_nan_in_json() -> None:
    screen = Screen()
    screen.draw(
        started(), Validated(3, 0, {"val_loss": float("nan")}), RunEnded("finished", 3, 1.0)
    )
    screen.settle()
    json.dumps(screen.mirrors[0].state, allow_nan=False)


def test_a_value_too_long_for_a_message_is_an_error() -> None:
    with pytest.raises(ValueError, match="too long"):
        Outbox({}).put("code", "x" * LIMIT)


def test_a_value_is_refused_or_sent_and_never_waits_for_ever() -> None:
    for length in range(LIMIT - 300, LIMIT):
        outbox = Outbox({})
        try:
            outbox.put("code", "x" * length)
        except ValueError:
            continue
        packet = outbox.take()
        assert packet is not None
        assert len(packet.content["state"]["code"]) == length
        assert packet.size <= LIMIT
        assert not outbox.waiting


def test_errors_in_any_script_fit_in_a_message() -> None:
    screen = Screen()
    screen.draw(RunStarted("r1", "find_batch_size", Settings.make().model_dump(), "cpu"))
    for i in range(60):
        screen.draw(Trial(2**40 + i, False, 1 / 3, 1e6 / 3, 2**45 + i, "内存不足" * 75))
    notes, why = ("没有" * 150,) * 8, "因为" * 150
    screen.draw(RunStarted("r2", "find_lr", Settings.make().model_dump(), "cpu"))
    screen.draw(
        CurveEnded(
            "边" * 200, tuple(Suggestion("名" * 30, 1 / 3, 1, why) for _ in range(16)), 1 / 3, notes
        )
    )
    screen.settle()
    trials = screen.mirrors[0].state["trials"]
    assert len(trials) == 60
    assert all(trial["error"] == ("内存不足" * 75)[:66] for trial in trials)
    assert max(screen.sent) <= LIMIT


@pytest.mark.parametrize("text", ["", "plain", "内存", "😀" * 50, '"\n\\' * 200, "x" * 399 + "é"])
def test_a_text_is_cut_by_what_it_takes_in_json(text: str) -> None:
    short = cut(text, 400)
    assert text.startswith(short)
    assert len(json.dumps(short)) - 2 <= 400
    assert short == text or len(json.dumps(text[: len(short) + 1])) - 2 > 400


def test_a_queued_job_is_shown_until_it_starts_or_ends() -> None:
    screen = Screen()

    def progress() -> tuple[str, str, list[str]]:
        screen.settle()
        shown = screen.mirrors[0].state["progress"]
        return shown["status"], shown["doing"], shown["words"]

    screen.draw(StatusChanged("queued"))
    assert progress() == ("queued", "Job", [])
    screen.draw(RunEnded("stopped", 0, 0.0))
    assert progress() == ("stopped", "Job", ["it had not begun"])
    screen.draw(started(), RunEnded("finished", 5, 1.0), StatusChanged("queued"))
    assert progress()[0] == "queued"
    screen.draw(started())
    assert progress()[:2] == ("running", "Training")


def test_the_bundle_is_there_or_says_how_to_build_it() -> None:
    view = LiveView()
    assert "export" in view._esm
    assert view.marker == 1e-3


def test_fakes_are_as_the_panel_expects() -> None:
    bench = FakeBench()
    heard: list[Any] = []
    stop = bench.subscribe(heard.append)
    assert bench.find_lr().wait(60)
    stop()
    bench.set(lr=0.1)
    assert isinstance(heard[-1], RunEnded)


def test_a_search_within_a_fit_is_drawn_and_the_progress_stays_the_fits() -> None:
    """Milestones: the second sweep replaces the first, and the line goes on about the updates of the fit."""
    screen = Screen()
    searching = [
        e
        for e in (*sweep(job("find_lr")), *sizes(job("find_batch_size")))
        if type(e) not in (RunStarted, RunEnded)
    ]
    screen.draw(started(), flush(0, 30), *searching)
    screen.settle()
    before = screen.mirrors[0].state["progress"]
    points, trials = len(screen.mirrors[0].rows("curve")), screen.mirrors[0].state["trials"]
    assert before["words"][0] == "30/1000"
    assert before["ended"] == ""
    screen.draw(Changed(30, {"batch_size": 64}), *searching, flush(30, 10))
    screen.settle()
    after = screen.mirrors[0].state["progress"]
    assert after["words"][0] == "40"  # of how many, nobody knows now
    assert len(screen.mirrors[0].rows("curve")) == points
    assert screen.mirrors[0].state["trials"] == trials
