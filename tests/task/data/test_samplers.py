"""The order of samples: torch's own, and lean."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

from workbench.task.data.samplers import ShuffledSampler, draws_alone


@pytest.mark.parametrize("count", [1, 7, 4096, 10_000])
def test_the_order_is_torchs_and_so_is_what_was_drawn_after_each_epoch(count: int) -> None:
    one, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    for _ in range(3):
        assert [*ShuffledSampler(range(count), generator=one)] == [
            *RandomSampler(range(count), generator=other)
        ]
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


class Own(RandomSampler):
    """A sampler of the user's."""


def test_an_order_of_torchs_draws_from_its_generator_alone() -> None:
    loaders, other, data = torch.Generator(), torch.Generator(), range(9)
    alone = (
        SequentialSampler(data), RandomSampler(data, generator=loaders), ShuffledSampler(data, generator=loaders),
        BatchSampler(RandomSampler(data, generator=loaders), 2, drop_last=True), WeightedRandomSampler([1.0, 2.0], 4, generator=loaders),
    )  # fmt: skip
    for order in alone:
        assert draws_alone(order, loaders)
    for order in (
        RandomSampler(data),
        RandomSampler(data, generator=other),
        Own(data, generator=loaders),
        BatchSampler([3, 1], 2, False),
        [[0, 1]],
    ):
        assert not draws_alone(order, loaders)
