"""What a page hears of runs."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tests.server.conftest import PATIENCE
from workbench.runs.folder.annotations import annotate
from workbench.runs.folder.delete import remove_folder
from workbench.server import watcher


def of(kind):
    return lambda message: message["type"] == kind


def appears(run, root):
    """The run is in this root with all that it has recorded: the server does not find it half made, when it has not begun or not ended."""
    run.path = run.folder.path = run.path.rename(root / "runs" / run.id)
    return run


async def test_a_new_page_gets_what_runs_now(api, record):
    record("0001-fit").steps().ended()
    record("0002-fit").steps(30)
    events = await api.socket("api/events")
    first = await events.read()
    assert (first["type"], [(row["run"], row["step"]) for row in first["rows"]]) == (
        "rows",
        [("0002-fit", 30)],
    )
    assert first["rows"][0] == {**(await api.rows())[0], "cells": []}


async def test_a_run_begins_moves_and_ends(api, record, root, tmp_path):
    events = await api.socket("api/events")
    assert await events.read() == {"type": "rows", "rows": []}
    run = appears(record("0001-fit", tmp_path / "elsewhere").steps(10), root)
    began = (await events.until(of("began")))[-1]["row"]
    assert (began["run"], began["status"], began["commands"]) == ("0001-fit", "running", True)
    await events.until(of("list"))
    run.steps(40)
    # the time left comes with the curve, which may be read after the step
    wanted = (50, 0.5, "50 s")
    await events.until(
        lambda one: (
            one["type"] == "rows"
            and tuple(one["rows"][0][name] for name in ("step", "progress", "left")) == wanted
        )
    )
    run.ended("failed", "RuntimeError: out of luck\nmore")
    told = await events.until(of("ended"))
    assert [one["type"] for one in told] == ["ended"]  # a run that has not moved says nothing
    assert (told[-1]["row"]["status"], told[-1]["row"]["error"]) == (
        "failed",
        "RuntimeError: out of luck",
    )
    await events.until(of("list"))
    record("0002-fit").steps()
    assert (await events.until(of("began")))[-1]["row"]["run"] == "0002-fit"


async def test_a_run_that_fails_at_once_is_heard_of(api, record):
    events = await api.socket("api/events")
    await events.read()
    record("0001-fit").ended("failed", "ValueError: no")
    told = await events.until(of("list"))
    assert [
        (one["type"], one["row"]["error"]) for one in told if one["type"] in ("began", "ended")
    ][-1] == ("ended", "ValueError: no")


async def test_a_process_that_dies_ends_its_run(api, record):
    run = record("0001-fit").steps()
    events = await api.socket("api/events")
    await events.read()
    run.dies()
    row = (await events.until(of("ended")))[-1]["row"]
    assert (row["status"], "ended without ending the run" in row["error"], row["commands"]) == (
        "failed",
        True,
        False,
    )


async def test_what_a_kernel_adds_and_deletes_changes_the_list(api, record):
    run = record("0001-fit", created=1.0).steps().ended()
    events = await api.socket("api/events")
    await events.read()
    annotate(run.path, tags=["new"])
    assert await events.read() == {"type": "list"}
    remove_folder(run.path)
    assert await events.read() == {"type": "list"}
    assert await api.rows() == []


async def test_an_old_run_that_is_copied_into_a_root_is_no_news(api, record, root, tmp_path):
    events = await api.socket("api/events")
    await events.read()
    appears(record("0001-fit", tmp_path / "elsewhere", created=1.0).steps().ended(), root)
    assert await events.read() == {"type": "list"}
    record("0002-fit")
    assert [one["row"]["run"] for one in await events.until(of("began"))] == ["0002-fit"]
    assert {row["run"] for row in await api.rows()} == {"0001-fit", "0002-fit"}


@pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="open files are listed by Linux alone"
)
async def test_runs_that_cannot_be_seen_from_here_hold_no_files_open(api, record, root):
    """They may have ended long ago, in containers that are gone: there may be thousands."""
    for at in range(70):
        record(f"{at:04d}-fit", host="elsewhere").steps().close()
    assert {row["status"] for row in await api.rows(limit=100)} == {"running?"}
    events = await api.socket("api/events")
    assert len((await events.read())["rows"]) == 70
    async with asyncio.timeout(PATIENCE):  # some are open for a moment
        while (
            len(
                [
                    link
                    for link in Path("/proc/self/fd").iterdir()
                    if target(link).startswith(str(root))
                ]
            )
            > 50
        ):
            await asyncio.sleep(0)


def target(link):
    try:
        return os.readlink(link)
    except FileNotFoundError:  # another thread has closed it
        return ""


async def test_a_run_of_another_machine_moves_too(api, record):
    run = record("0001-fit", host="elsewhere").steps()
    events = await api.socket("api/events")
    assert [(row["step"], row["status"]) for row in (await events.read())["rows"]] == [
        (10, "running?")
    ]
    run.steps()
    told = await events.until(lambda one: one["type"] == "rows")
    assert [(row["step"], row["status"]) for row in told[-1]["rows"]] == [(20, "running?")]
    run.ended()
    assert (await events.until(of("ended")))[-1]["row"]["status"] == "finished"


async def test_pages_share_one_thread(api, record):
    before = {*threading.enumerate()}
    run = record("0001-fit").steps()
    pages = [await api.socket("api/events") for _ in range(3)]
    for page in pages:
        await page.read()
    run.steps()
    for page in pages:
        assert (await page.read())["rows"][0]["step"] == 20
    assert [thread.name for thread in threading.enumerate() if thread not in before].count(
        "workbench-watcher"
    ) == 1
    for page in pages:
        page.connection.close()
    run.steps()
    events = await api.socket("api/events")
    assert (await events.read())["rows"][0]["step"] == 30


async def test_a_page_that_asks_on_the_events_socket_gets_nothing(api, record):
    record("0001-fit").steps()
    events = await api.socket("api/events")
    await events.send({"type": "ask"})
    assert (await events.read())["type"] == "rows"


async def test_a_run_that_is_asked_for_before_it_is_listed_is_heard_of(api, record, monkeypatch):
    monkeypatch.setattr(watcher, "_PATIENCE", 0.0)
    record("0000-fit").steps()
    key = (await api.rows())[0]["root"]
    events = await api.socket("api/events")
    await events.until(lambda one: one["type"] == "rows" and one["rows"])
    ids = [f"{at:04d}-fit" for at in range(1, 9)]
    for id in ids:
        record(id).steps()
        assert (await api.get(f"api/runs/{key}/{id}"))["row"]["run"] == id
    began = set[str]()
    while began != {*ids}:
        began.add((await events.until(of("began")))[-1]["row"]["run"])


async def test_a_page_that_leaves_does_not_wait_for_the_watcher(api, record, jp_serverapp):
    """Tornado's thread answers while the watcher is at work."""
    record("0001-fit").steps()
    events = await api.socket("api/events")
    await events.read()
    begun, go = threading.Event(), threading.Event()

    def listener(_):
        begun.set()
        assert go.wait(60), "the server's loop waited"

    watching = jp_serverapp.web_app.settings["workbench_watcher"]
    hearing = asyncio.get_running_loop().run_in_executor(None, watching.listen, listener)
    assert await asyncio.to_thread(begun.wait, 60)
    events.connection.close()
    assert await events.read() is None
    await api.get("api/templates")
    go.set()
    await asyncio.to_thread(await hearing)
