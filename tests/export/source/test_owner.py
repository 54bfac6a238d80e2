"""A class that holds a model and a bench becomes a class that holds a model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import workbench as wb
from tests.export.export_running import Runner, check, execute, lint
from tests.export.source.test_order import HOW, START

pytestmark = pytest.mark.usefixtures("one_thread")

CLASS = f"""\
class Experiment:
    def __init__(self, width):
        self.model = Net(width)
        # the bench
        self.bench = wb.Workbench(self.model, {HOW})

    def train(self):
        run = self.bench.fit().result()
        return run


"""
GROWS = CLASS.replace("        run = self", "        self.model.scale += 1.0\n        run = self")
KEEPS = CLASS.replace(
    "        run = self", "        self.count = getattr(self, 'count', 0) + 1\n        run = self"
).replace("        return run", "        self.last = run\n        return run")


def given(keeps: str) -> str:
    """A class that is given its model, whose first statement keeps it."""
    return (
        f"class Experiment:\n    def __init__(self, model, kind, other):\n        {keeps}\n        self.bench = wb.Workbench(model, {HOW})\n\n"
        "    def train(self):\n        return self.bench.fit().result()\n\n\nown = Experiment(Net(5), 'a', nn.Dropout(0.0))\nrun = own.train()"
    )


REPEATED = {
    "trained several times": f"{KEEPS}own = Experiment(5)\nown.train()\nown.model.scale = 2.0\nown.train()\nrun = own.train()",
    "trained by another method": f"{GROWS.rstrip()}\n\n    def run_all(self):\n        return self.train()\n\n\nown = Experiment(5)\nrun = own.run_all()",
    "given a model that it keeps": given("self.model = model"),
    "given a model that it keeps by its type": given("self.model: nn.Module = model"),
    "given a model that it keeps with others": given("self.model, self.kind = model, kind"),
    "made and trained": f"{CLASS}own = Experiment(5)\nrun = own.train()",
    "changed through both": f"{CLASS}own = Experiment(5)\nown.model.body.weight.requires_grad_(False)\nown.bench.model.scale = 3.0\nrun = own.bench.fit().result()",
    "in a loop": f"{CLASS}for width in (4, 8):\n    own = Experiment(width)\n    run = own.train()",
    "in main": f"{CLASS}def main():\n    width = 5\n    own = Experiment(width)\n    own.model.scale = 2.0\n    return own, own.train()\nif __name__ == '__main__':\n    own, run = main()",
    "given to a function": f"{CLASS}def go(experiment):\n    experiment.model.scale = 2.0\n    experiment.bench.set(lr=0.01)\n    return experiment.bench.fit().result()\n"
    "own = Experiment(6)\nrun = go(own)",
    "a derived class": f"{CLASS}class Mine(Experiment):\n    def __init__(self, width, scale=4.0):\n        super().__init__(width)\n        self.model.scale = scale\n"
    "        self.history = []\n\n    def train(self):\n        run = super().train()\n        self.history.append(run)\n        return run\n\n\nown = Mine(6)\nrun = own.train()",
    "made by one method, fitted by another": f"""\
class Trainer:
    def __init__(self, width, lr=0.01):
        self.width, self.lr = width, lr
        self.model = Net(width)
        self.loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=10, shuffle=True)

    def setup(self):
        self.bench = wb.Workbench(self.model, lr=self.lr, {HOW.replace("(x, y)", "self.loader").replace("batch_size=16, ", "")})

    def fit(self, scale):
        self.model.scale = scale
        return self.bench.fit().result()

    def report(self):
        found = self.bench.runs[-1]
        print("report", found)


own = Trainer(7)
own.setup()
own.model.head.bias.data.zero_()
run = own.fit(2.0)
own.report()
""",
    "a dataclass": f"""\
from dataclasses import dataclass, field


@dataclass
class Config:
    width: int = 12
    lr: float = 0.05


