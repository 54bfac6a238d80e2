"""Which settings Lightning's callbacks become, and which are refused."""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

import pytest
import torch

import workbench as wb
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.lightning.callbacks.translate import translated

callbacks = importlib.import_module("lightning.pytorch").callbacks
boring = importlib.import_module("lightning.pytorch.demos.boring_classes")

MADE = [
    (callbacks.EarlyStopping("val_loss", 0.25, 5, check_finite=False), {"early_stopping": wb.EarlyStopping("val_loss", min_delta=0.25, patience=5, check_finite=False)}),
    (callbacks.EarlyStopping("val_acc", 0.25, mode="max"), {"early_stopping": wb.EarlyStopping("val_acc", min_delta=0.25)}),
    (callbacks.EarlyStopping("val_acc"), {"early_stopping": wb.EarlyStopping("val_acc", mode="min")}),
    (callbacks.ModelCheckpoint(), {}),
    (callbacks.ModelCheckpoint(save_top_k=-1), {"save_top_k": -1}),
    (callbacks.ModelCheckpoint(monitor="val_f1", mode="max", every_n_train_steps=50), {"monitor": "val_f1", "checkpoint_every": 50}),
    (callbacks.ModelCheckpoint(train_time_interval=timedelta(minutes=3)), {"checkpoint_every": "00:00:03:00"}),
    (callbacks.GradientAccumulationScheduler({4: 2}), {"accumulate_grad_batches": {0: 1, 4: 2}}),
    (callbacks.StochasticWeightAveraging([0.1, 0.1], 4, 3, "linear"), {
        "weight_averaging": "swa", "swa_lrs": 0.1, "swa_epoch_start": 3, "annealing_epochs": 3, "annealing_strategy": "linear",
    }),
    (callbacks.StochasticWeightAveraging(0.1, 1), {"weight_averaging": "swa", "swa_lrs": 0.1, "swa_epoch_start": 0}),
    (callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=0), {"monitor": "val_loss", "save_top_k": 0}),
    (callbacks.ModelCheckpoint(save_top_k=0, save_weights_only=True), {"save_top_k": 0}),
    (callbacks.ModelCheckpoint(monitor="val_loss", mode="max"), {"monitor": "val_loss", "monitor_mode": "max"}),
    (callbacks.EMAWeightAveraging(decay=0.75, update_every_n_steps=3, update_starting_at_step=7), {
        "weight_averaging": "ema", "ema_decay": 0.75, "ema_warmup": False, "averaging_every_n_steps": 3, "averaging_start": 7,
    }),
    (callbacks.Timer("00:01:00:00"), {"max_time": "00:01:00:00"}),
    (callbacks.Timer(), {}),
    (callbacks.LearningRateMonitor(), {}),
    (callbacks.TQDMProgressBar(), {}),
    (callbacks.RichModelSummary(), {}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), MADE, ids=lambda one: type(one).__name__)
def test_what_becomes_what(given: Any, wanted: dict[str, Any]) -> None:
    found, told = translated(given, "callbacks=")
    assert Settings.make(**found) == Settings.make(**wanted)
    assert told.startswith(f"callbacks=: {type(given).__name__} ")
    assert all(name in told for name in wanted)


class Own(callbacks.EarlyStopping):
    """It may do something else."""


REFUSED = [
    (
        callbacks.EarlyStopping("val_loss", strict=False),
        r"EarlyStopping\(strict=False\) has no counterpart",
    ),
    (
        callbacks.ModelCheckpoint(every_n_epochs=3),
        r"every_n_epochs=3\) has no counterpart.*checkpoint_every=500",
    ),
    (callbacks.EMAWeightAveraging(update_starting_at_epoch=2), "update_starting_at_epoch=2"),
    (
        callbacks.StochasticWeightAveraging(0.1),
        r"swa_epoch_start=0.8\) has no counterpart: Lightning begins one epoch before.*int, from 1",
    ),
    (
        [callbacks.EMAWeightAveraging(), callbacks.EarlyStopping("val_loss")],
        "'val_loss' is that of the averaged weights, .*'val_loss_averaged' here",
    ),
    (
        [callbacks.ModelCheckpoint(monitor="val_f1"), callbacks.EMAWeightAveraging()],
        "monitor='val_f1_averaged'",
    ),
    (callbacks.StochasticWeightAveraging([0.1, 0.2], 2), r"swa_lrs=\[0.1, 0.2\]"),
    (callbacks.StochasticWeightAveraging(0.1, 2, avg_fn=torch.lerp), "avg_fn= to the bench"),
    (callbacks.Timer("00:01:00:00", interval="epoch"), "interval='epoch'"),
    (Own("val_loss"), "Own, a EarlyStopping of Lightning's is not used here"),
    (
        callbacks.ModelPruning("l1_unstructured"),
        "ModelPruning of Lightning's is not used here. Instead: torch.nn.utils.prune",
    ),
    (print, "is not a callback of Lightning. Give listeners="),
    (
        [
            callbacks.ModelCheckpoint(monitor="a", save_top_k=2),
            callbacks.ModelCheckpoint(monitor="b", save_top_k=2),
        ],
        "asks for monitor='b', and another callback for monitor='a': a fit has one",
    ),
]


@pytest.mark.parametrize(("given", "why"), REFUSED, ids=lambda one: type(one).__name__)
def test_what_has_no_counterpart_is_refused(given: Any, why: str) -> None:
    with pytest.raises(TaskError, match=f"(?s)callbacks=.*{why}"):
        translated(given, "callbacks=")


