"""What `self.log` makes of values: names, defaults by hook, reductions, metrics, and what a checkpoint keeps of it."""

import importlib
import io
import math

import pytest
import torch

from workbench.events.columns import recorded_name
from workbench.task.errors import TaskError
from workbench.task.lightning.logging.log import CHUNK, LOG_TARGETS, Log

BATCHES = [torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(1, 2)]
VALUES = [1.0, 2.0, 9.0]


def epoch(log=None, hook="training_step", values=VALUES, batches=BATCHES, name="acc", **options):
    """The log behind an epoch in which this was logged at each batch, and what the updates gave."""
    log = log or Log()
    steps = []
    for value, batch in zip(values, batches, strict=True):
        log.begin_batch(batch)
        log.hook = hook
        log.log(name, torch.tensor(value), **options)
        log.hook = None
        log.end_batch()
        steps.append({key: float(number) for key, number in log.steps().items()})
    return log, steps


def reduced(log, evaluation=False):
    return {name: float(value) for name, value in log.end(evaluation=evaluation).items()}


def test_a_training_step_logs_for_its_update():
    log, steps = epoch()
    assert steps == [{"acc": 1.0}, {"acc": 2.0}, {"acc": 9.0}]
    assert log.steps() == {}
    assert log.latest == {"acc": torch.tensor(9.0)}
    assert reduced(log) == {}


def test_a_fork_has_two_names_and_its_plain_one():
    log, steps = epoch(on_epoch=True)
    assert steps == [{"acc_step": value} for value in VALUES]
    mean = (4 * 1.0 + 4 * 2.0 + 9.0) / 9  # weighed by samples
    assert reduced(log) == pytest.approx({"acc_epoch": mean, "acc": mean})
    assert reduced(log) == {}  # and it is forgotten
    assert float(log.latest["acc"]) == pytest.approx(mean)  # as long as no step comes
    epoch(log, on_epoch=True)
    assert float(log.latest["acc"]) == 9.0


@pytest.mark.parametrize(
    ("reduce_fx", "expected"),
    [("mean", 21 / 9), ("avg", 21 / 9), (torch.mean, 21 / 9), ("sum", 12.0), (sum, 12.0), ("MIN", 1.0), (torch.min, 1.0),
     ("max", 9.0), (max, 9.0), (lambda values: values.median(), 2.0), (lambda values: float(values[0]), 1.0)],
)  # fmt: skip
def test_reductions(reduce_fx, expected):
    log, steps = epoch(on_step=False, on_epoch=True, reduce_fx=reduce_fx)
    assert steps == [{}, {}, {}]
    assert reduced(log) == pytest.approx({"acc": expected})


def test_weights():
    log, _ = epoch(on_step=False, on_epoch=True, batch_size=1)
    assert reduced(log) == {"acc": 4.0}
    log = Log()
    log.begin_batch(BATCHES[0])
    log.hook = "validation_step"
    log.log("loss_of_tokens", 1.0)
    log.set_weight(12.0)  # the step reports how much its batch counts
    log.begin_batch(BATCHES[2])
    log.log("loss_of_tokens", 4.0)
    assert reduced(log, True) == pytest.approx({"loss_of_tokens": (12 * 1.0 + 4.0) / 13})
    log.end_batch()
    log.hook = "on_validation_epoch_end"  # it belongs to no batch
    log.log("worst", 3)
    assert reduced(log, True) == {"worst": 3.0}


@pytest.mark.parametrize("reduce_fx", ["mean", "sum", "min", "max"])
def test_long_epochs_are_added_up_on_the_way(reduce_fx):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3 * CHUNK + 7, generator=generator).tolist()
    batches = [torch.zeros(1 + n % 3) for n in range(len(values))]
    log, _ = epoch(
        values=values, batches=batches, on_step=False, on_epoch=True, reduce_fx=reduce_fx
    )
    exact = torch.tensor(values).double()
    weights = torch.tensor([float(len(b)) for b in batches], dtype=torch.float64)
    wanted = (
        (exact * weights).sum() / weights.sum()
        if reduce_fx == "mean"
        else getattr(exact, reduce_fx)()
    )
    assert reduced(log)["acc"] == pytest.approx(float(wanted), rel=1e-12)


