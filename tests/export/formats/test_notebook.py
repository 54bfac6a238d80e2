"""The notebook made of a script: the same program in cells."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

import workbench as wb
from tests.export.export_running import PRELUDE, Outcome, check, clean_environment, lint, make_bench
from tests.warm import Warm

pytestmark = pytest.mark.usefixtures("one_thread")

MANY = (
    "model, train=(x, y), val=(x[:40], y[:40]), loss=F.cross_entropy, optimizer=torch.optim.SGD, max_epochs=3, lr=0.1, "
    "accumulate_grad_batches=2, gradient_clip_val=0.5, weight_averaging='ema', lr_schedule='cosine', warmup=2, "
    "metrics={'right': lambda output, y: output.argmax(1) == y}"
)


def exported(
    folder: Path, arguments: str = MANY, before: str = ""
) -> tuple[wb.Workbench, Any, Path]:
    bench = make_bench(folder, arguments, before)
    run = bench.fit().result()
    return bench, run, bench.export(folder / "out" / "train.ipynb")


def with_log(path: Path) -> list[Any]:
    """The cells, of which the last one writes a log."""
    cells: list[Any] = nbformat.read(path, as_version=4).cells
    call = [cell for cell in cells if cell.cell_type == "code"][-1]
    assert call.source == "main(Config())"
    call.source = 'main(Config(log_file="train-output/log.jsonl"))'
    return cells


def outcome_of(path: Path, without: Warm) -> Outcome:
    """What its cells do, one after another."""
    code = [cell.source for cell in with_log(path) if cell.cell_type == "code"]
    script = path.with_name("cells.py")
    script.write_text(
        "import os\nos.chdir(os.path.dirname(__file__))\nos.mkdir('train-output')\n"
        + "\n".join(code)
    )
    process = without.start(
        str(script), folder=path.parent, environment=clean_environment(), leave=True
    )
    said = "".join(process.communicate(280))
    assert process.wait() == 0, said
    return Outcome.read(path.parent / "train-output", "")


@pytest.mark.parametrize("data", ["in build()", "at the top level"])
def test_its_cells_repeat_the_run_and_never_read_the_command_line(
    data: str, tmp_path: Path, without: Warm
) -> None:
    reads = "shares = torch.rand(3)\ndef weighted(output, y):\n    return F.cross_entropy(output, y, shares)"
    bench, run, path = (
        exported(tmp_path)
        if data == "in build()"
        else exported(tmp_path, MANY.replace("loss=F.cross_entropy", "loss=weighted"), reads)
    )
    nbformat.validate(nbformat.read(path, as_version=4))
    lint(path)
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "train.ipynb",
        "train.ipynb.start.safetensors",
    ], "train.py may have its own"
    code = [cell.source for cell in with_log(path) if cell.cell_type == "code"]
    assert "argv" not in "".join(code)
    assert "argparse" not in "".join(code)
    assert "__file__" not in "".join(code)
    check(bench, run, outcome_of(path, without))
    bench.close()


def test_it_reads_the_data_beside_it(tmp_path: Path, without: Warm) -> None:
    torch.seed()
    bench = make_bench(
        tmp_path,
        "model, train=(x, y), loss=F.cross_entropy, max_epochs=1",
        prelude=PRELUDE.replace("torch.manual_seed(0)", ""),
    )
    run = bench.fit().result()
    path = bench.export(tmp_path / "out" / "train.ipynb", data="beside")
    assert {file.name for file in path.parent.iterdir()} >= {"train.ipynb.data.safetensors"}
    check(bench, run, outcome_of(path, without))
    bench.close()


def test_a_cell_for_each_part(tmp_path: Path) -> None:
    bench, _, path = exported(tmp_path)
    cells = nbformat.read(path, as_version=4).cells
    titles = [cell.source for cell in cells if cell.source.startswith("## ")]
    assert titles == [
        "## The code of the run",
        "## The settings",
        "## The loop",
        "## The functions",
        "## Train",
    ]
    assert cells[0].source.startswith("# Train Net as the run 0001-fit did\n")
    assert "--" not in cells[0].source, "nothing of the command line"
    imports, *others = [ast.parse(cell.source).body for cell in cells if cell.cell_type == "code"]
    assert all(isinstance(node, ast.Import | ast.ImportFrom) for node in imports[:-1])
    assert not any(
        isinstance(node, ast.Import | ast.ImportFrom) for cell in others for node in cell
    )
    assert [type(node) for node in others[0]] == [ast.ClassDef]
    assert [ast.unparse(node).splitlines()[0] for node in others[2]] == ["def build():"]
    bench.export(path)  # ours, so that it may be replaced
    grown = nbformat.read(path, as_version=4)
    # a person went on with it
    grown.cells.append(nbformat.v4.new_code_cell("bench = wb.Workbench(model, train=data)"))
    nbformat.write(grown, path)
    with pytest.raises(wb.ExportError, match="not overwritten"):
        bench.export(path)
    path.write_text(path.read_text().replace("Written by Tuning Workbench", "Mine"))
    with pytest.raises(wb.ExportError, match="not overwritten"):
        bench.export(path)
    bench.close()


def test_statements_on_one_line_comments_and_decorators_stay(tmp_path: Path) -> None:
    before = (
        "scale = 2.0; shift = 1.0  # both\n\n\ndef twice(f):\n    return lambda z: f(f(z))\n\n\n# halves\n@twice\ndef half(z):\n    return z / 2\n\n\n"
        "text = '''a\n# ---- no rule ----------------\nb'''\nx = half(x) * scale + shift + len(text)\n"
    )
    bench, _, path = exported(
        tmp_path, "model, train=(x, y), loss=F.cross_entropy, max_steps=2", before
    )
    text = "\n".join(
        cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"
    )
    assert ast.unparse(ast.parse(text)).count("shift = 1.0") == 1
    assert "# halves\n@twice\ndef half" in text
    assert "# ---- no rule ----------------" in text
    assert text.count("# both") == bench.script().count("# both") == 1
    bench.close()


@pytest.mark.slow  # a kernel that imports torch
def test_nbconvert_executes_it(tmp_path: Path) -> None:
    bench, run, path = exported(tmp_path)
    written = nbformat.read(path, as_version=4)
    written.cells = with_log(path)
    nbformat.write(written, path)
    (path.parent / "train-output").mkdir()
    command = [
        sys.executable,
        "-m",
        "nbconvert",
        "--to",
        "notebook",
        "--execute",
        "--inplace",
        str(path),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    check(bench, run, Outcome.read(path.parent / "train-output", done.stderr))
    bench.close()
