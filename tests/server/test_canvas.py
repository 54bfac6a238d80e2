"""The plots of a run in a page: the messages of the notebook's canvas, in frames."""

from __future__ import annotations

import asyncio
import json
import struct

import numpy as np
import pytest
from tornado.httpclient import HTTPClientError

from tests.runs.records import read_events
from tests.server.conftest import PATIENCE
from workbench.commands import Change, Histograms
from workbench.events import Changed, RunStarted
from workbench.runs.folder import control
from workbench.runs.folder.delete import remove_folder
from workbench.runs.read import summary
from workbench.runs.record import follow
from workbench.runs.record.stream import joined
from workbench.runs.tables.brief import RunBrief
from workbench.server import canvas
from workbench.server.canvas import ComparisonCanvas
from workbench.server.roots import Root
from workbench.server.rows import Entry
from workbench.ui.canvas.model import CanvasModel
from workbench.ui.canvas.runs.run_brief import LiveRunBrief
from workbench.ui.canvas.transport.messages import LIMIT


def decoded(frame):
    """The JSON and the buffers of a frame, as the page reads them."""
    (length,) = struct.unpack_from("<I", frame)
    content, at, buffers = json.loads(frame[4 : 4 + length]), 4 + length, []
    for size in content.pop("sizes"):
        buffers.append(frame[at : at + size])
        at += size
    assert at == len(frame)
    return content, buffers


class Picture:
    """What a page has after its frames: values by name, tables by channel."""

    def __init__(self):
        self.state, self.tables, self.more = {}, {}, False

    def take(self, content, buffers):
        self.state |= content["state"]
        self.more = any(part["more"] for part in content["parts"])
        for part, data in zip(content["parts"], buffers, strict=True):
            rows = np.frombuffer(data, "<f4").reshape(part["rows"], part["columns"])
            before = self.tables.get(part["channel"], rows[:0]) if part["start"] else rows[:0]
            self.tables[part["channel"]] = np.concatenate([before[: part["start"]], rows])
        return self

    def same_as(self, other):
        assert self.state == other.state
        empty = np.empty((0, 0))
        for name in self.tables | other.tables:
            one, two = self.tables.get(name, empty), other.tables.get(name, empty)
            assert len(one) == len(two), name
            if len(one):
                np.testing.assert_array_equal(one, two, name)


def drawn(run, *, compared=()):
    """The picture of a model that gets all events at once: what a page must have in the end."""
    model, picture = CanvasModel(), Picture()
    model.outbox.put("followed", True)
    model.findings.root = run.path.parents[1]
    if compared:
        model.curves.over_one_another(
            model.outbox, [RunBrief.read(one.path, history=True) for one in compared]
        )
    else:
        for event in joined(read_events(run.path), across_epochs=True):
            model.draw(event)
    model.settle()
    while packet := model.outbox.take():
        picture.take(json.loads(json.dumps(packet.content)), packet.buffers)
    return picture


async def opened(api, run, **headers):
    row = next(row for row in await api.rows() if row["run"] == run.id)
    return await api.socket("api/canvas", {"root": row["root"], "run": run.id}.items(), **headers)


async def shown(socket, picture, until):
    """The picture after the frame with which it is as wanted."""
    while picture.more or not until(picture):
        frame = await socket.read()
        assert isinstance(frame, bytes), frame
        assert len(frame) <= LIMIT + 500
        picture.take(*decoded(frame))
    return picture


def has(done, status="finished"):
    return lambda picture: (
        (picture.state.get("progress") or {}).get("done") == done
        and picture.state["progress"]["status"] == status
    )


async def test_a_page_has_what_the_notebook_has(api, record):
    run = record("0001-fit", settings={"gradient_clip_val": 1.0}).steps(40).checked(0.7).steps(30)
    run.add(Changed(70, {"lr": 0.01})).steps(30).checked(0.4).ended(val_loss=0.4)
    picture = await shown(await opened(api, run), Picture(), has(100))
    picture.same_as(drawn(run))
    assert picture.state["followed"] is True


async def test_a_long_record_comes_in_bounded_messages(api, record):
    run = record("0001-fit")
    for _ in range(300):
        run.steps(100, seconds=0.01)
    run.ended()
    picture = await shown(await opened(api, run), Picture(), has(30_000))
    wanted = drawn(run)
    assert picture.state.keys() == wanted.state.keys()
    np.testing.assert_array_equal(picture.tables["fit"], wanted.tables["fit"])


async def test_what_comes_later_is_drawn_as_it_comes(api, record):
    run = record("0001-fit").steps(20)
    socket = await opened(api, run)
    picture = await shown(socket, Picture(), has(20, "running"))
    for at in (30, 40, 50):
        run.steps(10)
        await shown(socket, picture, has(at, "running"))
    run.ended("stopped")
    await shown(socket, picture, has(50, "stopped"))
    np.testing.assert_array_equal(picture.tables["fit"], drawn(run).tables["fit"])


