"""What ran between a Workbench and its fit is in the script, or is measured, or refused by name: in blocks, in functions, on the line of the fit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import workbench as wb
from tests import warm
from tests.combinations import every
from tests.export.export_running import Runner, check, execute, lint
from workbench.export.file_format import Format

pytestmark = pytest.mark.usefixtures("one_thread")

START = """\
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb

torch.manual_seed(0)
x = torch.randn(60, 8)
y = torch.randint(0, 3, (60,))


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body, self.head = nn.Linear(8, width), nn.Linear(width, 3)
        self.scale = 1.0

    def forward(self, x):
        return self.head(F.relu(self.body(x))) * self.scale


"""
HOW = "train=(x, y), loss=F.cross_entropy, max_epochs=1, batch_size=16, accelerator='cpu'"
MADE = f"model = Net()\nbench = wb.Workbench(model, {HOW})\n"
REPEATED = {
    "on the line of the fit": f"{MADE}bench.model.scale = 3.0; run = bench.fit().result()",
    "under the main guard": "if __name__ == '__main__':\n    model = Net()\n"
    f"    bench = wb.Workbench(model, {HOW})\n    model.scale = 3.0\n    run = bench.fit().result()",
    "in the function of both": f"def main():\n    model = Net()\n    bench = wb.Workbench(model, {HOW})\n    model.scale = 3.0\n"
    "    if model.scale:\n        for p in bench.model.body.parameters():\n            p.requires_grad_(False)\n"
    "    return bench, bench.fit().result()\nbench, run = main()",
    "in the function of the fit": f"{MADE}def train(scale):\n    bench.model.scale = scale; return bench.fit().result()\nrun = train(3.0)",
    "in a function that is given the bench": f"{MADE}def train(b, scale):\n    b.model.scale = scale\n    return b.fit().result()\nrun = train(bench, 3.0)",
    "in the turn of both": f"for scale in (2.0, 3.0):\n    model = Net()\n    bench = wb.Workbench(model, {HOW})\n    model.scale = scale\n    run = bench.fit().result()",
    "in a with of the bench": f"model = Net()\nwith wb.Workbench(model, {HOW}) as bench:\n    model.scale = 3.0\n    run = bench.fit().result()",
    "in a try": f"{MADE}try:\n    model.scale = 3.0\n    run = bench.fit().result()\nexcept RuntimeError as error:\n    print(error)",
    "in a function after the call": f"def make(width):\n    model = Net(width)\n    bench = wb.Workbench(model, {HOW})\n    model.scale = 3.0\n"
    "    return {'bench': bench}\nbench = make(5)['bench']\nrun = bench.fit().result()",
    "beside the function that made it": f"def make(width):\n    model = Net(width)\n    return wb.Workbench(model, {HOW})\nbench = make(5)\n"
    "bench.model.scale = 3.0\nrun = bench.fit().result()",
    "in a closure": f"def make():\n    model = Net(6)\n    bench = wb.Workbench(model, {HOW})\n    def train():\n        model.scale = 2.0\n"
    "        return bench.fit().result()\n    return bench, train\nbench, train = make()\nrun = train()",
    "in the functions around, which hand over": f"def train(net, data, loss):\n    bench = wb.Workbench(net, {HOW.replace('(x, y)', 'data').replace('F.cross_entropy', 'loss')})\n"
    "    return bench, bench.fit().result()\ndef main():\n    torch.manual_seed(4)\n    inputs, labels = torch.randn(40, 8), torch.randint(0, 3, (40,))\n    model = Net(6)\n    model.scale = 2.0\n"
    "    return train(model, (inputs, labels), loss=F.cross_entropy)\nbench, run = main()",
    "in a function that called the one that made it": "cfg = {'width': 3}\n"
    f"def make():\n    model = Net(cfg['width'])\n    return wb.Workbench(model, {HOW})\ndef main():\n    cfg['width'] = 8\n    bench = make()\n"
    "    bench.model.scale = 2.0\n    return bench, bench.fit().result()\nbench, run = main()",
    "a global that a function sets": "SCALE = 1.0\ndef loss(o, t):\n    return F.cross_entropy(o, t) * SCALE\ndef main():\n    global SCALE\n"
    f"    bench = wb.Workbench(Net(), {HOW.replace('F.cross_entropy', 'loss')})\n    SCALE = 2.0\n    run = bench.fit().result()\n    SCALE = 9.0\n"
    "    return bench, run\nbench, run = main()",
    "by a name that is bound anew": f"{MADE}def train(net, device):\n    net = net.to(device)\n    net.scale = 3.0\n    return bench.fit().result()\nrun = train(model, 'cpu')",
    "by a part of the model": f"{MADE}def train(bench):\n    head = bench.model.head\n    head.register_forward_hook(lambda m, i, o: o * 2)\n"
    "    return bench.fit().result()\nrun = train(bench)",
    "by a call, and by the last one again": f"{MADE}def freeze(net):\n    for p in net.parameters():\n        p.requires_grad_(False)\ndef train(b, scale):\n"
    "    freeze(b.model.body)\n    b.model.scale = scale\n    hook = b.model.head.register_forward_hook(lambda m, i, o: o * 2)\n    done = b.fit().result()\n"
    "    hook.remove()\n    return done\ntrain(bench, 2.0)\nrun = train(bench, 3.0)",
    "by a call that left before": f"{MADE}def train(early):\n    if early:\n        model.scale = 2.0\n        return bench.fit().result()\n    model.scale = 3.0\n"
    "    return bench.fit().result()\ntrain(True)\nrun = train(False)",
    "calls that change the model by fits alone": f"{MADE}class Keeper:\n    def __init__(self, bench):\n        self.bench, self.runs, self.n = bench, [], 0\n    def fit(self):\n"
    "        self.n += 1\n        self.runs.append(self.bench.fit().result())\ndef train(b):\n    b.set(lr=0.01)\n    return b.fit().result()\n"
    "def score(b):\n    b.model.eval()\n    with torch.no_grad():\n        return float(b.model(x).mean())\nstart = {k: v.clone() for k, v in model.state_dict().items()}\n"
    "def again():\n    bench.model.load_state_dict(start)\n    return bench.fit().result()\nruns = [train(bench) for _ in range(2)]\nscore(bench)\nkeeper = Keeper(bench)\n"
    "keeper.fit()\nkeeper.runs.append(bench.fit().result())\nagain()\nmodel.scale = 2.0\nrun = train(bench)",
    "a call by another name, once": f"import functools\n{MADE}def train(b):\n    b.model.scale += 1\n    return b.fit().result()\ngo = functools.partial(train, bench)\nrun = go()",
    "another object of the bench's name": f"{MADE}b = Net()\ndef train(b):\n    return b.fit().result()\nb.scale = 5.0\nrun = train(bench)",
    "one of several benches": f"one, model = Net(), Net()\nbenches = [wb.Workbench(one, {HOW}), wb.Workbench(model, {HOW})]\nbenches[0].model.scale = 2.0\n"
    "benches[1].model.scale = 3.0\nbenches[0].fit().result()\nrun = benches[1].fit().result()\nbench = benches[1]",
    "by a variable of a function that had ended": f"{MADE}def make(scale):\n    def train():\n        model.scale = scale\n        return bench.fit().result()\n    return train\nrun = make(3.0)()",
    "in a loop, what each turn does alike": f"{MADE}for scale in (2.0, 3.0):\n    print(scale)\n    run = bench.fit().result()",
}
SCALED = "import contextlib\n@contextlib.contextmanager\ndef scaled(net, scale):\n    net.scale = scale\n    yield\n"
REFUSED = {
    "a variable of the function around": (
        f"def outer():\n    scale = 1.0\n    model = Net()\n    bench = wb.Workbench(model, {HOW})\n    def up():\n        nonlocal scale\n        scale += 2.0\n"
        "        model.scale = scale\n    def train():\n        up()\n        return bench.fit().result()\n    return bench, train()\nbench, run = outer()",
        r"cannot stand in a script: no binding for nonlocal 'scale' found .* Set that variable at the top level, by `global`",
    ),
    "an async function": (
        f"import asyncio\n{MADE}async def main():\n    return bench.fit().result()\nrun = asyncio.run(main())",
        "The Workbench is made, or its fit called, in the async function main; .* Do it in a plain function",
    ),
    "a model bound beside the Workbench call": (
        f"bench = wb.Workbench(model, {HOW}) if (model := Net()) else None\nrun = bench.fit().result()",
        "`model` is used by the Workbench call, but no code that can be read defines it",
    ),
    "a global set by a parameter": (
        "SCALE = 1.0\ndef loss(o, t):\n    return F.cross_entropy(o, t) * SCALE\n"
        f"bench = wb.Workbench(Net(), {HOW.replace('F.cross_entropy', 'loss')})\ndef train(scale):\n    global SCALE\n    SCALE = scale\n"
        "    return bench.fit().result()\nrun = train(3.0)",
        r"`SCALE = scale` .* cannot be in a script: it sets a global name by a variable of train",
    ),
    "a name that means two things": (
        "cfg = {'width': 3}\n"
        f"def make(width):\n    x = torch.ones(60, 8)\n    return wb.Workbench(Net(cfg['width']), {HOW})\ndef main():\n    x = 5\n    cfg['width'] = x\n"
        "    bench = make(x)\n    return bench, bench.fit().result()\nbench, run = main()",
        "`x` means two things in code that must stand in one file",
    ),
}
MEASURED = {
    "in an if after a fit": f"{MADE}run = bench.fit().result()\nif run.step > 2:\n    model.scale = 3.0\nrun = bench.fit().result()",
    "in a for over a fit": f"{MADE}for run in [bench.fit().result()]:\n    model.scale = 3.0\nrun = bench.fit().result()",
    "by a with around the fit": f"{SCALED}{MADE}with scaled(model, 4.0):\n    run = bench.fit().result()",
    "by a with of the bench": f"{SCALED}{MADE}with scaled(bench.model, 4.0), contextlib.suppress(OSError):\n    run = bench.fit().result()",
    "by a with around the Workbench": f"{SCALED}model = Net()\nwith scaled(model, 4.0):\n    bench = wb.Workbench(model, {HOW})\n    run = bench.fit().result()",
    "by the test of an if": f"{MADE}def ready():\n    model.scale = 3.0\n    return True\nif ready():\n    run = bench.fit().result()",
    "in a lambda": f"{MADE}go = lambda s: (setattr(bench.model, 'scale', s), bench.fit().result())[1]\nrun = go(3.0)",
    "a bench in a list": f"benches = [wb.Workbench(Net(), {HOW}), wb.Workbench(Net(), {HOW})]\nbenches[1].model.scale = 3.0\nrun = benches[1].fit().result()\nbench = benches[1]",
    "a global that an earlier call set": f"{MADE}factor = 1.0\ndef train():\n    global factor\n    factor = factor + 1\n    model.scale = factor\n"
    "    return bench.fit().result()\ntrain()\nrun = train()",
    "a global that a function of an earlier call set": f"{MADE}factor = 1.0\ndef more(v):\n    global factor\n    factor = factor + v\ndef train():\n    more(2.0)\n    model.scale = factor\n    return bench.fit().result()\n"
    "train()\nrun = train()",
    "what a cache keeps": "import functools\n@functools.cache\ndef table():\n    return {'scale': 1.0}\ntable()['scale'] = 3.0\n"
    f"{MADE}model.scale = table()['scale']\nrun = bench.fit().result()",
    "data that a call changed": f"{MADE}def train():\n    x.mul_(2)\n    return bench.fit().result()\ntrain()\nrun = train()",
    "in a try whose handler has the fit": f"{MADE}try:\n    model.scale = 2.0\n    raise KeyError\nexcept KeyError:\n    run = bench.fit().result()",
    "in each turn around the fit": f"{MADE}for s in (2.0, 3.0): bench.model.scale *= s; bench.set(lr=0.01); run = bench.fit().result()",
    "a model without a name": f"bench = wb.Workbench(Net(), {HOW})\nbench.model.scale = 3.0\nrun = bench.fit().result()",
    "a teacher that another bench trained": f"teacher, model = Net(), Net()\nother = wb.Workbench(teacher, {HOW})\nother.fit().result()\n"
    "def loss(o, t):\n    return F.cross_entropy(o, t) + F.mse_loss(o, teacher(x[: len(o)]).detach())\n"
    f"bench = wb.Workbench(model, {HOW.replace('F.cross_entropy', 'loss')})\nrun = bench.fit().result()",
    "a name bound anew after the Workbench": "SCALE = 2.0\ndef loss(o, t):\n    return F.cross_entropy(o, t) * SCALE\n"
    f"bench = wb.Workbench(Net(int(4 * SCALE)), {HOW.replace('F.cross_entropy', 'loss')})\nSCALE = 3.0\nrun = bench.fit().result()",
    "after the fit of a turn": f"{MADE}for turn in range(2):\n    run = bench.fit().result()\n    model.scale *= 2",
}
"""What a script does not have, and its first updates show."""


@pytest.mark.parametrize("name", REPEATED)
def test_it_is_in_the_script(
    name: str, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = execute(tmp_path / "user.py", f"{START}{REPEATED[name]}\n")
    with names["bench"] as bench:
        script = bench.export(tmp_path / "train.py", names["run"])
        check(bench, names["run"], runner.run(script))
        lint(script)


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, why = REFUSED[name]
    names = execute(tmp_path / "user.py", f"{START}{code}\n")
    with names["bench"] as bench, pytest.raises(wb.ExportError, match=why):
        bench.script(names["run"])


@pytest.mark.parametrize("name", every(3, [*MEASURED]))
def test_it_is_measured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(warm.python().executable))
    names = execute(tmp_path / "user.py", f"{START}{MEASURED[name]}\n")
    with (
        names["bench"] as bench,
        pytest.warns(UserWarning, match="it does not repeat the run|it fails: "),
    ):
        bench.export(tmp_path / "train.py", names["run"], verify=True)


@pytest.mark.parametrize("format", [None, "workbench"])
def test_what_the_workbench_changed_is_noted(
    format: Format | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a headless script, which is not verified."""
    monkeypatch.chdir(tmp_path)
    names = execute(
        tmp_path / "user.py", f"{START}{MEASURED['a teacher that another bench trained']}\n"
    )
    note = r"`other.fit\(\).result\(\)` \(user.py, line 24\) is not in the script, and may have changed what the run used"
    with names["bench"] as bench, pytest.warns(UserWarning, match=note):
        bench.export(tmp_path / "train.py", names["run"], format=format)


