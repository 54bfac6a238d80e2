"""A run or a study as one HTML file: what is in it, that nothing of a stranger's becomes markup, and its size."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.ui.mirror import Mirror
from workbench.events import Changed, to_line
from workbench.export.errors import ExportError
from workbench.runs.read import RECORD
from workbench.ui.page import write_run

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&"


class Elements(HTMLParser):
    """The elements of a page, and the text of its scripts by their type."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: dict[str, str] = {}
        self.policy = ""
        self._kind = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self._kind = str(values.get("type")) if tag == "script" else ""
        if "http-equiv" in values:
            self.policy = values["content"] or ""

    def handle_data(self, data: str) -> None:
        if self._kind:
            self.scripts[self._kind] = self.scripts.get(self._kind, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._kind = ""

    def drawn(self) -> Mirror:
        """What the canvas of the page knows."""
        mirror = Mirror()
        for packet in json.loads(self.scripts["application/json"])["packets"]:
            mirror.on_event(packet["content"], [base64.b64decode(b) for b in packet["buffers"]])
        return mirror


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> wb.Workbench:
    x = torch.rand(64, 6)
    bench = wb.Workbench(
        torch.nn.Linear(6, 6),
        train=(x, x),
        val=(x, x),
        loss=F.mse_loss,
        lr=0.0123,
        max_epochs=4,
        root=tmp_path_factory.mktemp("page"),
    )
    bench.watch(lambda batch, outputs: {EVIL: EVIL, "seen": outputs[:1]})
    run = bench.fit().result()
    bench.annotate(run, name=EVIL, notes=EVIL, tags=["one"])
    return bench


def test_a_page_has_the_run_and_nothing_else_runs_in_it(
    bench: wb.Workbench, tmp_path: Path
) -> None:
    file = bench.export(tmp_path / "pages" / "run.html")
    text = file.read_text(encoding="utf-8")
    page = Elements(text)
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert "alert(1)</script>" not in text
    code = hashlib.sha256(page.scripts["module"].encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(code).decode()}'" in page.policy
    assert page.policy.startswith("default-src 'none'")
    assert not re.search(r"(src|href)=['\"]https?:", text)
    mirror = page.drawn()
    assert mirror.gaps == 0
    assert len(mirror.rows("val")) == 4
    assert mirror.state["samples"]["step"] == 8
    assert "0.0123" in text
    assert "val_loss" in text
    assert file.stat().st_size < 500_000
    assert bench.export(file) == file  # our own is replaced


def test_a_damaged_record_is_drawn_as_far_as_it_can_be(bench: wb.Workbench, tmp_path: Path) -> None:
    (run,) = bench.runs
    assert run.folder is not None
    copy = wb.Run.unpack(run.pack(tmp_path / "run.tar"), tmp_path)
    assert copy.folder is not None
    record = copy.folder / RECORD
    lines = record.read_bytes().splitlines(keepends=True)
    change = to_line(Changed(3, {"lr": 0.0456})).encode() + b"\n"
    record.write_bytes(b"".join([*lines[:-1], change]) + b'{"type": "Nonsense"}\n' + lines[-1][:9])
    text = write_run(tmp_path / "a.html", wb.Run.open(copy.folder)).read_text()
    changes = text.partition("Changed while it trained")[2].partition("</table>")[0]
    assert re.findall(">([^<]+)<", changes) == ["update", "setting", "value", "3", "lr", "0.0456"]
    page = Elements(text)
    assert page.drawn().state["progress"]["status"] in ("failed", "running")


def test_what_a_page_is_not_is_refused(bench: wb.Workbench, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="leave out checks, evidence"):
        bench.export(tmp_path / "run.html", evidence=True, checks=True)
    report = tmp_path / "report.html"
    report.write_text("<h1>Mine</h1>")
    with pytest.raises(ExportError, match=r"report\.html was not written by export"):
        bench.export(report)
    assert report.read_text() == "<h1>Mine</h1>"
    assert list(tmp_path.iterdir()) == [report]
    dry = bench.fit(fast_dev_run=1).result()
    with pytest.raises(FileNotFoundError, match="no record to export"):
        bench.export(tmp_path / "dry.html", dry)
