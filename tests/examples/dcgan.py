"""A small DCGAN on handwritten digits, twice: stepped by the workbench, and stepped by hand."""

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

NOISE = 16


def digits(n=640):
    """Images of 1x8x8 with values from -1 to 1, without their labels."""
    images = torch.tensor(load_digits().images[:n], dtype=torch.float32)
    return TensorDataset(images.unsqueeze(1) / 8 - 1)


def generator():
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 32, 4), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1), nn.Tanh(),
    )  # fmt: skip


def discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 4), nn.Flatten(0),
    )  # fmt: skip


def real(scores):
    return F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))


def fake(scores):
    return F.binary_cross_entropy_with_logits(scores, torch.zeros_like(scores))


class DCGAN:
    """No module itself: it holds two, and says how each learns from a batch."""

    def __init__(self, lr=1e-3):
        self.lr = lr
        self.generator, self.discriminator = generator(), discriminator()

    def training_step(self, batch, batch_idx, optimizer_idx):
        (images,) = batch
        invented = self.generator(torch.randn(len(images), NOISE, 1, 1))
        if optimizer_idx == 0:
            return real(self.discriminator(invented))
        return real(self.discriminator(images)) + fake(self.discriminator(invented.detach()))

    def configure_optimizers(self):
        betas = (0.5, 0.999)
        return [
            torch.optim.Adam(self.generator.parameters(), lr=self.lr, betas=betas),
            torch.optim.Adam(self.discriminator.parameters(), lr=self.lr, betas=betas),
        ]


class ManualDCGAN(lightning.LightningModule):
    """The discriminator first, and one batch of noise for both."""

    automatic_optimization = False

    def __init__(self, lr=1e-3):
        super().__init__()
        self.lr = lr
        self.generator, self.discriminator = generator(), discriminator()

    def training_step(self, batch, batch_idx):
        (images,) = batch
        generates, discriminates = self.optimizers()
        invented = self.generator(torch.randn(len(images), NOISE, 1, 1))

        self.toggle_optimizer(discriminates)
        discriminates.zero_grad()
        self.manual_backward(
            real(self.discriminator(images)) + fake(self.discriminator(invented.detach()))
        )
        discriminates.step()
        self.untoggle_optimizer(discriminates)

        generates.zero_grad()
        self.manual_backward(real(self.discriminator(invented)))
        generates.step()

    configure_optimizers = DCGAN.configure_optimizers