def test_a_negative_min_delta_is_refused() -> None:
    for mode in ("min", "max"):
        with pytest.raises(wb.SettingsError, match=r"min_delta=-0\.5"):
            translated(callbacks.EarlyStopping("val_loss", -0.5, mode=mode), "callbacks=")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            callbacks.EarlyStopping("val_acc"),
            "a lower val_acc counts as better, as in Lightning: is mode='max' meant?",
        ),
        (callbacks.ModelCheckpoint(save_weights_only=True), "they hold optimizers too"),
        (
            callbacks.EMAWeightAveraging(),
            "buffers, such as batch-norm statistics, are not averaged",
        ),
        (callbacks.EMAWeightAveraging(update_every_n_steps=4), "Lightning 1, n + 1"),
    ],
)
def test_what_differs_is_told(given: Any, said: str) -> None:
    assert said in translated(given, "callbacks=")[1]
    assert (
        "counts as better"
        not in translated(callbacks.EarlyStopping("val_acc", mode="max"), "callbacks=")[1]
    )
    assert (
        "buffers"
        not in translated(callbacks.EMAWeightAveraging(use_buffers=False), "callbacks=")[1]
    )


def test_several_are_joined() -> None:
    found, told = translated(
        [
            callbacks.EarlyStopping("val_loss"),
            callbacks.EarlyStopping("val_acc", mode="max"),
            callbacks.ModelCheckpoint(monitor="val_acc", mode="max"),
        ],
        "Lit.configure_callbacks()",
    )
    assert [one.monitor for one in found["early_stopping"]] == ["val_loss", "val_acc"]
    assert found["monitor"] == "val_acc"
    assert told.count("became") == 3
    assert translated([], "callbacks=") == ({}, "")


def test_a_setting_beside_a_callback(tmp_path: Any) -> None:
    x, y = torch.randn(20, 4), torch.randn(20, 1)
    given = {
        "train": (x, y),
        "val": (x, y),
        "loss": torch.nn.functional.mse_loss,
        "root": tmp_path,
        "accelerator": "cpu",
    }
    with pytest.raises(
        wb.SettingsError,
        match=r"early_stopping='val_loss' is given, and callbacks= sets early_stopping=.*leave one out",
    ):
        wb.Workbench(
            torch.nn.Linear(4, 1),
            callbacks=[callbacks.EarlyStopping("val_loss")],
            early_stopping="val_loss",
            **given,
        )
    with wb.Workbench(torch.nn.Linear(4, 1), max_epochs=9, **given) as bench:
        with pytest.warns(
            UserWarning,
            match=r"EarlyStopping became early_stopping=wb\.EarlyStopping\(monitor='val_loss', patience=0\)",
        ) as told:
            job = bench.fit(callbacks=[callbacks.EarlyStopping("val_loss", patience=0)])
        assert told[0].filename == __file__
        job.result()
        assert bench.settings.early_stopping == (), "of this fit alone"
        for call in (bench.validate, bench.find_lr):
            with pytest.raises(
                wb.SettingsError,
                match=r"callbacks= has no effect on \w+\(\): give them to the bench, or to fit",
            ):
                call(callbacks=[callbacks.EarlyStopping("val_loss")])


class Brings(boring.BoringModel):
    def configure_callbacks(self) -> Any:
        return [
            callbacks.EarlyStopping("val_loss", patience=5),
            callbacks.ModelCheckpoint(monitor="val_thing", mode="min"),
        ]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.step(batch))
        self.log("val_thing", 1.0)
        self.log("val_acc", float(self.current_epoch))


def brings(root: Any, **more: Any) -> wb.Workbench:
    return wb.Workbench(Brings(), root=root, accelerator="cpu", max_epochs=3, **more)


def test_a_mode_is_that_of_its_monitor(tmp_path: Any) -> None:
    class Thing(Brings):
        def configure_callbacks(self) -> Any:
            return callbacks.ModelCheckpoint(monitor="val_thing", mode="max")

    with pytest.warns(UserWarning, match="monitor_mode='max'") as told:
        bench = wb.Workbench(
            Thing(), root=tmp_path, accelerator="cpu", max_epochs=1, monitor="val_thing"
        )
    with bench:
        assert bench.settings.monitor_mode == "max", "the same monitor was given"
        assert "Given instead" not in str(told[0].message)
        with pytest.warns(UserWarning, match=r"became monitor='val_loss', save_top_k=1 \("):
            bench.set(callbacks=[callbacks.ModelCheckpoint(monitor="val_loss")])
        assert (bench.settings.monitor, bench.settings.monitor_mode) == ("val_loss", None)


def test_the_modules_own_and_what_is_given(tmp_path: Any) -> None:
    with (
        pytest.warns(
            UserWarning, match=r"ModelCheckpoint became monitor='val_thing', monitor_mode='min'"
        ),
        brings(tmp_path) as bench,
    ):
        assert [one.patience for one in bench.settings.early_stopping] == [5]
    with pytest.warns(UserWarning, match=r"Given instead: early_stopping, monitor\."):
        bench = brings(tmp_path, monitor="val_acc", early_stopping=())
    with bench:
        run = bench.fit().result()
        assert max(one.value for one in run.checkpoints if one.value is not None) == 2.0, (
            "a higher accuracy is better"
        )
    both = r"callbacks= sets early_stopping=.*and the module's configure_callbacks sets"
    with pytest.raises(wb.SettingsError, match=both), pytest.warns(UserWarning, match="became"):
        brings(tmp_path, callbacks=[callbacks.EarlyStopping("val_loss", patience=1)])
