"""The autoencoder with a cosine schedule, averaged weights and validation, against a loop of its own."""

import copy

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import workbench as wb
from tests.examples.vae import VAE, digits, elbo
from tests.reference import loop

EPOCHS, LR = 3, 3e-3


def test_the_same_as_a_plain_loop(one_thread, tmp_path):
    model = VAE()
    twin = copy.deepcopy(model)
    train, val = digits(0, 1000), digits(1000, 1200)
    bench = wb.Workbench(
        model, train=train, val=val, loss=elbo, optimizer=torch.optim.Adam, root=tmp_path, accelerator="cpu", batch_size=64,
        lr=LR, max_epochs=EPOCHS, lr_schedule="cosine", weight_averaging="ema", ema_decay=0.95,
    )  # fmt: skip
    run = bench.fit().result()

    loop.seed_all(0)
    loader = loop.loader_of(TensorDataset(*train), 64)
    optimizer = torch.optim.Adam(twin.parameters(), lr=LR)
    schedule = CosineAnnealingLR(optimizer, EPOCHS * len(loader))
    average = AveragedModel(
        twin,
        avg_fn=lambda old, new, count: torch.lerp(
            new, old, min(0.95, (1 + float(count)) / (10 + float(count)))
        ),
    )
    losses, rates = [], []
    for _ in range(EPOCHS):
        for x, y in loader:
            loss = elbo(twin(x), y)
            optimizer.zero_grad()
            loss.backward()
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
            average.update_parameters(twin)
            losses.append(loss.item())

    # torch's CosineAnnealingLR works its rate out from the one before, so the last bits differ.
    np.testing.assert_allclose(run.history["lr"], rates, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(run.history["loss"], losses, rtol=1e-4)
    for ours, theirs in zip(model.parameters(), average.module.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    assert losses[-1] < 0.75 * losses[0]
    assert run.metrics["val_loss_averaged"] == pytest.approx(run.metrics["val_loss"], rel=0.2)
