"""Names and records of a stranger: nothing outside of the roots is read, written or removed, and no record stops the others."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from tornado.httpclient import HTTPClientError

from tests.attacks import poison
from tests.server.test_access import REQUESTS, RUN
from tests.server.test_canvas import Picture, decoded, shown
from workbench.runs.folder.annotations import annotate
from workbench.runs.read import summary

IDS = [
    "..", ".", "..%2F..", "..%2F0001-fit", "%2e%2e%2f%2e%2e", "0001-fit%2F..%2F0001-fit", "%2Fetc%2Fpasswd", "0001-fit%00", "%00", "0001-fit%0A",
    ".hidden", "0001-fit.", "a" * 65, "%3Cscript%3E", "0001-fit%20", "..%5C..", "~", "-rf", "%ff%fe", "0001-FIT%E2%80%AE", "C:", "%2e%2e%5c",
]  # fmt: skip
KEYS = [
    "..",
    "0" * 12,
    "0" * 11,
    "..%2F..",
    "%2Ftmp",
    "a" * 200,
    "%3Cscript%3E",
    "%00",
    "ABCDEF012345",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that a fit has made."""
    return poison.good(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def secret(jp_root_dir):
    """Files of somebody else beside the root, which look as a run does."""
    folder = jp_root_dir.parent / "theirs" / "runs" / "0001-fit"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"kind": "fit", "id": "0001-fit", "secret": "xyzzy"}')
    (folder / "output.log").write_text("xyzzy")
    (folder / "metrics.jsonl").write_text("")
    yield folder
    assert sorted(path.name for path in folder.iterdir()) == [
        "metrics.jsonl",
        "output.log",
        "run.json",
    ]


async def test_no_id_leads_out_of_the_root(api, record, secret):
    run = record("0001-fit").steps().ended()
    root = (await api.rows())[0]["root"]
    before = sorted(run.path.iterdir())
    for method, path, body in [one for one in REQUESTS if RUN in one[1]]:
        for key, id in [*((root, id) for id in IDS), *((key, "0001-fit") for key in KEYS)]:
            status, found = await api.ask(
                path.replace("{root}", key).replace("0001-fit", id), method, body
            )
            # 405: of another address, where dots were taken out
            assert status in (400, 404, 405), (method, path, key, id, status)
            assert "xyzzy" not in json.dumps(found if isinstance(found, dict) else str(found))
    assert sorted(run.path.iterdir()) == before


async def test_no_id_opens_a_canvas(api, record):
    record("0001-fit").steps().ended()
    root = (await api.rows())[0]["root"]
    for key, id in [
        *(
            (root, "../0001-fit"),
            (root, "0001-fit\0"),
            (root, ".."),
            (root, "\ufffd"),
            ("..", "0001-fit"),
            ("", ""),
            ("\0", "\0"),
        )
    ]:
        for arguments in (
            [("root", key), ("run", id)],
            [("compare", f"{root}/0001-fit"), ("compare", f"{key}/{id}")],
        ):
            with pytest.raises(HTTPClientError) as refused:
                await api.socket("api/canvas", arguments)
            assert refused.value.code in (400, 404)


async def test_a_template_is_one_of_ours(api, jp_root_dir):
    for name in (
        "..%2F..",
        "..%2fown-data",
        "own-data.ipynb",
        "%2Fetc%2Fpasswd",
        "__init__",
        "%00",
        "a" * 500,
    ):
        status, found = await api.ask(f"api/templates/{name}")
        assert status == 404
        assert "there is no such notebook" in found["message"]
        assert len(found["message"]) < 300


async def test_links_are_not_followed(api, record, root, jp_root_dir, secret):
    run = record("0001-fit", launched=True).steps()
    (root / "runs" / "0002-fit").symlink_to(secret, target_is_directory=True)
    (run.path / "output.log").symlink_to(secret / "output.log")
    (run.path / "control").symlink_to(secret, target_is_directory=True)
    for name, target in {"a": secret.parents[1], "b": secret.parent}.items():
        (jp_root_dir / name).mkdir()
        (jp_root_dir / name / ".workbench").symlink_to(target, target_is_directory=True)
    (jp_root_dir / "c" / ".workbench").mkdir(parents=True)
    (jp_root_dir / "c" / ".workbench" / "runs").symlink_to(secret.parent, target_is_directory=True)
    (jp_root_dir / "d").symlink_to(secret.parents[1].parent, target_is_directory=True)
    page = await api.page()
    assert [row["run"] for row in page["rows"]] == ["0001-fit"]
    address = await api.address("0001-fit")
    assert await api.get(f"{address}/output") == {"text": "", "offset": 0, "more": False}
    assert (await api.get(address))["output"] is False
    assert (await api.ask(f"{address}/commands", "POST", {"type": "Stop"}))[0] == 409
    key = page["rows"][0]["root"]
    for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"name": "x"})):
        assert (await api.ask(f"api/runs/{key}/0002-fit", method, body))[0] == 404
    for other in [one["key"] for one in page["roots"] if one["key"] != key]:
        assert (await api.ask(f"api/runs/{other}/0001-fit", "DELETE"))[0] == 404


