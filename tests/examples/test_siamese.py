"""Pairs (x1, x2, y) in windows of two batches, against a loop of its own."""

import copy

import numpy as np
import torch

import workbench as wb
from tests.examples.siamese import Pairs, Siamese, contrastive, right
from tests.reference import loop

EPOCHS = 4


def test_the_same_as_a_plain_loop(one_thread, tmp_path):
    model, data = Siamese(), Pairs(0, 450)
    twin = copy.deepcopy(model)
    bench = wb.Workbench(
        model, train=data, val=Pairs(1200, 1500), loss=contrastive, metrics={"right": right}, optimizer=torch.optim.Adam,
        root=tmp_path, accelerator="cpu", batch_size=32, lr=3e-3, max_epochs=EPOCHS, accumulate_grad_batches=2,
    )  # fmt: skip
    run = bench.fit().result()

    loop.seed_all(0)
    loader = loop.loader_of(data, 32)
    optimizer = torch.optim.Adam(twin.parameters(), lr=3e-3)
    losses = []
    for _ in range(EPOCHS):
        # 15 batches: the last window is one short batch alone
        for window in loop.list_windows(loader, 2):
            samples = sum(len(same) for _, _, same in window)
            optimizer.zero_grad()
            mean = 0.0
            for first, second, same in window:
                loss = contrastive(twin(first, second), same)
                loss = loss * (len(same) / samples) if len(window) > 1 else loss
                loss.backward()
                mean = loss.detach() + mean
            optimizer.step()
            losses.append(mean.item())

    np.testing.assert_array_equal(
        run.history["loss"], np.asarray(losses).astype(run.history["loss"].dtype)
    )
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )
    assert run.metrics["val_right"] > 0.7
