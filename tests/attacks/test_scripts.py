"""What a record says reaches an exported script as a number or as quoted text, and never as code."""

import ast
import contextlib
import json

import pytest
import torch.nn.functional as F

import workbench as wb
from tests.attacks import poison
from tests.engine.problems import labelled, plain_net
from workbench.export.errors import ExportError
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")
EVIL = '0]}\nimport subprocess\nsubprocess.run("evil")\nX = {0: [0'


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("scripts")
    poison.good(root)
    return root


@pytest.fixture
def run(root):
    return poison.another(
        next(path for path in (root / "runs").glob("[!.]*") if path.name != "0007-fit")
    )


def script(root, path):
    made = wb.Workbench(
        plain_net(),
        train=labelled(),
        val=labelled(20),
        loss=F.cross_entropy,
        root=root,
        accelerator="cpu",
        batch_size=8,
        max_epochs=2,
    )
    with made:
        return made.script(Run.open(path))


def is_ours(text):
    """Whether nothing of the attack is code in it."""
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    modules = {
        alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    return "X" not in names and "subprocess" not in names | modules


def insert(path, event):
    lines = poison.lines_of(path)
    poison.write(path, [*lines[:3], event, *lines[3:]])


@pytest.mark.parametrize(
    "event",
    [
        {"type": "Changed", "step": EVIL, "values": {"lr": 0.1}},
        {"type": "Changed", "step": 1, "values": {"lr": EVIL}},
        {"type": "Changed", "step": 1, "values": {EVIL: 0.1}},
        {"type": "Changed", "step": 1, "values": {"lr": float("nan")}},
        {"type": "Changed", "step": 1, "values": {"accumulate_grad_batches": EVIL}},
        {"type": "Resumed", "step": EVIL, "run": "a", "checkpoint": "b"},
        {"type": "Resumed", "step": 1, "run": EVIL, "checkpoint": EVIL, "values": {"lr": EVIL}},
    ],
)
def test_an_event_is_no_code(root, run, event):
    insert(run, event)
    try:
        assert is_ours(script(root, run))
    except ExportError as error:
        assert "0001-fit" in str(error) or "0007-fit" in str(error)  # noqa: PT017


def test_a_change_that_is_one_is_replayed(root, run):
    insert(run, {"type": "Changed", "step": 1, "values": {"lr": 0.125}})
    assert '1: {"lr": 0.125}' in script(root, run)


@pytest.mark.parametrize("name", ["updates", "ranks", "run", "epochs"])
def test_a_start_is_no_code(root, run, name):
    poison.edited(run, "RunStarted", **{name: EVIL})
    with contextlib.suppress(ExportError):
        assert is_ours(script(root, run))


@pytest.mark.parametrize(
    "name", ["compile", "lr", "seed", "precision", "early_stopping", "max_epochs", "batch_size"]
)
def test_a_setting_is_no_code(root, run, name):
    started = next(line for line in poison.lines_of(run) if line["type"] == "RunStarted")
    poison.edited(run, "RunStarted", settings={**started["settings"], name: EVIL})
    with contextlib.suppress(ExportError):
        assert is_ours(script(root, run))


def test_a_header_is_no_code(root, run):
    header = json.loads((run / "run.json").read_text())
    for wrong in ({"threads": EVIL}, {"task": {**header["task"], "model": EVIL + '"""'}}):
        poison.edit_header(run, **wrong)
        with contextlib.suppress(ExportError, FileNotFoundError):
            assert is_ours(script(root, run))
        poison.raw_header(run, json.dumps(header))
