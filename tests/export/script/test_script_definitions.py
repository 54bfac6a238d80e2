"""Ways of defining what a run needs: each is in the script as it stands, which repeats the run to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.export_running import Runner, make_bench, repeats

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), val=(x, y), loss=F.cross_entropy, max_epochs=1"

CASES = {
    "a closure that makes the model, and one that is the loss": (
        "make(12)(), train=(x, y), loss=smoothed(0.1), max_epochs=1",
        "def make(width):\n    def build():\n        return Net(width)\n\n    return build\n\n\n"
        "def smoothed(amount):\n    def loss(output, target):\n        return F.cross_entropy(output, target, label_smoothing=amount)\n\n    return loss\n",
    ),
    "partials": (
        "model, train=(x, y), loss=smoothed, optimizer=sgd, max_epochs=1",
        "import functools\nfrom functools import partial\n\nsmoothed = functools.partial(F.cross_entropy, label_smoothing=0.1)\n"
        "sgd = partial(torch.optim.SGD, momentum=0.9)\n",
    ),
    "decorators of one's own, cached and wrapped functions": (
        "model, train=data(), loss=loss, max_epochs=1",
        "import functools\n\n\ndef halved(f):\n    @functools.wraps(f)\n    def inner(*args):\n        return f(*args) / 2\n\n    return inner\n\n\n"
        "@halved\ndef loss(output, target):\n    return F.cross_entropy(output, target)\n\n\n"
        "@functools.cache\ndef data():\n    return x * 2, y\n",
    ),
    "a dataclass config, nested": (
        "Net(config.net.width), train=(x, y), loss=F.cross_entropy, lr=config.lr, max_epochs=1",
        "import dataclasses\nfrom dataclasses import dataclass, replace\n\n\n@dataclass(frozen=True)\nclass Width:\n    width: int = 8\n\n\n"
        "@dataclass\nclass Config:\n    lr: float = 0.1\n    net: Width = dataclasses.field(default_factory=Width)\n\n\n"
        "config = replace(Config(), lr=0.05)\nconfig.net = Width(10)\n",
    ),
    "argparse with the values in the code": (
        "Net(args.width), train=(x, y), loss=F.cross_entropy, lr=args.lr, max_epochs=1",
        "import argparse\n\nparser = argparse.ArgumentParser()\nparser.add_argument('--width', type=int, default=8)\n"
        "parser.add_argument('--lr', type=float, default=0.1)\nargs = parser.parse_args(['--lr', '0.05'])\n",
    ),
    "a class that was defined twice, and one that was patched": (
        PAIR,
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.one = nn.Linear(8, 3)\n\n    def forward(self, x):\n"
        "        return self.one(x)\n\n\nold = Net()\n\n\nclass Net(Net):\n    def forward(self, x):\n        return super().forward(x).tanh()\n\n\n"
        "def doubled(self, x):\n    return 2 * self.one(x).tanh()\n\n\nNet.forward = doubled\nmodel = Net()\n",
    ),
    "a class made by a function, and one by type()": (
        "model, train=(x, y), loss=F.cross_entropy, max_epochs=1",
        "def with_bias(base):\n    class Biased(base):\n        def forward(self, x):\n            return super().forward(x) + 0.5\n\n    return Biased\n\n\n"
        "Both = type('Both', (with_bias(Net),), {'extra': 1})\nmodel = Both()\n",
    ),
    "dicts of parts, comprehensions, a star in a call": (
        "model, train=(x, y), loss=LOSSES['soft'], max_epochs=1",
        "LOSSES = {name: loss for name, loss in [('soft', nn.CrossEntropyLoss(label_smoothing=0.1)), ('hard', nn.CrossEntropyLoss())]}\n"
        "sizes = [8, 6, 3]\nmodel = nn.Sequential(*[nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])\n",
    ),
}  # fmt: skip
HOLDER = "from types import SimpleNamespace\n\nholder = SimpleNamespace(model=model)\n"
CASES |= {
    "a model that is an attribute, averaged": (
        "holder.model, train=(x, y), val=(x, y), loss=F.cross_entropy, weight_averaging='ema', max_epochs=1",
        HOLDER,
    ),
    "a model that is an attribute, of which a part is trained": (
        "holder.model, train=(x, y), loss=F.cross_entropy, optimizer=last, gradient_clip_val=0.1, max_epochs=1",
        f"{HOLDER}\n\ndef last(parameters, lr):\n    return torch.optim.SGD(list(parameters)[-2:], lr=lr)\n",
    ),
}


@pytest.mark.filterwarnings("ignore:.*are in no optimizer")
@pytest.mark.parametrize("case", CASES)
def test_the_script_repeats_the_run(case: str, runner: Runner, tmp_path: Path) -> None:
    arguments, before = CASES[case]
    repeats(make_bench(tmp_path, arguments, before), runner, tmp_path)
