"""The line of text under a cell: what it counts, at which speed, and which values it shows."""

from __future__ import annotations

import dataclasses
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from workbench.events import (
    ENDED_EARLY,
    Changed,
    Event,
    Logged,
    Message,
    Resumed,
    RunStarted,
    Saved,
    StepsDone,
    Trial,
    TrialStarted,
    Validated,
    pack,
)
from workbench.launch.terminal import progress
from workbench.launch.terminal.progress import ProgressBar

NOW = 1_000_000.0


def flush(
    step: int, rows: int, seconds: float, shown: tuple[str, ...] = (), **logged: list[float]
) -> StepsDone:
    columns = {
        "loss": pack(np.ones(rows)),
        "lr": pack(np.ones(rows)),
        **{name: pack(v) for name, v in logged.items()},
    }
    return StepsDone(step, 1, rows, 0, seconds, columns, shown)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Draws events at a time that stands still, and gives what is then on the screen."""
    monkeypatch.setattr(progress.time, "time", lambda: NOW)
    monkeypatch.setenv("COLUMNS", "300")

    def draw(*events: Event) -> str:
        with ProgressBar("fit", NOW) as bar:
            assert bar.show(events, 0) == len(events)
            bar._bar._time = lambda: NOW
            return str(bar._bar)

    return draw


START = RunStarted("b", "fit", {}, "cpu", (), 1000, 5)


def test_a_run_is_counted_from_zero(line) -> None:
    shown = line(START, flush(0, 100, 10.0), flush(100, 100, 20.0))
    assert "200/1000 [00:20<01:20, 10.00 updates/s" in shown
    assert "epoch=1/5, loss=1" in shown


def test_a_batch_size_is_named_while_it_is_tried(line) -> None:
    start = RunStarted("b", "find_batch_size", {}, "cpu")
    assert "trying size=64" in line(start, TrialStarted(64))
    assert "size=64 does not fit" in line(start, TrialStarted(64), Trial(64, False))


def test_a_notebook_shows_it_as_plain_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBar("fit", NOW) as bar:
        bar.show([START], 0)
    assert "0/1000" in capsys.readouterr().err
    monkeypatch.setitem(
        sys.modules, "ipykernel.iostream", SimpleNamespace(OutStream=type(sys.stdout))
    )
    with ProgressBar("fit", NOW) as bar:
        bar.show([START], 0)
    output = capsys.readouterr()
    assert ("0/1000" in output.out, output.err) == (True, "")


def test_a_resumed_run_goes_on_where_it_was_at_the_speed_of_now(line) -> None:
    """300 updates in 600 s were another process's; this one does 10 in a second."""
    past = [flush(step, 100, 2.0 * (step + 100)) for step in (0, 100, 200)]
    joint = [Saved(300, 0, "00000300"), Resumed(300, "a", "00000300", {"max_epochs": 5})]
    begun = dataclasses.replace(START, resumed_at=300)
    for count in range(3):
        assert " 300/1000 [" in line(begun, *past[:count]), "from the first moment on"
    assert re.search(r"300/1000 \[10:00<\?, ", line(begun, *past, *joint)), "no speed is known yet"
    shown = line(START, *past, *joint, flush(300, 100, 610.0), flush(400, 100, 620.0))
    assert "500/1000 [10:20<00:50, 10.00 updates/s" in shown
    shown = line(START, *past, *joint, Changed(300, {"batch_size": 64}), flush(300, 100, 610.0))
    assert "400 updates [10:10, 10.00 updates/s" in shown, (
        "with other batches nobody knows of how many"
    )


def test_what_the_model_wants_shown_is_shown_by_its_names(line) -> None:
    nan = float("nan")
    first = flush(
        0, 3, 1.0, ("acc_step", "gone"), acc_step=[0.1, 0.25, nan], gone=[nan] * 3, quiet=[1.0] * 3
    )
    shown = line(START, first, flush(3, 1, 2.0))
    assert "acc_step=0.25" in shown
    assert "quiet" not in shown
    assert "gone" not in shown
    shown = line(START, first, Logged(3, 0, {"acc_epoch": 0.5, "quiet": 2.0}, ("acc_epoch",)))
    assert "acc_epoch=0.5" in shown
    assert "quiet" not in shown


def test_of_a_check_all_is_shown_unless_the_model_has_chosen(line) -> None:
    metrics = {"val_loss": 0.5, "val_acc": 0.75, "val_acc_averaged": 0.8}
    assert "val_loss=0.5, val_acc=0.75, val_acc_averaged=0.8" in line(
        START, Validated(3, 0, metrics)
    )
    shown = line(START, Validated(3, 0, metrics, ("val_acc",)))
    assert "val_acc=0.75, val_acc_averaged=0.8" in shown
    assert "val_loss" not in shown


def test_checkpoints_have_no_lines_of_their_own(line, capsys) -> None:
    line(
        START, flush(0, 3, 1.0), *(Saved(i, 0, f"{i:08d}", True, "val_loss", 1.0) for i in range(9))
    )
    assert "0000000" not in capsys.readouterr().err
    line(START, Message("the disk is full", "warning"), Message("a word", "info"))
    out = capsys.readouterr().err
    assert "the disk is full" in out
    assert "a word" not in out


def test_why_a_run_ended_early_is_shown(line, capsys) -> None:
    line(START, flush(0, 3, 1.0), Message(f"{ENDED_EARLY}: val_loss did not improve.", "info", 3))
    assert "val_loss did not improve" in capsys.readouterr().err


def test_what_another_run_has_said_is_not_said_again(line, capsys) -> None:
    line(
        START,
        Message("of the past", "warning"),
        flush(0, 3, 1.0),
        Resumed(3, "a", "00000003"),
        Message("of now", "warning"),
    )
    out = capsys.readouterr().err
    assert "of now" in out
    assert "of the past" not in out
