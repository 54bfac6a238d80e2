"""The pool on GPUs; two ranks may share one, over gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

import workbench as wb
from tests.engine.problems import labelled, plain_net
from tests.launch.pools import Net, bench, net
from workbench.launch.process import run_in_child
from workbench.runs.run import Run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not run_in_child.FORK, reason="needs a fork server"),
]


def fitted(root: Path, **settings: Any) -> tuple[Run, nn.Module]:
    calm = {
        "accelerator": "cuda",
        "root": root,
        "max_epochs": 2,
        "lr": 0.01,
        "num_sanity_val_steps": 0,
    }
    model = plain_net()
    data = {"train": labelled(400), "val": labelled(60, seed=2)}
    with wb.Workbench(model, loss=F.cross_entropy, **data, **{**calm, **settings}) as made:
        made.fit().result()
        return made.fit().result(), model  # again, in a pool that is there


def test_two_ranks_on_one_gpu_are_one_process_on_the_global_batch(tmp_path: Path) -> None:
    torch.ones(3, device="cuda").sum().item()  # CUDA is in use here already
    mine = Accelerator()
    ranks, model = fitted(tmp_path, devices=[0, 0], batch_size=10)
    alone, other = fitted(tmp_path, devices=1, batch_size=20)
    np.testing.assert_allclose(ranks.history["loss"], alone.history["loss"], rtol=1e-3)
    np.testing.assert_allclose(ranks.history["grad_norm"], alone.history["grad_norm"], rtol=1e-2)
    torch.testing.assert_close(
        model.cpu().state_dict(), other.cpu().state_dict(), rtol=1e-2, atol=1e-4
    )
    assert mine.prepare(nn.Linear(2, 2)).weight.device.type == "cuda"


def test_half_precision_on_two_ranks(tmp_path: Path) -> None:
    ranks, _ = fitted(tmp_path, devices=[0, 0], batch_size=10, precision="16-mixed")
    alone, _ = fitted(tmp_path, devices=1, batch_size=20)
    assert ranks.metrics["val_loss"] == pytest.approx(alone.metrics["val_loss"], rel=0.1)


def test_one_rank_in_a_pool_of_its_own_leaves_the_model_where_it_was(tmp_path: Path) -> None:
    ranks, model = fitted(tmp_path, devices=1, strategy="pool", batch_size=20)
    alone, _ = fitted(tmp_path, devices=1, strategy="thread", batch_size=20)
    assert next(model.parameters()).device.type == "cpu"
    np.testing.assert_allclose(ranks.history["loss"], alone.history["loss"], rtol=1e-4)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_over_nccl(tmp_path: Path) -> None:
    ranks, _ = fitted(tmp_path, devices=2, batch_size=10)
    alone, _ = fitted(tmp_path, devices=1, batch_size=20)
    np.testing.assert_allclose(ranks.history["loss"], alone.history["loss"], rtol=1e-3)


def test_a_rank_that_fails_on_a_gpu(tmp_path: Path) -> None:
    def fail(rank: int, step: int) -> None:
        if rank == 1 and step == 2:
            raise KeyError("no such word")

    assert isinstance(
        bench(net(fail), tmp_path, devices=[0, 0], accelerator="cuda").fit().exception(), KeyError
    )
    bench(net(), tmp_path, devices=[0, 0], accelerator="cuda").fit().result()


def test_between_two_flushes_nothing_waits_for_the_device(tmp_path: Path) -> None:
    class Strict(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.cuda.set_sync_debug_mode("error" if 5 <= self.calls < 9 else "default")
            self.calls += 1
            return super().forward(x)

    torch.manual_seed(1)
    model = Strict()
    model.calls = 0
    bench(
        model, tmp_path, devices=1, strategy="pool", accelerator="cuda", max_epochs=1
    ).fit().result()
    assert model.calls == 12
