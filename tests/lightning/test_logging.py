"""`self.log` in any hook, by step and epoch, reduced and weighed: the names and values that Lightning's loggers are told.

What differs, and is meant to:
- What validation logs for single batches (`on_step=True` there) is no part of the record, whose rows are updates; its reduced
  value is.
- Of a value by step and by epoch the record has the plain name too, as `callback_metrics` has in Lightning: monitors ask for it.
- `callback_metrics` knows the run's own `train_loss` beside what was logged.
- All loaders have the batch size of the settings.
"""

import importlib
import inspect
from dataclasses import dataclass, field

import pytest
import torch
from torch.utils.data import DataLoader

import workbench as wb
from tests.lightning.both import boring, pl, rows
from tests.trackers.test_choice import Recorder
from workbench.events import Logged, StepsDone, Validated
from workbench.runs.run import Run
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH = [
    "training_step", "on_train_batch_start", "on_train_batch_end", "on_before_backward", "on_after_backward", "backward",
    "on_before_zero_grad", "optimizer_zero_grad", "on_before_optimizer_step", "optimizer_step", "configure_gradient_clipping",
]  # fmt: skip
EPOCH = ["on_train_start", "on_train_epoch_start", "on_train_epoch_end"]
CHECK = [
    "validation_step", "on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end",
    "on_validation_batch_start", "on_validation_batch_end",
]  # fmt: skip
OWN_COLUMNS = {"loss", "lr", "grad_norm", "grad_norm_clipped", "layer_norms", "skipped"}


class Records(pl.loggers.logger.Logger):
    """A logger that keeps what it is told."""

    name, version = "records", 0

    def __init__(self):
        super().__init__()
        self.told = {}

    def log_hyperparams(self, *arguments, **options):
        """Nothing to keep."""

    def log_metrics(self, metrics, step=None):
        for name, value in metrics.items():
            if name != "epoch":
                self.told.setdefault(name, []).append((step, value))


