"""A program that is folded does what it did before, and nothing is left in it that it does not use."""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from ruff import find_ruff_bin

import workbench.export.program.user as user_code
from tests.conftest import count
from workbench.export.assembly.names import defined, read
from workbench.export.assembly.program_source import (
    ON_TORCH,
    known_names,
    program_imports,
    program_source,
)
from workbench.export.assembly.run_constants import USUAL
from workbench.export.fold import fold

pytestmark = pytest.mark.usefixtures("one_thread")


def folded(source: str, **constants: object) -> str:
    return fold(textwrap.dedent(source).lstrip("\n"), constants, {"dict": dict})


@pytest.mark.parametrize(("source", "constants", "expected"), [
    ("def main():\n    if A:\n        a()\n    else:\n        b()\n", {"A": True}, "def main():\n    a()\n"),
    ("def main(x):\n    return x(A or None)\n", {"A": 0}, "def main(x):\n    return x(None)\n"),
    ("def main():\n    return [f(**each) for each in A]\n", {"A": [{"x": 1}, {"x": 2}]}, "def main():\n    return [f(x=1), f(x=2)]\n"),
    ("class C:\n    n = 1\n\n    if A:\n\n        def f(self, x):\n            y = g(x)\n            return y\n\n\ndef main():\n    return C()\n", {"A": True}, "class C:\n    n = 1\n\n    def f(self, x):\n        return g(x)\n\n\ndef main():\n    return C()\n"),
    ("def main():\n    if A:\n        a()\n    elif B:\n        b()\n    else:\n        c()\n", {"A": False, "B": False}, "def main():\n    c()\n"),
    ("def main(x):\n    if x:\n        a()\n    elif A:\n        b()\n    else:\n        c()\n", {"A": True}, "def main(x):\n    if x:\n        a()\n    else:\n        b()\n"),
    ("def main(x):\n    if A and x and not B:\n        a()\n", {"A": True, "B": False}, "def main(x):\n    if x:\n        a()\n"),
    ("def main(x):\n    return (x + 1 if A else x) * 2\n", {"A": True}, "def main(x):\n    return (x + 1) * 2\n"),
    ("def main(x):\n    return x(f if A == 'f' else g)\n", {"A": "f"}, "def main(x):\n    return x(f)\n"),
    ("def main(x):\n    with f() if A else contextlib.nullcontext():\n        # why\n        x()\n", {"A": False}, "def main(x):\n    # why\n    x()\n"),
    ("def main(x):\n    return f(x, y=A)\n\n\ndef f(x, y=None):\n    return g(x) if y is None else y + x\n", {"A": None}, "def main(x):\n    return g(x)\n"),
    ("def main(x):\n    y = x\n    if A:\n        y = x + 1\n    return y\n", {"A": False}, "def main(x):\n    return x\n"),
    ("def main(x):\n    y = f(x)\n    if A:\n        return y\n", {"A": False}, "def main(x):\n    f(x)\n"),
    ("def main(x):\n    while x < A:\n        x += 1\n    return x\n", {"A": 3}, "def main(x):\n    while x < 3:\n        x += 1\n    return x\n"),
    ("def main(x):\n    x('one' + A + '.')\n", {"A": " two"}, 'def main(x):\n    x("one two.")\n'),
    ("def main(x):\n    return x in A\n", {"A": ("one",)}, 'def main(x):\n    return x == "one"\n'),
    ("class Unused:\n    pass\n\n\ndef main(x):\n    return x.A\n", {"A": 1}, "def main(x):\n    return x.A\n"),
])  # fmt: skip
def test_what_never_runs_is_left_out(
    source: str, constants: dict[str, object], expected: str
) -> None:
    assert folded(source, **constants).strip() == expected.strip()