@pytest.mark.parametrize("what", poison.NO_RECORDS)
async def test_what_is_no_record_is_left_out(api, record, root, trained, what):
    shutil.copytree(trained, root / "runs" / "0007-fit")
    poison.NO_RECORDS[what](root / "runs" / "0007-fit")
    record("0001-fit").steps()
    assert [row["run"] for row in await api.rows()] == ["0001-fit"]
    events = await api.socket("api/events")
    assert [row["run"] for row in (await events.read())["rows"]] == ["0001-fit"]
    key = (await api.rows())[0]["root"]
    for method, path, body in [one for one in REQUESTS if RUN in one[1]]:
        status, _ = await api.ask(
            path.replace("{root}", key).replace("0001-fit", "0007-fit"), method, body
        )
        assert status == 404, (method, path)


@pytest.mark.parametrize("what", poison.BAD_LINES)
async def test_lines_that_are_no_events_are_left_out(api, root, trained, what):
    run = root / "runs" / "0007-fit"
    shutil.copytree(trained, run)
    poison.BAD_LINES[what](run)
    (row,) = await api.rows()
    assert row["run"] == "0007-fit"
    await api.get(await api.address("0007-fit"))
    socket = await api.socket("api/canvas", {"root": row["root"], "run": "0007-fit"}.items())
    picture = await shown(socket, Picture(), lambda picture: picture.state.get("progress"))
    assert picture.state["progress"]["done"] == summary(run).step
    socket = await api.socket("api/canvas", [("compare", f"{row['root']}/0007-fit")] * 2)
    picture = await shown(socket, Picture(), lambda picture: picture.state.get("compared"))
    assert picture.state["compared"]["runs"] == ["0007-fit"] * 2


@pytest.mark.parametrize("value", poison.HOSTILE, ids=lambda value: str(value)[:12])
async def test_hostile_values_in_a_header_are_text_or_nothing(api, root, trained, value):
    run = root / "runs" / "0007-fit"
    shutil.copytree(trained, run)
    poison.edit_header(
        run, settings={"lr": value, "batch_size": value, "monitor": value, "launch": value, "x": value, poison.SCRIPT: value}, versions={"torch": value},
        task={"model": "Net", "data": poison.SCRIPT}, takes_commands=True,
    )  # fmt: skip
    (run / "annotations.json").write_text(
        json.dumps({"name": value, "notes": value, "tags": value, "pinned": value})
    )
    page = await api.page(search="net")
    json.dumps(page, allow_nan=False)
    found = await api.get(await api.address("0007-fit"))
    json.dumps(found, allow_nan=False)
    assert "launch" not in found["code"]["settings"]
    assert "accelerator" not in found["code"]["settings"]


async def test_a_record_does_not_say_where_code_runs(api, record):
    """The line for a cell has the settings that decide the numbers; what is launched, the bench of the reader decides."""
    record(
        "0001-fit",
        settings={
            "lr": 0.2,
            "strategy": "launch",
            "launch": {"debug": "evil.py"},
            "devices": 8,
            "keep_runs": 1,
        },
    ).steps().ended()
    found = await api.get(await api.address("0001-fit"))
    assert found["code"]["settings"] == "bench.set(lr=0.2)"


async def test_answers_are_bounded_whatever_the_records_hold(api, record):
    long = "\U0001f600" * 3000
    for at in range(3):
        run = record(
            f"000{at}-fit",
            task={"model": long, "data": long},
            versions={str(one): long for one in range(100)},
        ).steps()
        run.ended("failed", "ValueError: " + long * 20)
        annotate(
            run.path, name=long[:80], notes=long, tags=[f"{one}{long[:30]}" for one in range(20)]
        )
    await api.page()
    assert len(api.last.body) < 3 * 40_000
    await api.get(await api.address("0001-fit"))
    assert len(api.last.body) < 150_000
    canvas = await api.socket(
        "api/canvas", {"root": (await api.rows())[0]["root"], "run": "0001-fit"}.items()
    )
    assert len(await canvas.read()) < 41_000


async def test_a_view_may_be_asked_for_anything(api, root, trained):
    """A record with layers, and requests for groups of them that are none."""
    shutil.copytree(trained, root / "runs" / "0007-fit")
    (row,) = await api.rows()
    socket = await api.socket("api/canvas", {"root": row["root"], "run": "0007-fit"}.items())
    picture = Picture().take(*decoded(await socket.read()))
    assert picture.state["map"]["rows"]
    for first, end in ((0, 1), (-1, 5), (5, 1), (10**30, -(10**30)), (0, 10**9), (1, 1)):
        for what in ("pick_layer", "open_group"):
            await socket.send({"type": "ask", "what": what, "first": first, "end": end})
        await socket.send({"type": "ask", "what": "close_group", "depth": first})
    await socket.send({"type": "ask", "what": "go"})
    assert (await socket.until(lambda one: isinstance(one, dict)))[-1]["type"] == "refused"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
async def test_a_pipe_holds_nobody(api, record):
    run = record("0001-fit", launched=True).steps()
    for name in ("output.log", "annotations.json"):
        os.mkfifo(run.path / name)
    (row,) = await api.rows()
    assert row["name"] == ""
    assert (await api.get(f"api/runs/{row['root']}/0001-fit/output"))["text"] == ""
