"""The part of the table of runs that is seen: filtered, sorted, in pages, in groups, and settings against results."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.runs.tables.test_brief import events
from workbench.runs.folder.annotations import Annotations
from workbench.runs.health import Finding
from workbench.runs.read import TrialPlace
from workbench.runs.run import Run
from workbench.runs.tables.brief import LiveChange, RunBrief
from workbench.ui.canvas.runs import runs_page
from workbench.ui.canvas.runs.runs_page import CHOSEN, PAGE, Page, Pages, View
from workbench.ui.canvas.transport.messages import LIMIT


def brief(i: int, **settings: Any) -> RunBrief:
    return RunBrief.of(Run.from_events(events(40, id=f"{i:04d}-fit", **settings)))


TEMPLATE = brief(0)
VALUES = (0.5, 0.2, 0.9, 0.4, 0.8, 0.3, 0.7, 0.6, 0.1, 0.45)
"""Of ten runs, by their numbers."""


def ten() -> list[RunBrief]:
    """Ten runs, the newest first, whose value rises with their rate; the optimizer does not matter."""
    return [
        replace(
            TEMPLATE,
            id=f"{i:04d}-fit",
            settings={**TEMPLATE.settings, "lr": value / 10, "optimizer": ("adamw", "sgd")[i % 2]},
            monitor="val_loss",
            best={"val_loss": value},
            metrics={"val_loss": value + 0.01},
            trial=TrialPlace("0099-study", i, 0, 0) if i > 6 else None,
        )
        for i, value in sorted(enumerate(VALUES), reverse=True)
    ]


def ids(page: Page) -> list[int]:
    return [int(row["run"][:4]) for part in page.parts for row in part]


def see(
    briefs: list[RunBrief], annotated: dict[str, Annotations] | None = None, **view: Any
) -> Page:
    return Pages().page(View().changed(view), briefs, (len(briefs), 0), annotated or {})


def test_a_filter_holds_until_the_next_one_without_a_mistake() -> None:
    pages, runs = Pages(), ten()
    page = pages.page(View(filter="lr < 0.05 and val_loss > 0.2"), runs, (10, 0), {})
    assert ids(page) == [9, 5, 3]
    page = pages.page(View(filter="lr < 0.05 and val_los > 0.2"), runs, (10, 0), {})
    assert ids(page) == [9, 5, 3]
    assert "'val_los' is no column: near it are val_loss" in page.head["problem"]
    page = pages.page(View(), runs, (10, 0), {})
    assert (len(ids(page)), page.head["problem"]) == (10, "")


def test_pinned_runs_come_first_and_those_without_a_value_last() -> None:
    runs = [
        *ten(),
        replace(
            TEMPLATE, id="0020-fit", monitor="", best={}, metrics={}, checks=TEMPLATE.checks[:0]
        ),
    ]
    pin = {"0004-fit": Annotations(pinned=True)}
    assert ids(see(runs, pin, sort="val_loss", down=False)) == [4, 8, 1, 5, 3, 9, 0, 7, 6, 2, 20]
    assert ids(see(runs, pin, sort="val_loss", down=True)) == [4, 2, 6, 7, 0, 9, 3, 5, 1, 8, 20]
    assert ids(see(runs, sort="optimizer", down=False))[:5] == [8, 6, 4, 2, 0]
    assert ids(see(runs, sort="run", down=True))[0] == 20
    assert ids(see(runs, sort="started", down=False))[:2] == [20, 0]


def test_columns_are_what_differs_or_what_a_person_chooses() -> None:
    page = see(ten())
    assert page.head["columns"] == [
        "status",
        "curve",
        "loss",
        "validation",
        "optimizer",
        "lr",
        "time",
        "started",
    ]
    page = see(
        ten(), columns=["val_loss", "val_loss.last", "study", "trial", "batch_size", "made up"]
    )
    assert page.head["columns"] == ["val_loss", "val_loss.last", "study", "trial", "batch_size"]
    assert page.parts[0][0]["cells"] == ["0.45", "0.46", "0099-study", "9", "32"]
    assert page.head["numeric"] == [True, True, False, True, True]
    assert not page.head["automatic"]
    assert see(ten(), columns=None).head["automatic"]
    assert len(see(ten(), columns=page.head["offered"]).head["columns"]) == CHOSEN


def test_pages_follow_one_another_and_each_part_fits_into_a_message() -> None:
    many = [replace(TEMPLATE, id=f"{i:04d}-fit", monitor="µ" * 300) for i in range(2 * PAGE + 7)]
    added = Annotations(name="µ" * 80, tags=("µ" * 40,) * 20)
    annotated = {run.id: added for run in many}
    first = see(many, annotated)
    assert (ids(first), first.head["matching"]) == ([*range(PAGE)], 2 * PAGE + 7)
    assert len(first.parts) > 1
    for start, shown in ((PAGE, range(PAGE, 2 * PAGE)), (2 * PAGE, range(2 * PAGE, 2 * PAGE + 7)), (10**6, range(2 * PAGE, 2 * PAGE + 7)), (-5, range(PAGE))):  # fmt: skip
        assert ids(see(many, annotated, start=start)) == [*shown]
    assert all(len(json.dumps(part)) < LIMIT - 4000 for part in first.parts)
    assert len(json.dumps(first.head)) < LIMIT - 4000
    assert Pages().page(View(), many[:3], (900, 17), {}).head["unread"] == 880


def test_what_differs_is_compared_again_only_where_a_change_may_have_altered_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages, (first, *others) = Pages(), ten()
    before = pages.page(View(), [first, *others], (10, 0), {})
    with monkeypatch.context() as patch:
        patch.delattr(runs_page, "differences")
        moved = pages.page(View(), [replace(first, step=41), *others], (10, 0), {})
    assert moved.parts[0][0]["step"] == 41
    assert moved.head == before.head
    changed = replace(first, step=42, changes={"gradient_clip_val": LiveChange(1.0, 42)})
    assert (
        "gradient_clip_val" in pages.page(View(), [changed, *others], (10, 0), {}).head["columns"]
    )


def test_groups_have_counts_means_and_ranges_and_a_filter_that_lists_them() -> None:
    page = see(ten(), group="optimizer", filter="val_loss < 0.85")
    assert ids(page) == []
    adamw, sgd = page.head["groups"]
    at = page.head["columns"].index("validation")
    assert (adamw["value"], adamw["count"], adamw["cells"][at]) == ("adamw", 4, "0.525 (0.1 – 0.8)")
    assert (sgd["value"], sgd["count"], sgd["cells"][at]) == ("sgd", 5, "0.39 (0.2 – 0.6)")
    assert ids(see(ten(), filter=sgd["filter"])) == [9, 7, 5, 3, 1]
    by_value = see(ten(), group="optimizer", sort="validation", down=False)
    assert [group["value"] for group in by_value.head["groups"]] == ["sgd", "adamw"]
    # a run with two tags is in both groups, and one without any in none of them
    tags = {
        "0001-fit": Annotations(tags=("a", 'it\'s "odd"')),
        "0002-fit": Annotations(tags=("a",)),
    }
    groups = see(ten(), tags, group="tags").head["groups"]
    assert [(g["value"], g["count"]) for g in groups] == [("a", 2), ('it\'s "odd"', 1), ("", 8)]
    assert groups[1]["filter"] == "", "nothing can quote it"
    assert len(ids(see(ten(), tags, filter=groups[2]["filter"]))) == 8
    batches = [
        replace(run, settings={**run.settings, "limit_train_batches": (1, 1.0, 1.0)[i % 3]})
        for i, run in enumerate(ten())
    ]
    page = see(batches, group="limit_train_batches")
    assert [(g["value"], g["count"]) for g in page.head["groups"]] == [("1.0", 6), ("1", 4)]
    assert [g["filter"] for g in page.head["groups"]] == ["", ""], "as numbers they are equal"
    assert "limit_train_batches" in page.head["groupable"]
    assert [g["count"] for g in see(ten(), group="study").head["groups"]] == [3, 7]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_settings_against_results_name_the_one_that_matters(mode: str) -> None:
    runs = [
        replace(run, settings={**run.settings, "monitor": "val_loss", "monitor_mode": mode})
        for run in ten()
    ]
    pages = Pages()
    pages.page(View(), runs, (10, 0), {})
    told = pages.explained(View(explain=True))
    assert told is not None
    assert [share["name"] for share in told["shares"]] == ["lr", "optimizer"]
    assert told["shares"][0]["share"] > 0.9 > told["shares"][1]["high"]
    assert [axis["name"] for axis in told["axes"]] == ["lr", "optimizer", "validation"]
    assert [axis["ends"] for axis in told["axes"]][1:] == [["adamw", "sgd"], ["0.1", "0.9"]]
    best = next(run for run in told["runs"] if run["run"] == "0008-fit")
    assert (best["at"], told["mode"]) == ([0, 0, 0], mode)
    few = pages.explained(View(explain=True, picked=("0001-fit", "0002-fit")))
    assert few is not None
    assert ([run["run"] for run in few["runs"]], few["shares"]) == (["0002-fit", "0001-fit"], [])
    assert pages.explained(View()) is None


def test_a_diverged_run_leaves_the_others_apart() -> None:
    blown_up = replace(
        ten()[0],
        id="0010-fit",
        best={"val_loss": 1e27},
        trouble=Finding("error", "the loss has risen", trouble="diverged"),
    )
    pages = Pages()
    pages.page(View(), [blown_up, *ten()], (11, 0), {})
    told = pages.explained(View(explain=True))
    assert told is not None
    assert told["axes"][-1]["ends"] == ["0.1", "≥ 0.9"]
    places = {run["run"]: run["at"][-1] for run in told["runs"]}
    assert places["0010-fit"] == places["0002-fit"] == 999, "at the end of the axis"
    assert len(set(places.values())) == 10


def test_parts_of_axes_are_a_filter_of_the_table() -> None:
    pages, runs = Pages(), ten()
    pages.page(View(), runs, (10, 0), {})
    whole = pages.brushed(View(), {"lr": [0, 999], "optimizer": [999, 999]})
    assert whole == '0.01 <= lr <= 0.09 and optimizer == "sgd"'
    assert ids(see(runs, filter=whole)) == [9, 7, 5, 3, 1]
    within = pages.brushed(View(filter="loss < 100"), {"validation": [600.0, 999.0]})
    assert within == "(loss < 100) and 0.4 <= validation <= 0.9"
    assert ids(see(runs, filter=within)) == [9, 7, 6, 4, 3, 2, 0]
    both = pages.brushed(View(), {"optimizer": [0, 999]})
    assert both == '(optimizer == "sgd" or optimizer == "adamw")'
    for nothing in ({}, {"no such axis": [0, 1]}, {"lr": "all"}, {"lr": [1000, 2000]}):
        assert pages.brushed(View(filter="adam"), nothing) == "adam"


def test_a_row_names_the_place_of_its_run_in_a_study() -> None:
    rows = [row for part in see(ten()).parts for row in part]
    assert [row["study"] for row in rows][2:4] == ["0099-study trial 7, seed 0", ""]
