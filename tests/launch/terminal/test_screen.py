"""What is drawn of a job in a terminal, from its events alone."""

from __future__ import annotations

import dataclasses
import io
import math

import numpy as np
from rich.console import Console

from workbench.events import (
    Changed,
    CurveEnded,
    CurvePoint,
    Event,
    Message,
    RaceTrial,
    Resumed,
    RunEnded,
    RunStarted,
    Saved,
    SearchEnded,
    SpeedSearchEnded,
    StatusChanged,
    StepsDone,
    TimeSpent,
    Trial,
    TrialStarted,
    Validated,
    pack,
)
from workbench.launch.terminal.screen import Screen

START = RunStarted("0001-fit", "fit", {}, "cpu", ("first.weight", "last.weight"), 100, 5)


def drawn(
    *events: Event,
    kind: str = "fit",
    width: int = 100,
    height: int = 50,
    colours: bool = False,
    keys: str = "",
) -> str:
    """The messages, and below them the drawing."""
    screen = Screen(f"0001-{kind}", kind)
    screen.keys = keys
    for event in events:
        screen.note(event)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = Console(
        file=stream,
        width=width,
        height=height,
        force_terminal=True,
        color_system="standard" if colours else None,
    )
    console.print(*screen.messages, screen, sep="\n")
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def value_of(name: str, text: str) -> str:
    return next(line.split()[2] for line in text.splitlines() if line.split()[1:2] == [name])


