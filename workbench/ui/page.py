"""Writes a run, or a study, as one HTML file that opens without a server: the panel's own plots,
with their data, and its settings and results as tables.

Everything that comes from a run's folder, which may be a stranger's, is escaped: text in HTML, and
data as JSON in which no tag can stand. A policy in the page lets only its own script run, and
nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.events import Event, RunEnded
from workbench.export.errors import ExportError
from workbench.runs import read
from workbench.runs.folder.files import write_whole
from workbench.runs.printable import printable
from workbench.runs.record.stream import joined, recorded
from workbench.runs.run import Run
from workbench.runs.tables.brief import RunBrief
from workbench.runs.tables.render import html_table
from workbench.runs.tables.report import record_data
from workbench.settings import setting_text
from workbench.ui import format, texts
from workbench.ui.canvas.model import CanvasModel
from workbench.ui.canvas.study.described import Describer, Study
from workbench.ui.front_end import text_of
from workbench.units import counted, duration, number

_EXPORTS = re.compile(r"export\s*\{([^{}]*)\};?\s*$")
"""The last statement of the bundle, which names what others may import."""
_ALIAS = re.compile(r"(\w[\w$]*)\s+as\s+showStill")
_MARK = "<meta name='generator' content='Tuning Workbench'>"
"""It says that a page is ours, and may be replaced by another one."""
_TEXT = 2000
"""The most characters of a text in a table."""


def write_run(file: Path, run: Run, *, force: bool = False) -> Path:
    """Write a run into this file. FileNotFoundError: it has no record. ExportError: the file is
    not one of ours. force: replace it in any case.
    """
    if run.folder is None or not run.folder.is_dir():
        raise FileNotFoundError(texts.no_record(run.id))
    if not force:
        _check_ours(file)
    model = CanvasModel()
    model.samples.folder = run.folder
    model.outbox.put("followed", True)
    damaged = 0
    for event in _events(run.folder):
        try:
            model.draw(event)
        except Exception:  # noqa: BLE001 - the record may be a stranger's; the rest of it is drawn
            damaged += 1
    if damaged:
        warnings.warn(texts.not_drawn(run.id, damaged), stacklevel=3)
    tab = "samples" if run.samples else ""
    return _write(file, run.id, _head(run), model, tab, _tables(run.folder))


def write_study(file: Path, study: Study, rows: Sequence[Sequence[str]]) -> Path:
    """Write the view of a study into this file, without what steers it. rows: its table of trials,
    the first one is the head. ExportError: the file exists, and is not one of ours.
    """
    _check_ours(file)
    model = CanvasModel()
    describer = Describer(study, calls=())
    while True:
        for name, value in describer.present().items():
            model.outbox.put(name, value)
        if not describer.reading:
            break
    record = study.record
    searched = {name for trial in record.trials for name in trial.values}
    fixed = {name: value for name, value in record.head.base.items() if name not in searched}
    base = [[name, setting_text.recorded(name, value)] for name, value in fixed.items()]
    facts = [*_plain(record.head.length), *_plain(record.head.versions)]
    head, *trials = rows
    tables = [
        _table(texts.OF_ALL_TRIALS, ["", texts.VALUE], base),
        _table(texts.LENGTH_AND_VERSIONS, ["", ""], facts),
    ]
    now = texts.as_of(time.strftime("%Y-%m-%d %H:%M"))
    title = f"<h1>{_escaped(study.id)}</h1><p class='wb-page-facts'>{_escaped(now)}</p>"
    below = (
        f"<div class='wb-page-tables'>{''.join(tables)}</div>"
        f"<details><summary>{texts.TRIALS_AND_RUNS}</summary>{_table('', head, trials)}</details>"
    )
    return _write(file, study.id, title, model, "", below, subject="study")


def _events(folder: Path) -> Iterator[Event]:
    """The events of a run; one whose process has died has its end, too."""
    over = False
    for event in joined(recorded(folder / read.RECORD), across_epochs=True):
        over |= isinstance(event, RunEnded)
        yield event
    if not over:
        known = read.summary(folder)
        if known.status == "failed":
            yield RunEnded("failed", known.step, known.seconds, known.error)


# -- texts


def _head(run: Run) -> str:
    """The title and one line of facts."""
    name = f" <small>{_escaped(run.name)}</small>" if run.name else ""
    facts = [
        format.job(run.kind) if run.kind else "",
        RunBrief.of(run).shown_status,
        counted(run.step, "update") if run.step else "",
        duration(run.seconds),
        ", ".join(run.tags),
    ]
    notes = f"<pre>{_escaped(run.notes)}</pre>" if run.notes else ""
    line = _escaped(texts.SEPARATOR.join(filter(None, facts)))
    return f"<h1>{_escaped(run.id)}{name}</h1><p class='wb-page-facts'>{line}</p>{notes}"


def _tables(folder: Path) -> str:
    """Results, what the run is of, and its settings."""
    record = record_data(folder)
    best = record["best"]
    results = [
        [name, number(value), "" if name not in best else number(best[name])]
        for name, value in record["metrics"].items()
    ]
    values = record["settings"]
    settings = {name: setting_text.recorded(name, value) for name, value in values.items()}
    changed = [[name, settings[name]] for name in record["changed"]]
    changes = [
        [str(event["update"]), name, setting_text.recorded(name, value)]
        for event in record["changes"]
        for name, value in event.items()
        if name != "update"
    ]
    facts = [*_plain(record["model"]), *_plain(record["versions"])]
    tables = [
        _table(texts.RESULTS, ["", texts.LAST, texts.BEST], results),
        _table(texts.CHOSEN_SETTINGS, ["", texts.VALUE], changed),
        _table(texts.LIVE_CHANGES, [texts.UPDATE, texts.SETTING, texts.VALUE], changes),
        _table(texts.MODEL_AND_VERSIONS, ["", ""], facts),
    ]
    everything = _table("", ["", texts.VALUE], [[name, text] for name, text in settings.items()])
    return (
        f"<div class='wb-page-tables'>{''.join(tables)}</div>"
        f"<details><summary>{texts.ALL_SETTINGS}</summary>{everything}</details>"
    )


def _plain(values: object) -> Iterator[list[str]]:
    """The texts and numbers of a JSON object of a record."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            if isinstance(value, str | int | float):
                yield [str(name), str(value)]


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, all text escaped; "": it would have no row."""
    lines = [[printable(cell)[:_TEXT] for cell in row] for row in rows]
    return html_table(caption, [[*head], *lines]) if lines else ""


def _escaped(text: str) -> str:
    return html.escape(printable(text, lines=True)[:_TEXT])


# -- the file


def _check_ours(file: Path) -> None:
    """Raise ExportError where this would replace a file that no export wrote."""
    if not file.exists():
        return
    start = b""
    if file.is_file():
        with file.open("rb") as existing:
            start = existing.read(1000)
    if _MARK.encode() not in start:
        raise ExportError(texts.not_ours(file))


def _write(
    file: Path,
    title: str,
    head: str,
    model: CanvasModel,
    tab: str,
    tables: str,
    subject: str = "bench",
) -> Path:
    model.outbox.put("still", True)
    model.look({"what": "drawer", "tab": tab})
    model.outbox.hold(())  # each tab has what it draws
    script, style = text_of("live.js"), text_of("live.css")
    names = _EXPORTS.search(script)
    alias = None if names is None else _ALIAS.search(names[1])
    if names is None or alias is None:
        raise FileNotFoundError(texts.NOT_BUILT)
    # The bundle is a module; at its end it draws what lies in the page, in place of exporting.
    code = f"\n{script[: names.start()]}\n{alias[1]}();\n"
    if "</script" in code.lower():
        raise ValueError(texts.TAG_IN_BUNDLE)
    data = json.dumps(
        {"tab": tab, "subject": subject, "packets": [*_packets(model)]}, allow_nan=False
    )
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline';"
        " img-src data: blob:"
    )
    page = (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\n"
        f"{_MARK}\n"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{_escaped(title)}</title>\n<style>{style}</style></head>\n"
        f"<body class='wb-page'>{head}\n<div id='run'></div>\n{tables}\n"
        f"<script type='application/json' id='data'>{_in_script(data)}</script>\n"
        f"<script type='module'>{code}</script>\n</body></html>\n"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file.parent.resolve() / file.name, page.encode())
    return file


def _packets(model: CanvasModel) -> Iterator[dict[str, Any]]:
    """The messages of the canvas, from the first one on."""
    model.settle()
    while (packet := model.outbox.take()) is not None:
        buffers = [base64.b64encode(buffer).decode() for buffer in packet.buffers]
        yield {"content": packet.content, "buffers": buffers}
        model.settle()


def _in_script(data: str) -> str:
    """JSON that can stand in a script element: no tag and no comment begins in it."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
