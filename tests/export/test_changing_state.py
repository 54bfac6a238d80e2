"""What the user's code changes, and no checkpoint of a script has."""

from __future__ import annotations

from textwrap import indent

import pytest

from workbench.export.inputs.changing_state import changing_state

CHANGES = {
    "self.calls += 1": "self.calls",
    "if self.training:\n    self.seen = x": "self.seen",
    "y = self.rnn(x, self.hidden)\nself.hidden = y.detach()": "self.hidden",
    "self.mean = 0.9 * self.mean + 0.1 * x.mean()": "self.mean",
    "self.losses.append(x)": "self.losses",
    "x = next(self.stream)": "self.stream",
    "self.rng = torch.Generator().manual_seed(0)": "a generator of its own",
    "global count\ncount = count + 1": "changes count",
    "counts[0] += 1": "counts[0]",
    "return torch.rand(3, generator=noise)": "draws from noise",
}
SAFE = [
    "self.features = self.body(x)\nreturn self.features",  # set at once, before it is read
    "self.weight.data = x",
    "self.running = x  # registered",
    "self.outputs.append(x)  # emptied after each epoch",
    "x = x + 1\ncounts = {}\ncounts['a'] = 1",
]


def net(body: str) -> str:
    return f"""\
import torch
noise = torch.Generator().manual_seed(0)
count, counts = 0, [0]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.outputs = 0, []
        self.register_buffer("running", torch.zeros(3))

    def forward(self, x):
{indent(body, " " * 8)}

    def on_validation_epoch_end(self):
        self.outputs.clear()
"""


@pytest.mark.parametrize("body", CHANGES)
def test_found(body: str) -> None:
    assert any(CHANGES[body] in clause for clause in changing_state(net(body)))


@pytest.mark.parametrize("body", SAFE)
def test_not_found(body: str) -> None:
    assert not list(changing_state(net(body)))


def test_schedulers_keep_their_attributes() -> None:
    code = "class Steps(LRScheduler):\n    def step(self):\n        self.turns += 1\n"
    assert not list(changing_state(code))
