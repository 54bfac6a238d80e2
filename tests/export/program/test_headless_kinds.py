"""The kinds of runs that the training program does not have: their script is a headless one, which says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.export_running import make_bench

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), loss=F.cross_entropy, batch_size=50, max_epochs=1"
COUNTING = """
class Counting(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if not self.training:
            self.seen = self.seen + len(x)
        return super().forward(x) * (1 + self.seen / 1000)


model = Counting()
"""
PASSES = """
class Passes:
    def reset(self):
        self.count = 0

    def update(self, pair):
        self.count += 1

    def compute(self):
        return self.count
"""
SETS = """
sets = [torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 50) for _ in range(2)]
"""
RECURRENT = """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(1, 3, batch_first=True)

    def forward(self, x, hiddens=None):
        output, hiddens = self.cell(x[..., None], hiddens)
        return output, hiddens


def loss(output, target):
    return output.square().mean()


model = Recurrent()
"""
HEADLESS: dict[str, tuple[str, str]] = {
    "several schedulers": (
        f"{PAIR}, scheduler=lambda optimizer, updates: "
        "[torch.optim.lr_scheduler.StepLR(optimizer, 1) for _ in range(2)]",
        "",
    ),
    "several validation sets in loaders": (f"{PAIR}, val=sets", SETS),
    "a sanity check that may change what the model's code keeps": (f"{PAIR}, val=(x, y)", COUNTING),
    "metrics['n'] whose update takes one pair": (
        f"{PAIR}, val=(x, y), metrics={{'n': Passes()}}",
        PASSES,
    ),
    "truncated_bptt_steps": (
        f"{PAIR.replace('F.cross_entropy', 'loss')}, truncated_bptt_steps=4",
        RECURRENT,
    ),
    "an optimizer that evaluates the loss again, with several batches in an update": (
        f"{PAIR}, optimizer=torch.optim.LBFGS, accumulate_grad_batches=2",
        "",
    ),
    "training that went back to earlier weights (on_spike='rollback')": (
        "nn.Linear(8, 1), train=(far, target), loss=F.mse_loss, on_spike='rollback', shuffle=False, batch_size=8, max_epochs=1",
        "far = torch.sin(1.7 * torch.arange(9600.0)).reshape(1200, 8)\ntarget = far.sum(1, keepdim=True)\ntarget[1100] = 1000.0\n",
    ),
    "updates that were left out, of a model with buffers": (f"{PAIR}, on_nonfinite='skip'", ""),
}


@pytest.mark.parametrize("reason", HEADLESS)
def test_why_a_script_is_headless(reason: str, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, *HEADLESS[reason])
    bench.fit().result()
    head = bench.script().split('"""')[1]
    assert f"a stand-alone script does not support {reason}" in " ".join(head.split())
    bench.close()
