"""Which device each rank of a pool has, and what its environment says."""

from __future__ import annotations

import pytest
import torch

from workbench.launch.pool.placement import backend, device, environment


@pytest.fixture(autouse=True)
def _eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)


def test_ranks_on_cpus() -> None:
    assert backend("cpu", (0, 1, 2)) == "gloo"
    assert device(1, "cpu", (0, 1, 2)) is None
    found = environment(1, "cpu", (0, 1, 2))
    assert {found[name] for name in ("RANK", "LOCAL_RANK", "WORKBENCH_RANK")} == {"1"}
    assert {found[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {"3"}
    assert found["OMP_NUM_THREADS"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in found


def test_one_alone_is_no_rank() -> None:
    assert environment(0, "cpu", (0,)) == {}
    assert environment(0, "cuda", (3,)) == {
        "CUDA_VISIBLE_DEVICES": "3",
        "ACCELERATE_TORCH_DEVICE": "cuda:0",
    }


def test_gpus_are_counted_among_those_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend("cuda", (2, 5)) == "cpu:gloo,cuda:nccl"
    assert [device(rank, "cuda", (2, 5)) for rank in (0, 1)] == [0, 1]
    assert environment(1, "cuda", (2, 5))["CUDA_VISIBLE_DEVICES"] == "2,5"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-5f, 6")
    found = environment(1, "cuda", (0, 1))
    assert found["CUDA_VISIBLE_DEVICES"] == "4,GPU-5f"
    assert found["ACCELERATE_TORCH_DEVICE"] == "cuda:1"
    assert "ACCELERATE_BYPASS_DEVICE_MAP" not in found


def test_two_ranks_on_one_gpu_talk_over_gloo() -> None:
    assert backend("cuda", (0, 0)) == "gloo"
    found = environment(1, "cuda", (0, 0))
    assert found["LOCAL_RANK"] == "1"
    assert found["CUDA_VISIBLE_DEVICES"] == "0"
    assert found["ACCELERATE_TORCH_DEVICE"] == "cuda:0"
    assert found["ACCELERATE_BYPASS_DEVICE_MAP"] == "true"