CONSTANTS = st.fixed_dictionaries(
    {
        "VALIDATES": st.booleans(),
        "METRICS": st.booleans(),
        "BEST": st.sampled_from([None, "val_loss"]),
        "CLIPS": st.booleans(),
        "CLIP_ALGORITHM": st.sampled_from(["norm", "value"]),
        "ACCUMULATES": st.booleans(),
        "ACCUMULATE_GRAD_BATCHES": st.integers(1, 3),
        "SCHEDULE": st.sampled_from(
            [
                "",
                "constant",
                "linear",
                "cosine",
                "one_cycle",
                "wsd",
                "inverse_sqrt",
                "cosine_restarts",
            ]
        ),
        "WARMS_UP": st.booleans(),
        "WARMUP": st.just(2),
        "OWN_SCHEDULER": st.sampled_from(["", "step", "epoch"]),
        "FREQUENCY": st.integers(1, 2),
        "AVERAGING": st.sampled_from(["", "ema", "swa"]),
        "LEAVES_OUT": st.booleans(),
        "SPIKES": st.sampled_from([(), (1, 3)]),
        "PRECISION": st.sampled_from(["32", "bf16"]),
        "MAX_STEPS": st.sampled_from([None, 3, 9]),
        "CHECKS_WITHIN_EPOCHS": st.sampled_from(["", "fraction", "updates"]),
        "CHECK_VAL_EVERY_N_EPOCH": st.integers(1, 2),
        "EARLY_STOPPING": st.sampled_from(
            [[], [{"monitor": "val_loss", "patience": 1, "min_delta": 1.0}]]
        ),
        "KEEPS_MODES": st.booleans(),
        "LIMITS": st.sampled_from(["", "fraction", "batches"]),
        "SHUFFLE": st.booleans(),
        "NUM_WORKERS": st.just(0),
        "CHANGES": st.sampled_from([{}, {2: {"lr": 0.1}}]),
        "CLOSURE": st.sampled_from(["", "", "always"]),
        "RESUMES": st.booleans(),
    }
)


def consistent(constants: dict[str, Any]) -> dict[str, Any]:
    """The constants as a run would have them together."""
    own = constants | {"LOGS": True, "BATCH_SIZE": 16, "MAX_EPOCHS": 2, "LR": 0.05}
    own["METRIC_FUNCTIONS"] = own["METRICS"] = own["METRICS"] and own["VALIDATES"]
    if not own["VALIDATES"]:
        own |= {"BEST": None, "EARLY_STOPPING": [], "CHECKS_WITHIN_EPOCHS": ""}
    own["HAS_CHECKS"] = own["VALIDATES"]
    if own["SCHEDULE"]:
        own["OWN_SCHEDULER"] = ""
    own["LENGTH"] = "both" if own["MAX_STEPS"] else "epochs"
    own["CHANGED"] = tuple(name for values in own["CHANGES"].values() for name in values)
    own["LIMIT_TRAIN_BATCHES"] = {"": 1.0, "fraction": 0.5, "batches": 4}[own["LIMITS"]]
    own["VAL_CHECK_INTERVAL"] = {"": 1.0, "fraction": 0.5, "updates": 2}[
        own["CHECKS_WITHIN_EPOCHS"]
    ]
    if own["CLOSURE"]:
        own |= {"ACCUMULATES": False, "LEAVES_OUT": False, "SPIKES": (), "MOMENTUM": False}
    return {**USUAL, **own}


@settings(
    max_examples=count(8, 200),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(drawn=CONSTANTS)
def test_the_folded_program_gives_the_same_losses(drawn: dict[str, Any], tmp_path: Path) -> None:
    constants = consistent(drawn)
    source, known = program_source(ON_TORCH), known_names(ON_TORCH)
    cut = fold(source, constants, known)
    whole = rows(source, {**known, **constants}, tmp_path / "whole.jsonl", constants)
    assert rows(cut, known, tmp_path / "cut.jsonl", constants) == whole
    assert sum("loss" in row for row in whole) > 1
    tree = ast.parse(cut)
    assert not {name for name in read(tree) if name.isupper()} - defined(tree)
    imports = [item for item in program_imports(ON_TORCH) if item.binds in read(tree)]
    user = {name for name in vars(user_code) if not name.startswith("_")}
    words = sorted(user & read(tree) - {item.binds for item in imports})
    script = tmp_path / "script.py"
    lines = [*(item.text for item in imports), *(f"{name} = None" for name in words), cut]
    script.write_text("\n".join(lines))
    check = [
        find_ruff_bin(),
        "check",
        "--isolated",
        "--quiet",
        "--ignore",
        "E402,I001",
        str(script),
    ]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def rows(
    source: str, names: dict[str, Any], log: Path, constants: dict[str, Any]
) -> list[dict[str, float]]:
    """What a program writes into its log."""
    torch.manual_seed(0)
    own = {name: value for name, value in vars(user_code).items() if not name.startswith("__")}
    own["network"] = copy.deepcopy(user_code.network)
    if constants["CLOSURE"]:
        own["make_optimizer"] = torch.optim.LBFGS
    namespace = {**names, **own, "__name__": "program", "__file__": str(log.with_suffix(".py"))}
    log.unlink(missing_ok=True)
    exec(compile(source, str(log), "exec", dont_inherit=True), namespace)
    namespace["main"](namespace["Config"](log_file=str(log), output=log.with_suffix("")))
    return [json.loads(line) for line in log.read_text().splitlines()]
