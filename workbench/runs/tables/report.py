"""Reports a record: as data for programs, and as lines of text. `workbench runs` prints them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.runs.checkpoints import find, list_checkpoints
from workbench.runs.folder.annotations import read_annotations
from workbench.runs.health.search_results import answer
from workbench.runs.read import TARGET, RunSummary, model_text, shown_status, summary
from workbench.runs.run import Run
from workbench.runs.tables.brief import RunBrief
from workbench.settings.setting_text import recorded
from workbench.units import counted, duration, number


def summary_data(run: RunSummary) -> dict[str, Any]:
    """One run of the list, as data."""
    added = read_annotations(run.path)
    return {
        "id": run.id,
        "kind": run.kind,
        "status": shown_status(run.status, run.unseen),
        "created": run.created,
        "updates": run.step,
        "seconds": run.seconds,
        "metrics": run.metrics,
        "answer": answer(run),
        "error": run.error,
        "waits_for": run.waits_for,
        "name": added.name,
        "tags": [*added.tags],
        "pinned": added.pinned,
    }


def record_data(path: Path) -> dict[str, Any]:
    """The contents of the record of a run as data, without its history."""
    run = Run.open(path)  # first, since its error says that this is no run folder
    run_summary = summary(path)
    task = run_summary.header.get("task")
    return {
        **summary_data(run_summary),
        "epochs": run.epochs,
        "metrics": run.metrics,
        "best": RunBrief.read(path).best,
        "notes": run.notes,
        "model": task if isinstance(task, dict) else {},
        "built_by": run_summary.header.get("built_by") or {},
        "versions": run_summary.header.get("versions") or {},
        "settings": run.settings.model_dump(mode="json"),
        "changed": [*run.settings.changed()],
        "changes": [{"update": event.step, **event.values} for event in run.changes],
        "resumed_from": [
            {"update": event.step, "run": event.run, "checkpoint": event.checkpoint, **event.values}
            for event in run.resumes
        ],
        "checkpoints": [*_checkpoints(path)],
        "health": [str(finding) for finding in run.health],
    }


def _checkpoints(run: Path) -> Iterator[dict[str, Any]]:
    """The checkpoints of a run, oldest first."""
    checkpoints = list_checkpoints(run)
    best = (
        find(run, "best").name
        if any(checkpoint.value is not None for checkpoint in checkpoints)
        else None
    )
    for checkpoint in checkpoints:
        yield {
            "name": checkpoint.name,
            "update": checkpoint.step,
            "epoch": checkpoint.epoch,
            "monitor": checkpoint.monitor,
            "value": checkpoint.value,
            "best": checkpoint.name == best,
            "resumable": checkpoint.resumable,
            "why_not": checkpoint.why,
        }


def _call(call: Any) -> str:
    """The call of a function that made the model or the data: "net.py:make(width=64)"."""
    if not isinstance(call, Mapping):
        return ""
    parameters = ", ".join(
        f"{name}={json.dumps(value)}" for name, value in call.items() if name != TARGET
    )
    return f"{call.get(TARGET, '')}({parameters})"


def text_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """A record as lines of text."""
    model, best = record["model"], record["best"]
    trained = record["updates"] or record["kind"] == "fit"
    yield f"{record['id']}: {record['kind']} {record['status']}"
    facts = [  # pairs, since a metric may have one of these names
        ("name", record["name"]),
        ("tags", ", ".join(record["tags"])),
        ("pinned", "yes" * record["pinned"]),
        ("notes", record["notes"]),
        (
            "model",
            f"{model_text({'task': model})}, {model.get('parameters')} parameters"
            if model.get("model")
            else "",
        ),
        ("build", _call(record["built_by"].get("build"))),
        ("data", _call(record["built_by"].get("data"))),
        ("found", record["answer"]),
        (
            "updates",
            f"{record['updates']} in {counted(record['epochs'], 'epoch')}" if trained else "",
        ),
        ("time", duration(record["seconds"])),
    ]
    for name, value in record["metrics"].items():
        top = best.get(name)
        facts.append(
            (
                name,
                number(value) + ("" if top is None or top == value else f" (best {number(top)})"),
            )
        )
    width = max(len(name) for name, _ in facts)
    for name, text in facts:
        for at, line in enumerate(text.splitlines()):
            yield f"  {name * (at == 0):<{width}}  {line}".rstrip()
    yield from (
        f"  setting {name} = {recorded(name, record['settings'][name])}"
        for name in record["changed"]
    )
    for event in record["changes"]:
        yield f"  changed at update {_values(event, 'update')}"
    for event in record["resumed_from"]:
        yield (
            f"  resumed at update {event['update']} from"
            f" {event['run']}@{_values(event, 'checkpoint', 'update', 'run')}"
        )
    for checkpoint in record["checkpoints"]:
        value = (
            ""
            if checkpoint["value"] is None
            else f"{checkpoint['monitor']} {number(checkpoint['value'])}"
        )
        weights = "" if checkpoint["resumable"] else f"weights alone: {checkpoint['why_not']}"
        yield "  ".join(
            filter(
                None,
                [
                    f"  checkpoint {checkpoint['name']:<12}",
                    f"epoch {checkpoint['epoch']}",
                    value,
                    "best" * checkpoint["best"],
                    weights,
                ],
            )
        )
    yield from (f"  health: {finding}" for finding in record["health"])
    yield from (f"  {line}" for line in (record["error"] or "").splitlines())


def _values(event: Mapping[str, Any], first: str, *without: str) -> str:
    """The first fact of an event, and its settings."""
    return ", ".join(
        [
            str(event[first]),
            *(
                f"{name}={recorded(name, value)}"
                for name, value in event.items()
                if name not in (first, *without)
            ),
        ]
    )
