"""Metrics over a whole check: against one computation on all of its outputs, whatever the batches and the ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import workbench as wb
from tests.engine.fit_results import fit
from tests.engine.sharded import alone, sharded
from tests.on_ranks import on_ranks
from workbench.events import Validated
from workbench.launch import turns
from workbench.task.errors import TaskError

torchmetrics = pytest.importorskip("torchmetrics")
pytestmark = pytest.mark.usefixtures("one_thread")

CLASSES = 4
NUMBERS = torch.Generator().manual_seed(0)
CENTRES = torch.randn(CLASSES, 6, generator=NUMBERS)
# Sorted by class, as data often are: every batch has one or two classes alone.
Y = torch.arange(CLASSES).repeat_interleave(25)
X = CENTRES[Y] + torch.randn(100, 6, generator=NUMBERS)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def auc(output: Tensor, target: Tensor) -> float:
    return float(roc_auc_score(target, output.softmax(1), multi_class="ovr"))


def every_metric() -> dict[str, Any]:
    kind = {"task": "multiclass", "num_classes": CLASSES}
    return {
        "auroc": torchmetrics.AUROC(**kind),
        "f1": torchmetrics.F1Score(average="macro", **kind),
        "several": torchmetrics.MetricCollection(
            [torchmetrics.Accuracy(**kind), torchmetrics.Recall(**kind)]
        ),
        "auc": wb.over_epoch(auc),
        "own": MacroRecall(),
    }


def expected(model: nn.Module) -> dict[str, float]:
    with torch.no_grad():
        output = model(X)
    found = {}
    for name, metric in every_metric().items():
        metric.update(output, Y)
        value = metric.compute()
        found |= (
            {str(k): float(v) for k, v in value.items()}
            if isinstance(value, dict)
            else {name: float(value)}
        )
    return {f"val_{name}": value for name, value in found.items()}


class MacroRecall:
    """A duck of no library: the mean of the classes' recalls."""

    def reset(self) -> None:
        self.right, self.all = torch.zeros(CLASSES), torch.zeros(CLASSES)

    def __init__(self) -> None:
        self.reset()

    def update(self, output: Tensor, target: Tensor) -> None:
        self.right += torch.bincount(target[output.argmax(1) == target], minlength=CLASSES)
        self.all += torch.bincount(target, minlength=CLASSES)

    def compute(self) -> float:
        seen = self.all > 0
        return float((self.right[seen] / self.all[seen]).mean())


def bench(tmp_path: Any, metrics: Any, **more: Any) -> wb.Workbench:
    usual = {
        "train": (X, Y),
        "val": (X, Y),
        "loss": F.cross_entropy,
        "batch_size": 8,
        "max_epochs": 2,
        "lr": 0.05,
    }
    return wb.Workbench(
        net(), metrics=metrics, root=tmp_path, accelerator="cpu", **{**usual, **more}
    )


def test_a_check_is_one_computation(tmp_path):
    metrics = every_metric()
    with bench(tmp_path, metrics) as made:
        run = made.fit().result()
        wanted = expected(made.model.eval())
        assert {name: run.metrics[name] for name in wanted} == pytest.approx(wanted, abs=1e-6)
        assert made.validate().result() == pytest.approx(
            {name: run.metrics[name] for name in ("val_loss", *wanted)}, abs=1e-6
        )
    assert not metrics["own"].all.any()  # nothing of a check stays in it
    assert not metrics["auroc"].update_called


def test_the_case_of_the_issue(tmp_path):
    """The mean of batches is far from the true value: a batch of one class has no AUROC."""
    kind = {"task": "multiclass", "num_classes": CLASSES}
    with bench(tmp_path, {"auroc": torchmetrics.AUROC(**kind)}, max_epochs=10) as made:
        assert made.fit().result().metrics["val_auroc"] > 0.95


def test_averaged_weights_have_a_computation_of_their_own(tmp_path):
    with bench(tmp_path, every_metric(), weight_averaging="ema", ema_decay=0.8) as made:
        metrics = made.fit().result().metrics
        wanted = expected(made.model.eval())  # which has the averaged weights now
    assert {name: metrics[f"{name}_averaged"] for name in wanted} == pytest.approx(wanted, abs=1e-6)
    assert metrics["val_auc"] != metrics["val_auc_averaged"]


def test_a_check_that_a_person_asks_for_leaves_no_trace(tmp_path):
    def run(asks: bool) -> list[dict[str, float]]:
        with bench(
            tmp_path / str(asks), every_metric(), val_check_interval=4, max_epochs=3
        ) as made:
            with turns.alone():  # the job waits until it is asked
                job = made.fit()
                if asks:
                    job.validate()
            job.result()
            return [e.metrics for e in job.events if isinstance(e, Validated) and not e.asked]

    assert run(True) == run(False)


def test_test_data_and_a_batch_size_search(tmp_path):
    with bench(tmp_path, every_metric(), test=(X, Y), max_epochs=1) as made:
        found = made.test().result()
        wanted = expected(made.model.eval())
        assert {
            f"val_{name[5:]}": found[name] for name in found if name != "test_loss"
        } == pytest.approx(wanted)
        assert (
            made.find_batch_size(method="validate", max_val=16, steps_per_trial=1)
            .result()
            .trials[-1]
            .ok
        )


