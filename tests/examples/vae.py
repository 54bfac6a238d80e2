"""A variational autoencoder on handwritten digits: its output is a tuple, and its target is its input."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def digits(begin, end):
    """(x, x): the images as 64 numbers from 0 to 1, to be rebuilt."""
    x = torch.tensor(load_digits().data[begin:end] / 16, dtype=torch.float32)
    return x, x


class VAE(nn.Module):
    def __init__(self, width=64, code=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, width), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(width, code), nn.Linear(width, code)
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, 64))

    def forward(self, x):
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(code), mean, log_variance


def elbo(output, x):
    """Reconstruction and divergence of a sample, mean over the batch."""
    rebuilt, mean, log_variance = output
    reconstruction = F.binary_cross_entropy_with_logits(rebuilt, x, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return (reconstruction + divergence) / len(x)
