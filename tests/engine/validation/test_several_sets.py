"""Several sets of validation and test data: each set's metrics are those of a plain loop over it, by its own name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

import workbench as wb
from tests.engine.fit_results import fit as ranked
from tests.engine.problems import labelled, plain_net
from tests.on_ranks import on_ranks
from workbench.events import Message, Validated
from workbench.launch.turns import alone
from workbench.task.errors import TaskError

torchmetrics = pytest.importorskip("torchmetrics")
pytestmark = pytest.mark.usefixtures("one_thread")

CLEAN, SHIFTED = labelled(10, 1), labelled(13, 2)
SETS = {"clean": CLEAN, "shifted": SHIFTED}


def right(output: Tensor, y: Tensor) -> Tensor:
    return (output.argmax(1) == y).float()


def largest(output: Tensor, y: Tensor) -> float:
    return float(output.max())


def metrics() -> dict[str, Any]:
    return {
        "right": right,
        "largest": wb.over_epoch(largest),
        "accuracy": torchmetrics.Accuracy(task="multiclass", num_classes=3),
    }


def expected(
    model: nn.Module, sets: dict[str, TensorDataset], stage: str = "val"
) -> dict[str, float]:
    """A plain loop over each set, sample by sample."""
    found = {}
    for name, data in sets.items():
        with torch.no_grad():
            rows = [(model(x[None]), y[None]) for x, y in data]
        outputs, targets = (torch.cat(column) for column in zip(*rows, strict=True))
        share = float(right(outputs, targets).mean())
        values = {
            "loss": float(F.cross_entropy(outputs, targets)),
            "right": share,
            "accuracy": share,
            "largest": largest(outputs, targets),
        }
        found |= {f"{stage}_{metric}/{name}": value for metric, value in values.items()}
    return found


def bench(root: Any, **more: Any) -> wb.Workbench:
    usual: dict[str, Any] = {
        "train": labelled(),
        "val": SETS,
        "loss": F.cross_entropy,
        "batch_size": 4,
        "max_epochs": 2,
        "lr": 0.05,
    }
    return wb.Workbench(plain_net(), root=root, accelerator="cpu", **{**usual, **more})


def test_each_set_has_its_own_values(tmp_path):
    with bench(tmp_path, metrics=metrics(), test=[CLEAN, DataLoader(SHIFTED, 5)]) as made:
        run = made.fit().result()
        wanted = expected(made.model.eval(), SETS)
        assert {
            name: run.metrics[name] for name in run.metrics if name.startswith("val_")
        } == pytest.approx(wanted, abs=1e-6)
        assert run.validation["val_loss/shifted"][-1] == run.metrics["val_loss/shifted"]
        assert made.validate().result() == pytest.approx(wanted, abs=1e-6)
        wanted = expected(
            made.model, {"dataloader_idx_0": CLEAN, "dataloader_idx_1": SHIFTED}, "test"
        )
        assert made.test().result() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    "sets", [[SHIFTED], (SHIFTED,), {"shifted": SHIFTED}], ids=["list", "tuple", "dict"]
)
def test_one_set_has_plain_names(sets, tmp_path):
    with bench(tmp_path, val=sets) as made:
        assert made.validate().result() == bench(tmp_path, val=SHIFTED).validate().result()


def test_sets_of_arrays(tmp_path):
    arrays = {name: data.tensors for name, data in SETS.items()}
    with bench(tmp_path, val=arrays) as made:
        assert made.validate().result() == pytest.approx(
            {k: v for k, v in expected(made.model.eval(), SETS).items() if "loss" in k}
        )


def test_a_dict_of_columns_stays_one_set(tmp_path):
    x, y = CLEAN.tensors
    columns = {"input": x, "y": y}
    with bench(tmp_path, train=columns, val=columns) as made:
        assert made.validate().result().keys() == {"val_loss"}


def test_a_monitor_is_the_whole_name(tmp_path):
    with bench(
        tmp_path,
        monitor="val_loss/shifted",
        early_stopping=wb.EarlyStopping("val_loss/clean", patience=1, min_delta=10.0),
        max_epochs=5,
    ) as made:
        run = made.fit().result()
    assert len(run.validation["step"]) == 2
    assert any(
        "val_loss/clean did not improve" in event.text
        for event in run.events
        if isinstance(event, Message)
    )
    assert run.checkpoints[-1].monitor == "val_loss/shifted"
    (loss,) = run.charts("loss")
    assert {"val_loss/clean", "val_loss/shifted"} <= {series.name for series in loss.series}
    assert [mark.label for mark in loss.marks] == ["best checkpoint"]


@pytest.mark.parametrize(
    "setting",
    [{"early_stopping": "val_loss"}, {"monitor": "val_loss"}, {"monitor": "val_loss/other"}],
    ids=str,
)
def test_an_unknown_name_is_refused_with_those_there_are(setting, tmp_path):
    with pytest.raises(
        (TaskError, wb.SettingsError),
        match=r"there is no such metric.*val_loss/clean, val_loss/shifted, train_loss",
    ):
        bench(tmp_path, **setting)


def test_a_plateau_without_a_monitor_is_refused(tmp_path):
    def plateau(optimizer: Any, updates: int) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    with pytest.raises(
        TaskError,
        match=r"the scheduler's monitor 'val_loss': there is no such metric.*val_loss/clean",
    ):
        bench(tmp_path, scheduler=plateau)


def test_without_a_monitor_no_checkpoint_is_best_and_a_message_names_the_remedy(tmp_path):
    with bench(tmp_path) as made:
        job = made.fit()
        run = job.result()
    assert [one.value for one in run.checkpoints] == [None]
    told = [event.text for event in job.events if isinstance(event, Message)]
    assert any("monitor='val_loss/clean'" in text for text in told)


def test_limits_hold_for_each_set(tmp_path):
    with bench(tmp_path, limit_val_batches=1, num_sanity_val_steps=1) as made:
        first = {
            name: TensorDataset(*(column[:4] for column in data.tensors))
            for name, data in SETS.items()
        }
        wanted = {
            name: value
            for name, value in expected(made.model.eval(), first).items()
            if "loss" in name
        }
        assert made.validate().result() == pytest.approx(wanted, abs=1e-6)


def test_averaged_weights_have_values_of_each_set(tmp_path):
    with bench(
        tmp_path, weight_averaging="ema", ema_decay=0.8, monitor="val_loss/clean_averaged"
    ) as made:
        run = made.fit().result()
        wanted = expected(made.model.eval(), SETS)
    assert run.metrics["val_loss/shifted_averaged"] == pytest.approx(
        wanted["val_loss/shifted"], abs=1e-6
    )


@pytest.mark.parametrize("sizes", [(10, 13), (3, 9)], ids=str)
def test_ranks_compute_what_one_process_would(sizes):
    """Of three samples in batches of four rank 1 has none."""
    sets = {"clean": labelled(sizes[0], 1), "shifted": labelled(sizes[1], 2)}
    given = {
        "train": labelled().tensors,
        "val": sets,
        "loss": F.cross_entropy,
        "metrics": metrics(),
    }
    found = on_ranks(
        2, ranked, plain_net(), given, {"batch_size": 4, "max_epochs": 1, "accelerator": "cpu"}
    )
    model = plain_net()
    model.load_state_dict(found[0]["weights"])
    _, told = found[0]["checks"][-1]
    assert told == pytest.approx(expected(model.eval(), sets), abs=1e-6)


@pytest.mark.parametrize("seen", [1, 4])
def test_a_fit_that_was_stopped_within_a_validation_repeats_it_when_resumed(seen, tmp_path):
    """The stop comes in the second validation, while its first or its second set is read."""
    calls, jobs = [], []

    def stops(output: Tensor, y: Tensor) -> float:
        calls.append(len(y))
        if jobs and len(calls) == 6 + seen:  # the first validation reads six batches
            jobs[0].stop()
        return 0.0

    def fit(root: Any, stop: bool) -> list[tuple[int, dict[str, float]]]:
        drawn = DataLoader(SHIFTED, sampler=RandomSampler(SHIFTED, replacement=True, num_samples=9))
        how = {
            "metrics": {"none": stops},
            "val_check_interval": 3,
            "num_sanity_val_steps": 0,
            "monitor": "val_loss/drawn",
        }
        with bench(root, val={"clean": CLEAN, "drawn": drawn}, **how) as made:
            calls.clear()
            if not stop:
                run = made.fit().result()
            else:
                with alone():  # the job waits until the test has it
                    jobs.append(made.fit())
                part = jobs[0].result()
                jobs.clear()
                assert (part.status, part.step, len(part.validation["step"])) == ("stopped", 6, 1)
                run = made.fit(start=part.id).result()
            return [(e.step, e.metrics) for e in run.events if isinstance(e, Validated)]

    assert fit(tmp_path / "stopped", True)[-3:] == fit(tmp_path / "whole", False)[-3:]


def test_a_validation_that_a_person_asks_for_reads_all_sets_and_leaves_no_trace(tmp_path):
    def fit(root: Any, *, asks: bool) -> list[Validated]:
        drawn = DataLoader(SHIFTED, sampler=RandomSampler(SHIFTED, replacement=True, num_samples=9))
        with bench(
            root, val={"clean": CLEAN, "drawn": drawn}, val_check_interval=2, metrics=metrics()
        ) as made:
            with alone():  # the job waits until it is asked
                job = made.fit()
                if asks:
                    job.validate()
            return [event for event in job.result().events if isinstance(event, Validated)]

    found = fit(tmp_path / "asks", asks=True)
    (asked,) = [event.metrics for event in found if event.asked]
    assert {"val_loss/clean", "val_largest/drawn"} <= set(asked)
    assert [e.metrics for e in found if not e.asked] == [
        e.metrics for e in fit(tmp_path / "whole", asks=False)
    ]


def test_sets_are_preloaded_each(tmp_path):
    class Squares(Dataset[Any]):
        def __init__(self, n: int) -> None:
            self.rows = labelled(n)

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> Any:
            return self.rows[index]

    with bench(tmp_path, val=[Squares(8), Squares(5)], preload=True) as made:
        told = [event.text for event in made.fit().result().events if isinstance(event, Message)]
    assert [text[:20] for text in told if text.startswith("preloaded val")] == [
        "preloaded val[0]: 8 ",
        "preloaded val[1]: 5 ",
    ]


def test_a_set_that_fails_is_named(tmp_path):
    wrong = TensorDataset(torch.randn(8, 5), torch.zeros(8, dtype=torch.long))
    with pytest.raises(TaskError, match=r"val\['wrong'\]"):
        bench(tmp_path, val={"clean": CLEAN, "wrong": wrong})
    with pytest.raises(TaskError, match=r"val\[1\] is empty"):
        bench(tmp_path, val=[CLEAN, TensorDataset(torch.randn(0, 5))])


def test_what_takes_one_set_says_so(tmp_path):
    with wb.Workbench(
        plain_net(),
        train=labelled(),
        val=SETS,
        test=SETS,
        loss=F.cross_entropy,
        max_epochs=1,
        accelerator="cpu",
        root=tmp_path,
    ) as made:
        made.fit().result()
        for call in (made.predict, lambda: made.find_batch_size(method="validate")):
            with pytest.raises(TaskError, match=r"(val|test) has 2 sets"):
                call().result()
        with pytest.raises(wb.ExportError, match="val, which has several sets"):
            made.script(data="beside")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({1: labelled(4), "1": labelled(4)}, r"val has a set by the key 1: .* give a text"),
        ({"": labelled(4), "b": labelled(4)}, r"val has a set by the key ''"),
        (
            {"clean": labelled(4), "noisy": [(1, 2)]},
            r"val\['noisy'\] is a list of 1: each is to be a Dataset or a DataLoader, a tuple of arrays",
        ),
        (
            [labelled(4), labelled(4).tensors],
            r"val\[1\] is a tuple of 2: each is to be a Dataset or a DataLoader or wb.batches",
        ),
    ],
)
def test_what_is_no_set_is_named(given, message, tmp_path):
    with pytest.raises(wb.TaskError, match=message):
        wb.Workbench(plain_net(), train=labelled(8), val=given, loss=F.cross_entropy, root=tmp_path)