def short(value):
    """Numbers of five digits: sums are taken in another order, or in double precision."""
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [short(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


@dataclass
class Told:
    """What one side was told: (update, value)s by name; what the module saw; what stood at the end."""

    told: dict = field(default_factory=dict)
    seen: list = field(default_factory=list)
    end: dict = field(default_factory=dict)


def logging_in(hook, seen, **options):
    """The demo model, which logs "x" in this hook, and looks at its trainer's metrics now and then."""
    own = getattr(boring.BoringModel, hook)

    def logs(self, *args, **kwargs):
        result = own(self, *args, **kwargs)
        batch_idx = inspect.signature(own).bind(self, *args, **kwargs).arguments.get("batch_idx", 0)
        self.log(
            "x",
            float((7 * self.current_epoch + 3 * self.global_step + 5 * batch_idx) % 11),
            **options,
        )
        return result

    logs.__signature__ = inspect.signature(own)

    def looks(name):
        def look(self, *args):
            if name == hook:
                logs(self, *args)
            if not self.trainer.sanity_checking:
                metrics = {
                    k: float(v)
                    for k, v in self.trainer.callback_metrics.items()
                    if k.startswith("x")
                }
                seen.append((name, self.current_epoch, metrics))

        return look

    watching = {
        name: looks(name) for name in ("on_validation_end", "on_train_epoch_end", "on_train_end")
    }
    return type("Logs", (boring.BoringModel,), {hook: logs, **watching, "__module__": __name__})


def data():
    """The last batch of each is a shorter one."""
    return DataLoader(rows(18), batch_size=4), DataLoader(rows(7, 2), batch_size=4)


def lightnings(hook, *, settings=None, **options):
    torch.manual_seed(0)
    found, logger = Told(), Records()
    module = logging_in(hook, found.seen, **options)()
    quiet = {
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    host = pl.Trainer(
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=1,
        max_epochs=2,
        **quiet,
        **(settings or {}),
    )
    train, held_out = data()
    host.fit(module, train, held_out)
    found.told = logger.told
    found.end = {name: float(value) for name, value in host.callback_metrics.items()}
    return found


def workbenchs(hook, root, *, settings=None, **options):
    torch.manual_seed(0)
    found = Told()
    module = logging_in(hook, found.seen, **options)()
    train, held_out = data()
    how = {"root": root, "accelerator": "cpu", "max_epochs": 2, **(settings or {})}
    bench = wb.Workbench(module, train=train, val=held_out, **how)
    found.seen.clear()
    run = bench.fit().result()
    for event in run.events:
        if isinstance(event, StepsDone):
            for name in set(event.columns) - OWN_COLUMNS:
                rows_of = zip(event.steps.tolist(), event.array(name).tolist(), strict=True)
                found.told.setdefault(name, []).extend(
                    pair for pair in rows_of if pair[1] == pair[1]
                )
        elif isinstance(event, (Logged, Validated)):
            for name, value in event.metrics.items():
                found.told.setdefault(name, []).append((event.step - 1, value))
    if "x_epoch" in found.told:
        assert found.told.pop("x") == found.told["x_epoch"]
    found.end = dict(run.metrics)
    return found


def the_same(hook, root, **how):
    theirs, ours = lightnings(hook, **how), workbenchs(hook, root, **how)
    assert theirs.told
    assert short(ours.told) == short(theirs.told)
    assert short(ours.seen) == short(theirs.seen)
    assert short({name: ours.end.get(name) for name in theirs.end}) == short(theirs.end)


@pytest.mark.parametrize("hook", [*BATCH, *EPOCH, *CHECK])
def test_the_defaults_of_each_hook(hook, tmp_path):
    the_same(hook, tmp_path)


LEVELS = [
    {"on_step": True, "on_epoch": True},
    {"on_step": False, "on_epoch": True},
    {"on_step": True, "on_epoch": False},
    {"on_epoch": True, "reduce_fx": "max"},
    {"on_epoch": True, "reduce_fx": "min"},
    {"on_epoch": True, "reduce_fx": "sum"},
    {"on_epoch": True, "reduce_fx": torch.sum},
    {"on_epoch": True, "batch_size": 1},
    {"on_step": False, "on_epoch": True, "batch_size": 3, "prog_bar": True},
]


def said(options):
    """The options as a name that is the same in each run."""
    return " ".join(
        f"{name}={getattr(value, '__name__', value)}" for name, value in options.items()
    )


@pytest.mark.parametrize("options", LEVELS, ids=said)
@pytest.mark.parametrize(
    "hook", ["training_step", "on_train_batch_end", "on_before_optimizer_step"]
)
def test_steps_and_epochs_of_training(hook, options, tmp_path):
    the_same(hook, tmp_path, **options)


@pytest.mark.parametrize(
    "options", [o for o in LEVELS if not o.get("on_step") and o.get("on_epoch")], ids=said
)
@pytest.mark.parametrize("hook", ["validation_step", "on_validation_batch_end"])
def test_reductions_of_validation(hook, options, tmp_path):
    the_same(hook, tmp_path, **options)


@pytest.mark.filterwarnings("ignore:.*a record has one value for each validation")
@pytest.mark.parametrize(
    "options", [{"on_step": True, "on_epoch": True}, {"on_step": True, "on_epoch": False}], ids=str
)
def test_single_batches_of_validation_are_no_part_of_the_record(options, tmp_path):
    theirs = lightnings("validation_step", **options)
    ours = workbenchs("validation_step", tmp_path, **options)
    assert short(ours.told) == short(
        {name: value for name, value in theirs.told.items() if name == "x_epoch"}
    )


def test_epochs_of_windows(tmp_path):
    """A value a window by step; all of them by epoch."""
    the_same(
        "training_step",
        tmp_path,
        on_epoch=True,
        settings={"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
    )


def test_checks_in_the_middle_of_an_epoch(tmp_path):
    the_same(
        "validation_step", tmp_path, settings={"val_check_interval": 2, "limit_train_batches": 4}
    )


def test_without_validation(tmp_path):
    the_same("training_step", tmp_path, on_epoch=True, settings={"limit_val_batches": 0})


REFUSED = [
    "on_fit_start",
    "on_train_end",
    "on_validation_end",
    "configure_optimizers",
    "lr_scheduler_step",
]


@pytest.mark.parametrize("hook", REFUSED)
def test_where_nothing_can_be_logged(hook, tmp_path):
    """Both say so."""
    with pytest.raises(pl.utilities.exceptions.MisconfigurationException, match=f"inside `{hook}`"):
        lightnings(hook)
    with pytest.raises(TaskError, match=r"self\.log\('x'\) in .*: nothing can be logged there"):
        workbenchs(hook, tmp_path)


BAD = {"two numbers": torch.ones(2), "a dictionary": {"a": {"b": 1.0}}, "a word": "high"}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_values_that_are_no_numbers(value, tmp_path):
    class Wrong(boring.BoringModel):
        def training_step(self, batch, batch_idx):
            self.log("named", value)
            return super().training_step(batch, batch_idx)

    with pytest.raises(Exception, match="named"):
        pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                   enable_model_summary=False, max_epochs=1).fit(Wrong(), *data())  # fmt: skip
    with pytest.raises(TaskError, match="named"):
        wb.Workbench(Wrong(), train=data()[0], root=tmp_path, accelerator="cpu").fit().result()


# -- what modules do with it


class Averaged(boring.BoringModel):
    """Keeps what its steps found, and logs of it at the end of the epoch: Lightning 2's way."""

    def __init__(self):
        super().__init__()
        self.outputs = []

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.outputs.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.log("train_mean", torch.stack(self.outputs).mean())
        self.log("train_worst", torch.stack(self.outputs).max(), prog_bar=True)
        self.outputs.clear()


def test_what_is_gathered_over_an_epoch(tmp_path):
    logger = Records()
    torch.manual_seed(0)
    theirs = Averaged()
    quiet = {
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    pl.Trainer(accelerator="cpu", logger=logger, log_every_n_steps=1, max_epochs=3, **quiet).fit(
        theirs, data()[0]
    )
    torch.manual_seed(0)
    bench = wb.Workbench(
        Averaged(),
        train=data()[0],
        root=tmp_path,
        accelerator="cpu",
        max_epochs=3,
        limit_val_batches=0,
    )
    logged = [event for event in bench.fit().result().events if isinstance(event, Logged)]
    for name in ("train_mean", "train_worst"):
        assert short([(event.step - 1, event.metrics[name]) for event in logged]) == short(
            logger.told[name]
        )
    assert all(event.prog_bar == ("train_worst",) for event in logged)


class Accurate(boring.BoringModel):
    """A metric object with a state, logged as Lightning's documentation has it."""

    def __init__(self):
        super().__init__()
        self.mean, self.held_out = torchmetrics().MeanMetric(), torchmetrics().MeanMetric()

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        self.mean(loss.detach())
        self.log("metric", self.mean, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.held_out.update(self.step(batch))
        self.log("val_metric", self.held_out)


def torchmetrics():
    return importlib.import_module("torchmetrics")


def test_metric_objects(tmp_path):
    logger = Records()
    torch.manual_seed(0)
    theirs = Accurate()
    quiet = {
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    pl.Trainer(accelerator="cpu", logger=logger, log_every_n_steps=1, max_epochs=3, **quiet).fit(
        theirs, *data()
    )
    torch.manual_seed(0)
    train, val = data()
    run = (
        wb.Workbench(
            Accurate(), train=train, val=val, root=tmp_path, accelerator="cpu", max_epochs=3
        )
        .fit()
        .result()
    )
    steps = zip(run.history["step"].tolist(), run.history["metric_step"].tolist(), strict=True)
    assert short([*steps]) == short(logger.told["metric_step"])
    logged = [(e.step - 1, e.metrics["metric_epoch"]) for e in run.events if isinstance(e, Logged)]
    assert short(logged) == short(logger.told["metric_epoch"])
    checks = zip(
        (run.validation["step"] - 1).tolist(), run.validation["val_metric"].tolist(), strict=True
    )
    assert short([*checks]) == short(logger.told["val_metric"])


class Measured(boring.BoringModel):
    """Logs each loss as a tensor and as a number, and keeps what it has logged."""

    def __init__(self):
        super().__init__()
        self.seen, self.checked = [], []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        self.seen.append(loss.item())
        self.log_dict({"tensor": loss, "number": loss.item()})
        return loss

    def validation_step(self, batch, batch_idx):
        loss = super().validation_step(batch, batch_idx)["x"]
        self.checked.append(loss.item())
        self.log_dict({"val_tensor": loss, "val_number": loss.item()})
        return loss


def test_values_in_double_precision_stay_as_they_were_logged(tmp_path):
    """In history, in the record and in what trackers are told."""
    torch.manual_seed(0)
    train, held_out = (x.double() for x in torch.randn(5, 3, 32).split([4, 1]))
    module, tracker = Measured().double(), Recorder()
    bench = wb.Workbench(
        module, train=wb.batches(list(train)), val=wb.batches(list(held_out)), root=tmp_path, accelerator="cpu", max_epochs=1,
        num_sanity_val_steps=0, trackers=tracker,
    )  # fmt: skip
    module.seen.clear()
    module.checked.clear()
    run = bench.fit().result()
    assert [value != float(torch.tensor(value)) for value in (*module.seen, *module.checked)] == [
        True
    ] * 5
    for there in (run, Run.open(run.folder)):
        for name in ("tensor", "number", "loss"):
            assert there.history[name].tolist() == module.seen
        for name in ("val_tensor", "val_number", "val_loss"):
            assert there.validation[name].tolist() == module.checked
    for name in ("tensor", "number", "loss"):
        assert [value for _, value in tracker.logged(name)] == module.seen
    for name in ("val_tensor", "val_number", "val_loss"):
        assert [value for _, value in tracker.logged(name)] == module.checked
