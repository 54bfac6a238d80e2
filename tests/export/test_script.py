"""The exported script repeats the run to the last bit, whatever was on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.export.export_running import PRELUDE, Runner, check, make_bench

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), loss=F.cross_entropy"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("elsewhere")) as made:
        yield made


def repeat(runner: Runner, folder: Path, arguments: str, before: str = "", prelude: str = PRELUDE) -> str:
    """Fit, export, run, compare; the script."""
    bench = make_bench(folder, f"{arguments}, max_epochs=2" if "max_" not in arguments else arguments, before, prelude)
    run = bench.fit().result()
    script = bench.export(folder / "out" / "train.py")
    check(script, bench, run, runner.run(script))
    bench.close()
    return script.read_text()


CASES = {
    "plain": (PAIR, ""),
    "windows, clipping by norm, workers, augmentation": (
        "model, train=Noisy(), val=Noisy(), loss=F.cross_entropy, accumulate_grad_batches=3, gradient_clip_val=0.3, "
        "num_workers=2, batch_size=8",
        "import random\nimport numpy as np\n\n\nclass Noisy(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return len(x)\n\n    def __getitem__(self, i):\n"
        "        noise = random.random() + np.random.rand() + torch.rand(8)\n        return x[i] + noise.float(), y[i]\n",
    ),
    "the same without workers": (
        "model, train=Noisy(), val=Noisy(), loss=F.cross_entropy, accumulate_grad_batches=3, gradient_clip_val=0.3, "
        "batch_size=8",
        "import random\nimport numpy as np\n\n\nclass Noisy(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return len(x)\n\n    def __getitem__(self, i):\n"
        "        noise = random.random() + np.random.rand() + torch.rand(8)\n        return x[i] + noise.float(), y[i]\n",
    ),
    "clipping by value, a number of updates, decay, rare validation, drop_last": (
        f'{PAIR}, val=(x, y), gradient_clip_val=0.01, gradient_clip_algorithm="value", max_steps=11, '
        "weight_decay=0.3, check_val_every_n_epoch=2, drop_last=True, batch_size=16, shuffle=False, deterministic=True",
        "",
    ),
    "both lengths": (f"{PAIR}, max_steps=50, max_epochs=2, batch_size=64, accelerator='cpu'", ""),
    "a scheduler": (
        f"{PAIR}, accumulate_grad_batches=2, scheduler=lambda optimizer, updates: "
        "torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=updates), optimizer=make",
        "def make(parameters, lr):\n    parameters = list(parameters)\n"
        "    return torch.optim.SGD([{'params': parameters[:2], 'lr': lr / 3}, {'params': parameters[2:]}], lr=lr)\n",
    ),
    "a loss with weights, metrics": (
        "model, train=(x.numpy(), y.numpy()), val=data, loss=nn.CrossEntropyLoss(weight=weights), "
        "metrics={'right': lambda output, y: output.argmax(1) == y, 'double': Double()}",
        "weights = torch.tensor([1.0, 2.0, 3.0])\ndata = (x[:30], y[:30])\n\n\nclass Double(nn.Module):\n"
        "    def forward(self, output, y):\n        return output.double().mean()\n",
    ),
    "the model's own loss, dict batches": (
        "Own(), train={'x': x, 'labels': y}, val={'x': x, 'labels': y}, accumulate_grad_batches=2, "
        "metrics={'right': lambda output, y: (output.logits.argmax(1) == y).float()}",
        "from types import SimpleNamespace\n\n\nclass Own(Net):\n    def forward(self, x, labels):\n"
        "        logits = super().forward(x)\n"
        "        return SimpleNamespace(loss=F.cross_entropy(logits, labels), logits=logits)\n",
    ),
    "the model's own loss in a dict, single tensors": (
        "Auto(), train=x, val=x[:10]",
        "class Auto(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.code = nn.Linear(8, 8)\n\n"
        "    def forward(self, x):\n        return {'loss': F.mse_loss(self.code(x), x)}\n",
    ),
    "dict batches with a loss": (
        "Named(), train=data, val=data, loss=F.cross_entropy, accumulate_grad_batches=2, batch_size=24",
        "data = {'b': x, 'a': x * 2, 'target': y}\n\n\nclass Named(Net):\n    def forward(self, a, b):\n"
        "        return super().forward(a - b)\n",
    ),
    "three inputs": (
        "Two(), train=(x, 2 * x, y), val=(x, x, y), loss=F.cross_entropy",
        "class Two(Net):\n    def forward(self, a, b):\n        return super().forward(b - a)\n",
    ),
    "loaders with a generator, a collate function, workers' start": (
        "model, train=loader, val=val_loader, loss=F.cross_entropy, collate_fn=None",
        "from torch.utils.data import DataLoader, TensorDataset\n\n\ndef collate(samples):\n"
        "    xs, ys = zip(*samples)\n    return torch.stack(xs) * 0.5, torch.stack(ys)\n\n\n"
        "def start(worker):\n    torch.set_num_threads(1)\n\n\n"
        "g = torch.Generator().manual_seed(7)\ntorch.rand(3, generator=g)\ndata = TensorDataset(x, y)\n"
        "loader = DataLoader(data, 12, shuffle=True, generator=g, collate_fn=collate, num_workers=1, worker_init_fn=start)\n"
        "val_loader = DataLoader(torch.utils.data.Subset(data, range(20)), 10)\n",
    ),
    "a sampler of its own": (
        "model, train=loader, val=(x, y), loss=F.cross_entropy",
        "from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler\n\n"
        "g = torch.Generator().manual_seed(7)\n"
        "sampler = WeightedRandomSampler(torch.rand(100), 60, generator=g)\n"
        "loader = DataLoader(TensorDataset(x, y), batch_size=10, sampler=sampler, drop_last=True)\n",
    ),
    "a batch sampler of its own, a collate_fn for all": (
        "model, train=loader, val=data, loss=F.cross_entropy, collate_fn=collate",
        "from torch.utils.data import DataLoader, TensorDataset\n\n\nclass Thirds:\n    def __len__(self):\n        return 3\n\n"
        "    def __iter__(self):\n        for part in range(3):\n            yield list(range(part, 100, 3))\n\n\n"
        "def collate(samples):\n    return {'x': torch.stack([s[0] for s in samples]) + 1, 'y': torch.stack([s[1] for s in samples])}\n\n\n"
        "data = TensorDataset(x, y)\nloader = DataLoader(data, batch_sampler=Thirds())\n",
    ),
    "ready batches": (
        "model, train=batches, val=batches[:2], loss=F.cross_entropy, accumulate_grad_batches=2, "
        "scheduler=decay, max_steps=20, max_epochs=2",
        "batches = [(x[i : i + 7], y[i : i + 7]) for i in range(0, 70, 7)]\n\n\n"
        "def decay(optimizer, updates):\n"
        "    return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=updates)\n",
    ),
    "a stream": (
        "model, train=Stream(), val=DataLoader(TensorDataset(x, y), 20), loss=F.cross_entropy, drop_last=True, batch_size=9",
        "from torch.utils.data import DataLoader, IterableDataset, TensorDataset\n\n\nclass Stream(IterableDataset):\n    def __iter__(self):\n"
        "        for number in range(40):\n            yield x[number] + torch.rand(1), y[number]\n",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_script_repeats_the_run(case: str, runner: Runner, tmp_path: Path) -> None:
    repeat(runner, tmp_path, *CASES[case])
