"""The order of samples: torch's own, and lean."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from torch.utils.data import RandomSampler

from workbench.task.data.samplers import ShuffledSampler


@pytest.mark.parametrize("count", [1, 7, 4096, 10_000])
def test_the_order_is_torchs_and_so_is_what_was_drawn_after_each_epoch(count: int) -> None:
    one, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    for _ in range(3):
        assert [*ShuffledSampler(range(count), generator=one)] == [*RandomSampler(range(count), generator=other)]
        assert torch.equal(one.get_state(), other.get_state())


def test_the_order_of_many_samples_is_never_a_list_of_python_numbers() -> None:
    order = iter(ShuffledSampler(range(300_000), generator=torch.Generator()))
    tracemalloc.start()
    try:
        for _ in range(5000):
            next(order)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000
