"""Fits, validations and searches on a device of torch_xla, against plain loops there."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from workbench.events import Validated

xla = pytest.importorskip("torch_xla")
met = pytest.importorskip("torch_xla.debug.metrics")

STEPS = 24


def data(n: int = 160) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 16, generator=generator)
    return x, x[:, :3].argmax(1)


def net(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Dropout(dropout), nn.BatchNorm1d(32), nn.Linear(32, 3)
    )


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data()), 16)


def bench(root: Path, model: nn.Module | None = None, **settings: Any) -> wb.Workbench:
    settings = {
        "optimizer": torch.optim.AdamW,
        "lr": 1e-2,
        "accelerator": "tpu",
        "enable_progress_bar": False,
        **settings,
    }
    return wb.Workbench(
        net() if model is None else model,
        train=loader(),
        loss=F.cross_entropy,
        root=root,
        **settings,
    )


def plain(
    steps: int, window: int = 1, clip: float | None = None, precision: Any = None
) -> tuple[list[float], list[float], nn.Module]:
    """Losses and gradient norms of a loop as torch_xla's manual has it."""
    device = xla.device()
    model = net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, norms = [], []
    batches = [batch for _ in range(99) for batch in loader()]
    for step in range(steps):
        total = 0.0
        for x, y in batches[step * window : (step + 1) * window]:
            with torch.autocast("xla", precision, enabled=precision is not None):
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
            (loss / window).backward()
            total = total + loss.detach() / window
        norms.append(
            torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf if clip is None else clip)
        )
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        xla.sync()
    return [float(loss) for loss in losses], [float(norm) for norm in norms], model


