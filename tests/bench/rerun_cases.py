"""Fits as people make them, of which no script repeats some: `rerun_cases.py FOLDER` runs them all, and writes down their ids."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import workbench as wb

HEAD = """
import functools, time, torch, workbench as wb
import torch.nn.functional as F
from pathlib import Path
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
def bench_of(model, **more):
    given = {"train": (x, y), "loss": F.cross_entropy, "batch_size": 8, "max_epochs": 2, "lr": 0.05, **more}
    return wb.Workbench(model, root="root", accelerator="cpu", track_grad_norm=None, **given)
"""
NOISY = """
class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)
    def __len__(self):
        return len(x)
    def __getitem__(self, i):
        return x[i] + torch.randn(4, generator=self.generator), y[i]
data = Noisy()
"""
LIT = """
import lightning as L
class Lit(L.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.2), nn.Linear(width, 3))
    def setup(self, stage):
        self.noise = torch.rand(3)
    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]) + self.noise, batch[1])
        self.log("train_loss", loss)
        return loss
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr if "lr" in self.hparams else 0.01)
"""

CASES = {
    "a model of a factory, with closures and lambdas": """
def make(width, act=lambda v: v.relu()):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.drop, self.head = nn.Linear(4, width), nn.Dropout(0.3), nn.Linear(width, 3)
        def forward(self, v):
            return factor * self.head(self.drop(act(self.body(v))))
    factor = 1.5
    return Net()
run = bench_of(make(6)).fit().result()
""",
    "numbers that processes share": """
from multiprocessing import Array, Value
class Counted(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.calls, self.sums = Value("i", 0), Array("d", 2, lock=False)
    def forward(self, v):
        with self.calls.get_lock():
            self.calls.value += 1
        self.sums[1] += 0.5
        return super().forward(v) * (1 + 0.01 * (self.calls.value + self.sums[1]))
bench = bench_of(Counted(), dry_run=False)
bench.fit(max_steps=2).result()
run = bench.fit().result()
""",
    "code that exec makes": """
Path("cfg.py").write_text("WIDTH = 7\\ndef act(v):\\n    return v.tanh()\\n")
exec(Path("cfg.py").read_text())
Path("cfg.py").unlink()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)
    def forward(self, v):
        return self.head(act(self.body(v)))
run = bench_of(Net()).fit().result()
""",
    "a global that later cells change": """
scale = 1.0
class Net(nn.Linear):
    def forward(self, v):
        return scale * super().forward(v)
model = Net(4, 3)
globals()["scale"] = 0.5
run = bench_of(model).fit().result()
scale = 9.0
""",
    "a data set with a generator, looked at before": f"{NOISY}\ndata[0]\nrun = bench_of(nn.Linear(4, 3), train=data).fit().result()\ndata[1]\n",
    "a loader with a generator, looked at before": """
loader = torch.utils.data.DataLoader(list(zip(x, y)), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5))
next(iter(loader))
run = bench_of(nn.Linear(4, 3), train=loader, batch_size=8).fit().result()
""",
    "the order of a set": """
words = list(set("the quick brown fox jumps over the lazy dog".split()))
numbers = torch.tensor([[words.index(w)] for w in "the quick brown fox over the lazy dog".split()])
model = nn.Sequential(nn.Embedding(len(words), 3), nn.Flatten())
run = bench_of(model, train=(numbers, y[: len(numbers)]), batch_size=4).fit().result()
""",
    "a seed of the clock": """
seed = time.time_ns() % 100_000
torch.manual_seed(seed)
run = bench_of(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), seed=seed).fit().result()
""",
    "a cached function": """
@functools.lru_cache(maxsize=None)
def weights_of(count):
    return torch.arange(1.0, 1 + count)
class Net(nn.Linear):
    def forward(self, v):
        return super().forward(v) * weights_of(3)
run = bench_of(Net(4, 3)).fit().result()
""",
    "a module beside it that is changed afterwards": """
Path("beside_it.py").write_text("scale = 1.0\\ndef act(v):\\n    return scale * v.sigmoid()\\n")
import beside_it
beside_it.scale = 3.0
class Net(nn.Linear):
    def forward(self, v):
        return beside_it.act(super().forward(v))
run = bench_of(Net(4, 3)).fit().result()
Path("beside_it.py").write_text("def act(v):\\n    raise ValueError\\n")
""",
    "processes that load": """
class Jitter(torch.utils.data.Dataset):
    def __len__(self):
        return len(x)
    def __getitem__(self, i):
        return x[i] + torch.rand(4), y[i]
run = bench_of(nn.Linear(4, 3), train=Jitter(), num_workers=2, max_epochs=1).fit().result()
""",
    "a LightningModule, whose setup draws": f"{LIT}\nrun = bench_of(Lit(5), train=list(zip(x, y)), val=(x, y), loss=None).fit().result()\n",
    "averaged weights, validation and a schedule": """
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
run = bench_of(
    model, val=(x, y), weight_averaging="ema", lr_schedule="cosine", warmup=2, gradient_clip_val=0.5, max_epochs=3,
    metrics={"accuracy": lambda o, t: (o.argmax(1) == t).float().mean()},
).fit().result()
""",
    "a second fit, after the first has moved a generator": f"""
{NOISY}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), 0
    def forward(self, v):
        self.calls += 1
        return self.layer(v) / self.calls
bench = bench_of(Net(), train=data)
bench.fit().result()
run = bench.fit(lr=0.01).result()
""",
    "live changes, and a stop": """
import builtins
class At(nn.Linear):
    step = 0
    def forward(self, v):
        control = getattr(builtins, "control", None)  # no part of the model, and in this process alone
        if self.training and control is not None:
            control(self.step)
        self.step += self.training
        return super().forward(v)
bench = bench_of(At(4, 3), val=(x, y), dry_run=False, max_epochs=5)
def control(step):
    if step == 3:
        bench.job.change(lr=0.5)
    if step == 7:
        bench.job.stop(at=10)  # the end of an epoch
builtins.control = control
run = bench.fit().result()
del builtins.control
""",
    "a fit that continues another": """
bench = bench_of(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.3)), val=(x, y))
bench.fit(max_epochs=1).result()
run = bench.fit(start="continue", max_epochs=3, lr=0.2).result()
""",
}


def main(folder: Path) -> None:
    """Run all cases in this folder, each in globals of its own."""
    os.chdir(folder)
    sys.path.insert(0, "")
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, code in CASES.items():
        cells: dict[str, Any] = {"__name__": "__main__"}
        exec(HEAD + code, cells)
        run: wb.Run = cells["run"]
        found[name] = [run.id, run.step]
    Path("runs.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