def test_what_a_metric_gives_by_name(tmp_path):
    def functions(output: Tensor, y: Tensor) -> dict[str, Tensor]:
        right = output.argmax(1) == y
        return {"right": right, "val_wrong": (~right).float().mean()}

    metrics = {
        "functions": functions, "all_right": lambda output, y: bool((output.argmax(1) == y).all()),
        "largest": wb.over_epoch(lambda output, y: {"first": output[0].max(), "n": len(y)}),
    }  # fmt: skip
    with bench(tmp_path, metrics) as made:
        found = made.validate().result()
        assert found["val_right"] + found["val_wrong"] == pytest.approx(1.0)
        assert 0.0 <= found["val_all_right"] <= 1.0
        assert found["val_n"] == 100
        assert found["val_first"] == pytest.approx(made.model(X[:1]).max().item())


def test_a_nan_is_reported_as_it_is(tmp_path):
    with bench(
        tmp_path, {"none": wb.over_epoch(lambda output, y: float("nan"))}, max_epochs=1
    ) as made:
        assert made.fit().result().metrics["val_none"] != made.validate().result()["val_loss"]


def test_a_metric_of_two_samples_need_have_no_value(tmp_path):
    def needs_many(output: Tensor, y: Tensor) -> float:
        if len(y) < 100:
            raise ValueError("only one class")
        return 1.0

    with bench(
        tmp_path,
        {"many": wb.over_epoch(needs_many)},
        max_epochs=1,
        monitor="val_many",
        monitor_mode="max",
    ) as made:
        assert made.fit().result().metrics["val_many"] == 1.0


def test_a_metric_that_fails_over_the_check(tmp_path):
    def fails(output: Tensor, y: Tensor) -> float:
        raise ValueError("nothing to see here")

    with (
        bench(tmp_path, {"own": wb.over_epoch(fails)}, max_epochs=1) as made,
        pytest.raises(
            TaskError, match=r"metrics\['own'\] failed over val with ValueError: nothing"
        ),
    ):
        made.fit().result()


@pytest.mark.parametrize("n", [100, 27, 8])
def test_ranks_compute_what_one_process_would(n):
    """Of 27 samples rank 1 has one batch fewer, of 8 it has none."""
    settings = {"batch_size": 8, "max_epochs": 1, "accelerator": "cpu", "max_steps": 2}
    given = {
        "train": (X, Y),
        "val": (X[:n], Y[:n]),
        "loss": F.cross_entropy,
        "metrics": every_metric(),
    }
    if n < 30:
        del given["metrics"]["auc"], given["metrics"]["auroc"]  # of one or two classes
    found = on_ranks(2, fit, net(), given, settings)[0]
    model = net()
    model.load_state_dict(found["weights"])
    with torch.no_grad():
        wanted = expected(model)["val_auc"] if n == 100 else None
        own = MacroRecall()
        own.update(model(X[:n]), Y[:n])
    _, metrics = found["checks"][-1]
    assert metrics["val_own"] == pytest.approx(own.compute(), abs=1e-6)
    if wanted is not None:
        assert metrics["val_auc"] == pytest.approx(wanted, abs=1e-6)
        assert metrics["val_auroc"] == pytest.approx(wanted, abs=1e-5)
    right = float((model(X[:n]).argmax(1) == Y[:n]).float().mean())
    assert metrics["val_MulticlassAccuracy"] == pytest.approx(right, abs=1e-6)


def test_ranks_have_the_order_of_the_data():
    def numbers(output: Tensor, y: Tensor) -> dict[str, float]:
        return {"in_order": float(torch.equal(y, Y[:27])), "n": float(len(y))}

    given = {
        "train": (X, Y),
        "val": (X[:27], Y[:27]),
        "loss": F.cross_entropy,
        "metrics": {"own": wb.over_epoch(numbers)},
    }
    settings = {
        "batch_size": 8,
        "max_epochs": 1,
        "accelerator": "cpu",
        "max_steps": 1,
        "num_sanity_val_steps": 0,
    }
    for found in on_ranks(2, fit, net(), given, settings):
        if found["checks"]:
            assert found["checks"][-1][1] | {"val_loss": 0.0} == {
                "val_loss": 0.0,
                "val_in_order": 1.0,
                "val_n": 27.0,
            }


def test_weights_in_shards():
    given = {
        "train": (X, Y),
        "val": (X[:84], Y[:84]),
        "loss": F.cross_entropy,
        "metrics": every_metric(),
    }
    settings = {"max_epochs": 1, "max_steps": 2, "accelerator": "cpu"}
    one = alone(net, given, settings)
    two = sharded(net, {**given, "metrics": every_metric()}, settings)
    (_, wanted), (_, found) = one["checks"][-1], two["checks"][-1]
    assert found == {name: pytest.approx(value, abs=1e-4) for name, value in wanted.items()}


