"""The list of runs, one run, and what a person does with them."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import threading
from copy import copy

import pytest

from tests.server.conftest import PATIENCE, Api
from workbench.commands import Change, Checkpoint, Pause, Resume, Stop, Validate
from workbench.events import Changed, ClipSearchEnded, CurveEnded, Resumed
from workbench.runs.folder import control
from workbench.runs.folder.annotations import Annotations, annotate, read_annotations
from workbench.runs.record import follow
from workbench.runs.tables.brief import RunBrief
from workbench.server import details, http, rows, watcher
from workbench.server.query import Query
from workbench.server.watcher import Watcher
from workbench.ui.canvas.runs.runs_table import moving


async def test_a_row_says_what_the_notebooks_table_says(api, record):
    run = record("0001-fit", settings={"lr": 0.1}, created=100.0).steps(50).checked(0.5).steps(30)
    run.ended(loss=1.0, val_loss=0.5)
    (row,) = await api.rows()
    brief = RunBrief.read(run.path)
    wanted = moving(brief)
    assert {name: row[name] for name in wanted if name != "order"} == {
        name: wanted[name] for name in wanted if name != "order"
    }
    assert (row["created"], row["total"], row["progress"], row["left"]) == (100.0, 100, 0.8, "")
    assert (row["commands"], row["launched"], row["error"], row["kind"]) == (
        False,
        False,
        "",
        "fit",
    )


def test_a_page_without_runs_that_were_read_a_moment_later_says_that_more_are_to_come(
    record, jp_root_dir, monkeypatch
):
    record("0001-fit").steps()
    monkeypatch.setattr(watcher, "_PATIENCE", 0.0)
    monkeypatch.setattr(watcher, "_FOR_ROWS", PATIENCE)
    read_whole, look = Watcher._read_whole, Watcher._look
    listed = threading.Event()

    def look_once_a_page_listed_its_runs(self):
        assert listed.wait(PATIENCE)
        look(self)

    def after_all_is_read(self, *given, **options):
        listed.set()
        assert self._changed.wait_for(lambda: self._answered and not self._index.unread, PATIENCE)
        return read_whole(self, *given, **options)

    monkeypatch.setattr(Watcher, "_look", look_once_a_page_listed_its_runs)
    monkeypatch.setattr(Watcher, "_read_whole", after_all_is_read)
    watching = Watcher(jp_root_dir, 0, ())
    try:
        pages = [watching.page(Query()) for _ in range(2)]
    finally:
        watching.close()
    assert [([row["run"] for row in page["rows"]], page["reading"]) for page in pages] == [
        ([], True),
        (["0001-fit"], False),
    ]


async def test_a_run_that_runs_says_how_long_it_will(api, record):
    run = record("0001-fit").steps(50, seconds=2.0)
    (row,) = await api.rows()
    assert (row["status"], row["progress"], row["left"], row["commands"]) == (
        "running",
        0.5,
        "1 min 40 s",
        True,
    )
    run.steps(10, seconds=2.0)
    (row,) = await api.rows()
    assert (row["step"], row["left"]) == (60, "1 min 20 s")


async def test_jobs_of_other_kinds_are_listed_too(api, record):
    record("0001-find_lr", kind="find_lr", created=1.0).ended()
    record("0002-fit", settings={"lr": 0.1}, created=2.0).steps().ended()
    record("0003-fit", settings={"lr": 0.2}, created=3.0).steps().ended()
    page = await api.page()
    assert [(row["run"], row["kind"], row["cells"]) for row in page["rows"]] == [
        ("0003-fit", "fit", ["0.2"]), ("0002-fit", "fit", ["0.1"]), ("0001-find_lr", "find_lr", [""]),
    ]  # fmt: skip
    assert page["columns"] == ["lr"]


async def test_pages_sorts_and_filters_count_all_runs(api, record):
    losses = [0.5, 0.2, 0.9, 0.1, 0.3]
    for at, loss in enumerate(losses, 1):
        run = record(f"000{at}-fit", settings={"lr": 0.1 * at}, created=float(at)).steps(10 * at)
        run.checked(loss).ended(
            "failed" if at == 3 else "finished",
            "ValueError: no\nmore" if at == 3 else None,
            val_loss=loss,
        )
    annotate(run.path, name="Baseline", tags=["sgd"], notes="the warm start")
    page = await api.page(limit=2, offset=2)
    assert ([row["run"] for row in page["rows"]], page["matching"], page["total"]) == (
        ["0003-fit", "0002-fit"],
        5,
        5,
    )
    assert (page["statuses"], page["tags"]) == ({"finished": 4, "failed": 1}, ["sgd"])
    assert page["rows"][0]["error"] == "ValueError: no"
    best = await api.rows(sort="value", order="asc")
    assert [row["run"] for row in best] == [
        "0004-fit",
        "0002-fit",
        "0005-fit",
        "0001-fit",
        "0003-fit",
    ]
    shortest = await api.rows(sort="time", order="asc")
    assert [row["run"] for row in shortest] == [f"000{at}-fit" for at in range(1, 6)]
    # its name is Baseline
    assert (await api.rows(sort="name", order="desc"))[0]["run"] == "0005-fit"
    assert (await api.rows(sort="status", order="asc"))[0]["run"] == "0003-fit"
    for search in ("WARM", "#sgd", "lr=0.5", "baseline net"):
        assert [row["run"] for row in await api.rows(search=search)] == ["0005-fit"], search
    assert [row["run"] for row in await api.rows(tag="sgd")] == ["0005-fit"]
    failed = await api.page(status="failed")
    assert ([row["run"] for row in failed["rows"]], failed["matching"], failed["statuses"]) == (
        ["0003-fit"],
        1,
        {"finished": 4, "failed": 1},
    )


async def test_a_sort_by_loss_is_by_the_shown_one(api, record):
    """The last loss of a record is of one update; what the row shows is smoothed."""
    runs = [
        record(f"000{at}-fit", created=float(at)).steps(20 * at).ended(loss=last)
        for at, last in enumerate((5.0, 1.0, 3.0), 1)
    ]
    rows = await api.rows(sort="loss", order="asc")
    assert [row["run"] for row in rows] == sorted(
        (run.id for run in runs), key=lambda id: RunBrief.read(runs[0].path.with_name(id)).loss
    )


@pytest.mark.parametrize(("arguments", "said"), [
    ("limit=201", "limit=201: give a number from 1 to 200"), ("limit=0", "limit=0"), ("offset=-1", "offset='-1': give a whole number from 0 on"),
    ("offset=x", "offset='x'"), ("sort=size", "sort='size': give one of created, loss, value, time, name, status"), ("order=up", "order='up'"),
    ("tag=%ff", "is not UTF-8"), ("search=%c3%28", "is not UTF-8"), ("page=2", "page='2': there is no such argument"), ("search=" + "x" * 300, "search has 300 characters: give at most 200"),
])  # fmt: skip
async def test_a_wrong_argument_is_named(api, arguments, said):
    assert said in await api.refused(400, f"api/runs?{arguments}")


@pytest.mark.parametrize("added", ["1795724098898", "_xsrf=2|a|b|1"])
async def test_jupyter_may_add_arguments_to_an_address(api, record, added):
    record("0001-fit").steps()
    assert (await api.ask(f"api/runs?limit=5&{added}"))[0] == 200


async def test_details_say_what_the_run_says(api, record):
    run = (
        record("0001-fit", settings={"lr": 0.1, "batch_size": 8}, launched=True)
        .steps(50)
        .checked(0.5)
    )
    run.ended("failed", "ValueError: no")
    (run.path / "output.log").write_text("one\n" * 3)
    found = await api.get(await api.address("0001-fit"))
    assert found["row"] == {**(await api.rows())[0], "cells": []}
    assert dict(found["facts"])["Model"] == "Net (12 parameters)"
    settings = {one["name"]: (one["text"], one["default"]) for one in found["settings"]}
    assert settings["lr"] == ("0.1", False)
    assert settings["max_epochs"][1] is True
    assert found["output"] is True
    assert found["why_no_commands"] == "A command comes too late: fit 0001-fit has failed."
    assert found["code"]["settings"] in (
        "bench.set(lr=0.1, batch_size=8)",
        "bench.set(batch_size=8, lr=0.1)",
    )
    assert found["code"]["continue"] == ""
    assert found["code"]["rerun"] == ""
    assert found["why_no_rerun"].startswith("its folder has no start/start.json")
    (run.path / "start").mkdir()
    (run.path / "start" / "start.json").write_text('{"missing": "model.lock cannot be kept."}')
    found = await api.get(await api.address("0001-fit"))
    assert found["why_no_rerun"] == "its start was not kept: model.lock cannot be kept"
    (run.path / "start" / "start.json").write_text('{"code": "0"}')
    found = await api.get(await api.address("0001-fit"))
    root = str(run.path.parents[1])
    assert found["code"]["rerun"] == f"import workbench as wb\n\nwb.rerun('0001-fit', {root!r})"


async def test_details_of_a_run_that_trains_are_those_of_now(api, record):
    run = record("0001-fit").steps(50)
    address = await api.address("0001-fit")
    assert (await api.get(address))["row"]["step"] == 50
    run.steps(20)
    run.ended("failed", "ValueError: no")
    found = await api.get(address)
    assert (found["row"]["error"], found["row"]["step"], found["row"]["status"]) == (
        "ValueError: no",
        70,
        "failed",
    )


async def test_details_of_a_long_record_come_in_parts(api, record, monkeypatch):
    run = record("0001-fit")
    for at in range(1, 11):
        run.steps(5).add(Changed(5 * at, {"lr": 0.1 * at}))
    run.ended()
    address = await api.address("0001-fit")
    with monkeypatch.context() as slow:
        slow.setattr(follow, "_BLOCK", 64)
        slow.setattr(details, "_SLICE", 0.0)
        parts = [await api.get(address)]
        while parts[-1]["reading"]:
            parts.append(await api.get(address))
    assert len(parts) > 5
    assert {part["row"]["status"] for part in parts} == {"finished"}
    changes = [[step for step, _ in part["changes"]] for part in parts]
    assert len(changes[0]) < 3
    assert changes[-1] == [5 * at for at in range(1, 11)]


async def test_long_records_hold_up_no_command_and_no_other_request(api, record, monkeypatch):
    """Four requests read as many records at once; others answer what is there."""
    reads, go = [], threading.Event()
    new = follow.Tail.new

    def slow(self):
        if threading.current_thread().name.startswith("workbench-server"):
            reads.append(self)
            assert go.wait(60)
        return new(self)

    runs = [record(f"000{at}-fit").steps() for at in range(5)]
    addresses = [await api.address(run.id) for run in runs]
    monkeypatch.setattr(follow.Tail, "new", slow)
    asked = [asyncio.create_task(Api.ask(copy(api), addresses[at])) for at in (0, 1, 2)]
    try:
        async with asyncio.timeout(PATIENCE):
            while len(reads) < 3:
                await asyncio.sleep(0)
        assert (await api.get(addresses[0]))["reading"] is True
        asked.append(asyncio.create_task(Api.ask(copy(api), addresses[3])))
        async with asyncio.timeout(PATIENCE):
            while len(reads) < 4:
                await asyncio.sleep(0)
        assert (await api.ask(f"{addresses[4]}/commands", "POST", {"type": "Stop"}))[0] == 204
        assert list(control.take(runs[4].path)) == [Stop()]
    finally:
        go.set()
    assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 4
    async with asyncio.timeout(PATIENCE):
        for address in addresses[:4]:
            while (await api.get(address))["reading"]:  # a slow machine reads on in the next answer
                pass


async def test_a_run_in_the_place_of_one_that_was_deleted_is_another(api, record, root):
    record("0001-fit", settings={"lr": 0.1}).steps(10).ended()
    address = await api.address("0001-fit")
    shutil.rmtree(root / "runs")
    (root / "runs").mkdir()
    run = record("0001-fit", settings={"lr": 0.5}).steps(50)
    assert (await api.get(address))["code"]["settings"] == "bench.set(lr=0.5)"
    (row,) = await api.rows()
    assert (row["status"], row["step"], row["commands"]) == ("running", 50, True)
    assert (await api.ask(f"{address}/commands", "POST", {"type": "Stop"}))[0] == 204
    assert list(control.take(run.path)) == [Stop()]


async def test_a_run_that_goes_while_it_is_read_is_not_there(api, record):
    run = record("0001-fit").steps().ended()
    address = await api.address("0001-fit")
    (run.path / "run.json").unlink()
    assert "is no longer there" in await api.refused(404, address)


async def test_an_unforeseen_error_has_a_text(api, record, monkeypatch):
    record("0001-fit").steps().ended()
    address = await api.address("0001-fit")

    def fails(*_):
        raise OverflowError("too large")

    monkeypatch.setattr(http, "output", fails)
    assert "OverflowError: too large" in await api.refused(500, f"{address}/output")


async def test_a_row_that_cannot_be_made_is_left_out(api, record, monkeypatch):
    def row(entry, *rest):
        if entry.summary.id == "0001-fit":
            raise RecursionError("unforeseen")
        return rows.row(entry, *rest)

    monkeypatch.setattr(watcher, "row", row)
    runs = [record(f"000{at}-fit").steps() for at in (1, 2)]
    assert [one["run"] for one in await api.rows()] == ["0002-fit"]
    events = await api.socket("api/events")
    await events.read()
    for run in runs:
        run.steps().ended()
    assert (await events.until(lambda one: one["type"] == "ended"))[-1]["row"]["run"] == "0002-fit"


@pytest.mark.parametrize(("given", "command"), [
    ({"type": "Stop"}, Stop()), ({"type": "Pause"}, Pause()), ({"type": "Resume"}, Resume()), ({"type": "Validate"}, Validate()),
    ({"type": "Checkpoint"}, Checkpoint()), ({"type": "Change", "values": {"lr": 0.01}}, Change({"lr": 0.01})),
    ({"type": "Change", "values": {"gradient_clip_val": None}}, Change({"gradient_clip_val": None})),
])  # fmt: skip
async def test_a_command_lies_in_the_runs_folder(api, record, given, command):
    run = record("0001-fit").steps()
    status, body = await api.ask(f"{await api.address('0001-fit')}/commands", "POST", given)
    assert (status, body) == (204, b"")
    assert list(control.take(run.path)) == [command]


@pytest.mark.parametrize(("given", "said"), [
    ({"type": "Explode"}, "it has none of the types"), ({}, "it has none of the types"), ({"type": "Stop", "values": {}}, "a Stop has no values"),
    ({"type": "Change"}, "a Change has values"), ({"type": "Change", "values": {"lr": "high"}}, "lr='high' is neither a number"),
    ({"type": "Change", "values": {"max_epochs": 3}}, "max_epochs cannot change while a run is running"),
    ({"type": "Change", "values": {"lr": -1}}, "lr=-1"), ({"type": "Change", "values": {"learn": 1}}, "learn"),
    ({"type": "Change", "values": {"lr": 0}}, "lr=0"), ({"kind": "Stop"}, "'kind' is unknown here"), ([], "send a JSON object"),
    ("{", "is not JSON"), ("[" * 50_000, "is not JSON"), ("x" * 70_000, "70000 bytes"),
])  # fmt: skip
async def test_a_wrong_command_is_refused_in_words(api, record, given, said):
    run = record("0001-fit").steps()
    assert said in await api.refused(
        400, f"{await api.address('0001-fit')}/commands", "POST", given
    )
    assert not (run.path / "control").exists()


async def test_a_run_that_ended_meanwhile_takes_no_command(api, record):
    run = record("0001-fit").steps()
    address = await api.address("0001-fit")
    run.ended()
    assert "comes too late: fit 0001-fit has finished" in await api.refused(
        409, f"{address}/commands", "POST", {"type": "Stop"}
    )


async def test_a_run_that_takes_no_commands_says_why(api, record):
    record("0001-fit").steps().ended()
    record("0002-fit", takes_commands=False).steps()
    assert "comes too late" in await api.refused(
        409, f"{await api.address('0001-fit')}/commands", "POST", {"type": "Stop"}
    )
    assert "an older version trains it" in await api.refused(
        409, f"{await api.address('0002-fit')}/commands", "POST", {"type": "Stop"}
    )
    assert [row["commands"] for row in await api.rows()] == [False, False]


async def test_a_search_can_only_be_stopped(api, record):
    run = record("0001-find_lr", kind="find_lr")
    address = await api.address("0001-find_lr")
    assert "pause() is for fits; a find_lr job can only be stopped" in await api.refused(
        409, f"{address}/commands", "POST", {"type": "Pause"}
    )
    assert (await api.ask(f"{address}/commands", "POST", {"type": "Stop"}))[0] == 204
    assert list(control.take(run.path)) == [Stop()]


async def test_annotations_are_a_persons(api, record):
    run = record("0001-fit").steps().ended()
    address = await api.address("0001-fit")
    status, row = await api.ask(
        address,
        "PATCH",
        {"name": "first", "tags": ["a", "b"], "notes": "line\nline", "pinned": True},
    )
    assert (status, row["name"], row["tags"], row["notes"], row["pinned"]) == (
        200,
        "first",
        ["a", "b"],
        "line\nline",
        True,
    )
    assert read_annotations(run.path) == Annotations("first", "line\nline", ("a", "b"), True)
    await api.ask(address, "PATCH", {"name": "", "pinned": False})
    (row,) = await api.rows()
    assert (row["name"], row["pinned"], row["tags"]) == ("", False, ["a", "b"])
    annotate(run.path, name="by the kernel")
    (row,) = await api.rows()
    assert row["name"] == "by the kernel"


async def test_simultaneous_annotations_are_all_kept(api, record):
    run = record("0001-fit").steps().ended()
    address = await api.address("0001-fit")
    for at in range(10):
        changes = {"name": f"n{at}"}, {"notes": f"text {at}"}, {"tags": [f"t{at}"]}
        answers = await asyncio.gather(*(api.ask(address, "PATCH", change) for change in changes))
        assert [status for status, _ in answers] == [200] * 3
        assert read_annotations(run.path) == Annotations(f"n{at}", f"text {at}", (f"t{at}",))


async def test_a_change_to_what_was_changed_meanwhile_is_refused(api, record):
    """Two pages show the same row, and both save. One of them is told, and finds what is there now."""
    run = record("0001-fit").steps().ended()
    address = await api.address("0001-fit")
    for at in range(5):
        (row,) = await api.rows()
        match = api.headers | {"If-Match": f'"{row["version"]}"'}
        answers = await asyncio.gather(
            *(
                api.ask(address, "PATCH", {"notes": f"{who} {at}"}, match)
                for who in ("one", "other")
            )
        )
        (kept,) = (body for status, body in answers if status == 200)
        (refusal,) = (body for status, body in answers if status == 412)
        assert "changed meanwhile" in refusal["message"]
        now = (await api.get(address))["row"]
        assert (now["notes"], now["version"]) == (kept["notes"], kept["version"])
        assert read_annotations(run.path).notes == kept["notes"]


async def test_runs_are_sorted_by_their_numbers(api, record, root):
    """The clock was set back between two runs; runs of two roots are sorted by it as far as that is possible."""
    for number, created in ((1, 500.0), (2, 100.0), (10, 50.0), (10_000, 40.0)):
        record(f"{number:04d}-fit", created=created).steps().ended()
    record("my-copy", created=900.0).steps().ended()
    other = root.parent / "other" / ".workbench"
    record("0001-fit", other, created=300.0).steps().ended()
    record("0002-fit", other, created=600.0).steps().ended()
    newest = ["my-copy", "0002-fit", "10000-fit", "0010-fit", "0002-fit", "0001-fit", "0001-fit"]
    assert [row["run"] for row in await api.rows()] == newest
    assert [row["run"] for row in await api.rows(order="asc")] == newest[::-1]


async def test_what_was_changed_live_is_a_difference(api, record):
    record("0001-fit", settings={"lr": 0.01}).steps().ended()
    record("0002-fit", settings={"lr": 0.01}).steps().add(
        Changed(10, {"lr": 0.002})
    ).steps().ended()
    page = await api.get("api/runs")
    assert page["columns"] == ["lr"]
    assert [row["cells"] for row in page["rows"]] == [["0.01 → 2e-3 at update 10"], ["0.01"]]


async def test_rows_have_one_loss_and_the_best_validation(api, record):
    record("0001-fit").steps().checked(0.3).steps().checked(0.6).ended(loss=7.0, val_loss=0.6)
    record("0002-fit").steps().checked(0.5).ended(loss=8.0, val_loss=0.5)
    rows = {row["run"]: row for row in await api.rows(sort="value", order="asc")}
    assert [(run, row["metric"], row["value"]) for run, row in rows.items()] == [
        ("0001-fit", "val_loss", "0.3"),
        ("0002-fit", "val_loss", "0.5"),
    ]
    # the smoothed one, and not that of the last update
    assert all(float(row["loss"]) < 2 for row in rows.values())


async def test_a_search_shows_what_it_found(api, record):
    record("0001-find_lr", kind="find_lr").add(CurveEnded("the loss diverged", (), 0.069)).ended()
    running = record("0002-find_clip_val", kind="find_clip_val")
    assert {row["run"]: row["answer"] for row in await api.rows()} == {
        "0001-find_lr": "lr=0.069",
        "0002-find_clip_val": "",
    }
    running.add(
        ClipSearchEnded({"gradient_clip_val": 1.5}, 1.5, ((1.0,),), "a tenth is above it", "done")
    ).ended()
    assert {row["run"]: row["answer"] for row in await api.rows()} == {
        "0001-find_lr": "lr=0.069",
        "0002-find_clip_val": "gradient_clip_val=1.5",
    }


@pytest.mark.parametrize(("given", "said"), [
    ({"name": 3}, "name=3: give text"), ({"name": "x" * 100}, "has 100 characters: give at most 80"), ({"tags": "a"}, "tags='a': give a list"),
    ({"tags": ["a,b"]}, "a tag has no comma"), ({"pinned": 1}, "pinned=1: give True or False"), ({"notes": "x" * 4000}, "at most 3000"),
    ({"id": "x"}, "'id' is unknown here"), ({"name": None}, "name=null"),
])  # fmt: skip
async def test_a_wrong_annotation_is_named(api, record, given, said):
    run = record("0001-fit").steps().ended()
    assert said in await api.refused(400, await api.address("0001-fit"), "PATCH", given)
    assert read_annotations(run.path) == Annotations()


async def test_deletion(api, record):
    runs = {
        id: record(id, **facts).steps()
        for id, facts in {"0001-fit": {}, "0002-fit": {}, "0003-fit": {"host": "elsewhere"}}.items()
    }
    runs["0001-fit"].ended()
    addresses = {id: await api.address(id) for id in runs}
    assert (await api.ask(addresses["0001-fit"], "DELETE"))[0] == 204
    assert "stop it first" in await api.refused(409, addresses["0002-fit"], "DELETE")
    assert "may still run" in await api.refused(409, addresses["0003-fit"], "DELETE")
    assert "force='2'" in await api.refused(400, addresses["0003-fit"] + "?force=2", "DELETE")
    assert (await api.ask(addresses["0003-fit"] + "?force=1", "DELETE"))[0] == 204
    assert "not over" in await api.refused(409, addresses["0002-fit"] + "?force=1", "DELETE")
    assert [row["run"] for row in await api.rows()] == ["0002-fit"]
    assert {id for id, run in runs.items() if run.path.exists()} == {"0002-fit"}
    assert "there is no such run" in await api.refused(404, addresses["0001-fit"])


async def test_a_run_of_another_machine_only_counts_as_running(api, record):
    record("0001-fit", host="elsewhere").steps()
    (row,) = await api.rows()
    assert (row["status"], row["commands"]) == ("running?", True)


async def test_a_run_whose_process_died_has_failed(api, record):
    record("0001-fit").steps().dies()
    (row,) = await api.rows()
    assert (row["status"], row["commands"]) == ("failed", False)
    assert "ended without ending the run" in row["error"]


async def test_output_is_read_in_pieces_of_whole_characters(api, record):
    run = record("0001-fit", launched=True).steps()
    text = "".join(f"line {at} — ü\n" for at in range(20_000))
    (run.path / "output.log").write_text(text)
    address, read, offset, more = f"{await api.address('0001-fit')}/output", "", 0, True
    while more:
        found = await api.get(address, offset=offset)
        assert len(found["text"].encode()) <= 1 << 16
        read, offset, more = read + found["text"], found["offset"], found["more"]
    assert read == text
    assert await api.get(address, offset=offset) == {"text": "", "offset": offset, "more": False}
    with (run.path / "output.log").open("a") as file:
        file.write("50%\r100%\r\n\x1b[31mred")
    assert (await api.get(address, offset=offset))["text"] == "100%\n\\x1b[31mred"
    end = await api.get(address, offset=-1)
    assert end["text"].startswith("line ")
    assert end["text"].endswith("red")
    assert len(end["text"]) <= 1 << 16
    assert "offset='-2'" in await api.refused(400, f"{address}?offset=-2")


async def test_a_run_without_output_has_none(api, record):
    record("0001-fit").steps()
    assert await api.get(f"{await api.address('0001-fit')}/output", offset=-1) == {
        "text": "",
        "offset": 0,
        "more": False,
    }


async def test_numbers_that_are_not_finite_are_no_numbers_of_json(api, record):
    record("0001-fit").steps().checked(math.nan).ended(loss=math.inf, val_loss=math.nan)
    record("0002-fit").steps(seconds=math.inf)
    json.dumps(await api.rows(), allow_nan=False)


async def test_runs_of_a_study_say_their_place_and_are_found_by_it(api, record):
    for number in (1, 2):
        place = {"id": "0001-study", "trial": number, "seed": 0, "rung": 1, "length": 1 / 3}
        record(f"000{number}-fit", study=place).steps().ended()
    record("0003-fit").steps().ended()
    rows = await api.rows()
    assert [row["study"] for row in rows] == [
        "",
        "0001-study trial 2, seed 0, 1/3 fit",
        "0001-study trial 1, seed 0, 1/3 fit",
    ]
    assert [row["run"] for row in await api.rows(search="0001-study")] == ["0002-fit", "0001-fit"]
    assert [row["run"] for row in await api.rows(search="0001-study trial 2")] == ["0002-fit"]


async def test_runs_of_several_folders_are_found_by_a_condition(api, record, root):
    """The same text as in the panel and in `bench.runs.filter`."""
    other = root.parent / "other" / ".workbench"
    place = {"id": "0009-study", "trial": 2, "seed": 0, "rung": 1, "length": 1 / 3}
    record("0001-fit", settings={"lr": 0.01}).steps().checked(0.5).ended()
    record("0002-fit", settings={"lr": 1e-4}).steps().checked(0.05).ended()
    record("0001-fit", other, settings={"lr": 1e-5}, study=place).steps().checked(0.07).ended()
    going_on = record("0002-fit", other, settings={"lr": 1e-5}).add(Resumed(0, "0001-fit", "last"))
    going_on.steps(20).ended("failed", "NonFiniteError: the loss is nan")

    async def runs(search: str) -> set[tuple[str, int]]:
        return {(row["run"], row["step"]) for row in await api.rows(search=search)}

    assert await runs("lr < 1e-3 and val_loss < 0.1") == {("0002-fit", 10), ("0001-fit", 10)}
    assert await runs("val_loss == none or trial == 2") == {("0002-fit", 20), ("0001-fit", 10)}
    assert await runs("loss < 1.5 and status == failed") == {("0002-fit", 20)}
    assert await runs("from == 0001-fit") == {("0002-fit", 20)}
    assert await runs("trouble == 'not finite'") == {("0002-fit", 20)}
    said = await api.refused(400, "api/runs?search=lrr%3C1")
    assert "'lrr' is no column: near it are lr" in said
