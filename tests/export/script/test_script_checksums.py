"""A script with checks says at once where its weights or its first batches are not the run's."""

from __future__ import annotations

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
    "batches": lambda script: edited(script, "(100, 8)", "(100, 8).round()"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_another_is_named_once(what: str, script: Path, runner: Runner) -> None:
    OTHERS[what](script)
    outcome = runner.run(script)
    assert said(outcome.said) == [what]
    assert len(outcome.losses) > 1  # it went on


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
