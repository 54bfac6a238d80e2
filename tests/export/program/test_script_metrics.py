"""A script computes the metrics of a check as the run did: over all of its outputs, on one process or several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.export_running import Runner, check, lint, make_bench
from tests.warm import Warm

pytest.importorskip("torchmetrics")
pytestmark = pytest.mark.usefixtures("one_thread")

OWN = """\
import torchmetrics
from sklearn.metrics import roc_auc_score


class Wrong:
    def __init__(self):
        self.reset()

    def reset(self):
        self.seen = []

    def update(self, output, target):
        self.seen.append((output.argmax(1) != target).float())

    def compute(self):
        return torch.cat(self.seen).mean()


def auc(output, target):
    return roc_auc_score(target, output.softmax(1), multi_class="ovr")


def two(output, target):
    right = output.argmax(1) == target
    return {"right": right.float(), "all_right": right.all()}


exact = {"margin": lambda output, y: output.softmax(1)[:, 0], "right": lambda output, y: (output.argmax(1) == y).numpy(), "auc": wb.over_epoch(auc)}
kind = {"task": "multiclass", "num_classes": 3}
metrics = {
    "auroc": torchmetrics.AUROC(**kind),
    "several": torchmetrics.MetricCollection([torchmetrics.Accuracy(**kind), torchmetrics.F1Score(average="macro", **kind)]),
    "auc": wb.over_epoch(auc),
    "wrong": Wrong(),
    "two": two,
}
"""
COMMON = "train=(x[:66], y[:66]), val=(x[:41], y[:41]), loss=F.cross_entropy, batch_size=8, max_epochs=2, accelerator='cpu'"
DOUBLE = COMMON.replace("[:66],", "[:66].double(),").replace("[:41],", "[:41].double(),")
CASES = {
    "all kinds, averaged weights": f"metrics=metrics, weight_averaging='ema', ema_decay=0.9, {COMMON}",
    "objects alone": f"metrics={{'auroc': torchmetrics.AUROC(**kind)}}, {COMMON}, val_check_interval=4",
    "a collection": f"metrics=torchmetrics.MetricCollection([torchmetrics.AUROC(**kind)]), {COMMON}",
    "double precision": f"metrics=exact, {DOUBLE}, early_stopping='train_loss', weight_averaging='ema'",
    "double precision, the loss alone": f"{DOUBLE}, val_check_interval=2",
    "double precision, the loss alone, ranks": f"{DOUBLE}, devices=2",
}  # fmt: skip


@pytest.fixture(scope="module")
def runner(with_lightning: Warm, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Scripts that find torchmetrics imported, which takes a second."""
    return Runner(with_lightning, tmp_path_factory.mktemp("elsewhere"))


OFTEN = (
    "all kinds, averaged weights",
    "objects alone",
    "double precision",
    "double precision, the loss alone, ranks",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in CASES]
)
def test_the_values_are_those_of_the_run(name: str, runner: Runner, tmp_path: Path) -> None:
    """To the last bit, as the script's lines tell them with all digits."""
    bench = make_bench(
        tmp_path, f"model{'.double()' if 'double' in name else ''}, {CASES[name]}", OWN
    )
    run = bench.fit().result()
    script = bench.export(tmp_path / "out" / "train.py")
    lint(script)
    script.write_text(script.read_text().replace("{value:.4f}", "{value!r}"))
    outcome = (runner.run_two if "ranks" in name else runner.run)(script)
    check(bench, run, outcome)
    last = [line for line in outcome.said.splitlines() if line.startswith("epoch")][-1].split()
    found = dict(zip(last[2::2], map(float, last[3::2]), strict=True))
    wanted = {name: values[-1] for name, values in run.validation.items() if name.startswith("val")}
    assert wanted
    assert {name: found[name] for name in wanted} == wanted
    bench.close()
