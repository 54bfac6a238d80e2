"""A bench with a stream of which each rank reads its own share: what its calls return."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import IterableDataset

from tests.launch.pools import bench, data, net
from workbench.settings import SettingsError


class Numbers(IterableDataset[Any]):
    """Rank 0 has a third of the samples, and rank 1 the others; one process has all."""

    is_sharded = True

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        for number, (x, y) in enumerate(zip(*data(36), strict=True)):
            if world == 1 or (number % 3 > 0) == rank:
                yield x, y


def test_each_call_reads_each_sample_once(tmp_path: Path) -> None:
    made = bench(net(), tmp_path, train=Numbers(), val=Numbers(), max_epochs=1)
    run = made.fit().result()
    assert len(run.history["loss"]) == 6
    (x, y), model = data(36), made.model
    with torch.no_grad():
        assert made.validate().result()["val_loss"] == pytest.approx(
            float(F.cross_entropy(model(x), y))
        )
        outputs = torch.cat(made.predict(Numbers()).result())
        first, second = ([n for n in range(36) if (n % 3 > 0) == rank] for rank in (0, 1))
        rounds = [(first[n : n + 4], second[n : n + 4]) for n in range(0, 24, 4)]
        order = [n for round in rounds for batch in round for n in batch]
        torch.testing.assert_close(outputs, model(x[order]))
    curve = made.find_lr(num_training=20).result()
    assert len(curve.lrs) == 20
    assert made.find_batch_size(max_val=16, steps_per_trial=2).result().best <= 16
    again = made.fit("continue", max_epochs=2).result()
    assert len(again.history["loss"]) == 12
    with pytest.raises(SettingsError, match="streams='shard': a continued run keeps"):
        made.fit("continue", max_epochs=3, streams="shard")
    made.close()
