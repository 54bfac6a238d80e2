"""What a script saves: the last weights and, as the run did, those with the best value of a metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.export_running import Runner, lint, make_bench
from tests.warm import Warm
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), val=(x[:40], y[:40]), loss=F.cross_entropy, lr=0.2, max_epochs=4"


def weights_in(runner: Runner, name: str) -> dict[str, torch.Tensor]:
    """The weights that the last script of this runner has saved."""
    newest = max(runner.folder.iterdir(), key=lambda folder: int(folder.name))
    found: dict[str, torch.Tensor] = torch.load(newest / name, weights_only=True)
    return found


def same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return list(some) == list(others) and all(
        torch.equal(some[name], others[name]) for name in some
    )


RIGHT = "metrics={'accuracy': lambda output, y: (output.argmax(1) == y).float()}"
OWN = (
    "class Own(Net):\n    def training_step(self, batch, batch_idx):\n        return F.cross_entropy(self(batch[0]), batch[1])\n\n"
    "    def validation_step(self, batch, batch_idx):\n        self.log('val_accuracy', (self(batch[0]).argmax(1) == batch[1]).float().mean())\n\n"
    "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), lr=0.2)\n"
)
MONITORED = {
    "the loss": (PAIR, ""),
    "a metric that grows": (f"{PAIR}, {RIGHT}, monitor='val_accuracy'", ""),
    "the earlier of equal values": (
        f"{PAIR}, metrics={{'accuracy': lambda output, y: (y >= 0).float()}}, monitor='val_accuracy'",
        "",
    ),
    "within epochs": (f"{PAIR}, val_check_interval=2, early_stopping='val_loss'", ""),
    "averaged weights": (
        f"{PAIR}, monitor='val_loss_averaged', weight_averaging='ema', ema_decay=0.5",
        "",
    ),
    "a metric whose own name ends so": (
        f"{PAIR}, metrics={{'accuracy_averaged': lambda output, y: (output.argmax(1) == y).float()}}, monitor='val_accuracy_averaged'",
        "",
    ),
    "a LightningModule's metric": (
        "Own(), train=(x, y), val=(x[:40], y[:40]), max_epochs=4, monitor='val_accuracy'",
        OWN,
    ),
}


@pytest.mark.parametrize("name", MONITORED)
def test_the_best_weights_are_the_runs(name: str, runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, *MONITORED[name])
    run: Any = bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    lint(script)
    runner.run(script)
    bench.load(run, "best")
    assert same(weights_in(runner, "best.pt"), bench.model.state_dict())
    assert not list(runner.folder.glob("*/*.part"))
    bench.close()


@pytest.mark.parametrize(
    "arguments",
    [f"{PAIR}, save_top_k=0", "model, train=(x, y), loss=F.cross_entropy, max_epochs=1"],
)
def test_no_best_where_the_run_kept_none(arguments: str, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, arguments)
    bench.fit().result()
    assert "best" not in bench.script()
    bench.close()


def test_the_usual_folder_lies_beside_the_script(without: Warm, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, "model, train=(x, y), loss=F.cross_entropy, max_epochs=1")
    run = bench.fit().result()
    assert isinstance(run, Run)
    script = bench.export(tmp_path / "there" / "digits.py")
    without.run(str(script), folder=tmp_path).check_returncode()
    saved = script.parent / "digits-output"
    assert {path.name for path in saved.iterdir()} == {"last.pt"}
    assert same(torch.load(saved / "last.pt", weights_only=True), bench.model.state_dict())
    # Where nothing can be saved, it says so before it trains.
    failed = without.run(str(script), "--output", str(script), folder=tmp_path)
    assert "FileExistsError" in failed.stderr
    assert "epoch" not in failed.stdout
    bench.close()
