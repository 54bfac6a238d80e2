"""Writes what the server sends as TypeScript, so that the type check of the JupyterLab extension holds it against the
types there (extensions/jupyterlab/src/messages.ts): `python -m tests.server.front_end`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.server.records import Record
from tests.server.test_studies import recorded
from workbench.events import Changed
from workbench.runs.folder.annotations import annotate
from workbench.server.details import Details, output
from workbench.server.query import Query
from workbench.server.studies import Studies
from workbench.server.templates import titles
from workbench.server.watcher import Watcher

FILE = Path(__file__).resolve().parents[2] / "extensions" / "jupyterlab" / "tests" / "messages.ts"
_HEAD = """// What the server sends. Written by `python -m tests.server.front_end`: the type check holds it against src/messages.ts.

import type { Details, Event, Output, Page, StudyPage, Template } from "../src/messages";
"""
_CREATED = 1767225600.0


def text() -> str:
    """The whole file."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder).resolve()
        sent = dict(_sent(top))
        key = sent["page", "Page"]["roots"][0]["key"]
        lines = [
            f"export const {name}: {kind} = {_lines(_plain(value, str(top), key))};"
            for (name, kind), value in sent.items()
        ]
    return "\n".join([_HEAD, *lines, ""])


def _sent(top: Path) -> Iterator[tuple[tuple[str, str], Any]]:
    root = top / ".workbench"
    heard: list[dict[str, Any]] = []
    watcher = Watcher(top, 1, ())
    try:
        finished = (
            Record(root, "0001-fit", settings={"lr": 0.1}, created=_CREATED)
            .steps(20)
            .checked(0.5)
            .steps(20)
        )
        finished.add(Changed(40, {"lr": 0.01})).ended(val_loss=0.5)
        annotate(
            finished.path,
            name="wide net",
            notes="the first one",
            tags=["sgd", "baseline"],
            pinned=True,
        )
        Record(root, "0002-fit", settings={"lr": 0.01}, created=_CREATED + 1, launched=True).steps(
            1, float("nan")
        ).ended("failed", "RuntimeError: out of luck")
        (root / "runs" / "0002-fit" / "output.log").write_text("epoch 1\n")
        place = {"id": "0001-study", "trial": 2, "seed": 0, "rung": 1, "length": 1 / 3}
        running = Record(root, "0003-fit", created=_CREATED + 2, study=place).steps(30)
        stop = watcher.listen(heard.append)
        page = watcher.page(Query())
        while page["reading"]:
            page = watcher.page(Query())
        yield ("page", "Page"), page
        yield (
            ("events", "Event[]"),
            [
                {"type": "list"},
                heard[0],
                {"type": "began", "row": page["rows"][0]},
                {"type": "ended", "row": page["rows"][1]},
            ],
        )
        key = page["roots"][0]["key"]
        entries = [watcher.find(key, row["run"]) for row in page["rows"]]
        yield (
            ("details", "Details[]"),
            [Details().of(entry, watcher.row(entry)) for entry in entries],
        )
        yield ("output", "Output"), output(entries[1], 0)
        recorded(root, created=_CREATED)
        yield ("studies", "StudyPage"), Studies().page(watcher.roots().values())
        yield ("templates", "Template[]"), titles()
        stop()
        running.close()
    finally:
        watcher.close()


def _plain(value: Any, folder: str, key: str) -> Any:
    """The value without what differs from one machine, and from one day, to another, and with a few settings alone."""
    match value:
        case str():
            return value.replace(folder, "/notebooks").replace(key, "0123456789ab")
        case list():
            return [_plain(one, folder, key) for one in value]
        case {"facts": facts, "settings": settings, **rest}:
            kept = [
                [label, text if label in ("Job", "Model", "Updates") else "…"]
                for label, text in facts
            ]
            return {"facts": kept, "settings": settings[:5], **_plain(rest, folder, key)}
        case dict():
            return {name: _plain(one, folder, key) for name, one in value.items()}
    return value


def _lines(value: Any) -> str:
    """As JSON, with one line for each item of a list."""
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "\n".join(["[", *(f"  {json.dumps(one, ensure_ascii=False)}," for one in value), "]"])


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
