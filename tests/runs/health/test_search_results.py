"""What searches have found already, in the advice of a run's health."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.events import (
    ClipSearchEnded,
    CurveEnded,
    DecaySearchEnded,
    Event,
    RecipeSearchEnded,
    RunEnded,
    RunStarted,
    SearchEnded,
    SpeedSearchEnded,
    SpeedTrial,
    StepsDone,
    TuneStep,
    pack,
)
from workbench.runs.health import Finding
from workbench.runs.health.search_results import SearchResults
from workbench.runs.read import summary
from workbench.runs.run import Run
from workbench.runs.store import RunFolder
from workbench.runs.tables.brief import RunBrief
from workbench.runs.tables.report import record_data, text_lines
from workbench.runs.tables.run_list import table
from workbench.settings import Settings
from workbench.ui.canvas.findings import Findings
from workbench.ui.canvas.transport.messages import Outbox

DATA = "TensorDataset, 1,437 samples"
WAITS = Finding(
    "warning",
    "training waits for its data 41% of the time",
    "find_num_workers() tries",
    remedy="bench.find_num_workers()",
)
RATE = Finding("warning", "it stands", "find_lr() measures one", remedy="bench.find_lr()")


def recorded(
    root: Path,
    id: str,
    *events: Event,
    data: str = DATA,
    model: str = "Net",
    loss: str = "",
    created: float = 1.0,
    **settings: Any,
) -> Path:
    kind = id.partition("-")[2]
    task = {"model": model, "parameters": 12, "trainable": 12, "device": "cpu", "data": data}
    task |= {"loss": loss} if loss else {}
    header = {
        "kind": kind,
        "created": created,
        "task": task,
        "settings": Settings.make(**settings).model_dump(),
    }
    with RunFolder.create(root, id, header) as folder:
        for event in events:
            folder.append(event)
        return folder.path


def workers(
    best: dict[str, Any], waiting: float = 0.09, ended: str = "all numbers tried"
) -> list[Event]:
    trials = [
        SpeedTrial({"num_workers": 0}, 10.0, waiting=0.4),
        SpeedTrial(best, 20.0, waiting=waiting),
    ]
    return [*trials, SpeedSearchEnded(best, "4: twice as fast", ended)]


def told(fit: Path, *findings: Finding) -> list[tuple[str, str]]:
    return [(found.advice, found.remedy) for found in SearchResults(fit).with_results(findings)]


def waiting_fit(id: str = "0001-fit") -> list[Event]:
    """A fit that waits for its data 41% of the time."""
    flushes = [
        StepsDone(i, 1, 1, 0, 10.0 * i, {"loss": pack([1.0]), "lr": pack([0.1])}, waited=4.1 * i)
        for i in range(3)
    ]
    return [
        RunStarted(id, "fit", Settings().model_dump(), "cpu"),
        *flushes,
        RunEnded("finished", 3, 20.0),
    ]


def test_a_search_that_ran_is_the_remedy_of_the_fit_and_of_the_next_one(tmp_path: Path) -> None:
    fit = recorded(tmp_path, "0001-fit", *waiting_fit())
    (before,) = Run.open(fit).health
    assert (before.text, before.remedy) == (
        "training waits for its data 41% of the time",
        "bench.find_num_workers()",
    )
    recorded(tmp_path, "0002-find_num_workers", *workers({"num_workers": 2}), created=2.0)
    recorded(
        tmp_path,
        "0003-find_num_workers",
        *workers({"num_workers": 4, "persistent_workers": True}),
        created=3.0,
    )
    recorded(tmp_path, "0004-find_num_workers", *workers({}, ended="stopped")[-1:], created=4.0)
    (after,) = Run.open(fit).health
    assert str(after) == (
        "training waits for its data 41% of the time; with num_workers=4 it was 9%, and training 2 times as fast "
        "(tried in 0003-find_num_workers)"
    )
    assert after.remedy == "bench.set(num_workers=4)"  # its workers are persistent anyway
    later = recorded(tmp_path, "0005-fit", *waiting_fit("0005-fit"), created=5.0)
    outbox = Outbox({})
    findings = Findings(outbox)
    findings.root = tmp_path
    for event in Run.open(later).events:
        findings.on_event(event)
    (shown,) = outbox._values["health"]
    assert shown["advice"].endswith("(tried in 0003-find_num_workers)")
    assert shown["remedy"] == "bench.set(num_workers=4)"


def test_other_data_and_settings_are_another_search(tmp_path: Path) -> None:
    fit = recorded(tmp_path, "0001-fit")
    found = workers({"num_workers": 4})
    recorded(tmp_path, "0002-find_num_workers", *found, data="TensorDataset, 64 samples")
    recorded(tmp_path, "0003-find_num_workers", *found, model="Other")
    recorded(tmp_path, "0004-find_num_workers", *found, batch_size=256)
    assert told(fit, WAITS) == [(WAITS.advice, WAITS.remedy)]
    assert (
        told(recorded(tmp_path, "0005-fit", batch_size=256), WAITS)[0][1]
        == "bench.set(num_workers=4)"
    )
    (tmp_path / "runs" / "0001-fit" / "run.json").write_text(
        '{"kind": "fit", "task": {"model": "Net", "parameters": 12}}'
    )
    assert told(fit, WAITS) == [(WAITS.advice, WAITS.remedy)], (
        "a record of an older version says nothing of its data"
    )


def test_a_fit_with_what_was_found_gets_the_next_remedy(tmp_path: Path) -> None:
    fit = recorded(tmp_path, "0001-fit", num_workers=4)
    recorded(tmp_path, "0002-tune", *workers({"num_workers": 4}))
    advice = "find_num_workers() found nothing better than num_workers=4 (tried in 0002-tune): preload=True keeps the data in memory"
    assert told(fit, WAITS) == [(advice, "bench.set(preload=True)")]


def test_a_rate_that_was_found(tmp_path: Path) -> None:
    def sweep(lr: float | None, **request: Any) -> list[Event]:
        return [
            RunStarted("r", "find_lr", {}, "cpu", request=request),
            CurveEnded("all points", (), lr),
        ]

    fit = recorded(tmp_path, "0001-fit", lr=0.5)
    recorded(tmp_path, "0002-find_lr", *sweep(0.0032), created=2.0)
    recorded(tmp_path, "0003-find_lr", *sweep(0.01, group=1), created=3.0)
    recorded(tmp_path, "0004-find_lr", *sweep(None), created=4.0)
    size = Finding("warning", "the memory is full", "find", remedy="bench.find_batch_size()")
    recorded(tmp_path, "0005-find_batch_size", SearchEnded(64, 128, "all tried"), batch_size=2)
    assert told(fit, RATE, size, WAITS) == [
        ("find_lr() found lr=3.2e-3 (tried in 0002-find_lr)", "bench.set(lr=3.2e-3)"),
        (
            "find_batch_size() found batch_size=64 (tried in 0005-find_batch_size)",
            "bench.set(batch_size=64)",
        ),
        (WAITS.advice, WAITS.remedy),
    ]
    near = recorded(tmp_path, "0006-fit", lr=0.00321)
    assert told(near, RATE) == [(RATE.advice, RATE.remedy)], (
        "that rate is no remedy: it is what went wrong"
    )
    rose = replace(RATE, trouble="diverged")
    assert told(fit, rose)[0][1] == "bench.set(lr=3.2e-3)"
    for lr in (0.00321, 1e-4):
        ((advice, remedy),) = told(recorded(tmp_path, f"00{lr}-fit", lr=lr), rose)
        assert not remedy, "a higher rate makes it worse, and another search would find the same"
        assert "lr=3.2e-3, which is not lower" in advice


def test_a_rate_of_another_optimizer_or_loss_is_no_remedy(tmp_path: Path) -> None:
    sweep = [RunStarted("r", "find_lr", {}, "cpu"), CurveEnded("all points", (), 0.587)]
    recorded(tmp_path, "0001-find_lr", *sweep, optimizer="sgd")
    recorded(tmp_path, "0002-find_lr", *sweep, optimizer="adamw", loss="mse_loss")
    fit = recorded(tmp_path, "0003-fit", optimizer="adamw", loss="cross_entropy")
    assert told(fit, RATE) == [(RATE.advice, RATE.remedy)]
    fit = recorded(tmp_path, "0004-fit", optimizer="adamw", loss="mse_loss")
    assert told(fit, RATE)[0][1] == "bench.set(lr=0.587)"


def test_a_weight_decay_that_was_found_and_one_that_was_not(tmp_path: Path) -> None:
    def search(best: float | None, updates: int = 800, **settings: Any) -> list[Event]:
        values = {} if best is None else {"weight_decay": best}
        return [
            RunStarted(
                "r",
                "find_weight_decay",
                Settings.make(**settings).model_dump(),
                "cpu",
                request={"updates": updates},
            ),
            DecaySearchEnded(values, best, "", "all values tried"),
        ]

    early, late = (
        Finding("warning", "overfits", "try", remedy=f"bench.find_weight_decay({more})")
        for more in ("", "updates=2000")
    )
    fit = recorded(tmp_path, "0001-fit")
    recorded(tmp_path, "0002-find_weight_decay", *search(0.5), created=2.0, lr=0.5)
    recorded(
        tmp_path,
        "0003-find_weight_decay",
        *search(None, weight_decay=0.2),
        created=2.0,
        weight_decay=0.2,
    )
    assert told(fit, early) == [(early.advice, early.remedy)], (
        "at another rate, and from another value"
    )
    recorded(tmp_path, "0004-find_weight_decay", *search(None), created=3.0)
    assert told(fit, early) == [
        (
            "find_weight_decay() found nothing better than the optimizer's own weight decay (tried in 0004-find_weight_decay)",
            "",
        )
    ]
    assert told(fit, late) == [(late.advice, late.remedy)], (
        "its stretches were too short for what comes late"
    )
    recorded(tmp_path, "0005-find_weight_decay", *search(0.1, 2000), created=4.0)
    assert told(fit, late) == [
        (
            "find_weight_decay() found weight_decay=0.1 (tried in 0005-find_weight_decay)",
            "bench.set(weight_decay=0.1)",
        )
    ]


@pytest.mark.parametrize(
    "best",
    [
        {"num_workers": "__import__('os')"},
        {"num_workers": [4]},
        {"num_workers": 4, "nonsense": 1},
        {"num_workers": 4, "keep_runs": 1},
    ],
)
def test_what_is_no_setting_is_no_remedy(best: dict[str, Any], tmp_path: Path) -> None:
    fit = recorded(tmp_path, "0001-fit")
    recorded(tmp_path, "0002-find_num_workers", SpeedSearchEnded(best, "", "all numbers tried"))
    assert told(fit, WAITS) == [(WAITS.advice, WAITS.remedy)]
    outbox = Outbox({})
    findings = Findings(outbox)
    findings.root = tmp_path
    findings.on_event(RunStarted("../..", "fit", {}, "cpu"))
    assert outbox._values["health"] == []


ENDS: list[tuple[str, list[Event], str]] = [
    ("find_lr", [CurveEnded("the loss diverged", (), 0.0693)], "lr=0.0693"),
    ("find_lr", [CurveEnded("every rate diverged", (), None)], "no learning rate can be recommended (every rate diverged)"),
    ("find_batch_size", [SearchEnded(64, 256, "memory")], "batch_size=64 (largest 256)"),
    ("find_batch_size", [SearchEnded(64, 256, "memory", 2, noise_scale=312.4)],
     "batch_size=64, accumulate_grad_batches=2 (largest 256, noise scale 312 samples)"),
    ("find_batch_size", [SearchEnded(None, None, "no size fits")], "no batch size fits (no size fits)"),
    ("find_num_workers", [SpeedSearchEnded({"num_workers": 2, "persistent_workers": True}, "faster", "all tried")], "num_workers=2, persistent_workers=True"),
    ("find_precision", [SpeedSearchEnded({}, "32-true is as fast", "all tried")], "the settings stay (32-true is as fast)"),
    ("find_clip_val", [ClipSearchEnded({"gradient_clip_val": 19.31}, 19.31, ((1.0,) * 300,), "a tenth is above it", "done")], "gradient_clip_val=19.3"),
    ("find_weight_decay", [DecaySearchEnded({"weight_decay": 0.1}, 0.1, "lower", "all values tried")], "weight_decay=0.1"),
    ("tune", [SearchEnded(64, 256, "memory"), CurveEnded("", (), 0.01), TuneStep("check", {"lr": 0.01}, "why")],
     "lr=0.01"),
    ("tune", [CurveEnded("", (), 0.01), TuneStep("check", {}, "not better")], "the settings stay (not better)"),
    ("find_recipe", [RecipeSearchEnded({"optimizer": "muon", "lr": 0.03}, "lower", "", "all recipes tried")], "optimizer='muon', lr=0.03"),
    ("tune", [SpeedSearchEnded({"num_workers": 2}, "faster", "all tried"), SearchEnded(64, 256, "memory"), CurveEnded("", (), 0.01)],
     "num_workers=2; batch_size=64 (largest 256); lr=0.01"),
    ("fit", [CurveEnded("the loss diverged", (), 0.0693)], ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "ends", "found"), ENDS, ids=[f"{kind} {found[:24]}" for kind, _, found in ENDS]
)
def test_a_search_says_what_it_found(
    tmp_path: Path, kind: str, ends: list[Event], found: str
) -> None:
    id = f"0001-{kind}"
    with RunFolder.create(tmp_path, id, {"kind": kind}) as folder:
        for event in (
            RunStarted(id, kind, {"lr": 1e-3}, "cpu"),
            *ends,
            RunEnded("finished", 0, 1.0),
        ):
            folder.append(event)
    run = Run.open(folder.path)
    assert run.answer == found
    assert RunBrief.read(folder.path).answer == found
    shown = [*text_lines(record_data(folder.path))], repr(table([summary(folder.path)])), repr(run)
    assert all(found in text for text in ("\n".join(shown[0]), *shown[1:]))
    assert ("0 updates" in repr(run)) == (kind == "fit")
