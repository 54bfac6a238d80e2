"""Fits on two cores, in a process of their own: torch_xla cannot take more cores once it has used one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from workbench.task.device.xla import split

from .test_xla import CASES, STEPS, bench, data, net, plain, xla

CORES = 2
pytestmark = pytest.mark.skipif(
    os.environ.get("CPU_NUM_DEVICES") != str(CORES), reason="needs CPU_NUM_DEVICES=2"
)


@pytest.mark.parametrize("case", CASES)
def test_two_cores_train_as_one(case: str, tmp_path: Path) -> None:
    settings, options = CASES[case]
    ours = net()
    run = bench(tmp_path, ours, devices=CORES, **settings).fit(max_steps=STEPS).result()
    losses, norms, model = plain(STEPS, **options)
    tolerance = 2e-2 if case == "bf16" else 2e-5
    np.testing.assert_allclose(run.history["loss"], losses, rtol=tolerance)
    np.testing.assert_allclose(run.history["grad_norm"], norms, rtol=10 * tolerance)
    for a, b in zip(ours.parameters(), model.parameters(), strict=True):
        np.testing.assert_allclose(
            a.detach().cpu(), b.detach().cpu(), rtol=100 * tolerance, atol=tolerance
        )


def test_each_core_has_its_part_of_a_batch() -> None:
    def placed(samples: int) -> list[str]:
        x, y = torch.zeros(samples, 16).to(xla.device()), torch.zeros(samples).to(xla.device())
        split({"image": x, "label": [y]}, CORES)
        return [xla._XLAC._get_xla_sharding_spec(tensor) for tensor in (x, y)]

    assert placed(16) == ["{devices=[2,1]0,1}", "{devices=[2]0,1}"]
    assert placed(15) == ["", ""]


def test_a_batch_that_cannot_be_divided(tmp_path: Path) -> None:
    losses = []
    for devices in (CORES, 1):
        loader = DataLoader(TensorDataset(*data(45)), 15)
        made = wb.Workbench(
            net(),
            train=loader,
            loss=F.cross_entropy,
            root=tmp_path / str(devices),
            accelerator="tpu",
            devices=devices,
            enable_progress_bar=False,
        )
        losses.append(made.fit(max_steps=6).result().history["loss"])
    np.testing.assert_allclose(*losses, rtol=2e-5)


def test_a_resumed_fit_has_the_losses_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    whole = bench(tmp_path / "whole", net(0.3), devices=CORES).fit(max_steps=STEPS).result()
    bench(tmp_path / "part", net(0.3), devices=CORES).fit(max_steps=STEPS // 2 - 1).result()
    again = (
        bench(tmp_path / "part", net(0.3), devices=CORES)
        .fit(start="0001-fit", max_steps=STEPS)
        .result()
    )
    assert list(again.history["loss"]) == list(whole.history["loss"])
    on_one = bench(tmp_path / "part", net(0.3)).fit(start="0001-fit", max_steps=STEPS).result()
    np.testing.assert_allclose(on_one.history["loss"], whole.history["loss"], rtol=2e-5)


def test_stop_searches_and_predictions(tmp_path: Path) -> None:
    model = net()
    made = wb.Workbench(
        model,
        train=data(),
        loss=F.cross_entropy,
        root=tmp_path,
        accelerator="tpu",
        devices=CORES,
        batch_size=16,
        enable_progress_bar=False,
    )
    job: Any = made.fit(max_epochs=100_000)
    next(
        event
        for event in iter(lambda: job.events[-1] if job.events else None, object())
        if type(event).__name__ == "StepsDone"
    )
    job.stop()
    assert job.result().status == "stopped"
    before = [p.detach().cpu().clone() for p in model.parameters()]
    assert made.find_lr().result().suggestion is not None
    assert made.find_batch_size(max_val=64).result().largest == 64
    assert all(
        torch.equal(a.detach().cpu(), b) for a, b in zip(model.parameters(), before, strict=True)
    )
    (outputs,) = made.predict(data(5)[0]).result()
    model.eval()
    np.testing.assert_allclose(outputs, model.cpu()(data(5)[0]).detach(), rtol=1e-4, atol=1e-5)


def test_a_launched_fit(tmp_path: Path) -> None:
    here = bench(tmp_path / "here", devices=CORES).fit(max_steps=STEPS).result()
    launched = (
        bench(tmp_path / "launched", devices=CORES, strategy="launch").fit(max_steps=STEPS).result()
    )
    assert list(launched.history["loss"]) == list(here.history["loss"])


def test_other_numbers_of_cores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        wb.SettingsError, match="torch_xla has 2 here, and a fit takes one or all; take devices=2"
    ):
        bench(tmp_path, devices=4)
