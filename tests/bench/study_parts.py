"""A small bench for tests of studies, whose data keeps a generator and counts what is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import workbench as wb
from workbench.bench.study_start import keep
from workbench.bench.study_trial import TrialTrainer
from workbench.launch.job import AnyJob
from workbench.launch.study.worker import Piece
from workbench.runs.study.record import PieceEnd, StudyHead, StudyRecord, TrialProposal
from workbench.runs.study.write import add_trial, claim, new_study
from workbench.settings.space import Choice, Float, Space

SCALE = 2.0


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Adds noise from a generator of its own to each sample."""

    def __init__(self, samples: int) -> None:
        source = torch.Generator().manual_seed(1)
        self.x = torch.randn(samples, 6, generator=source)
        self.y = (self.x.sum(1) > 0).long()
        self.noise = torch.Generator().manual_seed(2)
        self.count = 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.count += 1
        noise = torch.randn(6, generator=self.noise)
        return self.x[index] + (0.1 + self.count * 1e-5) * noise, self.y[index]


def net(width: int = 8, dropout: float = 0.1) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 2))


def scaled(output: Tensor, target: Tensor) -> Tensor:
    return SCALE * nn.functional.cross_entropy(output, target)


def bench(root: Path, model: Any = net, **arguments: Any) -> wb.Workbench:
    """A bench with this model, or a function that makes one."""
    defaults: dict[str, Any] = {
        "train": Noisy(64),
        "val": Noisy(32),
        "loss": scaled,
        "max_epochs": 3,
        "batch_size": 8,
        "enable_progress_bar": False,
    }
    return wb.Workbench(model, root=root, **{**defaults, **arguments})


class Studied:
    """A study without workers, whose pieces are trained in this process."""

    def __init__(
        self, bench: wb.Workbench, space: Mapping[str, Any], sampler: Any = None, **head: Any
    ) -> None:
        build = {"width": 8, "dropout": 0.1}
        record = Space.parse(space, bench.settings, build).to_record()
        head["method"] = "" if sampler is None else type(sampler).__name__
        made = StudyHead("study", "val_loss", "min", {"fits": 8.0}, record, {"epochs": 3}, **head)
        self.path = new_study(bench.root, made)
        keep(bench, bench._site, self.path, {}, {}, sampler)
        self.trainer = TrialTrainer(self.path)

    def train(
        self, trial: int, values: Mapping[str, Any], seed: int = 0, rung: int = 0, on: str = ""
    ) -> PieceEnd:
        add_trial(self.path, TrialProposal(trial, values, "by hand"))
        mine = claim(self.path, trial, seed, rung, "here")
        assert mine is not None
        record = StudyRecord.read(self.path)
        end = self.trainer(record, Piece(self.path, trial, values, seed, rung, on), to_the_end)
        mine.end(end)
        return end

    def run(self, end: PieceEnd) -> wb.Run:
        return wb.Run.open(self.path.parents[1] / "runs" / end.run)


def recorded(root: Path) -> wb.Study:
    """A study of twelve trials without runs, of which the fourth is infeasible and the last one failed."""
    space = Space((Float("lr", low=1e-4, high=1.0, log=True), Choice("width", choices=(32, 64))))
    head = StudyHead(
        "study",
        "val_loss",
        "min",
        {"fits": 12.0},
        space.to_record(),
        {"epochs": 9},
        rungs=(1 / 3, 1.0),
    )
    path = new_study(root, head)
    for number in range(1, 13):
        values = {"lr": 10 ** (-4 + number / 4), "width": 32 if number % 2 else 64}
        origin = "baseline" if number == 1 else "prior"
        add_trial(path, TrialProposal(number, values, origin))
        rung = 1 if number in (1, 5) else 0
        piece = claim(path, number, 0, rung, "worker")
        assert piece is not None
        if number == 4:
            end = PieceEnd("infeasible", 0.1, cause="the loss is nan")
        elif number == 12:
            end = PieceEnd("failed", 0.0, cause="ValueError: <b>width</b>")
        else:
            end = PieceEnd("completed", 1.0 if rung else 1 / 3, value=abs(number - 5) + 0.5)
        piece.end(end)
    return wb.Study(path)


def to_the_end(job: AnyJob) -> str:
    job.wait()
    return ""