async def test_a_view_that_opens_later_gets_everything_again(api, record):
    run = record("0001-fit").steps(50).ended()
    socket = await opened(api, run)
    first = await shown(socket, Picture(), has(50))
    await socket.send({"type": "ready"})
    again = await shown(socket, Picture(), has(50))
    again.same_as(first)


async def test_a_view_is_changed_without_a_command(api, record):
    run = record("0001-fit").steps(20)
    socket = await opened(api, run)
    await shown(socket, Picture(), has(20, "running"))
    for first, end in (
        (0, 1),
        (-1, 5),
        (10**30, -(10**30)),
        (0, 10**9),
    ):  # a page of somebody else's making may ask for anything
        for what in ("pick_layer", "open_group"):
            await socket.send({"type": "ask", "what": what, "first": first, "end": end})
        await socket.send({"type": "ask", "what": "close_group", "depth": first})
    await socket.send({"type": "ask", "what": "show_ratios", "on": True})
    picture = await shown(
        socket, Picture(), lambda picture: picture.state.get("map", {}).get("shown") == "ratio"
    )
    assert picture.state["map"]["rows"] == []
    assert not (run.path / "control").exists()


@pytest.mark.parametrize(("asked", "command"), [
    ({"what": "use_clip", "value": 0.5}, Change({"gradient_clip_val": 0.5})), ({"what": "measure_ratios", "on": True}, Change({"track_update_ratio": True})),
    ({"what": "histograms", "layers": ["0"]}, Histograms(("0",))),
])  # fmt: skip
async def test_what_another_process_can_do_becomes_a_command(api, record, asked, command):
    run = record("0001-fit").steps(20)
    socket = await opened(api, run)
    await socket.send({"type": "ask", **asked})
    async with asyncio.timeout(PATIENCE):
        while not (sent := list(control.take(run.path))):
            await asyncio.sleep(0)
    assert sent == [command]


@pytest.mark.parametrize(("message", "said"), [
    ({"type": "ask", "what": "delete", "runs": ["0001-fit"]}, "is not available for a job of another process"),
    ({"type": "ask", "what": "use_clip", "value": "high"}, "is not available"), ({"type": "ask", "what": "use_clip", "value": -1}, "gradient_clip_val=-1"),
    ({"type": "ask"}, "is not available"), ({"type": "go"}, "This is no message of a canvas"), ("{", "no message of a canvas"), (b"\xff\xfe", "no message of a canvas"),
    ("[" * 10_000, "no message of a canvas"), ("x" * 20_000, "no message of a canvas"), (3, "no message of a canvas"),
])  # fmt: skip
async def test_anything_else_is_refused_in_words(api, record, message, said):
    run = record("0001-fit").steps(20)
    socket = await opened(api, run)
    await socket.send(message)
    (refused,) = [
        one
        for one in await socket.until(lambda one: isinstance(one, dict))
        if isinstance(one, dict)
    ]
    assert refused["type"] == "refused"
    assert said in refused["text"]
    assert len(refused["text"]) < 500
    assert not (run.path / "control").exists()
    assert run.path.exists()
    await socket.send({"type": "ready"})  # and the canvas answers
    await shown(socket, Picture(), has(20, "running"))


async def test_a_run_that_has_ended_takes_no_change(api, record):
    socket = await opened(api, record("0001-fit").steps(20).ended())
    await socket.send({"type": "ask", "what": "use_clip", "value": 0.5})
    (refused,) = [
        one
        for one in await socket.until(lambda one: isinstance(one, dict))
        if isinstance(one, dict)
    ]
    assert "comes too late" in refused["text"]


async def test_a_process_that_dies_ends_the_drawing(api, record):
    run = record("0001-fit").steps(20)
    socket = await opened(api, run)
    picture = await shown(socket, Picture(), has(20, "running"))
    run.dies()
    await shown(socket, picture, has(20, "failed"))
    assert "ended without ending the run" in picture.state["failure"]["message"]


async def test_runs_over_one_another(api, record, monkeypatch):
    monkeypatch.setattr(
        canvas, "_SLICE", PATIENCE
    )  # all of them are read at once: the picture has the number of its readings
    runs = [
        record(f"000{at}-fit", settings={"lr": 0.1 * at}, created=float(at))
        .steps(20 * at)
        .checked(0.1 * at)
        .ended()
        for at in (1, 2, 3)
    ]
    root = (await api.rows())[0]["root"]
    socket = await api.socket("api/canvas", [("compare", f"{root}/{run.id}") for run in runs])
    picture = await shown(
        socket,
        Picture(),
        lambda picture: "compared" in picture.state and len(picture.tables.get("compared", ())),
    )
    picture.same_as(drawn(runs[0], compared=runs))
    assert picture.state["compared"]["runs"] == [run.id for run in runs]
    await socket.send({"type": "ask", "what": "use_clip", "value": 0.5})
    assert (await socket.until(lambda one: isinstance(one, dict)))[-1]["type"] == "refused"


