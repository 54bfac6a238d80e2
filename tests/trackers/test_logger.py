"""`self.logger` of a module: the bench's trackers while a fit runs, read back with TensorBoard's own reader."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from accelerate.tracking import GeneralTracker

import workbench as wb
from tests.lightning.both import boring, loader, pl
from tests.lightning.ranks.rank_fits import Net, batches, fit
from tests.on_ranks import on_ranks
from workbench.task.lightning.loggers import Logger

pytestmark = pytest.mark.usefixtures("one_thread")


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0}).Reload()


class Logs(boring.BoringModel):
    """Logs in every way that TensorBoard's logger of Lightning has too."""

    def on_fit_start(self) -> None:
        self.logger.log_hyperparams({"width": 32, "nested": {"depth": 1}})

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        found = super().training_step(batch, batch_idx)
        self.logger.experiment.add_scalar("raw", float(found["loss"].detach()), self.global_step)
        self.logger.log_metrics(
            {"handed": found["loss"].detach(), "whole": 2}, step=10 * self.global_step
        )
        return found

    def on_validation_epoch_end(self) -> None:
        self.logger.experiment.add_image("picture", torch.rand(3, 4, 4), self.global_step)
        for one in self.loggers:
            one.log_metrics({"checked": 1.0}, step=self.global_step)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_what_is_logged_is_in_the_trackers_run_as_with_lightnings_logger(tmp_path: Path) -> None:
    torch.manual_seed(0)
    logger = pl.loggers.TensorBoardLogger(tmp_path, name="theirs", version="one")
    host = pl.Trainer(
        accelerator="cpu", logger=logger, max_epochs=2, num_sanity_val_steps=0, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    host.fit(Logs(), loader(), loader(8, seed=2))
    theirs = read(tmp_path / "theirs" / "one")
    torch.manual_seed(0)
    with wb.Workbench(
        Logs(),
        train=loader(),
        val=loader(8, seed=2),
        root=tmp_path,
        accelerator="cpu",
        max_epochs=2,
        num_sanity_val_steps=0,
        trackers="tensorboard",
    ) as bench:
        bench.find_lr(num_training=5).result()
        bench.validate().result()
        run = bench.fit().result()
        bench.fit(max_epochs=1).result()
        bench.fit(fast_dev_run=1).result()
    folders = sorted(path.name for path in (tmp_path / "trackers" / "tensorboard").iterdir())
    assert folders == ["0003-fit", "0004-fit"], "nothing else is logged"
    ours = read(tmp_path / "trackers" / "tensorboard" / run.id)
    for name in ("raw", "handed", "whole", "checked"):
        assert [(e.step, e.value) for e in ours.Scalars(name)] == [
            (e.step, e.value) for e in theirs.Scalars(name)
        ]
    assert (
        [e.step for e in ours.Images("picture")]
        == [e.step for e in theirs.Images("picture")]
        == [6, 12]
    )
    assert len(ours.Scalars("raw")) == 12
    texts = [
        path.read_text()
        for path in (tmp_path / "trackers" / "tensorboard" / run.id).rglob("hparams.yml")
    ]
    assert any("nested/depth: 1" in text for text in texts)


class Asks(boring.BoringModel):
    """As modules do that log images with some loggers alone."""

    def on_train_epoch_end(self) -> None:
        if isinstance(self.logger, pl.loggers.TensorBoardLogger):
            self.logger.experiment.add_image("picture", torch.rand(3, 4, 4), self.global_step)
        if isinstance(self.logger, pl.loggers.WandbLogger):
            raise AssertionError("it is no logger of W&B")


def test_it_is_of_lightnings_class_for_the_tracker(tmp_path: Path) -> None:
    with wb.Workbench(
        Asks(),
        train=loader(),
        root=tmp_path,
        accelerator="cpu",
        max_epochs=2,
        trackers="tensorboard",
    ) as bench:
        run = bench.fit().result()
        logger = _logger_of(bench)
        for package in ("lightning.pytorch", "pytorch_lightning"):
            loggers = pytest.importorskip(f"{package}.loggers")
            assert isinstance(logger, loggers.Logger)
            assert isinstance(logger, loggers.TensorBoardLogger)
            assert not isinstance(logger, loggers.CSVLogger)
            assert {"experiment", "log_metrics", "name"} <= {*dir(logger)}
            assert not {"log_graph", "log_dir", "version"} & {*dir(logger)}, (
                "what is refused is not offered"
            )
        sent = pickle.loads(cloudpickle.dumps({"logger": logger, "again": logger}))
        assert sent["logger"] is sent["again"]
        assert isinstance(sent["logger"], Logger)
        assert sent["logger"].name == "tensorboard"
    assert [
        e.step for e in read(tmp_path / "trackers" / "tensorboard" / run.id).Images("picture")
    ] == [6, 12]


class Own(GeneralTracker):
    """The user's own."""

    name = "own"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    @property
    def tracker(self) -> list[Any]:
        return self.calls

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.calls.append(("settings", values))

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.calls.append((step, values))


class Appends(boring.BoringModel):
    def on_train_epoch_end(self) -> None:
        assert isinstance(self.logger, Logger)
        assert isinstance(self.logger, pl.loggers.Logger)
        assert not isinstance(self.logger, pl.loggers.TensorBoardLogger)
        assert [one.name for one in self.loggers] == ["Own", "tensorboard"]
        self.logger.experiment.append(f"epoch {self.current_epoch}")


def test_an_object_of_the_users_own(tmp_path: Path) -> None:
    own = Own()
    with wb.Workbench(
        Appends(),
        train=loader(),
        root=tmp_path,
        accelerator="cpu",
        max_epochs=2,
        trackers=[own, "tensorboard"],
    ) as bench:
        bench.fit().result()
        assert [call for call in own.calls if isinstance(call, str)] == ["epoch 0", "epoch 1"]
        with pytest.raises(
            wb.TaskError,
            match=r"self\.logger\.watch is not supported. Instead: self\.logger\.experiment is the object of Own itself",
        ):
            _logger_of(bench).watch(bench.model)


def _logger_of(bench: wb.Workbench) -> Any:
    return bench._task.preparation.trainer.logger  # type: ignore[union-attr]


class NoStart(Own):
    def start(self) -> None:
        raise OSError("no network")


def test_a_tracker_that_does_not_start_is_named(tmp_path: Path) -> None:
    class Reads(boring.BoringModel):
        def on_train_start(self) -> None:
            assert self.logger is not None
            self.logger.experiment.append(1)

    with (
        wb.Workbench(
            Reads(),
            train=loader(),
            root=tmp_path,
            accelerator="cpu",
            max_epochs=1,
            trackers=NoStart(),
        ) as bench,
        pytest.raises(
            Exception, match=r"tracker 'NoStart' failed at starting for 0001-fit .*no network"
        ),
    ):
        bench.fit().result()


# ---- several processes ---------------------------------------------------------------------------


class Kept:
    """A tracker of the process that trains."""

    name = "kept"

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def experiment(self) -> Any:
        return self.rows

    def add(self, values: dict[str, Any], step: int) -> None:
        self.rows.append((step, values))

    def configure(self, values: dict[str, Any]) -> None:
        self.rows.append(values)


class RankLogs(Net):
    def on_train_epoch_end(self) -> None:
        self.logger.experiment.append(self.current_epoch)
        self.logger.log_metrics({"a": torch.tensor(1.0)})
        self.seen.append(type(self.logger.experiment).__name__)


def test_ranks_other_than_0_have_a_dummy() -> None:
    def rank() -> Any:
        own, module = Kept(), RankLogs()
        found = fit(module, batches(24, 4), trackers=[own])
        return found["seen"], own.rows

    first, other = on_ranks(2, rank)
    assert first == (["list", "list"], [0, (3, {"a": 1.0}), 1, (6, {"a": 1.0})])
    assert other == (["DummyExperiment", "DummyExperiment"], [])


def test_ranks_of_a_notebook_refuse_its_tracker(tmp_path: Path) -> None:
    with (
        wb.Workbench(
            Logs(),
            train=loader(),
            root=tmp_path,
            accelerator="cpu",
            devices=2,
            max_epochs=1,
            trackers="tensorboard",
        ) as bench,
        pytest.raises(
            Exception,
            match=r"self\.logger: the tracker 'tensorboard' belongs to the notebook's process.*strategy='launch'",
        ),
    ):
        bench.fit().result()


class LogsMine(boring.BoringModel):
    def on_train_epoch_end(self) -> None:
        self.logger.experiment.add_scalar("mine", 1.0, self.global_step)


@pytest.mark.usefixtures("forked_ranks")
def test_a_launched_run_logs_in_its_first_process(tmp_path: Path) -> None:
    with wb.Workbench(
        LogsMine(),
        train=loader(),
        root=tmp_path,
        accelerator="cpu",
        strategy="launch",
        devices=2,
        max_epochs=2,
        trackers="tensorboard",
    ) as bench:
        id = bench.fit().result().id
    assert [
        (e.step, e.value) for e in read(tmp_path / "trackers" / "tensorboard" / id).Scalars("mine")
    ] == [(3, 1.0), (6, 1.0)]
