"""Studies in JupyterLab's list, and the view of one in a pane: from their folders, without a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError

from tests.server.conftest import Api, Socket
from tests.server.test_canvas import Picture, decoded
from workbench.launch.study.followed import FollowedStudy
from workbench.runs.study.record import HEAD, Limits, PieceEnd, StudyHead, TrialProposal
from workbench.runs.study.write import add_trial, claim, new_study
from workbench.server import studies
from workbench.settings.space import Choice, Float, Space

SPACE = Space((Float("lr", low=1e-4, high=1.0, log=True), Choice("width", choices=(32, 64))))


def recorded(root: Path, trials: int = 3, **head: Any) -> Path:
    """The folder of a study whose trials have ended, the last one as the best."""
    budget = {"fits": 8.0}
    made = StudyHead("rates", "val_loss", "min", budget, SPACE.to_record(), {"epochs": 9}, **head)
    path = new_study(root, made)
    for number in range(1, trials + 1):
        values = {"lr": 10.0 ** -(number % 4), "width": 32}
        add_trial(path, TrialProposal(number, values, "baseline" if number == 1 else "prior"))
        piece = claim(path, number, 0, 0, "a worker elsewhere")
        assert piece is not None
        piece.end(PieceEnd("completed", 1.0, value=1.0 / number))
    return path


async def listed(api: Api) -> list[dict[str, Any]]:
    """All rows, when all studies are read."""
    while (page := await api.get("api/studies"))["reading"]:
        pass
    rows: list[dict[str, Any]] = page["studies"]
    return rows


class Pane:
    """The pane of a study: what it was sent."""

    def __init__(self, socket: Socket) -> None:
        self.socket, self.picture = socket, Picture()

    async def until(self, wanted: Any) -> None:
        while not wanted(self.picture.state):
            message = await self.socket.read()
            if isinstance(message, bytes):
                self.picture.take(*decoded(message))

    async def asked(self, code: str) -> str:
        """The reason why a line was refused; "": it was carried out."""
        await self.socket.send({"type": "ask", "what": "study", "code": code})
        while isinstance(message := await self.socket.read(), bytes):
            self.picture.take(*decoded(message))
        text: str = message["text"]
        return text


async def opened(api: Api, study: str) -> Pane:
    (row,) = [row for row in await listed(api) if row["study"] == study]
    pane = Pane(await api.socket("api/canvas", [("root", row["root"]), ("study", study)]))
    await pane.socket.send({"type": "ready"})
    await pane.until(lambda state: "study_trial.3" in state)
    return pane


async def test_the_list_has_studies_with_what_they_have_reached(api: Api, root: Path) -> None:
    assert await listed(api) == []
    path = recorded(root)
    (row,) = await listed(api)
    assert row["study"] == path.name
    assert (row["status"], row["monitor"], row["best"]) == ("no worker", "val_loss", "0.3333")
    assert (row["trials"], row["spent"], row["budget"]) == (3, "3.0", "8 fits")
    FollowedStudy(path).stop()
    while (await listed(api))[0]["status"] != "ended":
        pass


async def test_a_pane_follows_a_study_and_steers_it(api: Api, root: Path) -> None:
    path = recorded(root)
    pane = await opened(api, path.name)
    state = pane.picture.state
    assert state["study"]["best"] == 3
    assert [axis["name"] for axis in state["study_space"]] == ["lr", "width"]
    assert not {"work", "export"} & {*state["study"]["calls"]}
    assert await pane.asked("study.more(4)") == ""
    await pane.until(lambda state: state["study_now"]["budget"] == 12)
    assert await pane.asked("study.pause()") == ""
    await pane.until(lambda state: state["study_now"]["paused"])
    assert "its trials are 1 to 3" in await pane.asked("study.stop(9)")
    # what runs code of the study, or writes elsewhere, needs a kernel
    for line in ("study.work()", "study.export('x.py')", "study.path.rmdir()", "print(1)"):
        assert "it only runs calls of study.add" in await pane.asked(line)


async def test_what_is_no_study_is_not_served(api: Api, root: Path, tmp_path: Path) -> None:
    path = recorded(root)
    elsewhere = recorded(tmp_path / "elsewhere")
    os.symlink(elsewhere, root / "studies" / "0002-linked")
    (key,) = {row["root"] for row in await listed(api)}
    assert [row["study"] for row in await listed(api)] == [path.name]
    for name, status in (("0002-linked", 404), ("../studies/0001-rates", 400), ("0009-none", 404)):
        with pytest.raises(HTTPClientError) as refused:
            await api.socket("api/canvas", [("root", key), ("study", name)])
        assert refused.value.code == status


async def test_a_study_that_is_too_large_or_damaged_is_named_beside_the_others(
    api: Api, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(root)
    (recorded(root, 1) / HEAD).write_text("{")
    recorded(root, 6)
    monkeypatch.setattr(studies, "LIMITS", Limits(trials=5))
    rows = {row["study"]: row for row in await listed(api)}
    assert rows["0001-rates"]["trials"] == 3
    assert rows["0002-rates"]["status"] == "unreadable"
    assert rows["0002-rates"]["error"].startswith("study.json is not readable JSON")
    assert "more than 5 trials" in rows["0003-rates"]["error"]


def test_reading_ends_in_time(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="takes more than -1 s"):
        FollowedStudy(recorded(tmp_path), Limits(seconds=-1))


def test_a_study_is_described_without_torch(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    code = (
        "import json, sys; from pathlib import Path; from workbench.server.canvas import StudyCanvas\n"
        f"frame = StudyCanvas(Path({str(path)!r})).frame()\n"
        "print(json.dumps([len(frame), 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    size, heavy = json.loads(done.stdout)
    assert size > 1000
    assert not heavy