def test_another_file_that_calls_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it changed by the bench that it was given is not in the script, and measured; what it does with its own names is not the script's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "executable", str(warm.python().executable))
    (tmp_path / "trains.py").write_text(
        "class Own:\n    pass\n\n\ndef train(bench, scale, x=None):\n    model = Own()\n    model.scale = scale\n    return bench.fit().result()\n\n\n"
        "def scaled(bench, scale):\n    bench.model.scale = scale\n    return bench.fit().result()\n"
    )
    names = execute(
        tmp_path / "user.py",
        f"{START}import trains\n{MADE}first = trains.train(bench, 2.0)\nsecond = trains.scaled(bench, 3.0)\n",
    )
    with names["bench"] as bench:
        assert "model.scale" not in bench.script(names["first"])
        with pytest.warns(UserWarning, match="it does not repeat the run"):
            bench.export(tmp_path / "train.py", names["second"], verify=True)


def test_another_file_that_makes_the_bench(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its function did is in the script up to the fit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "makes.py").write_text(
        f"{START}def train(width):\n    model = Net(width)\n"
        f"    bench = wb.Workbench(model, {HOW})\n    model.scale = 2.0\n    run = bench.fit().result()\n    model.scale = 100.0\n    return bench, run\n"
    )
    names = execute(
        tmp_path / "user.py",
        "import makes\ndef make():\n    F = Net = None\nclass Net:\n    pass\nbench, run = makes.train(5)\n",
    )
    with names["bench"] as bench:
        check(bench, names["run"], runner.run(bench.export(tmp_path / "train.py", names["run"])))
