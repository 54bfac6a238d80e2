"""Both DCGANs against the loops that a person would write for them."""

import copy

import numpy as np
import pytest
import torch

import workbench as wb
from tests.examples.dcgan import DCGAN, NOISE, ManualDCGAN, digits, fake, real
from tests.reference import loop

pytestmark = pytest.mark.usefixtures("one_thread")
EPOCHS = 2


def fitted(model, root, **settings):
    bench = wb.Workbench(
        model,
        train=digits(),
        root=root,
        accelerator="cpu",
        batch_size=64,
        max_epochs=EPOCHS,
        **settings,
    )
    return bench.fit().result()


def column(values):
    return np.asarray(values).astype(np.float32)


def same_weights(model, twin):
    for part in ("generator", "discriminator"):
        ours, theirs = getattr(model, part).state_dict(), getattr(twin, part).state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs), part


def batches():
    loop.seed_all(0)
    loader = loop.loader_of(digits(), 64)
    for _ in range(EPOCHS):
        for (images,) in loader:
            yield images


def test_two_optimizers(tmp_path):
    torch.manual_seed(0)
    model = DCGAN()
    twin = copy.deepcopy(model)
    run = fitted(model, tmp_path)
    generates, discriminates = twin.configure_optimizers()
    losses = []
    for images in batches():
        invented = twin.generator(torch.randn(len(images), NOISE, 1, 1))
        generates.zero_grad()
        first = real(twin.discriminator(invented))
        first.backward()
        generates.step()
        invented = twin.generator(torch.randn(len(images), NOISE, 1, 1)).detach()
        discriminates.zero_grad()  # the generator's step has left gradients there
        second = real(twin.discriminator(images)) + fake(twin.discriminator(invented))
        second.backward()
        discriminates.step()
        losses.append((first.item(), second.item()))
    np.testing.assert_array_equal(run.history["loss.0"], column([a for a, _ in losses]))
    np.testing.assert_array_equal(run.history["loss.1"], column([b for _, b in losses]))
    np.testing.assert_allclose(run.history["loss"], [a + b for a, b in losses], rtol=1e-6)
    same_weights(model, twin)
    assert run.history["loss.1"].min() < 0.9 * run.history["loss.1"][0]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_steps_by_hand(clip, tmp_path):
    torch.manual_seed(0)
    model = ManualDCGAN()
    twin = ManualDCGAN()
    twin.load_state_dict(model.state_dict())
    run = fitted(model, tmp_path, gradient_clip_val=clip)
    generates, discriminates = twin.configure_optimizers()
    losses = []
    for images in batches():
        invented = twin.generator(torch.randn(len(images), NOISE, 1, 1))
        discriminates.zero_grad()
        second = real(twin.discriminator(images)) + fake(twin.discriminator(invented.detach()))
        second.backward()
        step(discriminates, clip)
        generates.zero_grad()
        first = real(twin.discriminator(invented))
        first.backward()
        step(generates, clip)
        losses.append((second + first).item())
    np.testing.assert_array_equal(run.history["loss"], column(losses))
    same_weights(model, twin)
    assert all(p.requires_grad for p in model.parameters())


def step(optimizer, clip):
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], clip)
    optimizer.step()