async def test_a_run_that_cannot_be_read_does_not_hold_up_the_others(api, record, monkeypatch):
    good = LiveRunBrief.brief

    def brief(self, *until):
        if self._folder.name == "0001-fit":
            raise RecursionError("unforeseen")
        return good(self, *until)

    for at in (1, 2):
        record(f"000{at}-fit").steps(20).ended()
    root = (await api.rows())[0]["root"]
    monkeypatch.setattr(LiveRunBrief, "brief", brief)
    socket = await api.socket("api/canvas", [("compare", f"{root}/000{at}-fit") for at in (1, 2)])
    picture = await shown(
        socket,
        Picture(),
        lambda picture: "compared" in picture.state and len(picture.tables.get("compared", ())),
    )
    assert picture.state["compared"]["runs"] == ["0002-fit"]


async def test_long_records_are_compared_in_parts(api, record, monkeypatch):
    monkeypatch.setattr(follow, "_BLOCK", 64)
    monkeypatch.setattr(canvas, "_SLICE", 0.0)
    runs = [record(f"000{at}-fit", settings={"lr": 0.1 * at}) for at in (1, 2)]
    for run in runs:
        run.steps(20).checked(0.5).steps(20).ended()
    compared = ComparisonCanvas(
        [Entry.read(Root("", "", run.path), summary(run.path), (0, 0)) for run in runs]
    )
    frames = []
    while not compared.over or not frames:
        frame = compared.frame()
        frames += [] if frame is None else [decoded(frame)]
    assert len(frames) > 2
    picture = Picture()
    for frame in frames:
        picture.take(*frame)
    wanted = drawn(runs[0], compared=runs)
    for one in (picture, wanted):
        one.state["compared"].pop("view")  # how often the curves were replaced
    picture.same_as(wanted)


async def test_a_canvas_that_fails_closes_its_socket_and_says_so(api, record, monkeypatch):
    def fails(self):
        raise RecursionError("unforeseen")

    monkeypatch.setattr(canvas.Canvas, "frame", fails)
    socket = await opened(api, record("0001-fit").steps(20))
    assert await socket.read() is None
    assert (socket.connection.close_code, "RecursionError" in socket.connection.close_reason) == (
        1011,
        True,
    )


async def test_a_compared_run_that_runs_moves(api, record):
    runs = [record(f"000{at}-fit").steps(20) for at in (1, 2)]
    root = (await api.rows())[0]["root"]
    socket = await api.socket("api/canvas", [("compare", f"{root}/{run.id}") for run in runs])

    def updates(picture):
        rows = (picture.state.get("compared") or {"rows": []})["rows"]
        return next((row[1:] for row in rows if row[0] == "updates"), [])

    picture = await shown(socket, Picture(), lambda picture: updates(picture) == ["20", "20"])
    runs[1].steps(10)
    await shown(socket, picture, lambda picture: updates(picture) == ["20", "30"])
    remove_folder(runs[0].path)
    await shown(socket, picture, lambda picture: updates(picture) == ["30"])


@pytest.mark.parametrize(("arguments", "status"), [
    ("", 400), ("root={root}", 400), ("run=0001-fit", 400), ("root={root}&run=0009-fit", 404), ("root=000000000000&run=0001-fit", 404),
    ("root={root}&run=../runs/0001-fit", 400), ("root={root}&run=0001-fit&run=0002-fit", 400), ("compare={root}/0001-fit", 400),
    ("compare={root}/0001-fit&compare={root}/0009-fit", 404), ("compare=0001-fit&compare=0002-fit", 400),
    ("&".join(["compare={root}/0001-fit"] * 6), 400), ("compare={root}/../..&compare={root}/0001-fit", 400),
    ("root={root}&run=0001-fit&compare={root}/0001-fit", 400),
])  # fmt: skip
async def test_an_address_that_names_no_run_opens_nothing(api, record, arguments, status):
    record("0001-fit").steps(20)
    root = (await api.rows())[0]["root"]
    pairs = [tuple(one.split("=", 1)) for one in arguments.format(root=root).split("&") if one]
    with pytest.raises(HTTPClientError) as refused:
        await api.socket("api/canvas", pairs)
    assert refused.value.code == status


async def test_a_search_is_drawn_too(api, record):
    run = record("0001-find_lr", kind="find_lr").ended("failed", "ValueError: no")
    picture = await shown(await opened(api, run), Picture(), has(0, "failed"))
    assert isinstance(read_events(run.path)[0], RunStarted)
    picture.same_as(drawn(run))
