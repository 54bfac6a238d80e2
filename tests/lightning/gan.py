"""A generative adversarial network as Lightning's documentation writes one: manual optimisation, two optimizers."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.lightning.both import pl

WIDTH, LATENT = 16, 8


class Gan(pl.LightningModule):
    """Two small networks; samples are points on a curve."""

    def __init__(self, lr=2e-3, b1=0.5, b2=0.999, clip=1.0):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(LATENT, 32),
            nn.BatchNorm1d(32),
            nn.LeakyReLU(0.2),
            nn.Linear(32, WIDTH),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Linear(WIDTH, 32), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(32, 1)
        )
        self.register_buffer("fixed", torch.randn(6, LATENT))
        self.shown = []

    def forward(self, z):
        return self.generator(z)

    def adversarial_loss(self, output, y):
        return F.binary_cross_entropy_with_logits(output, y)

    def training_step(self, batch):
        real, _ = batch
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(real.shape[0], LATENT).type_as(real)

        self.toggle_optimizer(optimizer_g)
        fooled = self.discriminator(self(z))
        g_loss = self.adversarial_loss(fooled, torch.ones(real.size(0), 1).type_as(real))
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        self.clip_gradients(
            optimizer_g, gradient_clip_val=self.hparams.clip, gradient_clip_algorithm="norm"
        )
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer(optimizer_g)

        self.toggle_optimizer(optimizer_d)
        of_real = self.adversarial_loss(
            self.discriminator(real), torch.ones(real.size(0), 1).type_as(real)
        )
        of_fake = self.adversarial_loss(
            self.discriminator(self(z).detach()), torch.zeros(real.size(0), 1).type_as(real)
        )
        d_loss = (of_real + of_fake) / 2
        self.log("d_loss", d_loss, prog_bar=True, on_epoch=True)
        self.manual_backward(d_loss)
        self.clip_gradients(optimizer_d, gradient_clip_val=0.01, gradient_clip_algorithm="value")
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer(optimizer_d)

    def validation_step(self, batch):
        real, _ = batch
        self.log("val_real", torch.sigmoid(self.discriminator(real)).mean())

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.shown.append(self(self.fixed).sum().item())

    def on_train_epoch_end(self):
        for schedule in self.lr_schedulers():
            schedule.step()

    def configure_optimizers(self):
        lr, betas = self.hparams.lr, (self.hparams.b1, self.hparams.b2)
        g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=betas)
        d = torch.optim.Adam(self.discriminator.parameters(), lr=2 * lr, betas=betas)
        return [g, d], [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (g, d)]


def points(n=60, batch_size=10, seed=3):
    """Noisy waves of random phase."""
    draw = torch.Generator().manual_seed(seed)
    phase = 6.28 * torch.rand(n, 1, generator=draw)
    waves = torch.sin(phase + torch.linspace(0, 6.28, WIDTH)) + 0.05 * torch.randn(
        n, WIDTH, generator=draw
    )
    return DataLoader(
        TensorDataset(waves, phase),
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(0),
    )