class Pair:
    """As pytorch-ignite's metrics: `update` takes one pair."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.n = 0

    def update(self, output: tuple[Tensor, Tensor]) -> None:
        prediction, target = output
        self.n += len(target)
        assert len(prediction) == len(target)

    def compute(self) -> int:
        return self.n


def test_an_update_that_takes_one_pair(tmp_path):
    with bench(tmp_path, {"n": Pair()}) as made:
        assert made.validate().result()["val_n"] == 100


KIND = {"task": "multiclass", "num_classes": CLASSES}
REFUSED = {
    "a vector of shape (4,)": {"v": torchmetrics.Accuracy(average=None, **KIND)},
    "a matrix of shape (4, 4)": {"v": torchmetrics.ConfusionMatrix(**KIND)},
    "a vector of shape (4,), and a metric is one number: take its mean": {"v": lambda output, y: output.mean(0)},
    "takes (value, weight)": {"v": torchmetrics.MeanMetric()},
    "takes the targets first (y_true, y_score)": {"v": roc_auc_score},
    "give wb.over_epoch(lambda output, y: roc_auc_score(y, output))": {"v": wb.over_epoch(roc_auc_score)},
    "update(preds, target, indexes)": {"v": torchmetrics.RetrievalMAP()},
    "metrics['v']=3 cannot be called": {"v": 3},
    "metrics['v']=Accuracy is a class: give an instance, Accuracy(…)": {"v": torchmetrics.Accuracy},
    "metrics= takes a dict of names: metrics={'accuracy': accuracy}": [torchmetrics.functional.accuracy],
    "metrics= takes a dict of names: metrics={'auc': auc}": auc,
    "metrics= takes a dict of names: metrics={'multiclassauroc': MulticlassAUROC(…)}": torchmetrics.AUROC(**KIND),
    "metrics= has the key 3": {3: auc},
    "PearsonCorrCoef did not take the model's output (float32 of shape (2, 4)) and the target": {"v": torchmetrics.PearsonCorrCoef()},
    "is computed over a validation already: give it without wb.over_epoch": {"v": wb.over_epoch(torchmetrics.AUROC(**KIND))},
    "MetricTracker keeps values of epochs": {"v": torchmetrics.MetricTracker(torchmetrics.AUROC(**KIND))},
    "metrics['v'], called with the model's output (float32 of shape (2, 4)) and the target (int64 of shape (2,))": {
        "v": torchmetrics.functional.accuracy
    },
    "another metric that is reported as 'val_a'": {
        "a": wb.over_epoch(lambda output, y: 1.0), "b": wb.over_epoch(lambda output, y: {"a": 1.0})
    },
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_no_metric(words, tmp_path):
    with pytest.raises(TaskError) as caught:
        bench(tmp_path, REFUSED[words])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 420


def test_a_function_that_calls_an_object(tmp_path):
    auroc = torchmetrics.AUROC(**KIND)
    with pytest.warns(
        UserWarning,
        match=r"metrics\['a'\] calls auroc, a MulticlassAUROC, .* give the object itself",
    ):
        bench(tmp_path, {"a": lambda output, y: auroc(output.softmax(1), y)}).close()


def test_what_an_object_keeps_is_of_the_checks_alone(tmp_path):
    """A reset of MinMaxMetric leaves its extremes: trials, checks aside and those of averaged weights are not among them."""
    metric = torchmetrics.MinMaxMetric(torchmetrics.Accuracy(**KIND))
    with bench(tmp_path, {"own": metric}, weight_averaging="ema", max_epochs=3) as made:
        with turns.alone():  # the job waits until it is asked
            job = made.fit()
            job.validate()
        run = job.result()
        seen = [
            e.metrics["val_raw"] for e in job.events if isinstance(e, Validated) and not e.asked
        ]
        assert (run.metrics["val_min"], run.metrics["val_max"]) == (min(seen), max(seen))


def test_a_collection_without_a_name(tmp_path):
    collection = torchmetrics.MetricCollection([torchmetrics.Accuracy(**KIND)], prefix="val_")
    with bench(tmp_path, collection) as made:
        found = made.validate().result()
    assert set(found) == {"val_loss", "val_MulticlassAccuracy"}


def test_a_checkpoint_holds_nothing_of_them(tmp_path):
    with bench(tmp_path / "whole", every_metric(), max_epochs=2) as made:
        whole = made.fit().result()
    with bench(tmp_path / "parts", every_metric(), max_epochs=1) as made:
        made.fit().result()
        on = made.fit(start="continue", max_epochs=2).result()
    assert on.metrics == whole.metrics
    assert list(on.history["loss"]) == list(whole.history["loss"])


class Counting(nn.Module):
    """A metric that is a module, as those of torchmetrics were to a checkpoint before: it keeps nothing."""

    def forward(self, output: Tensor, y: Tensor) -> float:
        return float(len(y))


def test_a_checkpoint_of_before_they_were_computed_over_checks(tmp_path):
    with bench(tmp_path, {"n": Counting()}, max_epochs=1) as made:
        run = made.fit().result()
    with bench(tmp_path, {"n": torchmetrics.Accuracy(**KIND)}) as made:
        assert made.fit(start=run.id, max_epochs=2).result().metrics["val_n"] <= 1.0
