"""The language model with pieces of 35 characters and a clip of 0.25, against the loop of PyTorch's own example."""

import copy

import numpy as np
import torch

import workbench as wb
from tests.examples.lstm_language_model import LanguageModel, per_character, texts
from tests.reference import loop

BPTT, CLIP, LR, EPOCHS = 35, 0.25, 2.0, 2


def plain(model, data):
    """word_language_model's loop: repackaged hidden state, clip_grad_norm_, one step per piece."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses, norms = [], []
    loop.seed_all(0)
    loader = loop.loader_of(data, 20)
    for _ in range(EPOCHS):
        for x, y in loader:
            hiddens = None
            for begin in range(0, x.shape[1], BPTT):
                optimizer.zero_grad()
                output, hiddens = model(x[:, begin : begin + BPTT], hiddens)
                loss = per_character(output, y[:, begin : begin + BPTT])
                loss.backward()
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
                optimizer.step()
                hiddens = tuple(h.detach() for h in hiddens)
                losses.append(loss.item())
    return losses, norms


def test_the_same_as_a_plain_loop(one_thread, tmp_path):
    data, letters = texts()
    torch.manual_seed(1)
    model = LanguageModel(letters)
    twin = copy.deepcopy(model)
    bench = wb.Workbench(
        model, train=data, loss=per_character, optimizer=torch.optim.SGD, root=tmp_path, accelerator="cpu", batch_size=20,
        lr=LR, max_epochs=EPOCHS, truncated_bptt_steps=BPTT, gradient_clip_val=CLIP,
    )  # fmt: skip
    run = bench.fit().result()
    losses, norms = plain(twin, data)
    # 240 characters are 6 pieces of 35 and one of 30
    assert run.step == EPOCHS * -(-len(data) // 20) * 7
    np.testing.assert_array_equal(run.history["loss"], np.asarray(losses).astype(np.float32))
    np.testing.assert_array_equal(run.history["grad_norm"], np.asarray(norms).astype(np.float32))
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )
    assert max(norms) > CLIP
    assert np.mean(losses[-7:]) < losses[0] - 0.5
