"""The pool on GPUs; two ranks may share one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.launch.pools import Net, bench, losses, net, ranks
from workbench.launch import child

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not child.FORK, reason="needs a fork server")]


@pytest.mark.parametrize("devices", [[0, 0], 1])
def test_a_fit_behind_a_notebook_that_used_the_gpu(tmp_path: Path, devices: list[int] | int) -> None:
    torch.ones(3, device="cuda").sum()
    two = bench(net(), tmp_path, devices=devices, accelerator="cuda", strategy="pool")
    jobs = [two.fit() for _ in range(2)]
    for job in jobs:
        job.result()
    assert losses(jobs[0]) == losses(jobs[1])
    size = 4 * len(ranks())
    one = bench(net(), tmp_path, batch_size=size, devices=1, accelerator="cuda", strategy="thread").fit()
    one.result()
    np.testing.assert_allclose(losses(jobs[0]), losses(one), rtol=1e-4)


def test_a_rank_that_fails_on_a_gpu(tmp_path: Path) -> None:
    def fail(rank: int, step: int) -> None:
        if rank == 1 and step == 2:
            raise KeyError("no such word")

    assert isinstance(bench(net(fail), tmp_path, devices=[0, 0], accelerator="cuda").fit().exception(), KeyError)
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
    bench(model, tmp_path, devices=1, strategy="pool", accelerator="cuda", max_epochs=1).fit().result()
    assert model.calls == 12