def test_numbers_of_all_kinds():
    log = Log()
    log.hook = "on_train_epoch_end"
    for value in (2, 0.5, True, torch.tensor([3]), torch.tensor(1, dtype=torch.bfloat16)):
        log.log("mixed", value)
    assert reduced(log) == pytest.approx({"mixed": (2 + 0.5 + 1 + 3 + 1) / 5})


def test_a_value_that_goes_on_being_counted_up():
    log, seen = Log(), torch.zeros(())
    for _ in range(3):
        log.begin_batch(BATCHES[0])
        log.hook = "training_step"
        seen += 1
        log.log("seen", seen, on_epoch=True, reduce_fx="sum")
    seen += 100
    assert float(log.steps()["seen_step"]) == 3.0
    assert reduced(log)["seen_epoch"] == 6.0


def test_no_graph_is_kept():
    log, weight = Log(), torch.ones((), requires_grad=True)
    log.hook = "training_step"
    log.log("loss2", weight * 2, on_epoch=True, enable_graph=True)
    assert not log.steps()["loss2_step"].requires_grad
    assert not log.end(evaluation=False)["loss2"].requires_grad


# -- hooks


def test_defaults_are_lightnings():
    """Held against Lightning's own table."""
    validator = importlib.import_module(
        "lightning.pytorch.trainer.connectors.logger_connector.fx_validator"
    )._FxValidator
    theirs = {name: level for name, level in validator.functions.items() if level is not None}
    theirs.pop("clip_gradients")  # no hook of a user's
    assert LOG_TARGETS.keys() == theirs.keys()
    for name, level in theirs.items():
        place = LOG_TARGETS[name]
        assert (place.on_step, not place.on_step) == (
            level["default_on_step"],
            level["default_on_epoch"],
        )
        assert place.by_step == (True in level["allowed_on_step"])


@pytest.mark.parametrize(
    "hook", [None, "on_fit_start", "predict_step", "configure_optimizers", "on_train_end"]
)
def test_where_nothing_can_be_logged(hook):
    log = Log()
    log.hook = hook
    with pytest.raises(
        TaskError, match=rf"self\.log\('acc'\) in {hook or 'no hook'}.*nothing can be logged"
    ):
        log.log("acc", 1.0)


@pytest.mark.parametrize(
    ("hook", "options", "message"),
    [("on_train_epoch_end", {"on_step": True}, "it belongs to no step"),
     ("on_train_epoch_end", {"on_epoch": False}, "logs nothing"),
     ("training_step", {"on_step": False, "on_epoch": False}, "logs nothing"),
     ("training_step", {"reduce_fx": "median"}, "reduce_fx='median'")],
)  # fmt: skip
def test_options_that_do_not_fit(hook, options, message):
    log = Log()
    log.hook = hook
    with pytest.raises(TaskError, match=f"'acc'.*{message}"):
        log.log("acc", 1.0, **options)


def test_twice_in_one_hook_with_other_options():
    log, _ = epoch()
    log.hook = "training_step"
    with pytest.raises(
        TaskError, match=r"self\.log\('acc'\) is called twice in training_step with other arguments"
    ):
        log.log("acc", 1.0, prog_bar=True)
    log.hook = "on_train_epoch_end"
    log.log("acc", 7.0)  # another hook is another value, and the later one wins
    assert reduced(log) == {"acc": 7.0}


def test_single_batches_of_an_evaluation_are_reduced_alone():
    log, steps = epoch(hook="validation_step", on_step=True, on_epoch=True)
    assert steps == [{}, {}, {}]
    assert log.latest == {}
    assert reduced(log) == {}
    assert reduced(log, True).keys() == {"acc_epoch", "acc"}
    log, _ = epoch(hook="test_step", on_step=True, on_epoch=False)
    assert reduced(log, True) == {}


