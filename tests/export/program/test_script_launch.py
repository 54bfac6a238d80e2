"""Scripts from a real kernel, under `torchrun` and `accelerate launch`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.export.export_running import PRELUDE, Runner, lint, make_bench, run_alone
from tests.warm import Warm

ACCELERATE = [
    sys.executable,
    "-m",
    "accelerate.commands.launch",
    "--num_machines=1",
    "--mixed_precision=no",
]
ACCELERATE += ["--dynamo_backend=no"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.mark.usefixtures("one_thread")
def test_launchers(tmp_path: Path, without: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(
        tmp_path,
        "nn.Linear(8, 3), train=Data(), val=(x[:41], y[:41]), loss=F.cross_entropy, batch_size=8, num_workers=1, "
        "accumulate_grad_batches=2, max_epochs=3, limit_train_batches=0.9, lr_schedule='linear', warmup=1, "
        "precision='bf16-mixed', gradient_clip_val=1.0, weight_averaging='ema', "
        "early_stopping=[wb.EarlyStopping(monitor='val_loss_averaged', patience=9), "
        "wb.EarlyStopping(monitor='train_loss', patience=0, min_delta=9, warmup=1)]",
        "class Data(torch.utils.data.Dataset):\n    def __len__(self):\n        return 90\n\n"
        "    def __getitem__(self, i):\n        return x[i] + torch.rand(8), y[i]\n",
    )
    run = bench.fit().result()
    script = bench.export(tmp_path / "a folder" / "train.py")

    one = run_alone([*ACCELERATE, "--num_processes=1", "--cpu"], script, tmp_path / "one")
    assert one.losses.tolist() == run.history["loss"].tolist()
    assert one.said.count("epoch 1 ") == 1

    # On CPUs accelerate's own launcher starts one process alone; torchrun starts two, by the Python that it is told here.
    monkeypatch.setenv("PYTHON_EXEC", str(without.executable))
    two = run_alone(TORCHRUN, script, tmp_path / "two")
    # 12 batches of 8 are 6 for each, in 3 windows; the third epoch is not needed
    assert len(two.losses) == 2 * 3
    assert np.isfinite(two.losses).all()
    said = [line for line in two.said.splitlines() if line.startswith("epoch")]
    assert [line.split()[1] for line in said] == ["1", "2"]
    assert all("val_loss" in line for line in said)


def test_one_process_alone(runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(
        tmp_path,
        "model, train=(x, y), loss=F.cross_entropy, optimizer=torch.optim.LBFGS, max_steps=1",
    )
    bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    assert "torchrun" not in script.read_text().partition("import ")[0]
    reason = "trains in one process: the optimizer evaluates the loss again"
    with pytest.raises(AssertionError, match=reason):
        runner.run_two(script)


@pytest.mark.usefixtures("forked_kernels")
def test_a_notebook(runner: Runner, tmp_path: Path) -> None:
    nbclient = importlib.import_module("nbclient")
    nbformat = importlib.import_module("nbformat")
    head, _, net = PRELUDE.partition("torch.manual_seed(0)\n")
    network, _, data = net.partition("x = torch")
    cells = [
        head,
        "torch.set_num_threads(1)\ntorch.manual_seed(0);",
        network.strip(),
        "%%time\nx = torch" + data,
        "metrics = {'right': lambda output, y: (output.argmax(1) == y).float()}\n1 / 0",
        "bench = wb.Workbench(model, train=(x, y), val=(x, y), loss=F.cross_entropy, metrics=metrics)\n"
        "bench.set(max_epochs=2, batch_size=16, gradient_clip_val=1.0)",
        "run = bench.fit().result()",
        "model.eval()\nx = None\nbench.export('out/train.py', log_file=True)",
        "import json\ntorch.save(model.state_dict(), 'weights.pt')\nprint(json.dumps(run.history['loss'].tolist()))",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    where = {"metadata": {"path": str(tmp_path)}}
    # What a cell has printed is left out where it comes later than iopub_timeout behind the cell's end.
    patient = {"timeout": 280, "startup_timeout": 280, "iopub_timeout": 120}
    nbclient.NotebookClient(
        book, allow_errors=True, kernel_name="python3", resources=where, **patient
    ).execute()
    printed = [output for output in book.cells[-1].outputs if output.output_type == "stream"]
    assert printed, book.cells[-2].outputs
    losses = json.loads(printed[0].text)

    script = tmp_path / "out" / "train.py"
    assert "x = None" not in script.read_text()
    outcome = runner.run(script)
    assert outcome.losses.tolist() == losses
    for name, value in torch.load(tmp_path / "weights.pt", weights_only=True).items():
        assert torch.equal(value, outcome.weights[name]), name
    lint(script)
