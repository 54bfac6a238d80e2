"""What was told to torch for the whole process holds in the processes of a job, and in those of the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.launch.pools import bench, net
from workbench.launch.process import run_in_child
from workbench.launch.process.process_env import set_flags, torch_flags


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch_flags()
    yield
    set_flags(before)


def tell() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def test_they_are_taken_and_given_back() -> None:
    before = torch_flags()
    tell()
    told = torch_flags()
    assert told != before
    set_flags(before)
    assert torch_flags() == before
    assert not torch.are_deterministic_algorithms_enabled()
    set_flags(told)
    assert torch_flags() == told


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="torch has one way alone to say it"
)
def test_older_and_newer_ways_to_say_a_precision_may_be_mixed() -> None:
    before = torch_flags()
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
    mixed = torch_flags()
    assert mixed["cudnn.conv.fp32_precision"] == "ieee"
    set_flags(before)
    assert torch_flags() == before
    set_flags(mixed)
    assert torch_flags() == mixed


def _report(rank: int, step: int) -> None:
    if step == 0:
        attention = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
        print(
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.benchmark,
            *attention,
        )


@pytest.mark.skipif(not run_in_child.FORK, reason="needs a fork server")
def test_ranks_have_those_of_the_moment(tmp_path: Path) -> None:
    def printed(two: Any) -> set[str]:
        job = two.fit(max_epochs=1)
        job.result()
        return {line.removeprefix("[rank 1] ") for line in job.output}

    two = bench(net(_report), tmp_path)
    tell()
    torch.set_default_dtype(torch.float32)  # what the data is
    assert printed(two) == {"torch.float32 medium True False True"}
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = False
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert printed(two) == {"torch.float32 high False True False"}
    assert printed(two) == {"torch.float32 high False False True"}


def test_the_order_of_attention_is_one_of_them() -> None:
    before = torch_flags()
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        inside = torch_flags()
    set_flags(inside)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch_flags() == inside != before
    set_flags(before)
    assert torch_flags() == before
