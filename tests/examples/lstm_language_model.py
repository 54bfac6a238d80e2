"""A character language model on the standard library's own source: an LSTM whose state is carried through a text."""

import bisect
import heapq
import textwrap
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

ROW = 240  # characters of one text


def texts():
    """Rows of characters and the same rows one character on; and how many different characters there are."""
    source = "".join(
        Path(module.__file__).read_text(encoding="utf-8") for module in (textwrap, bisect, heapq)
    )
    letters = sorted(set(source))
    codes = torch.tensor([letters.index(letter) for letter in source])
    rows = (len(codes) - 1) // ROW
    x, y = codes[: rows * ROW].view(rows, ROW), codes[1 : rows * ROW + 1].view(rows, ROW)
    return TensorDataset(x, y), len(letters)


class LanguageModel(nn.Module):
    """Embedding, LSTM, and the embedding again as the output layer's weights."""

    def __init__(self, letters, width=48):
        super().__init__()
        self.embedding = nn.Embedding(letters, width)
        self.dropout = nn.Dropout(0.1)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.Linear(width, letters)
        self.decoder.weight = self.embedding.weight

    def forward(self, x, hiddens=None):
        output, hiddens = self.lstm(self.dropout(self.embedding(x)), hiddens)
        return self.decoder(self.dropout(output)), hiddens


def per_character(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())