def steps(
    first: int, rows: int, seconds: float, *, clipped: float = math.nan, **logged: list[float]
) -> StepsDone:
    losses = np.linspace(2.0, 1.0, rows)
    columns = {
        "loss": pack(losses), "lr": pack(np.full(rows, 1e-3)), "grad_norm": pack(np.full(rows, 2.0)),
        "grad_norm_clipped": pack(np.full(rows, clipped)), "layer_norms": pack(np.tile([0.5, 1.5], (rows, 1))),
        **{name: pack(values) for name, values in logged.items()},
    }  # fmt: skip
    return StepsDone(first, 1, rows, first // 20, seconds, columns, memory=5_000_000, cpu=0.4)


def test_a_fit_shows_its_progress_values_and_layers() -> None:
    text = drawn(
        START,
        steps(0, 20, 1.0),
        steps(20, 20, 3.0),
        Validated(40, 1, {"val_loss": 0.75}),
        Saved(40, 1, "last"),
    )
    assert "40/100 updates · epoch 2/5 · 10 updates/s · 6 s left" in text
    lines = {line.split()[1]: line for line in text.splitlines() if len(line.split()) > 2}
    assert " 1 █" in lines["loss"], "the last loss, and its history from the largest to the least"
    assert "0.75" in lines["val_loss"]
    assert "1e-3" in lines["lr"]
    assert "largest last.weight 1.5, smallest first.weight 0.5" in text
    assert "memory 5 MB · CPU 40% · last checkpoint after 40 updates" in text


def test_a_loss_that_is_not_finite_is_shown_in_red() -> None:
    bad = StepsDone(
        20, 1, 2, 1, 2.0, {"loss": pack([1.0, math.nan]), "grad_norm": pack([1.0, math.inf])}
    )
    assert value_of("loss", drawn(START, steps(0, 20, 1.0), bad)) == "nan"
    assert value_of("grad_norm", drawn(START, steps(0, 20, 1.0), bad)) == "inf"
    assert "\x1b[1;31m" in drawn(START, steps(0, 20, 1.0), bad, colours=True)
    assert "\x1b[1;31m" not in drawn(START, steps(0, 20, 1.0), colours=True)


def test_updates_at_which_a_value_was_not_logged_leave_it_as_it_is() -> None:
    assert (
        value_of(
            "acc",
            drawn(
                START,
                steps(0, 3, 1.0, acc=[0.5, 0.25, math.nan]),
                steps(3, 2, 2.0, acc=[math.nan] * 2),
            ),
        )
        == "0.25"
    )


def test_of_many_values_loss_rate_and_validation_come_first_and_the_others_are_counted() -> None:
    logged = steps(0, 1, 1.0, **{f"logged_{n}": [0.0] for n in range(27)})
    text = drawn(
        Validated(0, 0, {"val_loss": 1.0}), START, logged, Validated(1, 0, {"val_loss": 0.75})
    )
    names = [line.split()[1] for line in text.splitlines()[3:15]]
    assert names == ["loss", "lr", "val_loss", "grad_norm", *(f"logged_{n}" for n in range(8))]
    assert "… and 19 more" in text


def test_a_low_terminal_loses_values_and_trials_before_progress_and_keys() -> None:
    events = [
        START,
        steps(0, 20, 1.0, **{f"logged_{n}": [0.0] * 20 for n in range(20)}),
        *(Trial(2**n, True) for n in range(8)),
    ]
    for height in range(4, 30):
        text = drawn(*events, height=height, keys="q quit watching")
        lines = text.splitlines()
        assert len(lines) <= height
        assert "0001-fit" in lines[0]
        assert "20/100 updates" in lines[1]
        assert "q quit watching" in lines[-1]
        assert "loss" not in text or text.count("batch_size=") == 8, (
            "all trials are there before the first value"
        )
    assert "… and 11 more" in text


def test_a_search_within_a_fit_leaves_its_counts_and_values_alone() -> None:
    search = [
        *(CurvePoint(n, 2.0**n, 7.0, 7.0) for n in range(100)),
        RaceTrial(0.5, 20, 1.0),
        Trial(8, True),
    ]
    before, after = (
        [START, steps(0, 30, 1.0)],
        [CurveEnded("diverged", (), 3e-3), Changed(30, {"lr": 3e-3})],
    )
    text = drawn(*before, *search)
    assert "30/100 updates" in text
    assert "lr=0.5: held-out loss 1 after 20 updates" in text
    assert (value_of("loss", text), value_of("lr", text)) == ("1", "1e-3")
    text = drawn(*before, *search, *after)
    assert "30/100 updates" in text
    assert "held-out" not in text, "the trials are over"
    assert "suggestion: lr=3e-3" in text


def test_the_share_of_clipped_updates_counts_those_with_a_clip_value() -> None:
    assert "clipped" not in drawn(START, steps(0, 10, 1.0))
    assert "clipped  50% of updates" in drawn(
        START, steps(0, 10, 1.0), steps(10, 10, 2.0, clipped=1.0), steps(20, 10, 3.0, clipped=2.0)
    )


def test_the_largest_parts_of_the_time_are_named() -> None:
    parts = {"forward": 4.0, "backward": 3.0, "data": 2.0, "optimizer": 0.9, "logging": 0.1}
    assert "time  forward 40%, backward 30%, data 20%, optimizer 9%" in drawn(
        START, TimeSpent(10, 10.0, parts)
    )


def test_a_pause_and_the_end_are_named() -> None:
    assert "paused" in drawn(START, steps(0, 10, 1.0), StatusChanged("paused", 10))
    ended = drawn(
        START,
        steps(0, 10, 1.0),
        RunEnded("failed", 10, 1.5, "ValueError: no", where="cell 2, line 3: loss(x)"),
    )
    assert "failed" in ended
    assert "ValueError: no" in ended
    assert "cell 2, line 3: loss(x)" in ended
    assert "left" not in ended


def test_another_batch_size_makes_the_total_unknown() -> None:
    assert "10 updates" in drawn(START, steps(0, 10, 1.0), Changed(10, {"batch_size": 64.0}))
    assert "10/100" not in drawn(START, steps(0, 10, 1.0), Changed(10, {"batch_size": 64.0}))


def test_a_resumed_fit_has_the_speed_of_now() -> None:
    begun = dataclasses.replace(START, resumed_at=40)
    for past in ((), (steps(0, 10, 400.0),)):
        assert "40/100 updates" in drawn(begun, *past), "from the first moment on"
    text = drawn(
        START,
        steps(0, 40, 400.0),
        Resumed(40, "0000-fit", "last"),
        steps(40, 10, 401.0),
        steps(50, 10, 402.0),
    )
    assert "60/100 updates" in text
    assert "10 updates/s" in text


def test_a_sweep_shows_its_curve_and_what_it_found() -> None:
    points = [CurvePoint(n, 1e-5 * 2.0**n, 2.0, 2.0 - n / 10) for n in range(10)]
    text = drawn(
        RunStarted("r", "find_lr", {}, "cpu", updates=100),
        *points,
        CurveEnded("diverged", (), 3e-3),
        kind="find_lr",
    )
    assert "10/100 updates" in text
    assert "suggestion: lr=3e-3" in text
    assert "no rate can be trusted" in drawn(CurveEnded("flat", (), None), kind="find_lr")


def test_a_search_says_what_it_tries() -> None:
    begun = RunStarted("r", "find_batch_size", {}, "cpu"), TrialStarted(64)
    assert "trying batch_size=64" in drawn(*begun, kind="find_batch_size")
    assert "trying" not in drawn(*begun, Trial(64, True), kind="find_batch_size")


def test_a_search_lists_its_newest_trials() -> None:
    trials = [Trial(2**n, True, samples_per_second=1000.0 * n) for n in range(12)]
    ended = SearchEnded(256, 2048, "done", reason="fast enough")
    text = drawn(
        RunStarted("r", "find_batch_size", {}, "cpu"),
        *trials,
        Trial(4096, False),
        ended,
        kind="find_batch_size",
    )
    assert "batch_size=4096: does not fit" in text
    assert "batch_size=2048: 11,000 samples/s" in text
    assert "batch_size=8:" not in text
    assert "13 trials" in text
    assert "recommended: batch_size=256" in text
    assert "fast enough" in text


def test_what_a_search_found_is_written_once() -> None:
    lines = drawn(
        SpeedSearchEnded({"num_workers": 0}, "0: training waits 2%.", "enough"),
        kind="find_num_workers",
    ).splitlines()
    assert [line.strip("│ ") for line in lines[2:4]] == ["num_workers=0", "training waits 2%."]
    assert "nothing to change" in drawn(
        SpeedSearchEnded({}, "", "stopped"), kind="find_num_workers"
    )


def test_a_resumed_fit_tells_nothing_of_the_other_run() -> None:
    text = drawn(
        START,
        Message("of the past", "warning"),
        Resumed(3, "0000-fit", "last"),
        Message("of now", "warning"),
    )
    assert "of now" in text
    assert "of the past" not in text


def test_a_record_of_a_stranger_cannot_command_the_terminal() -> None:
    evil = "\x1b[2J[red]x[/red]"
    text = drawn(
        RunStarted("r", "fit", {}, evil, (evil, "b"), 10), Message(evil, "warning"), Validated(1, 0, {evil: 1.0}), TimeSpent(1, 1.0, {evil: 1.0}),
        RunEnded("failed", 1, 1.0, evil, where=evil),
    )  # fmt: skip
    assert "\x1b" not in text
    assert "[red]x[/red]" in text, "brackets are text, not colours"


def test_it_fits_a_narrow_terminal() -> None:
    events = (
        START,
        steps(0, 40, 1.0),
        Validated(40, 1, {"val_of_a_very_long_name_indeed": 1.0}),
        TimeSpent(1, 1.0, {"forward": 1.0}),
    )
    for width in (*range(1, 12), 44):
        assert all(len(line) <= width for line in drawn(*events, width=width).splitlines())
