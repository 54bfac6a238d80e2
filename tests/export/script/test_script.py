"""The exported script repeats the run to the last bit, whatever was on."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from tests.combinations import every
from tests.export.export_running import (
    PRELUDE,
    Runner,
    check,
    fit_asking,
    lint,
    make_bench,
)
from workbench.export.errors import ExportError, NotStandAlone
from workbench.launch.job import Job

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), loss=F.cross_entropy"


def repeat(
    runner: Runner,
    folder: Path,
    arguments: str,
    before: str = "",
    prelude: str = PRELUDE,
    clean: bool = True,
) -> str:
    """Fit, export, run, compare; the script."""
    bench = make_bench(
        folder,
        f"{arguments}, max_epochs=2" if "max_" not in arguments else arguments,
        before,
        prelude,
    )
    run = bench.fit().result()
    script = bench.export(folder / "out" / "train.py")
    check(bench, run, runner.run(script))
    if clean:
        lint(script)
    bench.close()
    return script.read_text()


CASES = {
    "plain": (PAIR, ""),
    "windows, clipping by norm, workers, augmentation": (
        "model, train=Noisy(), val=Noisy(), loss=F.cross_entropy, accumulate_grad_batches=3, gradient_clip_val=0.3, "
        "num_workers=2, prefetch_factor=3, batch_size=8",
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
    "double precision": (
        "model.double(), train=(x.double(), y), val=(x.double(), y), loss=F.cross_entropy, accumulate_grad_batches=2, max_epochs=2, "
        "early_stopping='train_loss', gradient_clip_val=0.3",
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
        "def start(worker):\n    assert len(torch.utils.data.get_worker_info().dataset.tensors) == 2\n\n\n"
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
        "model, train=wb.batches(batches), val=wb.batches(batches[:2]), loss=F.cross_entropy, accumulate_grad_batches=2, "
        "scheduler=decay, max_steps=20, max_epochs=2",
        "batches = [(x[i : i + 7], y[i : i + 7]) for i in range(0, 70, 7)]\n\n\n"
        "def decay(optimizer, updates):\n"
        "    return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=updates)\n",
    ),
    "a random sampler with a generator of its own, inside a batch sampler": (
        "model, train=loader, loss=F.cross_entropy",
        "from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset\n\n"
        "data = TensorDataset(x, y)\nsampler = RandomSampler(data, generator=torch.Generator().manual_seed(5))\n"
        "loader = DataLoader(data, batch_sampler=BatchSampler(sampler, 15, drop_last=True))\n",
    ),
    "samplers and data sets that ask for the epoch": (
        "model, train=loader, val=DataLoader(TensorDataset(x[:30], y[:30]), batch_sampler=Groups()), loss=F.cross_entropy, max_epochs=3",
        "from torch.utils.data import DataLoader, DistributedSampler, TensorDataset\n\n\nclass Told(TensorDataset):\n    epoch = 0\n\n"
        "    def __getitem__(self, index):\n        return self.tensors[0][index] + 0.1 * self.epoch, self.tensors[1][index]\n\n"
        "    def set_epoch(self, epoch):\n        self.epoch = epoch\n\n\nclass Groups:\n    epoch = 0\n\n    def __len__(self):\n"
        "        return 1 + self.epoch\n\n    def __iter__(self):\n        return iter([[n, n + 1] for n in range(1 + self.epoch)])\n\n"
        "    def set_epoch(self, epoch):\n        self.epoch = epoch\n\n\n"
        "data = Told(x, y)\nloader = DataLoader(data, 16, sampler=DistributedSampler(data, num_replicas=1, rank=0))\n",
    ),
    "ready batches in a variable, and samples in a list": (
        "model, train=ready, val=held_out, loss=F.cross_entropy, max_epochs=2",
        "held_out = [(x[i], y[i]) for i in range(30)]\nready = wb.batches([(x[i : i + 7], y[i : i + 7]) for i in range(0, 70, 7)])\n",
    ),
    "a loss in a dict, without a weight": (
        "model, train=(x, y), val=(x[:20], y[:20]), loss=loss, metrics={'n': lambda output, target: float(len(target))}, max_epochs=2",
        "def loss(output, target):\n    return {'loss': F.cross_entropy(output, target)}\n",
    ),
    "a loss in a dict, that leaves batches out": (
        "model, train=(x, y), loss=loss, max_epochs=2, batch_size=8, accumulate_grad_batches=2, drop_last=True",
        "def loss(output, target):\n    return None if target[0] == 0 else {'loss': F.cross_entropy(output, target)}\n",
    ),
    "more parts in training than in validation, a collate_fn": (
        "Of(), train=Samples(True), val=Samples(False), loss=F.cross_entropy, collate_fn=collate, accumulate_grad_batches=3, batch_size=8",
        "class Of(Net):\n    def forward(self, x, more=None):\n        return super().forward(x)\n\n\n"
        "class Samples(torch.utils.data.Dataset):\n    def __init__(self, more):\n        self.more = more\n\n    def __len__(self):\n        return 30\n\n"
        "    def __getitem__(self, i):\n        return (x[i], x[i], y[i]) if self.more else (x[i], y[i])\n\n\n"
        "def collate(samples):\n    return torch.utils.data.default_collate(samples)\n",
    ),
    "another collate_fn for validation": (
        "model, train=data, val=data, loss=F.cross_entropy, collate_fn=noisy, val_collate_fn=clean, max_epochs=2",
        "data = [(one, label) for one, label in zip(x, y)]\n\n\ndef clean(samples):\n    return torch.utils.data.default_collate(samples)\n\n\n"
        "def noisy(samples):\n    inputs, labels = clean(samples)\n    return inputs + torch.randn_like(inputs), labels\n",
    ),
    "samples in a list, shuffled": (
        "model, train=samples, loss=F.cross_entropy, max_epochs=2, batch_size=8",
        "samples = [{'x': x[i], 'label': y[i]} for i in range(50)]\n",
    ),
    "a loader that iterates in a way of its own": (
        "model, train=Doubled(TensorDataset(x, y), 16), loss=F.cross_entropy, max_epochs=2",
        "from torch.utils.data import DataLoader, TensorDataset\n\n\nclass Doubled(DataLoader):\n    def __iter__(self):\n"
        "        for inputs, labels in super().__iter__():\n            yield 2 * inputs, labels\n",
    ),
    "frames with flags and whole numbers": (
        "model, train=(frame, y.numpy()), val=(frame, y.numpy()), loss=F.cross_entropy, max_epochs=2",
        "import pandas as pd\n\nframe = pd.DataFrame(x.numpy()).assign(flag=x[:, 0].numpy() > 0, whole=range(len(x)))\n"
        "model = nn.Linear(10, 3)\n",
    ),
    "frames, and arrays the other way round": (
        "model, train=(frame, pd.Series(y.numpy())), val=(x.numpy()[::-1], y.numpy()[::-1]), loss=F.cross_entropy, max_epochs=2",
        "import pandas as pd\n\nframe = pd.DataFrame(x.numpy())\n",
    ),
    "arguments that draw, in the order of the call": (
        "val=draw(20), loss=nn.functional.cross_entropy, train=draw(50), model=Net(12), metrics={'unused': lambda *_: 1.0}",
        "torch.manual_seed(1)\n\n\ndef draw(count):\n    return torch.randn(count, 8), torch.randint(0, 3, (count,))\n",
    ),
    "parts of a model that were frozen, in a namespace": (
        "parts.model, train=parts.data, loss=F.cross_entropy",
        "from types import SimpleNamespace\n\nmodel.norm.eval()\nmodel.body.weight.requires_grad_(False)\n"
        "parts = SimpleNamespace(model=model, data=(x, y))\n",
    ),
    "lazy weights": (
        f"{PAIR}".replace("model", "lazy"),
        "lazy = nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(3))\nlazy(x[:2])\n",
    ),
    "names of built-ins": (
        "model, train=(x.numpy(), y), val=(x, y), loss=loss, num_workers=0, accumulate_grad_batches=2, max_steps=5",
        "from builtins import len as builtins\nfrom operator import truth as map\n\n"
        "range, len, float, int, list, iter, enumerate = 3, 1.0, 2, 1, 1, 1, 1\n"
        "vars = type = print = setattr = isinstance = getattr = sorted = dict = hasattr = 1\n"
        "sum = x.sum(1)\nx = x + 0.1 * sum[:, None]\n\n\ndef loss(output, target):\n"
        "    assert builtins('ab') == 2 and map(range * len * float * int * list * iter * enumerate)\n"
        "    assert vars * type * print * setattr * isinstance * getattr * sorted * dict * hasattr == 1\n"
        "    return F.cross_entropy(output, target)\n",
    ),
    "star imports": (
        "model, train=TensorDataset(x, y), val=TensorDataset(x, y), loss=F.cross_entropy, num_workers=1",
        "from torch.utils.data import *\nfrom random import *\n\nseed(3)\nx = x * random()\n",
    ),
    "a stream": (
        "model, train=Stream(), val=DataLoader(TensorDataset(x, y), 20), loss=F.cross_entropy, drop_last=True, batch_size=9",
        "from torch.utils.data import DataLoader, IterableDataset, TensorDataset\n\n\nclass Stream(IterableDataset):\n    def __iter__(self):\n"
        "        for number in range(40):\n            yield x[number] + torch.rand(1), y[number]\n",
    ),
}


@pytest.mark.parametrize("case", every(2, [*CASES]))
def test_the_script_repeats_the_run(case: str, runner: Runner, tmp_path: Path) -> None:
    # their order is the user's
    repeat(runner, tmp_path, *CASES[case], clean=case != "star imports")


def test_an_override_changes_the_result_and_without_the_weights_it_starts_from_the_code(
    runner: Runner, tmp_path: Path
) -> None:
    bench = make_bench(tmp_path, f"{PAIR}, max_epochs=1")
    run = bench.fit().result()
    script = bench.export(tmp_path / "a folder" / "my 'train' \"script\".py")
    weights = script.with_name(f"{script.stem}.start.safetensors")
    assert sorted(script.parent.iterdir()) == sorted([script, weights])
    check(bench, run, runner.run(script))
    faster = runner.run(script, "--lr", "0.1", "--max_epochs", "2")
    assert len(faster.losses) == 2 * len(run.history["loss"])
    assert faster.losses[0] == run.history["loss"][0]
    assert faster.losses[1] != run.history["loss"][1]
    assert "begins with the weights that the code makes" not in faster.said
    weights.unlink()
    alone = runner.run(script)
    check(bench, run, alone)  # the code makes the same weights from its seed
    assert (
        alone.said.count(
            f"There is no {weights}: the training begins with the weights that the code makes."
        )
        == 1
    )
    assert runner.run(script, "--seed", "1").losses[1] != run.history["loss"][1]


def test_a_run_that_continues_another_is_headless(tmp_path: Path) -> None:
    with make_bench(tmp_path, f"{PAIR}, max_epochs=1") as bench:
        bench.fit().result()
        bench.fit(start="continue", max_epochs=2).result()
        with pytest.raises(NotStandAlone, match="a run that continues another one"):
            bench.script(format="script")


def test_without_a_record(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no folder can be made here")
    bench = make_bench(tmp_path, f"{PAIR}, max_epochs=1")
    run = bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    assert "safetensors" not in script.read_text()
    assert "The weights that the run began with were not recorded" in script.read_text()
    check(bench, run, runner.run(script))


LIVE = (
    ("", 9),
    (
        ", scheduler=lambda o, updates: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.01, total_iters=updates)",
        9,
    ),
    (
        ", scheduler=lambda o, updates: torch.optim.lr_scheduler.CosineAnnealingLR(o, updates, eta_min=1e-3), max_steps=100",
        13,
    ),
)


@pytest.mark.parametrize(("arguments", "stop"), LIVE)
def test_live_changes_and_a_stop(arguments: str, stop: int, runner: Runner, tmp_path: Path) -> None:
    groups = (
        "lambda p, lr: torch.optim.SGD([{'params': p[:2], 'lr': lr / 3}, {'params': p[2:]}], lr=lr)"
    )
    bench = make_bench(
        tmp_path, f"{PAIR}, optimizer={groups}, gradient_clip_val=0.2, lr=0.03{arguments}"
    )

    def ask(job: Job[wb.Run], step: int) -> None:
        if step == 3:
            job.change(lr=0.2)
            job.change(lr=0.1, gradient_clip_val=0.05)
        if step == 5:
            job.change(gradient_clip_val=None)
        if step == stop:
            job.change(lr=5.0)  # no update comes after it
            job.stop()

    run = fit_asking(bench, ask)
    assert (run.status, run.step, len(run.changes)) == ("stopped", stop, 4)
    script = bench.export(tmp_path / "out" / "train.py")
    check(bench, run, runner.run(script))
    assert f"max_steps: int = {stop}" in script.read_text()
    assert ("scheduled_steps" in script.read_text()) == bool(arguments)


def test_names_of_the_user_stay(runner: Runner, tmp_path: Path) -> None:
    prelude = PRELUDE.replace("import torch\n", "import torch as t\n", 1).replace(
        "= torch.", "= t."
    )
    prelude = prelude.replace("\ntorch.", "\nt.")
    names = (
        "Path",
        "Config",
        "main",
        "metrics",
        "random",
        "json",
        "step",
        "parse",
        "np",
        "torch",
        "CHANGES",
        "network",
    )
    others = "".join(f"{name} = {number}\n" for number, name in enumerate(names, 1))
    before = (
        others.replace("torch = ", "torch = 0 * ")
        + "config, loader, val_data = Net(), (x, y), (x, y)\nmain += torch + random\n\n\n"
        + "def forward(output, target):\n"
        + f"    assert ({', '.join(names)}) != 0 and main == 3 + random\n"
        + "    return F.cross_entropy(output, target)\n\n\n"
        + "def validate(output, target):\n    return output.mean() + main\n"
    )
    call = "config, train=loader, val=val_data, loss=forward, metrics={'set_seed': validate}, optimizer=t.optim.Adam"
    text = repeat(runner, tmp_path, f"{call}, accumulate_grad_batches=2", before, prelude)
    assert "config, loader, val_data = Net(), (x, y), (x, y)" in text


def test_odd_names(runner: Runner, tmp_path: Path) -> None:
    before = 'Net.__name__ = \'A """quoted""" \\\\N name %s {}\'\n'
    text = repeat(runner, tmp_path, f"{PAIR}", before)
    assert "quoted" in text.splitlines()[0]


FILTERED = (
    "class Samples(torch.utils.data.Dataset):\n    def __len__(self):\n        return 60\n\n"
    "    def __getitem__(self, i):\n        return None if i >= 10 and i % 3 == 0 else (x[i], y[i])\n\n\n"
    "def collate(samples):\n    return torch.utils.data.default_collate([s for s in samples if s is not None])\n"
)


TIME_FIRST = (
    "class TimeFirst(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.net = nn.Linear(8, 3)\n\n"
    "    def forward(self, x):\n        return self.net(x.mean(0))\n\n\n"
    "def time_first(samples):\n    xs, ys = zip(*samples)\n    return torch.stack([torch.stack([a, -a * a]) for a in xs], 1), torch.stack(ys)\n"
)
COUNTED = {
    "samples that are left out": (
        "model, train=Samples(), val=Samples(), collate_fn=collate",
        FILTERED,
    ),
    "batches with the time first": (
        "TimeFirst(), train=list(zip(x, y)), val=list(zip(x, y)), collate_fn=time_first, accumulate_grad_batches=3",
        TIME_FIRST,
    ),
    "a part with a count of its own": (
        "Of(), train=wb.batches(batches), val=wb.batches(batches), accumulate_grad_batches=3",
        "class Graphs:\n    def __init__(self, x, n):\n        self.x, self.num_graphs = x, n\n\n    def to(self, device):\n        return self\n\n\n"
        "class Of(Net):\n    def forward(self, graphs):\n        return super().forward(graphs.x)\n\n\n"
        "batches = [(Graphs(x[i : i + 4 + i % 3], i + 2), y[i : i + 4 + i % 3]) for i in range(0, 80, 8)]\n",
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_batch_that_does_not_show_how_many_samples_it_was_made_of_is_refused(
    tmp_path: Path, name: str
) -> None:
    arguments, before = COUNTED[name]
    with make_bench(tmp_path, f"{arguments}, loss=F.cross_entropy, max_epochs=2", before) as bench:
        bench.fit().result()
        with pytest.raises(NotStandAlone, match="batches whose number of samples"):
            bench.script(format="script")


BY_NAME = (
    "class ByName(torch.utils.data.Dataset):\n    def __init__(self, key):\n        self.key = key\n\n    def __len__(self):\n        return 20\n\n"
    "    def __getitem__(self, i):\n        return {'x': x[i], self.key: y[i]}\n"
)


@pytest.mark.parametrize(
    ("train", "val", "expected"),
    [
        (
            "(x, y)",
            "ByName('labels')",
            "train is a tuple and one of val is a dict with the target 'labels'",
        ),
        (
            "ByName('labels')",
            "(x, y)",
            "train is a dict with the target 'labels' and one of val is a tuple",
        ),
        (
            "ByName('labels')",
            "ByName('target')",
            "the target 'labels' and one of val is a dict with the target 'target'",
        ),
    ],
)
def test_validation_batches_of_another_form_are_refused(
    train: str, val: str, expected: str, tmp_path: Path
) -> None:
    with make_bench(
        tmp_path,
        f"model, train={train}, val={val}, loss=F.cross_entropy, max_steps=2, batch_size=10",
        BY_NAME,
    ) as bench:
        bench.fit().result()
        with pytest.raises(ExportError, match=expected):
            bench.export(tmp_path / "train.py", format="script")
        bench.fit(limit_val_batches=0).result()
        bench.export(tmp_path / "train.py")


def test_a_loss_that_returns_a_weight_in_training_alone_is_refused(tmp_path: Path) -> None:
    own = (
        "class Loss(nn.Module):\n    def forward(self, output, target):\n        loss = F.cross_entropy(output, target)\n"
        "        return {'loss': loss, 'weight': len(target)} if self.training else loss\n"
    )
    with make_bench(
        tmp_path, "model, train=(x, y), val=(x, y), loss=Loss(), max_steps=2", own
    ) as bench:
        bench.fit().result()
        with pytest.raises(
            ExportError,
            match="a dict with loss and weight in training and a tensor in evaluation mode",
        ):
            bench.export(tmp_path / "train.py", format="script")
