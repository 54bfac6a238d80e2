"""Searches of optuna, and a notebook of marimo that runs as a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def test_an_optuna_study(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    bench = wb.Workbench(
        nn.Linear(4, 2),
        train=data(),
        val=data(),
        loss=F.cross_entropy,
        root=tmp_path,
        max_epochs=1,
        accelerator="cpu",
    )

    def objective(trial: Any) -> float:
        lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
        return (
            bench.fit(lr=lr, batch_size=trial.suggest_categorical("batch_size", [8, 16]))
            .result()
            .metrics["val_loss"]
        )

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=6)
    assert len(bench.runs) == 6
    # Each trial starts from the weights of the beginning: the best one, again, has its value again.
    assert bench.fit(**study.best_params).result().metrics["val_loss"] == study.best_value


def test_an_optuna_trial_that_is_pruned(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: Any) -> float:
        seen: list[float] = []

        def listen(event: Any) -> None:
            if type(event).__name__ == "Validated":
                seen.append(event.metrics["val_loss"])
                trial.report(seen[-1], len(seen))
                if trial.should_prune():
                    bench.job.stop()  # type: ignore[union-attr]

        bench = wb.Workbench(nn.Linear(4, 2), train=data(), val=data(), loss=F.cross_entropy, root=tmp_path, max_epochs=3,
                             lr=trial.suggest_float("lr", 1e-5, 1e-1, log=True), listeners=[listen], accelerator="cpu")  # fmt: skip
        run = bench.fit().result()
        bench.close()
        if run.status == "stopped":
            raise optuna.TrialPruned
        return run.metrics["val_loss"]

    study = optuna.create_study(
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1),
    )
    study.optimize(objective, n_trials=4)
    assert len(study.trials) == 4


NOTEBOOK = """
import marimo
app = marimo.App()

@app.cell
def _():
    import torch, workbench as wb
    from torch import nn
    import torch.nn.functional as F
    return F, nn, torch, wb

@app.cell
def _(nn, torch):
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(4, 2)
    return model, x, y

@app.cell
def _(F, model, wb, x, y):
    bench = wb.Workbench(model, train=(x, y), loss=F.cross_entropy, lr=0.1, max_epochs=5, accelerator="cpu")
    run = bench.fit().result()
    bench
    return bench, run

@app.cell
def _(bench, run):
    print("LOSS", run.history["loss"][0], run.history["loss"][-1])
    try:
        print("EXPORTED", bench.export("train.py"))
    except Exception as error:
        print("REFUSED", type(error).__name__, error)
    return

if __name__ == "__main__":
    app.run()
"""


def test_a_marimo_notebook_as_a_script(tmp_path: Path) -> None:
    pytest.importorskip("marimo")
    (tmp_path / "book.py").write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, "book.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = (float(word) for word in done.stdout.partition("LOSS ")[2].split()[:2])
    assert last < first
    if "REFUSED" in done.stdout:  # by name, with a remedy
        said = done.stdout.partition("REFUSED ")[2]
        assert said.startswith("ExportError")
        assert len(said) < 1000
        return
    again = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert again.returncode == 0, again.stdout + again.stderr


CELLS = """
import torch, workbench as wb
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
x = torch.randn(64, 4)
y = (x[:, 0] > 0).long()
model = nn.Linear(4, 2)
bench = wb.Workbench(model, train=(x, y), loss=F.cross_entropy, max_epochs=2, accelerator="cpu")
run = bench.fit().result()
print(len(run.history["loss"]), bench.export("train.py"))
"""


def test_cells_of_ipython(tmp_path: Path) -> None:
    (tmp_path / "cells.ipy").write_text(CELLS)
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "cells.ipy"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 train.py" in done.stdout
