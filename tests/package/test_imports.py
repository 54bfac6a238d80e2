"""What importing does, and does not: no thread, no process, no device, and no torch where none is needed.

The layers themselves are held by import-linter (.importlinter, `make check`).
"""

from __future__ import annotations

import ast
import configparser
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import workbench

PACKAGE = Path(workbench.__file__).parent
LIGHT = (
    "settings",
    "values",
    "metric_mode",
    "units",
    "secrets",
    "tracebacks",
    "events",
    "commands",
    "plots",
    "runs",
    "server",
)

# Runs in a process of its own, and tells what came with the import.
PROBE = """
import json, os, sys, threading
started = []
def hear(event, args):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "_thread.start_new_thread"):
        started.append(f"{event} {args[:2]}")
sys.addaudithook(hear)
exec(sys.argv[1])
torch = sys.modules.get("torch")
print(json.dumps({
    "started": started,
    "threads": [thread.name for thread in threading.enumerate()],
    "tasks": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1,
    "modules": sorted(sys.modules),
    "device": bool(torch and torch.cuda.is_initialized()),
}))
"""

ALL_OF = """
import importlib, pkgutil
module = importlib.import_module({name!r})
for found in pkgutil.walk_packages(getattr(module, "__path__", []), {name!r} + "."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""


def after(code: str) -> dict[str, Any]:
    """What a fresh interpreter has printed and holds after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, code],
        capture_output=True,
        text=True,
        timeout=280,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    printed, _, last = done.stdout.rstrip().rpartition("\n")
    found: dict[str, Any] = {"printed": printed, **json.loads(last)}
    return found


def loaded(found: dict[str, Any], *names: str) -> list[str]:
    return [name for name in names if name in found["modules"]]


def test_import_starts_nothing() -> None:
    found = after("import workbench")
    assert found["started"] == []
    assert found["threads"] == ["MainThread"]
    assert found["tasks"] == 1
    assert not found["device"]
    assert loaded(found, "torch", "numpy", "accelerate", "ipywidgets", "plotly", "matplotlib") == []


def test_every_module_imports_without_starting_anything() -> None:
    found = after(ALL_OF.format(name="workbench"))
    assert [line for line in found["started"] if not line.startswith("_thread")] == []
    assert found["threads"] == ["MainThread"]
    assert not found["device"]


def test_light_parts_never_import_torch() -> None:
    heavy = ("torch", "accelerate", "lightning", "ipywidgets", "anywidget")
    one_by_one = "".join(
        ALL_OF.format(name=f"workbench.{part}")
        + f"came[{part!r}] = sorted({{*{heavy}}} & {{*sys.modules}})\n"
        for part in LIGHT
    )
    found = after(f"import json, sys\ncame = {{}}\n{one_by_one}print(json.dumps(came), flush=True)")
    assert json.loads(found["printed"]) == {part: [] for part in LIGHT}
    assert {f"workbench.{part}" for part in LIGHT} <= {*found["modules"]}


def test_drawing_libraries_come_with_the_first_drawing() -> None:
    found = after("import workbench.plots, workbench.runs; workbench.Settings, workbench.Run")
    assert loaded(found, "plotly", "matplotlib", "torch") == []


def test_a_bench_needs_no_screen_and_none_of_the_libraries_that_it_works_with() -> None:
    found = after("import workbench; workbench.Workbench")
    assert loaded(found, "ipywidgets", "anywidget", "IPython", "plotly", "matplotlib") == []
    assert (
        loaded(found, "lightning", "torchmetrics", "transformers", "datasets", "optuna", "sklearn")
        == []
    )
    assert found["threads"] == ["MainThread"]
    assert not found["device"]


def test_every_public_name_is_there() -> None:
    for name in workbench.__all__:
        assert getattr(workbench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        workbench.nothing


@pytest.mark.parametrize(
    ("file", "places"),
    [
        ("bench/workbench.py", {"Workbench._panel", "Workbench.controls", "Workbench.export"}),
        ("bench/study_view.py", {"StudyView._panel", "StudyView._write_page"}),
        ("launch/attached/attach.py", {"Attached._panel"}),
    ],
)
def test_a_view_is_reached_for_in_few_places(file: str, places: set[str]) -> None:
    """The imports that go up are inside of what a notebook shows live."""
    assert places_of_imports(file, "workbench.ui.") == places


def test_a_run_reaches_for_the_engine_where_it_writes_weights() -> None:
    assert places_of_imports("runs/run.py", "workbench.engine.") == {
        "Run.to_lightning",
        "Run.save_pretrained",
    }


def places_of_imports(file: str, of: str) -> set[str]:
    """The functions of a file in which modules of this package are imported."""
    places: set[str] = set()

    def visit(node: ast.AST, path: tuple[str, ...]) -> None:
        names: list[str] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            path = (*path, node.name)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            home = ".".join(filter(None, ["workbench" if node.level else "", node.module]))
            names = [f"{home}.{alias.name}" for alias in node.names]
        if any(f"{name}.".startswith(of) for name in names):
            places.add(".".join(path))
        for child in ast.iter_child_nodes(node):
            visit(child, path)

    visit(ast.parse((PACKAGE / file).read_text(encoding="utf-8")), ())
    return places


def test_the_contract_names_every_light_part() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(PACKAGE.parent / ".importlinter", encoding="utf-8")
    named = set(contracts["importlinter:contract:light"]["source_modules"].split())
    there = {f"workbench.{part}" for part in LIGHT}
    assert named == there
