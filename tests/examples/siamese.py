"""A siamese network: pairs of handwritten digits, drawn on the fly, near each other if they show the same digit."""

import random

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset


class Pairs(Dataset):
    """(x1, x2, y): y is 1 where both are the same digit, in half of the cases."""

    def __init__(self, begin, end):
        digits = load_digits()
        self.images = torch.tensor(digits.images[begin:end] / 16, dtype=torch.float32).unsqueeze(1)
        labels = digits.target[begin:end].tolist()
        self.labels = labels
        self.of = {
            digit: [i for i, label in enumerate(labels) if label == digit] for digit in set(labels)
        }

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        same = random.random() < 0.5
        digit = (
            self.labels[index]
            if same
            else random.choice([d for d in self.of if d != self.labels[index]])
        )
        return self.images[index], self.images[random.choice(self.of[digit])], float(same)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 16),
        )  # fmt: skip

    def forward(self, first, second):
        return F.pairwise_distance(self.embed(first), self.embed(second))


def contrastive(distance, same, margin=1.0):
    return (same * distance.pow(2) + (1 - same) * F.relu(margin - distance).pow(2)).mean()


def right(distance, same):
    return ((distance < 0.5) == same.bool()).float().mean()
