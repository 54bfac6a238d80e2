"""A state of another structure than a fit writes: an error that names the checkpoint and the remedy, wherever it is met."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.attacks.strangers import bench
from workbench.engine.checkpoint.files import restoring
from workbench.task.errors import TaskError

GONE = object()
OTHERS: dict[str, Any] = {
    "gone": GONE,
    "a list": [1],
    "a dict": {"x": 1},
    "None": None,
    "a text": "x",
    "a tensor": torch.zeros(5),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """A root with one run, the directory of its last checkpoint, and the state there."""
    root = tmp_path_factory.mktemp("root")
    b = bench(root, lr_schedule="cosine", weight_averaging="ema")
    point = b.fit().result().checkpoints[-1].path
    b.close()
    return root, point, torch.load(point / "state.pt", weights_only=True)


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The same containers with `new` at this place."""
    if not path:
        return new
    parts = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    if path[1:] or new is not GONE:
        parts[path[0]] = changed(parts[path[0]], path[1:], new)
    else:
        del parts[path[0]]
    return parts if isinstance(value, dict) else list(parts.values())


def resumed(root: Path, point: Path, state: Any) -> None:
    torch.save(state, point / "state.pt")
    with bench(root) as b:
        b.fit(start=f"{point.parents[1].name}@{point.name}", max_epochs=2).result()


STATE = ("optimizers", 0, "state")
MOMENTS = (*STATE, "state", 0)
PLACES: list[tuple[tuple[Any, ...], list[str]]] = [
    (("held",), ["gone", "a list"]), (("optimizers",), ["gone", "a dict"]), (("optimizers", 0), ["a list", "None"]),
    (("plan",), ["gone", "a list"]), (("plan", "swa"), ["gone"]), (("length",), ["gone", "a list"]), (("length", "ahead"), ["gone", "a text"]),
    (("checks",), ["gone", "a list"]), (("checks", "number"), ["gone", "a dict"]), (("checks", "begun_with"), ["a list", "a tensor"]),
    (("checks", "cadence"), ["gone", "a list"]), (("settings", "batch_size"), ["gone", "a text"]), (("metrics",), ["gone", "a list"]),
    (("clip_next",), ["None"]), (("moments",), ["gone", "a list"]), (("others",), ["gone", "None"]), (("extra_state",), ["gone"]),
    (("gradients",), ["a dict"]), (("noted",), ["a list"]), (("epoch_loss",), ["gone", "a list"]), (("average", "count"), ["a list", "None"]),
    (("average", "averages"), ["a list", "None"]), (("average", "averages", 0), ["a tensor", "None"]), (("scaler",), ["gone"]),
    (("data",), ["gone", "a list"]), (("data", "train"), ["gone", "a list"]), (("data", "train", "passes"), ["gone", "a list"]),
    (("data", "train", "generator"), ["a tensor"]), (("random",), ["gone", "a list"]), (("random", "python"), ["gone", "a list"]),
    (("random", "torch"), ["a tensor"]), (("world",), ["a text"]), (STATE, ["gone", "a list"]), ((*STATE, "state"), ["gone", "a list"]),
    ((*STATE, "param_groups"), ["gone", "None"]), ((*STATE, "param_groups", 0, "betas"), ["gone", "a text"]),
    ((*STATE, "param_groups", 0, "eps"), ["gone"]), (MOMENTS, ["a list"]), ((*MOMENTS, "exp_avg"), ["gone", "a list", "a tensor"]),
    ((*MOMENTS, "step"), ["a tensor"]), (("optimizers", 0, "taken"), ["gone", "a list"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "others"), PLACES, ids=lambda value: ".".join(map(str, value))[:48]
)
def test_a_part_of_another_structure_is_told_by_the_checkpoint_s_path(
    made: tuple[Path, Path, dict[str, Any]], path: tuple[Any, ...], others: list[str]
) -> None:
    root, point, state = made
    for other in others:
        with pytest.raises((TaskError, RuntimeError)) as caught:
            resumed(root, point, changed(state, path, OTHERS[other]))
        told = str(caught.value)
        assert told.startswith(str(point)), f"{other}: {told}"
        assert re.search(
            r"Take another checkpoint of the run \(bench\.runs\), or begin anew with fit\(\) without start",
            told,
        )


def test_the_state_of_another_optimizer_under_this_one_s_name(tmp_path: Path) -> None:
    def fit(optimizer: Callable[..., torch.optim.Optimizer]) -> tuple[Path, dict[str, Any]]:
        with bench(tmp_path, optimizer=optimizer) as b:
            point = b.fit().result().checkpoints[-1].path
        return point, torch.load(point / "state.pt", weights_only=True)

    _, theirs = fit(lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9))
    point, mine = fit(torch.optim.AdamW)
    mine["optimizers"][0]["state"] = theirs["optimizers"][0]["state"]
    with pytest.raises(
        TaskError, match=f"{re.escape(str(point))} cannot be restored .it lacks 'step'"
    ) as caught:
        resumed(tmp_path, point, mine)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_mark_that_nobody_packed_is_told(made: tuple[Path, Path, dict[str, Any]]) -> None:
    root, point, state = made
    with pytest.raises(RuntimeError, match=r"state\.pt cannot be read .it lacks 'evil'"):
        resumed(root, point, {**state, "held": {"__workbench__": "evil"}})


class Picky(torch.optim.SGD):
    fails = False

    def load_state_dict(self, state: Any) -> None:
        if Picky.fails:
            raise KeyError("own table")
        super().load_state_dict(state)

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


class Told(lightning.LightningModule):
    fails = ""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if Told.fails == "step":
            raise KeyError("in the step")
        x, y = batch
        return F.cross_entropy(self.layer(x), y)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if Told.fails == "hook":
            raise KeyError("in the hook")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.parameters(), lr=0.1)


def test_an_error_of_the_user_s_own_code_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = torch.zeros(8, 3), torch.zeros(8, dtype=torch.long)
    with wb.Workbench(
        Told(), train=data, root=tmp_path, accelerator="cpu", batch_size=4, max_epochs=1
    ) as b:
        run = b.fit().result()
        monkeypatch.setattr(Told, "fails", "hook")
        with pytest.raises(
            TaskError, match=r"cannot be restored .it lacks 'in the hook'"
        ) as caught:
            b.fit(start=run.id, max_epochs=2).result()
        cause = caught.value.__cause__
        assert isinstance(cause, KeyError)
        # which is none of the checkpoint's, also within the optimizer's closure
        monkeypatch.setattr(Told, "fails", "step")
        with pytest.raises(KeyError, match="in the step"):
            b.fit(start=run.id, max_epochs=2).result()


def test_an_optimizer_that_does_not_take_its_own_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, optimizer=Picky) as b:
        run = b.fit().result()
        monkeypatch.setattr(Picky, "fails", True)
        with pytest.raises(
            TaskError, match=r"Picky\.load_state_dict did not load .*own table"
        ) as caught:
            b.fit(start=run.id, max_epochs=2).result()
        assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no memory"),
        TaskError("another model"),
        FileNotFoundError("gone"),
        MemoryError(),
    ],
    ids=repr,
)
def test_what_says_nothing_of_the_structure_stays_itself(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, restoring(Path("checkpoint")):
        raise error
    assert caught.value is error
