"""What the server keeps of runs, and that no record holds up the others."""

from __future__ import annotations

import os
import shutil
import threading
import time

import numpy as np
import pytest

from tests.server.conftest import PATIENCE
from workbench.runs.folder.annotations import annotate
from workbench.runs.record import follow
from workbench.runs.tables.brief import RunBrief
from workbench.server import index, watcher
from workbench.server.index import Index
from workbench.server.roots import find_roots
from workbench.ui.canvas.runs.run_brief import LiveRunBrief


@pytest.fixture
def kept(jp_root_dir):
    """An index of the server's root folder, and the key of a run in it."""
    found = Index(threading.Condition())
    (root,) = find_roots(jp_root_dir, 0, ())
    found.use([root])
    found.look()
    while found.unread:
        found.read_next()
    return found, lambda id: (root.key, id)


@pytest.fixture
def by_lines(monkeypatch):
    """A turn reads one line."""
    monkeypatch.setattr(follow, "_BLOCK", 64)
    monkeypatch.setattr(index, "_TURN", 0.0)


def long(record, id):
    run = record(id)
    for at in range(10):
        run.steps(5).checked(1 / (1 + at))
    return run


def test_a_long_record_is_read_by_turns(record, request, by_lines):
    long(record, "0001-fit")
    kept, key = request.getfixturevalue("kept")
    kept.move()
    assert kept.is_begun(key("0001-fit"))
    assert kept.brief(key("0001-fit")) is None
    assert kept.entries[key("0001-fit")].summary.step == 50  # its present state is known
    turns = 0
    while kept.is_begun(key("0001-fit")):
        kept.read_brief(key("0001-fit"))
        turns += 1
    assert turns > 5
    whole, found = (
        RunBrief.read(kept.entries[key("0001-fit")].summary.path),
        kept.brief(key("0001-fit")),
    )
    np.testing.assert_array_equal(found.curve, whole.curve)
    np.testing.assert_array_equal(found.checks, whole.checks)
    assert (found.status, found.step, found.metrics) == (whole.status, whole.step, whole.metrics)


def test_a_brief_so_far_has_the_present_state(record, by_lines):
    run = long(record, "0001-fit").ended("failed", "ValueError: no")
    growing = LiveRunBrief(run.path)
    found = growing.brief(until=0.0)
    assert growing.reading
    assert (found.status, found.step, found.error) == ("failed", 50, "ValueError: no")
    assert len(found.curve) < 50
    whole = growing.brief()
    assert not growing.reading
    np.testing.assert_array_equal(whole.curve, RunBrief.read(run.path).curve)


async def test_a_change_that_leaves_the_time_of_the_folder_is_seen(api, record, monkeypatch):
    """A file system's clock may stand still for some milliseconds."""
    monkeypatch.setattr(index, "_SETTLED", PATIENCE)
    run, at = record("0001-fit").steps(10).ended(), time.time()
    for name in ("first", "second"):
        annotate(run.path, name=name)
        os.utime(run.path, (at, at))
        assert [row["name"] for row in await api.rows()] == [name]


def test_a_run_that_was_replaced_is_not_read_in_a_root_that_is_gone(record, request, monkeypatch):
    run = record("0001-fit", created=1.0).steps(10).ended()
    kept, key = request.getfixturevalue("kept")
    shutil.rmtree(run.path)
    record("0001-fit", created=2.0)
    created = index._created

    def late(folder):
        kept.use([])
        return created(folder)

    monkeypatch.setattr(index, "_created", late)
    kept.changed(key("0001-fit"))
    assert kept.unread
    assert kept.read_next() is None
    assert not kept.unread


def poisoned(monkeypatch, error):
    """The record of 0001-fit cannot be folded."""
    good = LiveRunBrief.brief

    def brief(self, *until):
        if self._folder.name == "0001-fit":
            raise error
        return good(self, *until)

    monkeypatch.setattr(LiveRunBrief, "brief", brief)
    return lambda: monkeypatch.setattr(LiveRunBrief, "brief", good)


async def test_a_run_whose_record_cannot_be_folded_moves_and_ends(api, record, monkeypatch):
    poisoned(monkeypatch, TypeError("unforeseen"))
    run = record("0001-fit").steps(10)
    events = await api.socket("api/events")
    (row,) = (await events.read())["rows"]
    assert (row["step"], row["status"], row["spark"]) == (10, "running", [])
    run.steps(10)
    assert (await events.until(lambda one: one["type"] == "rows"))[-1]["rows"][0]["step"] == 20
    run.ended()
    assert (await events.until(lambda one: one["type"] == "ended"))[-1]["row"][
        "status"
    ] == "finished"
    assert (await api.ask(await api.address("0001-fit"), "DELETE"))[0] == 204


async def test_a_record_that_could_not_be_opened_is_tried_again(api, record, monkeypatch):
    monkeypatch.setattr(index, "_AGAIN", 0.0)
    # of a page that waits for a record which cannot be opened
    monkeypatch.setattr(watcher, "_FOR_ROWS", 0.3)
    opened = poisoned(monkeypatch, OSError(24, "too many open files"))
    record("0001-fit").steps(10).ended()
    assert (await api.get("api/runs"))["rows"][0]["spark"] == []
    opened()
    assert (await api.rows())[0]["spark"] != []


async def test_rows_have_their_curves_however_many_runs_a_sort_reads(api, record, monkeypatch):
    monkeypatch.setattr(index, "BRIEFS", 5)
    for at in range(1, 13):
        record(f"{at:04d}-fit", created=float(at)).steps(10).checked(float(at)).ended(
            val_loss=float(at)
        )
    for offset in (0, 5, 10, 0):
        rows = await api.rows(sort="value", order="asc", limit=5, offset=offset)
        assert [row["value"] for row in rows] == [
            str(at) for at in range(offset + 1, min(offset + 6, 13))
        ]
        assert all(row["spark"] and row["total"] == 100 for row in rows)
    assert all(row["spark"] for row in await api.rows(limit=5))
