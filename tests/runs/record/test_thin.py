"""Norms by layer of older updates thin out, so that a long run has a bound on disk; all else of its record stays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runs.records import history, read_events, read_record
from workbench.events import (
    Event,
    Message,
    RunEnded,
    RunStarted,
    StepsDone,
    Validated,
    from_line,
    pack,
    thinned,
    to_line,
)
from workbench.runs.folder.inherited import first_rows
from workbench.runs.health import examine
from workbench.runs.record.follow import Tail
from workbench.runs.record.stream import joined
from workbench.runs.run import Run
from workbench.runs.store import RunFolder

LAYERS = 250
MB = 1_000_000


def flush(step: int, rows: int = 20, layers: int = LAYERS, **more: Any) -> StepsDone:
    norms = (
        np.arange(step, step + rows, dtype=np.float32)[:, None]
        + np.arange(layers, dtype=np.float32) / layers
    )
    columns = {
        "loss": pack(np.arange(step, step + rows)),
        "lr": pack([0.1] * rows),
        "grad_norm": pack(norms[:, 0]),
    }
    return StepsDone(
        step, 1, rows, 0, step + 1.0, columns | {"layer_norms": pack(norms)} | more, cpu=0.25
    )


def a_long_run(updates: int = 4000) -> Iterator[Event]:
    """With 1.3 kB of norms by layer for each update."""
    yield RunStarted("a", "fit", {}, "cpu", tuple(f"layer{i}" for i in range(LAYERS)))
    for step in range(0, updates, 20):
        yield flush(step)
        if step % 500 == 480:
            yield Validated(step + 20, 0, {"val_loss": 1.0})
    yield RunEnded("finished", updates, 9.0)


def folder(root: Path, megabytes: int | None = 1) -> RunFolder:
    return RunFolder.create(root, "a", {"kind": "fit", "settings": {"layer_history_mb": megabytes}})


def written(root: Path, megabytes: int | None = 1) -> Path:
    with folder(root, megabytes) as made:
        for event in a_long_run():
            made.append(event)
    return made.path


def test_the_disk_has_a_bound_and_all_but_the_layers_is_whole(tmp_path: Path) -> None:
    events = [*a_long_run()]
    thin, whole = written(tmp_path / "thin"), written(tmp_path / "whole", None)
    size = (thin / "metrics.jsonl").stat().st_size
    assert (whole / "metrics.jsonl").stat().st_size > 5 * MB
    scalars = sum(len(to_line(event)) for event in events) - 4000 * LAYERS * 4 * 4 // 3
    assert size < 1.05 * MB + scalars
    assert read_events(whole) == events
    found = read_record(thin)
    assert found.skipped == 0
    assert len(found.events) == len(events)
    one, other = Run.open(thin), Run.open(whole)
    assert [*one.history] == [*other.history]
    for name, values in other.history.items():
        if not name.startswith("grad_norm/"):
            np.testing.assert_array_equal(one.history[name], values)
    kept = ~np.isnan(one.history["grad_norm/layer3"])
    np.testing.assert_array_equal(
        one.history["grad_norm/layer3"][kept], other.history["grad_norm/layer3"][kept]
    )
    assert kept[-100:].all(), "of the newest every update is there"
    gaps = np.diff(np.flatnonzero(kept))
    assert set(gaps[: len(gaps) // 4].tolist()) == {gaps.max()}, (
        "of the oldest every so many-th, evenly"
    )
    assert gaps.max() < 32


def test_whoever_follows_reads_each_event_once(tmp_path: Path) -> None:
    tail, every_other = Tail(tmp_path / "runs" / "a"), Tail(tmp_path / "runs" / "a")
    heard: list[tuple[int, Event]] = []
    late: list[Event] = []
    with folder(tmp_path) as made:
        for number, event in enumerate(a_long_run()):
            assert made.append(event) == number
            heard += tail.numbered()
            if number % 17 == 0:
                late += every_other.new()
    while new := every_other.new():
        late += new
    events = [*a_long_run()]
    assert heard == [*enumerate(events)]
    assert [type(event) for event in late] == [type(event) for event in events]
    assert [event.step for event in late if isinstance(event, StepsDone)] == list(
        range(0, 4000, 20)
    )


def test_a_writer_that_is_killed_or_finds_no_room_leaves_a_whole_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    made = folder(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    for event in a_long_run(1600):
        made.append(event)
    monkeypatch.undo()
    assert read_events(made.path) == [*a_long_run(1600)]
    assert sorted(os.listdir(made.path)) == [".reserve", "metrics.jsonl", "run.json"]
    # as one that was killed leaves it
    (made.path / "metrics.jsonl.new").write_text('{"type":"Mess')
    made.append(flush(1600, 400))
    made.append(flush(2000, 400))
    made.close()
    assert (made.path / "metrics.jsonl").stat().st_size < 1.2 * MB
    assert not (made.path / "metrics.jsonl.new").exists()
    assert history(read_events(made.path))["step"].tolist() == list(range(2400))


def test_another_process_goes_on_with_a_thinned_record(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.append(Message("before"))
    with RunFolder.take_over(made.path) as other:
        for event in a_long_run():
            other.append(event)
    made.write_again()
    assert made.append(Message("behind")) == len([*a_long_run()]) + 1
    made.close()
    events = read_events(made.path)
    assert (events[0], events[-1]) == (Message("before"), Message("behind"))
    assert len(events) == len([*a_long_run()]) + 2


@pytest.mark.parametrize(
    ("step", "rows", "every"), [(0, 20, 2), (7, 20, 4), (7, 3, 8), (8, 1, 8), (5, 1, 2)]
)
def test_a_thinned_flush(step: int, rows: int, every: int) -> None:
    whole = flush(step, rows)
    less = thinned(whole, every)
    kept = np.arange(step, step + rows) % every == 0
    assert from_line(to_line(less)) == less
    assert thinned(less, 1) == less
    if kept.any():
        table = less.array("layer_norms")
        np.testing.assert_array_equal(table[kept], whole.array("layer_norms")[kept])
        assert np.isnan(table[~kept]).all()
    else:
        assert "layer_norms" not in less.columns
    for cut in range(1, rows):
        one, other = thinned(first_rows(whole, cut), every), first_rows(less, cut)
        assert one.columns.get("layer_norms", b"") == other.columns.get("layer_norms", b"")
    (one,) = joined([thinned(flush(0, 20), every), thinned(flush(20, 20), every)])
    assert isinstance(one, StepsDone)
    assert one.columns == thinned(flush(0, 40), every).columns


def test_a_flush_of_which_a_stranger_says_otherwise_is_none() -> None:
    line = json.loads(to_line(thinned(flush(0), 4)))
    for wrong in (0, -1, 3, 10**400, "4", None):
        with pytest.raises(ValueError):
            from_line(json.dumps({**line, "layers_every": wrong}))


def test_health_knows_what_it_does_not_know() -> None:
    def run(every: int, bad: float) -> list[Event]:
        quiet = np.ones((4000, 4), np.float32)
        quiet[1000:, 2] = 0.0
        loss = np.linspace(2, 1, 4000)
        loss[3501] = bad
        columns = {
            "loss": pack(loss),
            "lr": pack([0.1] * 4000),
            "grad_norm": pack([1.0] * 4000),
            "layer_norms": pack(quiet),
        }
        return [
            RunStarted("a", "fit", {}, "cpu", ("a", "b", "c", "d")),
            thinned(StepsDone(0, 1, 4000, 0, 1.0, columns), every),
        ]

    said = [[finding.text for finding in examine(run(every, np.nan))] for every in (1, 8)]
    assert said[0][0].startswith("loss not finite at update 3501")
    assert said[1][0] == "loss not finite at update 3501"
    quiet = [[finding.text for finding in examine(run(every, 1.0))] for every in (1, 8)]
    assert [any("no gradient reaches c" in text for text in texts) for texts in quiet] == [
        True,
        True,
    ]


def test_a_picture_of_all_layers_shows_the_greatest_that_are_left(tmp_path: Path) -> None:
    one, other = (
        Run.open(written(tmp_path / str(mb), mb)).charts("grad_norm")[0].heat for mb in (1, None)
    )
    assert one is not None
    assert other is not None
    assert one.rows == other.rows
    np.testing.assert_array_equal(one.x, other.x)
    known = np.isfinite(one.z)
    assert known[:, -20:].all()
    assert known.mean() > 0.3
    np.testing.assert_allclose(one.z[known], other.z[known], atol=32)
