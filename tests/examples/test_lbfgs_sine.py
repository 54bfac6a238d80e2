"""LBFGS through the workbench against `optimizer.step(closure)`."""

import copy

import numpy as np
import torch
import torch.nn.functional as F

import workbench as wb
from tests.examples.lbfgs_sine import Continues, optimizer, waves


def test_the_same_as_step_with_a_closure(one_thread, tmp_path):
    model, data = Continues(), waves()
    twin = copy.deepcopy(model)
    bench = wb.Workbench(model, train=data, loss=F.mse_loss, optimizer=optimizer, root=tmp_path, accelerator="cpu",
                         batch_size=len(data), shuffle=False, lr=0.8, max_epochs=5)  # fmt: skip
    run = bench.fit().result()
    x, y = data.tensors
    made, losses, evaluations = optimizer(twin.parameters(), lr=0.8), [], 0

    def closure():
        nonlocal evaluations
        evaluations += 1
        made.zero_grad()
        loss = F.mse_loss(twin(x), y)
        loss.backward()
        return loss

    for _ in range(5):
        # what step returns is the loss of its first evaluation
        losses.append(made.step(closure).item())
    assert evaluations > 5 * 3
    np.testing.assert_array_equal(
        run.history["loss"], np.asarray(losses).astype(run.history["loss"].dtype)
    )
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )
    assert losses[-1] < 0.1 * losses[0]
