"""Notebooks as people write them: each a list of cells that make `bench`, and may fit `run`. `%%writefile` puts a module beside it."""

from __future__ import annotations

IMPORTS = (
    "import torch\nimport torch.nn.functional as F\nfrom torch import nn\nimport workbench as wb"
)
DATA = "torch.manual_seed(0)\nx = torch.randn(60, 8)\ny = torch.randint(0, 3, (60,))"
NET = (
    "class Net(nn.Module):\n    def __init__(self, width=16):\n        super().__init__()\n"
    "        self.body, self.head = nn.Linear(8, width), nn.Linear(width, 3)\n\n"
    "    def forward(self, x):\n        return self.head(F.relu(self.body(x)))"
)
LIT = (
    "import lightning as L\nclass Lit(L.LightningModule):\n    def __init__(self, width=9, lr=0.01):\n        super().__init__()\n"
    "        self.save_hyperparameters()\n        self.net = Net(width)\n\n    def training_step(self, batch, batch_idx):\n"
    "        x = batch[0].clone().requires_grad_()\n        slope, = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)\n"
    "        loss = F.cross_entropy(self.net(batch[0]), batch[1]) + slope.square().mean()\n        self.log('train_loss', loss)\n        return loss\n\n"
    "    def validation_step(self, batch, batch_idx):\n        self.log('val_loss', F.cross_entropy(self.net(batch[0]), batch[1]))\n\n"
    "    def configure_optimizers(self):\n        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)"
)
HELPERS = (
    "%%writefile helpers.py\nimport torch\nfrom torch import nn\nWIDTH = 11\n\ndef act(x):\n    return x.relu()\n\nclass Net(nn.Module):\n"
    "    def __init__(self):\n        super().__init__()\n        self.body, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 3)\n\n"
    "    def forward(self, x):\n        return self.head(act(self.body(x)))\n"
)
BY_HAND = (
    "{0} = Net(32)\nopt = torch.optim.SGD({0}.parameters(), lr=0.1)\nfor _ in range(3):\n    opt.zero_grad()\n"
    "    F.cross_entropy({0}(x), y).backward()\n    opt.step()"
)
START = [IMPORTS, DATA, NET]


def bench(
    model: str = "model",
    loss: str = "F.cross_entropy",
    more: str = "",
    data: str = "train=(x, y), val=(x, y)",
) -> str:
    """The last cell."""
    return f"bench = wb.Workbench({model}, {data}, loss={loss}, max_epochs=2, batch_size=16{more})"


