"""Several validation loaders on ranks: what a module logs for each is that of one process, metric objects included."""

import pytest
import torch
from torchmetrics import MeanMetric, SumMetric

from tests.lightning.ranks.rank_fits import Net, batches, fit
from tests.on_ranks import on_ranks

pytestmark = pytest.mark.usefixtures("one_thread")


class Several(Net):
    """One metric is shared by the sets, as Lightning leaves it: its value for the second is that of both."""

    def __init__(self):
        super().__init__()
        self.shared, self.own = SumMetric(), torch.nn.ModuleList([MeanMetric(), MeanMetric()])

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        loss = self.loss(batch)
        self.log("val_loss", loss)
        self.log(
            f"largest_{dataloader_idx}", batch[0].max(), reduce_fx="max", add_dataloader_idx=False
        )
        self.shared.update(batch[0].sum())
        self.own[dataloader_idx].update(loss, weight=len(batch[0]))
        self.log("shared", self.shared)
        self.log("own", self.own[dataloader_idx])


@pytest.mark.parametrize("sizes", [(10, 7), (9, 3)], ids=str)
def test_as_one_process(sizes):
    """Of three samples in batches of four rank 1 has none: it gathers with rank 0 all the same."""

    def rank():
        return fit(
            Several(),
            batches(16, 4),
            [batches(sizes[0], 4, 2), batches(sizes[1], 4, 3)],
            max_epochs=1,
        )

    def whole(*, batch_size=8):
        return fit(
            Several(),
            batches(16, batch_size),
            [batches(sizes[0], 4, 2), batches(sizes[1], 4, 3)],
            max_epochs=1,
            batch_size=batch_size,
        )

    first, other = on_ranks(2, rank)
    assert first["checks"] == other["checks"]
    ((_, ours),) = first["checks"]
    ((_, alone),) = whole()["checks"]
    assert {
        "val_loss/dataloader_idx_0",
        "shared/dataloader_idx_1",
        "own/dataloader_idx_1",
        "largest_1",
    } <= set(alone)
    assert ours == {name: pytest.approx(value, rel=1e-4) for name, value in alone.items()}