def test_training_and_evaluation_are_apart():
    log, _ = epoch(on_epoch=True)
    epoch(log, hook="validation_step", values=[5.0] * 3)
    assert reduced(log, True) == {"acc": 5.0}
    assert reduced(log)["acc"] == pytest.approx(21 / 9)


# -- values that are refused


@pytest.mark.parametrize(
    ("value", "message"),
    [(torch.zeros(2, 3), r"shape \(2, 3\).*its mean\(\)"), ({"a": 1.0}, "a dict cannot be logged; self.log_dict"),
     ("high", "a str cannot be logged"), (None, "a NoneType cannot be logged"), ([1.0], "a list cannot be logged")],
)  # fmt: skip
def test_values_that_are_no_numbers(value, message):
    log = Log()
    log.hook = "training_step"
    with pytest.raises(TaskError, match=rf"self\.log\('acc'\): .*{message}"):
        log.log("acc", value)


def test_a_nested_dictionary():
    log = Log()
    log.hook = "training_step"
    with pytest.raises(TaskError, match=r"self\.log\('inner'\): a dict cannot be logged"):
        log.log_dict({"fine": 1.0, "inner": {"a": 1.0}})


# -- names


@pytest.mark.parametrize("name", ["loss", "loss.0", "lr", "lr.1", "step", "epoch", "grad_norm", "grad_norm.2", "grad_norm/head.bias",
                                  "grad_norm_clipped", "skipped", "layer_norms"])  # fmt: skip
def test_names_that_the_record_has(name):
    assert recorded_name(name) == f"{name}_logged"
    log, steps = epoch(name=name)
    assert steps[0] == {f"{name}_logged": 1.0}
    assert float(log.known()[name]) == 9.0  # to the module it is what it called it


@pytest.mark.parametrize(
    "name", ["train_loss", "loss/train", "loss_step", "val_loss", "lr-Adam", "epochs"]
)
def test_names_that_are_free(name):
    assert recorded_name(name) == name


def test_a_fork_of_a_name_that_the_record_has():
    log, steps = epoch(name="loss", on_epoch=True)
    assert steps[0] == {"loss_step": 1.0}
    assert reduced(log).keys() == {"loss_epoch", "loss_logged"}


def test_what_the_progress_line_shows():
    log, _ = epoch(name="plain")
    epoch(log, name="shown", prog_bar=True)
    epoch(log, name="both", prog_bar=True, on_epoch=True)
    epoch(log, hook="validation_step", name="val_loss", prog_bar=True)
    assert log.on_bar == {"shown", "both_step", "both_epoch", "val_loss"}


def test_a_dictionary_with_options():
    log = Log()
    log.hook = "validation_step"
    log.log_dict({"a": 1.0, "b": torch.tensor(2.0)}, prog_bar=True, on_epoch=True)
    assert log.on_bar == {"a", "b"}
    assert reduced(log, True) == {"a": 1.0, "b": 2.0}


# -- metrics


class Counts:
    """As torchmetrics has it, by its methods alone."""

    def __init__(self):
        self.seen = []

    def update(self, value):
        self.seen.append(value)

    def compute(self):
        return sum(self.seen) / len(self.seen)

    def reset(self):
        self.seen = []


def test_an_object_that_computes():
    log, metric = Log(), Counts()
    for value in VALUES:
        log.hook = "training_step"
        metric.update(value)
        log.log("acc", metric, on_epoch=True)
    assert log.steps() == {"acc_step": 4.0}  # all that it has seen
    assert reduced(log) == {"acc_epoch": 4.0, "acc": 4.0}
    assert metric.seen == []