@dataclass
class Experiment:
    config: Config = field(default_factory=Config)
    seed: int = 3

    def __post_init__(self):
        torch.manual_seed(self.seed)
        self.model = Net(self.config.width)
        self.bench = wb.Workbench(
            self.model,
            lr=self.config.lr,
            {HOW},
        )


own = Experiment(Config(width=6))
run = own.bench.fit().result()
""",
    "many methods": f"""\
class Experiment:
    def __init__(self, width=5):
        self.width = width
        self.load()
        self.build()
        self.start()

    @staticmethod
    def rows():
        return x[:40], y[:40]

    def load(self):
        self.data = self.rows()

    def build(self):
        self.model = Net(self.width)

    def loss(self, output, target):
        return F.cross_entropy(output, target) * 2

    def sgd(self, params, lr):
        return torch.optim.SGD(params, lr=lr, momentum=0.9)

    def start(self):
        self.bench = wb.Workbench(self.model, optimizer=self.sgd, {HOW.replace("(x, y)", "self.data").replace("F.cross_entropy", "self.loss")})

    def freeze(self):
        for p in self.model.body.parameters():
            p.requires_grad_(False)

    def run(self):
        self.bench.set(lr=0.1)
        self.freeze()
        return self.bench.fit().result()


own = Experiment()
run = own.run()
""",
    "made and fitted by one method": f"""\
class Experiment:
    def __init__(self, width):
        self.model = Net(width)

    def run(self, epochs):
        self.model.scale = 4.0
        bench = wb.Workbench(self.model, {HOW.replace("max_epochs=1", "max_epochs=epochs")})
        self.model.scale /= 2
        run = bench.fit().result()
        self.model.scale = 100.0
        return bench, run


own = Experiment(5)
own.bench, run = own.run(2)
""",
    "made when it is read": f"""\
class Experiment:
    def __init__(self):
        self.model, self._bench = Net(5), None

    @property
    def bench(self):
        if self._bench is None:
            self._bench = wb.Workbench(self.model, {HOW})
        return self._bench


own = Experiment()
own.model.scale = 2.0
run = own.bench.fit().result()
""",
}
REFUSED = {
    "an instance without a name": (f"{CLASS}own = [Experiment(5)][0]\nrun = own.train()", None),
    "never bound": (f"{CLASS}runs = []\nbenches = []\nclass Keeping(Experiment):\n    def train(self):\n        benches.append(self)\n        return super().train()\n"
                    "run = Keeping(5).train()\nown = benches[0]", "the instance of Experiment has no name where it was made. Give it one in a statement of its own"),
    "a model that the instance does not keep": (
        CLASS.replace("self.model = Net(width)", "model = Net(width)").replace("(self.model", "(model") + "own = Experiment(5)\nrun = own.train()",
        r"`model` is needed by the Workbench call, but is a variable of __init__ that the instance does not keep \(as `self.model = model` does\)",
    ),
    "two statements on a line": (
        re.sub(r"\n        # the bench\n        ", "; ", CLASS) + "own = Experiment(5)\nrun = own.train()", "shares its line with another statement",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REPEATED)
def test_the_script_has_the_class_without_the_bench(
    name: str, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = execute(tmp_path / "user.py", f"{START}{REPEATED[name]}\n")
    with names["own"].bench as bench:
        script = bench.export(tmp_path / "train.py", names["run"])
        check(bench, names["run"], runner.run(script))
        lint(script)
        assert not re.search(
            r"\bbench\b|Workbench\(|wb\.", script.read_text().replace("Tuning Workbench", "")
        )


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_says_how_to_write_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, why = REFUSED[name]
    names = execute(tmp_path / "user.py", f"{START}{code}\n")
    with names["own"].bench as bench:
        if why is None:
            assert "own = [Experiment(5)][0]" in bench.script(names["run"])
        else:
            with pytest.raises(wb.ExportError, match=why):
                bench.script(names["run"])
