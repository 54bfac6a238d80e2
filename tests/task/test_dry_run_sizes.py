"""The first look at the data takes no more samples at once than a batch holds."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import workbench as wb
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


class Lengths(Dataset):
    """Each sample is longer than the one before, so that no two can be stacked."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones(3 + index, 6), 0


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def forward(self, x):
        return self.net(x).mean(1)


def make(root, **more):
    data = DataLoader(Lengths(), batch_size=1)
    return wb.Workbench(
        Mean(), train=data, val=data, loss=F.cross_entropy, root=root, accelerator="cpu", **more
    )


def test_samples_of_different_lengths_one_by_one(tmp_path):
    run = make(tmp_path, max_epochs=1).fit().result()
    assert run.step == 4
    with pytest.raises(TaskError, match="train: samples of unlike shapes cannot be stacked"):
        make(tmp_path, batch_size=2)
