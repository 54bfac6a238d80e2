"""One module, run by Lightning's Trainer and by the workbench; and the two records, held against each other."""

import difflib
import importlib
import logging
import re
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

import workbench as wb
from tests.lightning.recorder import ALL, AROUND, ASKED, Tape, recorded

pl = importlib.import_module("lightning.pytorch")
boring = importlib.import_module("lightning.pytorch.demos.boring_classes")


def rows(n=24, seed=1, width=32):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def loader(n=24, batch_size=4, seed=1):
    """The same batches each time."""
    return DataLoader(rows(n, seed), batch_size=batch_size)


def trainer(**settings):
    """Lightning's Trainer, silent and without files."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(accelerator="cpu", **quiet, **{"devices": 1, "max_epochs": 1, **settings})


class CountsBatches(pl.Callback):
    """Counts batches, and keeps that in checkpoints."""

    def __init__(self):
        self.batches = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches += 1

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state_dict):
        self.batches = state_dict["batches"]


class Losses(pl.Callback):
    """What Lightning's training gave at each batch."""

    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.values.append(float(outputs["loss"]))


@dataclass
class Heard:
    """One side of a comparison."""

    tape: Tape
    module: Any
    extra: dict[str, Any] = field(default_factory=dict)

    def lines(self, blind=()):
        """The calls but for those that each side makes as often as it likes. blind: patterns that are not looked at."""
        out = {*ASKED, *AROUND}
        lines = [line for line in self.tape.lines if line.split()[0] not in out]
        for pattern in blind:
            lines = [re.sub(pattern, "", line) for line in lines]
        return [line for line in lines if line]


def made(cls, hooks=ALL, values=True, seed=0):
    """A module of the recorded class, with weights drawn from `seed`, and its tape."""
    tape = Tape()
    torch.manual_seed(seed)
    return recorded(cls, tape, hooks, values=values)(), tape


def by_lightning(
    cls, verb="fit", *, train=None, val=None, hooks=ALL, values=True, data=None, **settings
):
    """What Lightning's Trainer calls. data: a DataModule."""
    module, tape = made(cls, hooks, values)
    host = trainer(**settings)
    given = {"datamodule": data} if data is not None else {}
    if data is None and verb == "fit":
        given = {"train_dataloaders": train, "val_dataloaders": val}
    elif data is None:
        given = {"dataloaders": val}
    if verb in ("test", "validate"):
        given["verbose"] = False
    result = getattr(host, verb)(module, **given)
    return Heard(tape, module, {"trainer": host, "result": result})


def by_workbench(
    cls, root, verb="fit", *, train=None, val=None, hooks=ALL, values=True, data=None, **settings
):
    """What the workbench calls, from the job on: its bench tries two samples first."""
    module, tape = made(cls, hooks, values)
    sides = {"fit": "val", "validate": "val", "test": "test", "predict": "predict"}
    given: dict[str, Any] = {"train": train if data is None else data}
    if data is None and val is not None and verb != "predict":
        given[sides[verb]] = val
    settings = {"max_epochs": 1, **settings}
    if settings["max_epochs"] == -1:
        settings["max_epochs"] = None  # the number of updates alone counts
    bench = wb.Workbench(module, root=root, accelerator="cpu", **given, **settings)
    tape.lines.clear()
    job = bench.predict(val) if verb == "predict" and data is None else getattr(bench, verb)()
    result = job.result()
    return Heard(tape, module, {"bench": bench, "result": result})


GLOBAL_STEP = r"(?<=@\d)\.\d+"
"""A pattern to be blind to: how many updates were taken."""


def agree(ours, theirs):
    """The same lines; else the difference, in the form of a patch from Lightning's to ours."""
    if ours != theirs:
        raise AssertionError(
            "\n"
            + "\n".join(
                difflib.unified_diff(theirs, ours, "lightning", "workbench", lineterm="", n=4)
            )
        )


def same_order(cls, root, verb="fit", *, alike=True, blind=(), **how):
    """Both sides call the same hooks in the same order, and each finds the same; gives (ours, theirs).

    alike: the weights in the end are the same too, to the last bit where each update is of one batch.
    """
    theirs = by_lightning(cls, verb, **how)
    ours = by_workbench(cls, root, verb, **how)
    assert theirs.lines(blind)  # there is something to compare
    agree(ours.lines(blind), theirs.lines(blind))
    if alike:
        same_state(ours.module, theirs.module, exact=how.get("accumulate_grad_batches", 1) == 1)
    return ours, theirs


def same_state(ours, theirs, *, exact=True):
    """Weights and buffers agree. exact: to the last bit; a window's batches are weighed before backward here, so that
    their sum may differ in the last bits."""
    ours, theirs = ours.state_dict(), theirs.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        torch.testing.assert_close(
            value, theirs[name], rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6, msg=name
        )