def test_metrics_of_torchmetrics():
    torchmetrics = importlib.import_module("torchmetrics")
    log, metric = Log(), torchmetrics.MeanMetric()
    steps = []
    for value in VALUES:
        log.hook = "training_step"
        metric(torch.tensor(value))
        log.log("acc", metric, on_step=True, on_epoch=True)
        steps.append(float(log.steps()["acc_step"]))
    assert steps == VALUES  # what its forward gave for the batch
    assert reduced(log) == {"acc_epoch": 4.0, "acc": 4.0}
    assert metric.update_count == 0
    log.hook = "training_step"
    metric.update(torch.tensor(3.0))
    log.log("acc", metric, on_step=True, on_epoch=True)
    assert log.steps() == {}  # without a forward there is no value of the batch
    assert reduced(log) == {"acc_epoch": 3.0, "acc": 3.0}


def test_a_collection_of_metrics():
    torchmetrics = importlib.import_module("torchmetrics")
    log = Log()
    collection = torchmetrics.MetricCollection(
        [torchmetrics.MeanMetric(), torchmetrics.MaxMetric()], prefix="val_"
    )
    for value in VALUES:
        log.hook = "validation_step"
        collection.update(torch.tensor(value))
        log.log_dict(collection)
    assert reduced(log, True) == {"val_MeanMetric": 4.0, "val_MaxMetric": 9.0}


def test_a_metric_that_computes_several_numbers():
    log = Log()
    log.hook = "validation_step"
    metric = Counts()
    metric.compute = lambda: torch.zeros(3)  # type: ignore[method-assign]
    log.log("acc", metric)
    with pytest.raises(TaskError, match=r"'acc'.*gave a tensor of shape \(3,\)"):
        log.end(evaluation=True)


# -- what is known, what is forgotten, what is kept


def test_what_the_trainer_knows_at_an_end():
    log, _ = epoch(on_step=False, on_epoch=True)
    epoch(log, hook="validation_step", name="val_acc", values=[5.0] * 3)
    assert log.known() == {}
    log.hook = "on_train_epoch_end"
    assert float(log.known()["acc"]) == pytest.approx(21 / 9)
    log.hook = "on_validation_end"
    assert log.known() == {"val_acc": 5.0}
    assert reduced(log, True) == {"val_acc": 5.0}  # looking at it takes nothing away


def test_what_is_tried_is_forgotten():
    log, _ = epoch(on_epoch=True)
    with log.discarding_logs():
        assert log.known() == {}
        epoch(log, name="tried", values=[math.nan] * 3, on_epoch=True, prog_bar=True)
    assert log.on_bar == frozenset()
    assert log.latest.keys() == {"acc_step", "acc"}
    assert reduced(log)["acc"] == pytest.approx(21 / 9)
    epoch(log)
    metric = Counts()
    log.hook = "training_step"
    metric.update(1.0)
    log.log("metric", metric, on_epoch=True)
    log.forget()
    assert (log.steps(), log.latest, reduced(log), metric.seen) == ({}, {}, {}, [])


@pytest.mark.parametrize("reduce_fx", ["mean", "max", lambda values: values.median()])
@pytest.mark.parametrize("before", [2, CHUNK + 3])
def test_an_epoch_that_is_gone_on_with(before, reduce_fx):
    """As if it had never been interrupted, to the last bit; what a checkpoint keeps can be read without trust."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(before + 60, generator=generator).tolist()
    batches = [torch.zeros(1 + n % 4) for n in range(len(values))]
    options = {"on_epoch": True, "reduce_fx": reduce_fx}
    whole, _ = epoch(values=values, batches=batches, **options)
    first, _ = epoch(values=values[:before], batches=batches[:before], **options)
    file = io.BytesIO()
    torch.save(first.state(), file)
    file.seek(0)
    second = Log()
    second.load_state(torch.load(file, weights_only=True))
    assert second.latest == first.latest
    epoch(second, values=values[before:], batches=batches[before:], **options)
    assert reduced(second) == reduced(whole)


def test_nothing_logged_is_nothing_kept():
    assert Log().state() == {}
    log = Log()
    log.load_state({})
    assert reduced(log) == {}
