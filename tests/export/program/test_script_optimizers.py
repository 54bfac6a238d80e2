"""Scripts of runs whose optimizer has a rate of its own, groups at 0, or ways of its own to train and evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.combinations import every
from tests.export.export_running import PRELUDE, Runner, check, lint, make_bench
from workbench.export.errors import ExportError

# some leave parts of a model out of the optimizer, which the bench warns of
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*are in no optimizer"),
]

PAIR = "model, train=(x, y), val=(x[:20], y[:20]), loss=F.cross_entropy, max_steps=5, batch_size=20"
OWN = (
    "import functools\n\n\ndef own(parameters):\n    return torch.optim.SGD(parameters, lr=0.25)\n\n\n"
    "def groups(parameters, lr=7.0):\n    parameters = list(parameters)\n"
    "    first, rest = {'params': parameters[:2], 'lr': 0.0}, {'params': parameters[2:], 'lr': 0.1}\n"
    "    return torch.optim.SGD([first, rest], momentum=0.9)\n\n\n"
    "def falling(optimizer, updates):\n    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / updates)\n"
)
OBJECT = (
    "class Object(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.net = Net()\n\n"
    "    def training_step(self, batch, batch_idx):\n        return F.cross_entropy(self.net(batch[0]), batch[1])\n\n"
    "    def configure_optimizers(self):\n        return torch.optim.SGD(@@)\n"
)
FROZEN = OBJECT.replace("@@", "self.parameters(), lr=0.0")
PARTLY = OBJECT.replace(
    "@@",
    "[{'params': self.net.body.parameters(), 'lr': 0.0}, {'params': self.net.head.parameters(), 'lr': 0.1}]",
)
VALIDATED = OBJECT.replace(
    "torch.optim.SGD(@@)", "schedulefree.RAdamScheduleFree(self.parameters(), lr=0.1)"
) + (
    "\n    def validation_step(self, batch, batch_idx):\n        return F.cross_entropy(self.net(batch[0]), batch[1])\n"
)
CASES = {
    "bound": (f"{PAIR}, optimizer=functools.partial(torch.optim.SGD, lr=0.25)", OWN),
    "own, not asked": (f"{PAIR}, optimizer=own", OWN),
    "own, set": (f"{PAIR}, optimizer=own, lr=0.05, lr_schedule='cosine'", OWN),
    "groups, scheduled, set": (
        f"{PAIR}, optimizer=groups, scheduler=falling, warmup=0.6, lr=0.3",
        OWN,
    ),
    "groups": (f"{PAIR}, optimizer=groups", OWN),
    "groups, a rate of SWA's own": (
        f"{PAIR.replace('max_steps=5', 'max_epochs=4')}, optimizer=groups, scheduler=falling, weight_averaging='swa', "
        "swa_epoch_start=1, swa_lrs=0.05, annealing_epochs=2",
        OWN,
    ),
    "groups without a schedule, a rate of SWA's own": (
        f"{PAIR.replace('max_steps=5', 'max_epochs=3')}, optimizer=groups, weight_averaging='swa', swa_epoch_start=1, swa_lrs=0.05",
        OWN,
    ),
    "schedule-free": (
        f"{PAIR}, optimizer=AdamWScheduleFree",
        "from schedulefree import AdamWScheduleFree\n",
    ),
    "schedule-free, checked midway, given a rate": (
        f"{PAIR}, optimizer=partial(SGDScheduleFree, lr=0.5, warmup_steps=2), val_check_interval=2, gradient_clip_val=0.5",
        "from functools import partial\n\nfrom schedulefree import SGDScheduleFree\n",
    ),
    "schedule-free, an object": (
        "Object(), train=(x, y), val=(x[:20], y[:20]), max_steps=5",
        "import schedulefree\n\n\n" + VALIDATED,
    ),
    "by name, with arguments": (
        f"{PAIR}, optimizer={{'sgd': {{'momentum': 0.9, 'nesterov': True, 'lr': 0.1}}}}, weight_decay=0.1",
        "",
    ),
    "by name, from another package": (f"{PAIR}, optimizer='schedule_free_sgd', lr=0.1", ""),
    "Muon": (f"{PAIR}, optimizer='muon', gradient_clip_val=0.5, lr_schedule='cosine'", ""),
    "Muon, with arguments": (f"{PAIR}, optimizer={{'muon': {{'betas': (0.8, 0.9)}}}}", ""),
    "one for each part, by name and by rule": (
        f"{PAIR}, optimizer=kinds, gradient_clip_val=0.5, lr=0.02, weight_decay=0.1, lr_schedule='cosine'",
        "kinds = {'head.bias': torch.optim.Adam, lambda name, p: p.ndim == 2: torch.optim.Muon, '': torch.optim.AdamW}\n",
    ),
    "one for each part, with groups by rule": (
        f"{PAIR}, optimizer={{'body': lambda p, lr: torch.optim.SGD(p, lr=lr), '': torch.optim.AdamW}},"
        " groups=['no_decay_norm_bias', wb.group('head', lr_scale=3)]",
        "",
    ),
    "groups by rule": (
        f"{PAIR}, groups=[wb.layer_decay(0.5), wb.group('*.bias', weight_decay=0)], lr_schedule='one_cycle'",
        "",
    ),
    "groups by rule, Muon": (
        f"{PAIR}, optimizer='muon', groups='no_decay_norm_bias', gradient_clip_val=0.5",
        "",
    ),
    "frozen until an epoch, mixed": (
        f"{PAIR.replace('max_steps=5', 'max_epochs=3')}, gradient_clip_val=0.5, batch_transform=wb.one_of(wb.mixup(0.4), wb.mixup(1.0)),"
        " groups=[wb.freeze('body', unfreeze_at_epoch=1), 'no_decay_norm_bias']",
        "",
    ),
    "mixed and smoothed, several batches in an update": (
        f"{PAIR}, accumulate_grad_batches=2, batch_transform=[wb.mixup(0.4, p=0.5), wb.label_smoothing(0.1)]",
        "",
    ),
    "frozen alone": (f"{PAIR}, groups=wb.freeze('body', unfreeze_at_epoch=2)", ""),
    "muP": (
        f"{PAIR.replace('model,', 'wb.mup(sized, base_width=4), width=16,')}, groups='no_decay_norm_bias'",
        "def sized(width=8):\n    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 3))\n",
    ),
    "compile on a model of torch's own class": (
        "small, train=(x, y), loss=F.cross_entropy, max_steps=3, compile='eager'",
        "small = nn.Sequential(nn.Linear(8, 3))\n",
    ),
    "compile the blocks that repeat": (
        "deep, train=(x, y), loss=F.cross_entropy, max_steps=3, compile={'backend': 'eager', 'regions': True}",
        "deep = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)))\n",
    ),
    "an object at 0": ("Object(), train=(x, y), max_steps=3", FROZEN),
    "an object at 0, set": ("Object(), train=(x, y), max_steps=3, lr=0.1", FROZEN),
    "an object with a group at 0": ("Object(), train=(x, y), max_steps=3", PARTLY),
}


@pytest.mark.parametrize("case", every(2, [*CASES]))
def test_the_script_repeats_the_run(case: str, runner: Runner, tmp_path: Path) -> None:
    arguments, before = CASES[case]
    with make_bench(tmp_path, arguments, before, PRELUDE) as bench:
        run = bench.fit().result()
        script = bench.export(tmp_path / "out" / "train.py")
        check(bench, run, runner.run(script))
        lint(script)


def test_a_rate_given_to_the_script_takes_the_place_of_one_of_its_own(
    runner: Runner, tmp_path: Path
) -> None:
    arguments, before = CASES["groups, scheduled, set"]
    with make_bench(tmp_path, arguments, before, PRELUDE) as bench:
        bench.fit().result()
        script = bench.export(tmp_path / "out" / "train.py")
        run = bench.fit(lr=0.15).result()
        check(bench, run, runner.run(script, "--lr", "0.15"))


@pytest.mark.parametrize(
    "made", ["Net()", "nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))"]
)
def test_a_model_that_came_compiled(made: str, runner: Runner, tmp_path: Path) -> None:
    arguments = PAIR.replace("model,", "fast,")
    with make_bench(
        tmp_path, arguments, f"plain = {made}\nfast = torch.compile(plain, backend='eager')\n"
    ) as bench:
        run = bench.fit().result()
        script = bench.export(tmp_path / "out" / "train.py")
        lint(script)
        check(Within(bench.model._orig_mod), run, runner.run(script))
        bench.fit(compile=False).result()
        with pytest.raises(ExportError, match="compile=False of a model that came compiled"):
            bench.export(tmp_path / "out" / "other.py", format="script")


class Within:
    """A bench of the model within."""

    def __init__(self, model: Any) -> None:
        self.model = model
