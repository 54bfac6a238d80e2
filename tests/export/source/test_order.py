"""What ran between a Workbench and its fit is in the script, or refused by name: in blocks, in functions, on the line of the fit."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from tests.export.export_running import Runner, check, execute, lint

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
    "in a loop, what each turn does alike": f"{MADE}for scale in (2.0, 3.0):\n    print(scale)\n    run = bench.fit().result()",
}
REFUSED = {
    "in each turn around the fit": (
        f"{MADE}for s in (2.0, 3.0): bench.model.scale *= s; bench.set(lr=0.01); run = bench.fit().result()",
        r"`model.scale \*= s` .* changes what the run used, but cannot be in a script: it ran in each turn of the loop around the fit",
    ),
    "after the fit of a turn": (
        f"{MADE}for turn in range(2):\n    run = bench.fit().result()\n    model.scale *= 2",
        r"`model.scale \*= 2` .* it ran in each turn of the loop around the fit",
    ),
    "a model without a name": (
        f"bench = wb.Workbench(Net(), {HOW})\nbench.model.scale = 3.0\nrun = bench.fit().result()",
        r"`bench.model.scale = 3.0` .* changed the model after the Workbench was made.* give it one name beside it: `model = …`",
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


@pytest.mark.parametrize("name", REPEATED)
def test_it_is_in_the_script(name: str, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_another_file_that_calls_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it changed by the bench that it was given is refused; what it does with its own names is not the script's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trains.py").write_text(
        "class Own:\n    pass\n\n\ndef train(bench, scale, x=None):\n    model = Own()\n    model.scale = scale\n    return bench.fit().result()\n\n\n"
        "def scaled(bench, scale):\n    bench.model.scale = scale\n    return bench.fit().result()\n"
    )
    names = execute(tmp_path / "user.py", f"{START}import trains\n{MADE}first = trains.train(bench, 2.0)\nsecond = trains.scaled(bench, 3.0)\n")
    with names["bench"] as bench:
        assert "model.scale" not in bench.script(names["first"])
        with pytest.raises(wb.ExportError, match=r"`model.scale = scale` \(trains.py, line 12\) .* it is in trains.py, which called fit"):
            bench.script(names["second"])


def test_another_file_that_makes_the_bench(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its function did is in the script up to the fit; what the caller's file changed through the bench is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "makes.py").write_text(
        f"{START}def make(width):\n    model = Net(width)\n    return wb.Workbench(model, {HOW})\n\n\ndef train(width):\n    model = Net(width)\n"
        f"    bench = wb.Workbench(model, {HOW})\n    model.scale = 2.0\n    run = bench.fit().result()\n    model.scale = 100.0\n    return bench, run\n"
    )
    names = execute(tmp_path / "user.py", "import makes\ndef make():\n    F = Net = None\nclass Net:\n    pass\nbench, run = makes.train(5)\nown = makes.make(6)\nown.model.scale = 3.0\nother = own.fit().result()\n")
    with names["bench"] as bench:
        check(bench, names["run"], runner.run(bench.export(tmp_path / "train.py", names["run"])))
    with names["own"] as own, pytest.raises(wb.ExportError, match=r"`model.scale = 3.0` \(user.py, line 8\) .* it is in user.py, which called fit"):
        own.script(names["other"])