def compiled() -> int:
    found = met.metric_data("CompileTime")
    return 0 if found is None else int(found[0])


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "clipping": ({"gradient_clip_val": 0.5}, {"clip": 0.5}),
    "accumulation": ({"accumulate_grad_batches": 2}, {"window": 2}),
    "bf16": ({"precision": "bf16-mixed"}, {"precision": torch.bfloat16}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fit_has_the_losses_norms_and_weights_of_a_plain_loop(case: str, tmp_path: Path) -> None:
    settings, options = CASES[case]
    losses, norms, model = plain(STEPS, **options)
    ours = net()
    run = bench(tmp_path, ours, **settings).fit(max_steps=STEPS).result()
    # The graphs differ (ours has the norms of the layers too), so that XLA may fuse and round otherwise.
    tolerance = 2e-2 if case == "bf16" else 2e-5
    np.testing.assert_allclose(run.history["loss"], losses, rtol=tolerance)
    np.testing.assert_allclose(run.history["grad_norm"], norms, rtol=10 * tolerance)
    for a, b in zip(ours.parameters(), model.parameters(), strict=True):
        np.testing.assert_allclose(
            a.detach().cpu(), b.detach().cpu(), rtol=100 * tolerance, atol=tolerance
        )


def test_a_longer_fit_compiles_nothing_more(tmp_path: Path) -> None:
    made = bench(tmp_path, lr_schedule="cosine")
    made.fit(max_steps=STEPS).result()
    before = compiled()
    made.fit(max_steps=4 * STEPS).result()
    assert compiled() - before <= 2, "each update has the same graph, whatever its number and rate"


def test_an_update_waits_for_no_value(tmp_path: Path) -> None:
    """Only the rows that are recorded are fetched."""
    made = bench(tmp_path)
    made.fit(max_steps=STEPS).result()

    def fetches() -> int:
        found = met.metric_data("TransferFromDeviceTime")
        return 0 if found is None else int(found[0])

    before = fetches()
    # one row, and no flush but that of each epoch's end
    run = made.fit(max_steps=400, log_every_n_steps=400).result()
    assert len(run.history["loss"]) == 1
    assert fetches() - before < 200


def test_a_resumed_fit_has_the_losses_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    whole = bench(tmp_path / "whole", net(0.3)).fit(max_steps=STEPS).result()
    part = bench(tmp_path / "part", net(0.3))
    part.fit(max_steps=STEPS // 2 - 1).result()
    again = bench(tmp_path / "part", net(0.3)).fit(start="0001-fit", max_steps=STEPS).result()
    assert list(again.history["loss"]) == list(whole.history["loss"])
    assert list(again.history["grad_norm"]) == list(whole.history["grad_norm"])


class Tied(nn.Module):
    """Two layers of one weight, which a list of its own holds too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.second.weight = self.first.weight
        self.decayed = [self.first.weight, self.last.weight]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.second(torch.relu(self.first(x))))) + 0.1 * sum(
            (p**2).sum() for p in self.decayed
        )


def test_parameters_stay_the_same_objects(tmp_path: Path) -> None:
    losses = {}
    for where in ("cpu", "tpu"):
        model = Tied()
        held = [*model.parameters()]
        losses[where] = (
            bench(tmp_path / where, model, accelerator=where)
            .fit(max_steps=STEPS)
            .result()
            .history["loss"]
        )
        assert model.second.weight is model.first.weight
        assert all(a is b for a, b in zip(model.parameters(), held, strict=True))
    np.testing.assert_allclose(losses["tpu"], losses["cpu"], rtol=1e-3)


def test_a_fit_of_a_tpu_continues_on_the_cpu(tmp_path: Path) -> None:
    whole = bench(tmp_path / "whole", Tied(), accelerator="cpu").fit(max_steps=STEPS).result()
    bench(tmp_path / "part", Tied()).fit(max_steps=STEPS // 2).result()
    again = (
        bench(tmp_path / "part", Tied(), accelerator="cpu")
        .fit(start="0001-fit", max_steps=STEPS)
        .result()
    )
    np.testing.assert_allclose(again.history["loss"], whole.history["loss"], rtol=1e-3)


def test_validation_is_that_of_a_plain_loop(tmp_path: Path) -> None:
    model = net()
    held_out = DataLoader(TensorDataset(*data(70)), 32)
    made = wb.Workbench(
        model, train=loader(), val=held_out, loss=F.cross_entropy, root=tmp_path, accelerator="tpu", enable_progress_bar=False,
        metrics={"accuracy": lambda output, y: (output.argmax(1) == y).float().mean()},
    )  # fmt: skip
    made.fit(max_epochs=1).result()
    found = made.validate().result()
    model.eval()
    x, y = data(70)
    with torch.no_grad():
        output = model.cpu()(x)
    assert found["val_loss"] == pytest.approx(float(F.cross_entropy(output, y)), rel=1e-5)
    assert found["val_accuracy"] == pytest.approx(float((output.argmax(1) == y).float().mean()))


def test_searches_leave_the_weights_as_they_were(tmp_path: Path) -> None:
    model = net()
    made = wb.Workbench(
        model,
        train=data(),
        loss=F.cross_entropy,
        root=tmp_path,
        accelerator="tpu",
        batch_size=16,
        enable_progress_bar=False,
    )
    made.fit(max_steps=3).result()
    before = [p.detach().cpu().clone() for p in model.parameters()]
    curve = made.find_lr().result()
    assert curve.suggestion is not None
    sizes = made.find_batch_size(max_val=64).result()
    assert sizes.largest == 64
    for a, b in zip(model.parameters(), before, strict=True):
        assert torch.equal(a.detach().cpu(), b)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precision": "16-mixed"}, "bf16-mixed"),
        ({"devices": 8}, "torch_xla has 1 here, and a fit takes one or all; take devices=1"),
        ({"devices": [7]}, "give how many"),
        ({"on_nonfinite": "skip"}, "'stop'"),
        ({"compile": True}, "leave compile out"),
        ({"optimizer": torch.optim.LBFGS}, "another accelerator"),
        ({"accelerator": "cpu", "devices": 2}, "without torch_xla"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_with_the_remedy(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises((wb.TaskError, wb.SettingsError), match=words):
        bench(tmp_path, **settings).fit(max_steps=2).result()


def test_several_optimizers_are_refused(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 3)

        def training_step(self, batch: Any, batch_idx: int, optimizer_idx: int) -> Tensor:
            return F.cross_entropy(self.second(self.first(batch[0])), batch[1])

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [
                torch.optim.SGD(self.first.parameters(), 0.1),
                torch.optim.SGD(self.second.parameters(), 0.1),
            ]

    with pytest.raises(wb.TaskError, match="one optimizer"):
        wb.Workbench(Two(), train=loader(), root=tmp_path, accelerator="tpu").fit(
            max_steps=2
        ).result()


NOTEBOOK = """
import torch
import workbench as wb
from torch import nn

generator = torch.Generator().manual_seed(0)
x = torch.randn(160, 16, generator=generator)
y = x[:, :3].argmax(1)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.BatchNorm1d(32), nn.Linear(32, 3))
bench = wb.Workbench(
    model, train=(x, y), val=(x[:40], y[:40]), loss=nn.functional.cross_entropy, accelerator="tpu", batch_size=16, lr=1e-2, enable_progress_bar=False,
    optimizer=torch.optim.AdamW, max_epochs=4, **OPTIONS
)
run = bench.fit().result()
bench.export("train.py")
"""
TECHNIQUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "many": {
        "gradient_clip_val": 0.5,
        "accumulate_grad_batches": 2,
        "weight_averaging": "ema",
        "lr_schedule": "cosine",
        "precision": "bf16-mixed",
    },
}


@pytest.mark.parametrize("case", TECHNIQUES)
def test_the_headless_script_of_a_run_repeats_it(case: str, tmp_path: Path) -> None:
    (tmp_path / "notebook.py").write_text(
        NOTEBOOK.replace(
            "**OPTIONS", ", ".join(f"{name}={value!r}" for name, value in TECHNIQUES[case].items())
        )
    )
    environment = os.environ | {"PYTHONPATH": str(Path(wb.__file__).parents[1])}
    for file in ("notebook.py", "train.py"):
        done = subprocess.run(
            [sys.executable, file],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert "a stand-alone script does not support a TPU" in " ".join(
        (tmp_path / "train.py").read_text().split()
    )
    run, again = map(wb.Run.open, sorted((tmp_path / ".workbench" / "runs").glob("*-fit")))
    tolerance = 2e-2 if case == "many" else 2e-5
    np.testing.assert_allclose(again.history["loss"], run.history["loss"], rtol=tolerance)
    checks = [
        [event.metrics["val_loss"] for event in each.events if isinstance(event, Validated)]
        for each in (run, again)
    ]
    assert len(checks[0]) == 4
    np.testing.assert_allclose(checks[1], checks[0], rtol=tolerance)


def test_a_script_on_lightning_is_refused(tmp_path: Path) -> None:
    x, y = data()
    made = wb.Workbench(
        nn.Linear(16, 3),
        train=(x, y),
        loss=F.cross_entropy,
        root=tmp_path,
        accelerator="tpu",
        enable_progress_bar=False,
    )
    made.fit(max_steps=2).result()
    with pytest.raises(wb.ExportError, match=r"accelerator='tpu'.*bench\.export\('train\.py'\)"):
        made.export(tmp_path / "train.py", format="lightning")


def test_auto_takes_no_device_of_xla_that_is_no_tpu(tmp_path: Path) -> None:
    made = bench(tmp_path, accelerator="auto")
    made.fit(max_steps=2).result()
    assert made.summary.device == "cpu"
    assert (
        next(event for event in made.job.events if type(event).__name__ == "RunStarted").device
        == "cpu"
    )
