"""A script may say where its settings come from: the searches that found them, and why."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np

from tests.export.export_running import Runner, make_bench
from workbench.events import (
    CurveEnded,
    DecaySearchEnded,
    DecayTrial,
    RunEnded,
    RunStarted,
    Suggestion,
    to_line,
)

PAIR = "model, train=(x, y), loss=F.cross_entropy, optimizer=torch.optim.AdamW, batch_size=8"


def test_the_comment_names_the_searches_whose_values_the_run_has(
    runner: Runner, tmp_path: Path
) -> None:
    bench = make_bench(tmp_path, PAIR)
    sizes = bench.find_batch_size(max_val=16, steps_per_trial=1).result()
    bench.set(batch_size=sizes.best)
    first = bench.find_lr(num_training=40).result()
    bench.find_lr(num_training=40, max_lr=1e-4)  # whose suggestion the run does not have
    clip = bench.find_clip_val(updates=30).result()
    run = bench.fit(
        max_epochs=2, lr=float(f"{first.suggestion:.3g}"), gradient_clip_val=clip.suggestion
    ).result()
    plain, told = bench.script(run), bench.script(run, evidence=True)
    assert "Where its settings come from" not in plain
    comment = ast.get_docstring(ast.parse(told)) or ""
    said = " ".join(comment.split("Where its settings come from:")[1].split())
    assert f"batch_size={sizes.best} (0001-find_batch_size): " in said
    assert "(0002-find_lr): " in said
    assert first.suggestions["landmarks"].why[:30] in said
    assert "0003-find_lr" not in said
    assert ("(0004-find_clip_val)" in said) == bool(clip.best), (
        "what was only suggested was not found"
    )
    body = ast.parse(told).body[1:]
    assert ast.dump(ast.Module(body, [])) == ast.dump(ast.Module(ast.parse(plain).body[1:], [])), (
        "the code is the same"
    )
    path = bench.export(tmp_path / "train.py", run, evidence=True)
    np.testing.assert_array_equal(
        runner.run(path).losses.astype(np.float32), run.history["loss"].astype(np.float32)
    )


def test_a_weight_decay_that_was_found_is_named(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, PAIR)
    bench.find_weight_decay().result()  # without val= nothing can judge
    record = tmp_path / "runs" / "runs" / "0001-find_weight_decay" / "metrics.jsonl"
    record.write_text("\n".join(map(to_line, [
        RunStarted("0001-find_weight_decay", "find_weight_decay", {}, "cpu"), DecayTrial(0.01, 50, 2.0), DecayTrial(0.5, 50, 1.0),
        DecaySearchEnded({"weight_decay": 0.5}, 0.5, "at 0.5 it is clearly lower", "all values tried"),
        RunEnded("finished", 0, 1.0),
    ])) + "\n")  # fmt: skip
    told = bench.script(bench.fit(max_epochs=1, weight_decay=0.5).result(), evidence=True)
    assert "weight_decay=0.5 (0001-find_weight_decay): at 0.5 it is clearly lower" in told


def test_a_strangers_reason_cannot_leave_the_comment(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, PAIR)
    bench.find_lr(num_training=40).result()
    record = tmp_path / "runs" / "runs" / "0001-find_lr" / "metrics.jsonl"
    evil = Suggestion(
        "landmarks", 0.5, None, 'why """\nimport os  # {} \\x22\\x22\\x22 \n"""' + "x" * 5000
    )
    record.write_text("\n".join(map(to_line, [
        RunStarted("0001-find_lr", "find_lr", {}, "cpu"), CurveEnded("done", (evil,), 0.5), RunEnded("finished", 0, 1.0),
    ])) + "\n")  # fmt: skip
    told = bench.script(bench.fit(max_epochs=1, lr=0.5).result(), evidence=True)
    assert "lr=0.5 (0001-find_lr): why" in told
    assert "import os  #" in (ast.get_docstring(ast.parse(told)) or "")
    assert "x" * 700 not in told
