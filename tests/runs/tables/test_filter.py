"""Conditions on runs: what they mean, and what a mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.tables.test_brief import events, recorded
from workbench.events import Validated
from workbench.runs.folder.annotations import Annotations, annotate
from workbench.runs.tables.brief import RunBrief
from workbench.runs.tables.facts import OF_RUNS, columns_of, facts, is_missing
from workbench.runs.tables.filter import (
    LONGEST,
    WORDS,
    Facts,
    name_in_condition,
    parse,
    value_in_condition,
)
from workbench.runs.tables.run_list import RunList
from workbench.settings import Settings

RUN: Facts = {
    "run": "0003-fit", "lr": 1e-3, "val_loss": 0.05, "optimizer": "AdamW", "tags": ("sgd", "too low", "2024", "true"),
    "val/acc": 0.9, "val acc": 0.8, "gradient_clip_val": None, "pinned": True, "seed": 3,
    "name": "7", "broken": float("nan"), "started": "2026-11-30 10:02", WORDS: "0003-fit\nSlow baseline\nlr=0.001",
}  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("lr < 1e-3", False), ("lr <= 1e-3", True), ("lr<1e-2 and val_loss<0.1", True),
        ("lr > 1 or val_loss < .1", True), ("not lr > 1", True), ("NOT (lr > 1 OR seed == 4)", True),
        ("lr > 1 or lr > 2 and seed == 3", False), ("lr < 1 or seed == 4 and seed == 5", True),
        ("1e-4 < lr < 1e-2", True), ("1e-4 < lr < 1e-3", False), ("0.05 == val_loss", True),
        ("optimizer == adamw", True), ("optimizer = 'ADAMW'", True), ("optimizer != sgd", True),
        ("tags == sgd", True), ("tags == 'too low'", True), ("tags != sgd", False), ("tags != x", True),
        ("tags == none", False), ("val/acc > 0.85", True), ("`val acc` > 0.85", False),
        ("gradient_clip_val == none", True), ("gradient_clip_val < 9", False), ("lr != none", True),
        ("gradient_clip_val != 1", True), ("pinned == true", True), ("broken < 1", False),
        ("broken > 1", False), ("lr < seed", True), ("run == 0003-fit", True), ("seed > -1", True),
        ('started > "2026-11-29"', True), ("optimizer == 3", False), ("optimizer < 3", False),
        ("name == 7", True), ("7 != name", False), ("name < 8", False), ("tags == 2024", True),
        ("tags != 2024", False), ("tags == true", True), ("tags == 2024.0", False),
        ("slow 0003", True), ("baseline fast", False), ("", True),
    ],
)  # fmt: skip
def test_what_a_condition_means(condition: str, holds: bool) -> None:
    assert parse(condition, RUN)(RUN) is holds


def test_a_text_that_no_run_has_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    recorded(tmp_path, events(20, id="0001-fit"), "0001-fit")
    runs = RunList.of(tmp_path)
    annotate(tmp_path / "runs" / "0001-fit", tags=["baseline"])
    with pytest.warns(UserWarning, match="no run has status == 'finish': near it are finished"):
        assert runs.filter("status == finish") == []
    with pytest.warns(UserWarning, match="no run has tags == 'base': near it are baseline"):
        runs.filter("lr < 1 and base == tags")
    assert runs.filter("status == FINISHED") == runs
    assert runs.filter("status == finished and lr > 1e9") == [], "each value has a run"


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("lrr < 1e-3", "'lrr' is no column: near it are lr"),
        ("lr < val_los", "'val_los' is no column: near it are val_loss"),
        ("zzz == 3", "'zzz' is no column: Columns in the panel lists them"),
        ("lr <", "after '<' a column or a value is missing"),
        ("lr < and seed == 3", "after '<' a column or a value is missing: 'and'"),
        ("< 3", "at the beginning a column or a value is missing"),
        ("lr < 1 seed == 3", "after '1' comes 'seed': join two comparisons by and, or or"),
        ("(lr < 1", "after '1' a closing parenthesis is missing"),
        ("started > 2026-11-01", 'a date or a text is in quotes, "2026-11-01"'),
        ("seed > 1m", "'1m' is no number: columns have no units, and time is in seconds"),
        ("lr in (1e-3,)", "'in' is not known beside a column: write lr == "),
        ("started > 2026", 'a date or a text is in quotes, "2026"'),
        ("lr and seed == 3", "after 'lr' a comparison is missing"),
        ("1 < 2", "is no column"),
        ("lr < 1; print == 2", "';' has no meaning here"),
        ("lr < __import__('os').system('x')", "is no column"),
        ("(" * 60 + "lr < 1" + ")" * 60, "nested more than 40 deep"),
        ("lr < 1 and " * LONGEST, f"give at most {LONGEST}"),
    ],
)
def test_a_mistake_is_named(condition: str, said: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse(condition, RUN)
    assert said in str(refused.value)


def test_names_and_values_are_written_so_that_they_are_read_again() -> None:
    for name in RUN:
        if name != WORDS and not is_missing(RUN[name]) and name != "tags":
            text = value_in_condition(RUN[name])
            assert parse(f"{name_in_condition(name)} == {text}", RUN)(RUN), name
    assert parse(f"gradient_clip_val == {value_in_condition(None)}", RUN)(RUN)
    assert value_in_condition('it\'s "odd"') is None


def test_a_metric_that_is_called_like_a_setting_has_a_column_of_its_own(tmp_path: Path) -> None:
    measured = Validated(100, 0, {"precision": 0.25, "time": 7.0})
    recorded(tmp_path, [*events(100)[:-1], measured])
    runs = RunList.of(tmp_path)
    assert len(runs.filter("metric.precision < 0.3 and metric.time.last == 7")) == 1
    assert len(runs.filter("precision < 0.3 or time == 7")) == 0


def test_the_runs_of_a_folder_are_filtered_by_what_is_known_of_them(tmp_path: Path) -> None:
    for i, (n, lr) in enumerate(((200, 0.1), (300, 0.01), (400, 0.001)), 1):
        place = {"id": "0009-study", "trial": i, "seed": 0, "rung": 0}
        recorded(tmp_path, events(n, lr=lr, id=f"{i:04d}-fit"), f"{i:04d}-fit", study=place)
    annotate(tmp_path / "runs" / "0001-fit", tags=["baseline"], notes="too fast")
    runs = RunList.of(tmp_path)

    def ids(condition: str) -> list[str]:
        return [run.id[:4] for run in runs.filter(condition)]

    assert ids("lr < 0.1") == ["0002", "0003"]
    assert ids("updates >= 300 and val_loss < 0.01") == ["0003"]
    assert ids("accuracy.last == 0.5 and loss < 0.009") == ["0002", "0003"]
    assert ids("tags == baseline or trial == 3") == ["0001", "0003"]
    assert ids("study == 0009-study and status == finished and time > 25") == ["0002", "0003"]
    assert ids("too fast") == ["0001"]
    assert ids("batch_size == none") == ids("lr > 1") == []
    assert ids("gradient_clip_val != 1") == ["0001", "0002", "0003"]  # none is off, and no gap
    task = {"model": "Net", "build": {"width": 64}}
    recorded(tmp_path, events(100, id="0004-fit"), "0004-fit", task=task)
    assert [run.id for run in RunList.of(tmp_path).filter("build.width != 32")] == ["0004-fit"]
    assert RunList.of(tmp_path).filter("build.width != 64") == []
    with pytest.raises(TypeError, match="give a condition as a text"):
        runs.filter(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="condition='lrr < 1': 'lrr' is no column: near it are lr"):
        runs.filter("lrr < 1")
    assert RunList().filter("val_loss < 1") == []
    known = facts(RunBrief.of(runs[0]), Annotations())
    assert {*OF_RUNS, *Settings.model_fields} <= {*columns_of([known])}
    assert {*OF_RUNS} <= {*known}