NOTEBOOKS: dict[str, list[str]] = {
    "a table of classes": [
        IMPORTS, DATA, "MODELS = {}\ndef register(name):\n    def wrap(cls):\n        MODELS[name] = cls\n        return cls\n    return wrap",
        f"@register('net')\n{NET}", bench("MODELS['net'](200)"),
    ],
    "the order of cells": [IMPORTS, "def make():\n    return Net(WIDTH)", NET, "WIDTH = 7", DATA, "model = make()", "WIDTH = 8", bench()],
    "a class defined anew after its use": [*START, "base = Net()", NET.replace("relu", "gelu"), bench("nn.Sequential(base, nn.Linear(3, 8), Net())")],
    "cells run twice": [*START, "x = x * 2", "x = x * 2", NET, "model = Net()", "model = Net()", bench()],
    "a cell that raises": [*START, "# raises\nmodel = Net(4)\nmodel(x[:, :3])\nmodel = None", bench()],
    "magics": [f"%%time\n{IMPORTS}", f"%%capture\n{DATA}", "!echo hello", NET, "%time model = Net(6)", "%timeit -n 1 -r 1 model(x)", "model?", bench()],
    "a module beside it, star import": [HELPERS, IMPORTS, "from helpers import *", DATA, bench("Net()")],
    "a module beside it, by name, reloaded": [
        HELPERS.replace("11", "5"), IMPORTS, "import importlib, helpers as h", HELPERS.replace("11", "1200"), "importlib.reload(h)", DATA,
        "%load_ext autoreload\n%autoreload 2", "model = nn.Sequential(nn.Linear(8, h.WIDTH // 100), nn.Linear(h.WIDTH // 100, 3))", bench(),
    ],
    "a package beside it": [
        "!mkdir -p parts", "%%writefile parts/acts.py\nimport torch.nn.functional as F\nWIDTH = 7\n\ndef act(x):\n    return F.gelu(x)\n",
        f"%%writefile parts/nets.py\nfrom torch import nn\nimport torch.nn.functional as F\nfrom .acts import act, WIDTH\n{NET.replace('F.relu', 'act')}\n",
        "%%writefile parts/__init__.py\nfrom .nets import Net, WIDTH\nfrom . import acts\n__all__ = ['Net', 'WIDTH']\n",
        IMPORTS, DATA, "import parts as P\nfrom parts import acts", "model = P.Net(P.WIDTH)", bench(loss="lambda o, t: F.cross_entropy(acts.act(o), t)"),
    ],
    "a folder on the path": [
        "!mkdir -p src", "%%writefile src/mynet.py\nfrom torch import nn\ndef make(w):\n    return nn.Sequential(nn.Linear(8, w), nn.Linear(w, 3))\n",
        "import sys\nsys.path.append('src')\nfrom mynet import make", IMPORTS, DATA, bench("make(5)"),
    ],
    "argparse": [
        *START, "import argparse\np = argparse.ArgumentParser()\np.add_argument('--width', type=int, default=9)\nargs = p.parse_args([])", bench("Net(args.width)"),
    ],
    "a dataclass of settings": [
        *START, "from dataclasses import dataclass, field\n@dataclass\nclass Config:\n    width: int = 12\n    sizes: list = field(default_factory=lambda: [8])\n"
        "cfg = Config(width=10)\ncfg.sizes.append(4)", bench("Net(cfg.width + cfg.sizes[-1])", more=", lr=cfg.width / 1000"),
    ],
    "a class of settings, changed": [*START, "class Config:\n    lr = 0.02\n    width = 5", "model = Net(Config.width)\nConfig.width = 8", bench(more=", lr=Config.lr")],
    "enums and named tuples": [
        *START, "from collections import namedtuple\nfrom enum import Enum\nclass Act(Enum):\n    GELU = 'gelu'\nC = namedtuple('C', 'width act')\nc = C(6, Act.GELU)",
        "model = nn.Sequential(Net(c.width), getattr(nn, c.act.name)())", bench(),
    ],
    "a file of settings written by a cell": [*START, "import json\njson.dump({'width': 7}, open('cfg.json', 'w'))", "cfg = json.load(open('cfg.json'))", bench("Net(**cfg)")],
    "data written and read": [
        *START, "def prepare(name):\n    torch.save((x * 2, y), f'{name}.pt')", "prepare('data')", "x, y = torch.load('data.pt')", bench("Net()"),
    ],
    "closures with state": [
        *START, "def make_loss():\n    n = 0\n    def loss(o, t):\n        nonlocal n\n        n += 1\n        return F.cross_entropy(o, t) * (1 + n % 3)\n    return loss",
        bench("Net()", "make_loss()", data="train=(x, y)"),
    ],
    "partials": [
        *START, "import functools\nloss = functools.partial(F.cross_entropy, label_smoothing=0.1)\nsgd = functools.partial(torch.optim.SGD, momentum=0.9)",
        bench("Net()", "loss", ", optimizer=sgd"),
    ],
    "a bound method": [
        *START, "class Loss:\n    def __init__(self, amount):\n        self.amount = amount\n    def compute(self, o, t):\n"
        "        return F.cross_entropy(o, t, label_smoothing=self.amount)\nown = Loss(0.1)\nown.amount = 0.2", bench("Net()", "own.compute"),
    ],
    "a decorator": [*START, "def doubled(f):\n    return lambda *given: 2 * f(*given)\n@doubled\ndef loss(o, t):\n    return F.cross_entropy(o, t)", bench("Net()", "loss")],
    "one function for several types": [
        *START, "import functools\n@functools.singledispatch\ndef scale(x):\n    return 1.0", "@scale.register\ndef _(x: torch.Tensor):\n    return 2.0",
        bench("Net()", "lambda o, t: F.cross_entropy(o, t) * scale(o)"),
    ],
    "classes that their base and metaclass list": [
        IMPORTS, DATA, "class Meta(type):\n    table = {}\n    def __new__(m, name, bases, ns):\n        m.table[name] = super().__new__(m, name, bases, ns)\n"
        "        return m.table[name]\nclass Base(nn.Module, metaclass=Meta):\n    def __init_subclass__(cls):\n        cls.scale = 2",
        NET.replace("nn.Module", "Base"), bench("Meta.table['Net']()"),
    ],
    "a global counter": [*START, "calls = 0\ndef loss(o, t):\n    global calls\n    calls += 1\n    return F.cross_entropy(o, t) * calls", "loss(Net()(x), y)", bench("Net()", "loss", data="train=(x, y)")],
    "a method replaced": [*START, "old = Net.forward\ndef forward(self, x):\n    return old(self, x) * 2\nNet.forward = forward", bench("Net()")],
    "hooks, weights set, parts replaced": [
        *START, "def init(m):\n    if isinstance(m, nn.Linear):\n        nn.init.orthogonal_(m.weight)\nmodel = Net()\nmodel.apply(init);",
        "model.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(16, 3))\nhook = model.body.register_forward_hook(lambda m, i, o: o * 0.5)",
        "for p in model.body.parameters():\n    p.requires_grad_(False)", bench(),
    ],
    "trained by hand before": [*START, BY_HAND.format("model"), "def more(m):\n    F.cross_entropy(m(x), y).backward()\nmore(model)", bench()],
    "a teacher trained by hand": [
        *START, BY_HAND.format("teacher"), "teacher.eval()\nclass Distil(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.student = Net(4)\n"
        "    def forward(self, x):\n        with torch.no_grad():\n            wanted = teacher(x)\n        return self.student(x), wanted\n"
        "def loss(out, t):\n    return F.cross_entropy(out[0], t) + F.mse_loss(*out)", bench("Distil()", "loss"),
    ],
    "a copy as the teacher": [
        *START, "import copy", BY_HAND.format("model"), "teacher = copy.deepcopy(model).eval().requires_grad_(False)",
        bench(loss="lambda o, t: F.cross_entropy(o, t) + F.mse_loss(o, teacher(x[:len(o)]))"),
    ],
    "looked at before": [*START, "model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))", "model(x).shape", "print(model)", bench()],
    "lazy layers": [*START, "model = nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(3))\nmodel(x[:2])", bench()],
    "frames": [
        *START, "import pandas as pd\ndf = pd.DataFrame(x.numpy(), columns=list('abcdefgh'))\ndf['y'] = y.numpy()", "df.head()", "df['a'] *= 2\ndf.loc[df.b > 0, 'c'] = 1.0",
        "df.drop(df.index[:5], inplace=True)\ndf = df.sample(frac=1, random_state=0)", bench("Net()", data="train=(df.drop(columns='y').astype('float32'), df.y)"),
    ],
    "scikit-learn": [
        *START, "from sklearn.model_selection import train_test_split\nfrom sklearn.preprocessing import StandardScaler\n"
        "a, b, c, d = train_test_split(x.numpy(), y.numpy(), test_size=0.2, random_state=1)\nscaler = StandardScaler().fit(a)\na, b = scaler.transform(a), scaler.transform(b)",
        bench("Net()", data="train=(a, c), val=(b, d)"),
    ],
    "one seed for all": [
        "import random, os\nimport numpy as np\nimport torch\ndef seed_everything(seed):\n    random.seed(seed)\n    np.random.seed(seed)\n    torch.manual_seed(seed)\n"
        "seed_everything(3)", IMPORTS, NET, "x = torch.tensor(np.random.randn(50, 8), dtype=torch.float32)\ny = torch.tensor([random.randint(0, 2) for _ in range(50)])", bench("Net()"),
    ],
    "a generator of one's own": [
        *START, "import numpy as np\nrng = np.random.default_rng(0)", "print(rng.random())", "x = x + torch.from_numpy(rng.normal(size=(60, 8)).astype('float32'))", bench("Net()"),
    ],
    "samples that draw": [
        *START, "import numpy as np, random\nclass Rows(torch.utils.data.Dataset):\n    def __init__(self, transform=None):\n        self.transform = transform\n    def __len__(self):\n"
        "        return len(x)\n    def __getitem__(self, i):\n        return self.transform(x[i]) * np.float32(np.random.rand()) + random.random(), y[i]",
        "rows = Rows(transform=lambda r: r + 0.1 * torch.randn(8))\nfirst, second = torch.utils.data.random_split(rows, [40, 20], generator=torch.Generator().manual_seed(1))",
        bench("Net()", data="train=first, val=second"),
    ],
    "a loader with a sampler": [
        *START, "from torch.utils.data import *\nds = TensorDataset(x, y)\nw = torch.ones(60); w[:20] = 3\nloader = DataLoader(ds, batch_size=8, sampler=WeightedRandomSampler(w, 60))",
        bench("Net()", data="train=loader").replace(", batch_size=16", ""),
    ],
    "rows made in a loop": [
        IMPORTS, NET, "torch.manual_seed(1)\nrows = []\nfor i in range(50):\n    a = torch.randn(8)\n    rows.append((a, torch.tensor(int(a[0] > 0))))",
        "rows = sorted(rows, key=lambda r: float(r[0].sum()))\ndel rows[:3]", bench("Net()", data="train=rows"),
    ],
    "ready batches": [*START, "def chunks(n):\n    for i in range(0, 60, n):\n        yield x[i:i + n], y[i:i + n]", bench("Net()", data="train=wb.batches(list(chunks(10)))").replace(", batch_size=16", "")],
    "conditions": [
        *START, "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\nif flash_attn is None:\n    WIDTH = 5\nelse:\n    WIDTH = 6\n"
        "match WIDTH:\n    case 5:\n        width = 20\n    case _:\n        width = 3\nif (n := width) > 10:\n    n = n // 2\ndevice = torch.device('cpu')", bench("Net(n).to(device)"),
    ],
    "names of ours": [
        *START, "config = {'width': 6}\nloader = 3\nforward = step = epoch = 1\nsave = log = output = best = bar = tracker = resume = None\ndef parse():\n    return 6\nmain = parse\n"
        "import json as os\nrandom = 5\nPath = str\nrange = [1, 2]", "model = Net(main() + loader + forward + step + random + len(Path('ab')) + len(os.dumps(config)) + len(range))", bench(),
    ],
    "letters and lines": [*START, "größe = 7; η = 0.1; model = Net(größe); text = '''a\n  loss = 1\n'''; print(η)", bench(more=", lr=η")],
    "edited before the fit": [
        *START, "SCALE, cfg = 1.0, {'smooth': 0.0}\ndef helper(v):\n    return v * SCALE\ndef loss(o, t):\n    return helper(F.cross_entropy(o, t, label_smoothing=cfg['smooth']))",
        "model = Net()\nhook = model.body.register_forward_hook(lambda m, i, o: o * 0)\nmodel(x)\nhook.remove()", bench(loss="loss"),
        "SCALE = 2.0\ncfg['smooth'] = 0.2\ndef helper(v):\n    return v * SCALE + 1\ndef loss(o, t):\n    return 0 * o.sum()",
        "run = bench.fit().result()", "SCALE = 100.0",
    ],
    "made in a function, edited before the fit": [
        *START, "SCALE, width = 1.0, 5\ndef loss(o, t):\n    return F.cross_entropy(o, t) * SCALE\ndef make(width):\n    scale = 3\n    model = Net(width + scale)\n    return "
        + bench(loss="loss").partition("= ")[2], "bench = make(7)", "SCALE = 2.0\nscale = width = None", "run = bench.fit().result()", "SCALE = 100.0",
    ],
    "changed through the bench": [
        *START, "model = Net()", bench(), "bench.model.head.register_forward_hook(lambda m, i, o: o * 2)\nfor p in bench.model.body.parameters():\n    p.requires_grad_(False)",
        "run = bench.fit().result()",
    ],
    "changed in the timed cell of the fit": [
        *START, "model = Net()", bench(), "%%time\nbench.model.head.register_forward_hook(lambda m, i, o: o * 2); run = bench.fit().result()",
    ],
    "a class with its bench": [
        *START, "class Experiment:\n    def __init__(self, width):\n        self.model, self.data = Net(width), (x, y)\n        " + bench("self.model").replace("bench", "self.bench", 1).replace("(x, y)", "self.data")
        + "\n\n    def train(self, **more):\n        self.run = self.bench.fit(**more).result()",
        "e = Experiment(5)", "e.train()", "e = Experiment(6)", "e.model.head.register_forward_hook(lambda m, i, o: o * 2); e.train(lr=0.1)", "run, bench = e.run, e.bench",
    ],
    "stars": ["from math import *\nfrom torch.nn import *\nimport torch, torch.nn.functional as F\nimport workbench as wb", DATA,
              "model = Sequential(Linear(8, int(sqrt(49))), ReLU(), Linear(7, 3))", bench(loss="lambda o, t: F.cross_entropy(o, t) * pi")],
    "a LightningModule": [*START, LIT, "hp = dict(width=6, lr=0.05)\nmodel = Lit(**hp)\nL.seed_everything(4);", "bench = wb.Workbench(model, train=(x, y), val=(x, y), max_epochs=2)"],
    "a DataModule": [
        IMPORTS, NET, LIT, "class Data(L.LightningDataModule):\n    def setup(self, stage=None):\n        g = torch.Generator().manual_seed(1)\n"
        "        self.rows = torch.utils.data.TensorDataset(torch.randn(60, 8, generator=g), torch.randint(0, 3, (60,), generator=g))\n"
        "    def train_dataloader(self):\n        return torch.utils.data.DataLoader(self.rows, 10, shuffle=True)\n"
        "    def val_dataloader(self):\n        return torch.utils.data.DataLoader(self.rows, 10)", "torch.manual_seed(0)\nbench = wb.Workbench(Lit(), train=Data(), max_epochs=2)",
    ],
    "objects of torchmetrics": [
        *START, "import torchmetrics\nmetrics = {'acc': torchmetrics.Accuracy(task='multiclass', num_classes=3)}", bench("Net()", more=", metrics=metrics"),
    ],
    "a schedule from a closure, groups": [
        *START, "model = Net()\ndef schedule(warm):\n    return lambda o, n: torch.optim.lr_scheduler.LambdaLR(o, lambda s: min(1.0, (s + 1) / warm) * (1 - s / n))",
        bench(more=", scheduler=schedule(3), optimizer=lambda ps, lr: torch.optim.SGD([{'params': model.body.parameters(), 'lr': lr / 2}, {'params': model.head.parameters()}], lr=lr)"),
    ],
    "an optimizer of one's own": [
        *START, "class Sign(torch.optim.Optimizer):\n    def __init__(self, params, lr=0.01):\n        super().__init__(params, dict(lr=lr))\n    @torch.no_grad()\n"
        "    def step(self, closure=None):\n        for g in self.param_groups:\n            for p in g['params']:\n                if p.grad is not None:\n"
        "                    p.add_(p.grad.sign(), alpha=-g['lr'])", bench("Net()", more=", optimizer=Sign"),
    ],
}  # fmt: skip
