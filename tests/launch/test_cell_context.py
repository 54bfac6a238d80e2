"""What holds in the cell that starts a job holds in the job's thread and in its ranks, or is refused by name."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import decimal
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import workbench as wb
from tests.launch import pools
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")

NAME = contextvars.ContextVar("name", default="none")
OF_THREAD = threading.local()
DEVICE = "meta"  # stands for "cuda": only where a tensor is made is looked at


class Module(nn.Module):
    """Calls `look` with the name of each place of the user's that the engine calls."""

    def __init__(self, look: Callable[[str], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 1)
        self.look = look

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.look("hook")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.look("step")
        return F.mse_loss(self.layer(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.look("validation")
        return F.mse_loss(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.01)


class Samples(torch.utils.data.Dataset[Any]):
    def __init__(self, look: Callable[[str], object] = lambda place: None) -> None:
        self.x, self.look = torch.rand(16, 2, generator=torch.Generator().manual_seed(0)), look

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.look("data")
        return self.x[index], self.x[index, :1]


def bench(root: Path, look: Callable[[str], object], **given: Any) -> wb.Workbench:
    settings = {
        "accelerator": "cpu",
        "max_epochs": 2,
        "batch_size": 4,
        "enable_progress_bar": False,
        **given,
    }
    return wb.Workbench(Module(look), train=Samples(look), val=Samples(look), root=root, **settings)


@contextlib.contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def test_context_variables_and_the_states_of_numpy_and_decimal(tmp_path: Path) -> None:
    seen: set[Any] = set()
    made = bench(
        tmp_path,
        lambda place: seen.add((place, NAME.get(), np.geterr()["over"], decimal.getcontext().prec)),
        dry_run=False,
    )
    before = NAME.set("mine")
    try:
        with np.errstate(over="raise"), decimal.localcontext(prec=7):
            job = made.fit()
        NAME.set("later")  # it holds as it was when the job was started
        job.result()
    finally:
        NAME.reset(before)
    assert seen == {(place, "mine", "raise", 7) for place in ("hook", "step", "validation", "data")}


def test_the_default_device_holds_in_the_users_code_alone(tmp_path: Path) -> None:
    seen: set[Any] = set()
    made = bench(
        tmp_path, lambda place: seen.add((place, torch.zeros(1).device.type)), dry_run=False
    )
    with default_device(DEVICE):
        there = made.fit().result()
    assert seen == {(place, DEVICE) for place in ("hook", "step", "validation", "data")}
    assert (
        bench(tmp_path, lambda place: None).fit().result().history["loss"].tolist()
        == there.history["loss"].tolist()
    )
    with default_device(DEVICE):
        assert made.find_lr(num_training=5).result().lrs.size == 5


def test_columns_are_read_where_they_are(tmp_path: Path) -> None:
    x = torch.rand(16, 2)
    made = wb.Workbench(
        nn.Linear(2, 1),
        train=(x, x[:, :1]),
        loss=F.mse_loss,
        root=tmp_path,
        accelerator="cpu",
        max_epochs=1,
    )
    with default_device(DEVICE):
        assert np.isfinite(made.fit().result().history["loss"]).all()


def test_what_one_job_leaves_in_its_thread_reaches_no_other(tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(place: str) -> None:
        if place == "step":
            seen.append((NAME.get(), np.geterr()["over"], dict(vars(OF_THREAD))))
            NAME.set("left")
            np.seterr(over="raise")
            OF_THREAD.left = True

    made = bench(tmp_path, look, max_steps=1, dry_run=False)
    first, second = made.fit(), made.fit()
    first.result(), second.result()
    assert seen == [("none", "warn", {})] * 2


def test_hooks_for_saved_tensors(tmp_path: Path) -> None:
    packed: list[Any] = []
    made = bench(tmp_path, lambda place: None)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (packed.append(1), x)[1], lambda x: x):
        made.fit().result()
    assert packed


class Mode(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


def test_what_cannot_be_carried_is_refused_by_name(tmp_path: Path) -> None:
    made = bench(tmp_path, lambda place: None)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(
            TaskError, match=r"torch.autocast\('cpu'.*around fit\(\).*precision='bf16-mixed'"
        ),
    ):
        made.fit()
    with (
        Mode(),
        pytest.raises(TaskError, match=r"Mode is active around find_lr\(\).*training_step"),
    ):
        made.find_lr()
    assert not made.jobs


def test_an_active_run_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    active: list[Any] = []

    def look(place: str) -> None:
        mlflow.log_metric(place, 1.0)
        active.append(mlflow.active_run().info.run_id)

    with bench(tmp_path, look, dry_run=False, max_steps=1) as made:
        with mlflow.start_run() as run:
            made.fit().result()
            # it is the user's to end
            assert mlflow.get_run(run.info.run_id).info.status == "RUNNING"
            late = made.fit()
        late.result()
        assert {*active} == {run.info.run_id}
        assert len(mlflow.search_runs(output_format="list")) == 1
        assert mlflow.get_run(run.info.run_id).info.status == "FINISHED"
        assert "step" in mlflow.get_run(run.info.run_id).data.metrics


class OfOneThread(Samples):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.connection = kind, sqlite3.connect(":memory:")

    def __getitem__(self, index: int) -> Any:
        if self.kind == "sqlite":
            self.connection.execute("select 1").fetchone()
        elif self.kind == "signal":
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        else:
            asyncio.get_event_loop()
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("sqlite", "check_same_thread=False"),
        ("signal", "num_workers=1"),
        ("asyncio", r"asyncio\.run"),
    ],
)
def test_code_that_works_in_the_cells_thread_alone_says_what_to_do(
    tmp_path: Path, kind: str, remedy: str
) -> None:
    made = wb.Workbench(
        Module(lambda place: None),
        train=OfOneThread(kind),
        root=tmp_path,
        accelerator="cpu",
        dry_run=kind != "asyncio",
    )
    error = made.fit(max_epochs=1).exception()
    assert error is not None
    (note,) = [note for note in error.__notes__ if "a thread of its own" in note]
    assert remedy.replace("\\", "") in note


def test_ranks_have_the_default_device_and_the_error_state_too(tmp_path: Path) -> None:
    def look(place: str) -> None:
        print(place, torch.zeros(1).device.type, np.geterr()["over"])

    with (
        bench(tmp_path, look, devices=pools.DEVICES, max_steps=1, dry_run=False) as made,
        default_device(DEVICE),
    ):
        with np.errstate(over="raise"):
            job = made.fit()
            job.result()
        assert {line.removeprefix("[rank 1] ") for line in job.output} == {
            f"{place} meta raise" for place in ("hook", "step", "validation", "data")
        }
        torch.set_default_device(None)
        usual = made.fit()
        usual.result()
        assert all(line.endswith("cpu warn") for line in usual.output)
