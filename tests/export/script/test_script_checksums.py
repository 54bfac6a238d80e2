"""The script says at once where its weights, its model's setup, the order of its samples or its first batches are not the run's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import workbench as wb
from tests.export.export_running import Runner, lint, make_bench
from workbench.events import Checksums
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), loss=F.cross_entropy, max_epochs=1"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    bench = make_bench(tmp_path, PAIR)
    bench.fit().result()
    return bench.export(tmp_path / "train.py")


def said(text: str) -> list[str]:
    """What it says is not the run's."""
    return re.findall(r"^Not the run's (\w+): ", text, re.MULTILINE)


def edited(script: Path, old: str, new: str) -> Path:
    text = script.read_text()
    assert old in text
    script.write_text(text.replace(old, new))
    return script


def other_weights(script: Path) -> None:
    start = script.with_name("train.start.safetensors")
    weights = load_file(start)
    weights["head.bias"] += 1
    save_file(weights, start)


OTHERS: dict[str, Callable[[Path], object]] = {
    "weights": other_weights,
    "order": lambda script: edited(script, "TensorDataset(x, y)", "TensorDataset(x[:90], y[:90])"),
    "batches": lambda script: edited(script, "(100, 8)", "(100, 8).round()"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_another_is_named_once(what: str, script: Path, runner: Runner) -> None:
    OTHERS[what](script)
    outcome = runner.run(script)
    assert said(outcome.said) == [what]
    assert len(outcome.losses) > 1  # it went on


SETUPS = {
    "an attribute": "model.head.scale = 3.0",
    "a nested attribute": 'model.body.options = {"sizes": [1, (2, None)]}',
    "requires_grad": "model.body.bias.requires_grad_(False)",
    "a forward hook": "model.head.register_forward_hook(lambda *_: None)",
    "a backward hook": "model.register_full_backward_pre_hook(lambda *_: None)",
    "a hook on a parameter": "model.head.bias.register_hook(lambda gradient: gradient)",
    "a hook behind its gradient": "model.head.bias.register_post_accumulate_grad_hook(lambda _: None)",
    "a mode": "model.norm.eval()",
    "a class": "model.norm.__class__ = type('Other', (torch.nn.BatchNorm1d,), {})",
}
ALIKE = {
    "a path": "model.head.path = '/data/weights.pt'",
    "an object": "model.head.owner = object()",
    "an attribute for one's own use": "model.head._cache = 3",
}


@pytest.mark.parametrize("what", [*SETUPS, *ALIKE])
def test_another_setup_of_the_model_is_named(what: str, script: Path, runner: Runner) -> None:
    edited(script, "    wrapped = ", f"    {({**SETUPS, **ALIKE})[what]}\n    wrapped = ")
    assert said(runner.run(script).said) == ["setup"] * (what in SETUPS)


KINDS = {
    "hooks on parameters, registered in a loop, by another name and by a function": (
        "def doubled(parameter):\n    parameter.grad.mul_(2)\n\n\n"
        "def masked(parameter):\n    parameter.register_hook(lambda gradient: gradient * mask)\n\n\n"
        "mask = torch.ones(3)\nmask[1] = 0\nweight = model.norm.weight\nhandle = weight.register_hook(lambda gradient: gradient * 0.5)\n"
        "for parameter in model.body.parameters():\n    parameter.register_post_accumulate_grad_hook(doubled)\n"
        "masked(model.head.bias)\n",
        "model, train=(x, y), loss=F.cross_entropy, optimizer=torch.optim.SGD, lr=0.1, max_epochs=2",
    ),
    "a training step": (
        "class Own(Net):\n    def training_step(self, batch, batch_idx):\n        self.calls += 1\n        return F.cross_entropy(self(batch[0]), batch[1]) * self.scale\n\n"
        "    def configure_optimizers(self):\n        self.made = True\n        return torch.optim.SGD(self.parameters(), lr=self.lr)\n\n"
        "    def on_fit_start(self):\n        self.began = self.current_epoch\n\n\n"
        "model = Own()\nmodel.lr, model.scale, model.calls, model.note = 0.1, 2, 0, ['a']\n",
        "model, train=(x, y), max_epochs=2",
    ),
    "a loss that is trained": (
        "class Loss(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.rate = 0.5\n        self.factor = nn.Parameter(torch.ones(()))\n\n"
        "    def forward(self, output, y):\n        return F.cross_entropy(output * self.factor, y) * self.rate\n\n\nloss = Loss()\n",
        "model, train=(x, y), loss=loss, max_epochs=2",
    ),
    "frozen, with hooks and a part in eval mode": (
        "model.body.requires_grad_(False)\nmodel.norm.eval()\nmodel.head = nn.utils.parametrizations.weight_norm(model.head)\n"
        "handle = model.head.register_forward_hook(lambda module, given, out: out * 2)\n",
        "model, train=(x, y), loss=F.cross_entropy, max_epochs=2",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_setup_of_these_is_the_runs_also_after_another_fit(
    kind: str, tmp_path: Path, runner: Runner
) -> None:
    before, arguments = KINDS[kind]
    bench = make_bench(tmp_path, arguments, before)
    for settings in ({}, {"lr": 1, "max_epochs": 1}):
        run = bench.fit(**settings).result()
        path = bench.export(tmp_path / "train.py")
        lint(path)
        assert '"setup": ' in path.read_text()
        outcome = runner.run(path)
        assert said(outcome.said) == []
        assert outcome.losses.tolist() == run.history["loss"].tolist()


def test_weights_and_data_are_told_apart(script: Path, runner: Runner) -> None:
    other_weights(script)
    edited(script, "(100, 8)", "(100, 8).round()")
    assert said(runner.run(script).said) == ["weights", "batches"]


def test_another_setting_is_meant(script: Path, runner: Runner) -> None:
    other_weights(script)
    assert said(runner.run(script, "--lr", "0.5").said) == []


def test_a_start_file_that_is_missing_and_not_needed(script: Path, runner: Runner) -> None:
    script.with_name("train.start.safetensors").unlink()
    outcome = runner.run(script)
    assert "There is no" in outcome.said
    assert said(outcome.said) == []  # its code makes the same weights


BATCHES = {
    "dataclasses of a tensor and a list of texts": (
        "import dataclasses\n\n\n@dataclasses.dataclass\nclass Both:\n    x: torch.Tensor\n    names: list\n\n    def to(self, *args, **options):\n"
        "        return self\n\n\nclass Own(Net):\n    def training_step(self, batch, batch_idx):\n"
        "        return self(batch.x).square().mean()\n\n"
        "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n\n\n"
        "def collate(samples):\n    return Both(torch.stack([s[0] for s in samples]), [str(len(samples))])\n"
    ),
    "objects that are unknown": (
        "class Both:\n    def __init__(self, x):\n        self.x = x\n\n    def to(self, *args, **options):\n"
        "        return self\n\n\nclass Own(Net):\n    def training_step(self, batch, batch_idx):\n"
        "        return self(batch.x).square().mean()\n\n"
        "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), lr=0.1)\n\n\n"
        "def collate(samples):\n    return Both(torch.stack([s[0] for s in samples]))\n"
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_other_kinds(name: str, tmp_path: Path, runner: Runner) -> None:
    bench = make_bench(
        tmp_path, "Own(), train=(x, y), collate_fn=collate, max_epochs=1", BATCHES[name]
    )
    bench.fit().result()
    path = bench.export(tmp_path / "train.py")
    lint(path)
    assert ("compared(" in path.read_text()) == ("unknown" not in name)
    assert said(runner.run(path).said) == []
    edited(path, "(100, 8)", "(100, 8).round()")
    assert said(runner.run(path).said) == ([] if "unknown" in name else ["batches"])


def with_checksums(run: wb.Run, *told: Checksums) -> wb.Run:
    """The same record with these checksums."""
    events = [e for e in run.events if not isinstance(e, Checksums)]
    return Run.from_events([events[0], *told, *events[1:]], run.folder)


def test_a_record_from_before_and_one_from_a_stranger(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, PAIR)
    run = bench.fit().result()
    text = bench.script(run=with_checksums(run))
    assert not {"RUN", "checksum", "compare", "compare_setup"} & set(re.findall(r"\w+", text))
    evil = '"); import evil; ("'
    text = bench.script(
        run=with_checksums(run, Checksums("0123abcd", evil, (evil, "0123abcd"), evil))
    )
    assert "evil" not in text
    assert '{"weights": ["0123abcd"]}' in text


def test_a_run_that_went_on_has_them(tmp_path: Path, runner: Runner) -> None:
    bench = make_bench(tmp_path, PAIR)
    first = bench.fit().result()
    run = bench.fit(start="continue", max_epochs=2).result()
    (told,) = [e for e in run.events if isinstance(e, Checksums)]
    assert told in first.events
    assert len(dataclasses.astuple(told)[2]) == 2
    path = bench.export(tmp_path / "train.py")
    assert said(runner.run(path).said) == []
    other_weights(path)
    assert said(runner.run(path).said) == ["weights"]
