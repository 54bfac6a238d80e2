"""A function that makes the model, given instead of a model: `wb.Workbench(build, …)`, `bench.fit(width=256)`."""

from __future__ import annotations

import itertools
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.bench.test_bad_input import refused
from tests.export.export_running import make_bench
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")
X = torch.randn(48, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(48) % 3
ACTS = {"relu": nn.ReLU, "celu": nn.CELU}


def build(width: int = 6, dropout: float = 0.1) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 3))


class Noisy(torch.utils.data.Dataset):
    """Its samples come from a generator that it keeps."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return 48

    def __getitem__(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return X[n] + torch.randn(8, generator=self.generator), Y[n]


def make(root: Path, model=build, **arguments) -> wb.Workbench:
    arguments = {"train": (X, Y), "val": (X, Y), "loss": F.cross_entropy, **arguments}
    return wb.Workbench(model, max_epochs=2, batch_size=16, root=root, **arguments)


def given(root: Path, width: int, seed: int = 0, **arguments) -> np.ndarray:
    """The losses of a bench that was given the model."""
    torch.manual_seed(seed)
    with make(root, build(width), seed=seed, **arguments) as bench:
        return bench.fit().result().history["loss"]


def test_a_fit_has_the_numbers_of_a_bench_with_that_model(tmp_path):
    with make(tmp_path) as bench:
        wide = bench.fit(width=12).result()
        assert bench.model[0].out_features == 12
        usual, again = bench.fit().result(), bench.fit(width=12).result()
        other_seed = bench.fit(seed=3).result()
    assert np.array_equal(wide.history["loss"], given(tmp_path / "1", 12))
    assert np.array_equal(usual.history["loss"], given(tmp_path / "2", 6))
    assert np.array_equal(again.history["loss"], wide.history["loss"])
    assert np.array_equal(other_seed.history["loss"], given(tmp_path / "3", 6, seed=3))
    assert wide.build == {"width": 12, "dropout": 0.1}
    assert "Sequential(width=12, dropout=0.1)" in str(wb.compare(wide, usual))


def test_data_with_a_state_begin_anew(tmp_path):
    with make(tmp_path, train=Noisy()) as bench:
        losses = [bench.fit(width=width).result().history["loss"] for width in (12, 6, 12)]
    assert np.array_equal(losses[0], losses[2])
    assert np.array_equal(losses[1], given(tmp_path / "1", 6, train=Noisy()))


def test_set_holds_for_the_jobs_after_it(tmp_path):
    with make(tmp_path, width=9) as bench:
        assert bench.model[0].out_features == 9
        bench.set(width=12, lr=0.01)
        assert bench.model[0].out_features == 12
        with pytest.raises(wb.SettingsError, match=r"call bench.set\(width=5\) first"):
            bench.find_lr(width=5)
        curve = bench.find_lr(num_training=12).result()
        run = bench.fit().result()
    assert len(curve.lrs) > 3
    assert (run.build["width"], run.settings.lr) == (12, 0.01)


def test_what_set_returns_prints_the_values_too(tmp_path):
    with make(tmp_path) as bench:
        printed = bench.set(width=12, lr=3e-3)
        assert repr(printed) == "Settings(lr=0.003, batch_size=16, max_epochs=2, width=12)"
        assert "parameters of the model's function\n    width = 12" in str(printed)
        assert printed == bench.settings
        assert bench.settings == printed
        assert hash(printed) == hash(bench.settings)
        assert "width" not in bench.set(width=8).model_dump()


def test_settings_with_values_keep_them_where_others_change(tmp_path):
    with make(tmp_path) as bench:
        printed = bench.set(width=12)
    changed = printed.replace(lr=0.5)
    assert repr(changed) == repr(printed).replace("batch_size", "lr=0.5, batch_size")
    assert "parameters of the model's function\n    width = 12" in str(changed)
    assert "parameters of the model's function" not in str(type(printed).make(lr=0.5))


def test_a_run_brings_its_values_along(tmp_path):
    with make(tmp_path) as bench:
        wide = bench.fit(width=12).result()
        bench.fit().result()
        on = bench.fit(wide.id, max_epochs=3).result()
        bench.set(width=5)
        bench.load(wide)
        assert bench.model[0].out_features == 12
        metrics = bench.validate().result()
    assert np.array_equal(on.history["loss"][:6], wide.history["loss"])
    assert on.build["width"] == 12
    assert metrics["val_loss"] == pytest.approx(wide.metrics["val_loss"])


def test_weights_that_were_loaded_stay_for_another_seed(tmp_path):
    with make(tmp_path) as bench:
        first = bench.fit().result()
        bench.load(first)
        loaded = bench.model[0].weight.detach().clone()
        bench.fit(seed=4, max_steps=1, lr=1e-9, weight_decay=0.0).result()
        assert torch.allclose(bench.model[0].weight, loaded, atol=1e-6)


RETURNS_ARGUMENTS = """
def build(width=6, momentum=0.0):
    def sgd(parameters, **kwargs):
        return torch.optim.SGD(parameters, momentum=momentum, **kwargs)

    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))
    return {"model": model, "optimizer": sgd, "loss": nn.CrossEntropyLoss()}
"""


def test_it_may_return_other_arguments_of_the_bench(tmp_path):
    arguments = "build, train=(x, y), lr=0.1, max_epochs=2"
    with make_bench(tmp_path, arguments, RETURNS_ARGUMENTS) as bench:
        plain = bench.fit().result()
        heavy = bench.fit(momentum=0.9).result()
        losses = plain.history["loss"], heavy.history["loss"]
        assert losses[0][0] == losses[1][0]
        assert losses[0][-1] != losses[1][-1]
        with pytest.warns(UserWarning, match="headless script.*take apart"):
            script = bench.export(tmp_path / "out" / "train.py", heavy, verify=False).read_text()
    assert "momentum=0.9" in script
    assert "import workbench" in script


def test_its_script_calls_it(tmp_path):
    code = RETURNS_ARGUMENTS.replace(
        '{"model": model, "optimizer": sgd, "loss": nn.CrossEntropyLoss()}', "model"
    )
    arguments = "build, train=(x, y), loss=F.cross_entropy, max_epochs=2"
    with make_bench(tmp_path, arguments, code) as bench:
        wide = bench.fit(width=12).result()
        bench.fit().result()
        script = bench.script(wide)
        assert bench.model[0].out_features == 6
    assert "network = build(width=12)" in script
    assert "import workbench" not in script


def test_ranks_train_it(tmp_path):
    with make(tmp_path, devices=2, accelerator="cpu") as bench:
        run = bench.fit(width=12).result()
    assert run.build["width"] == 12
    assert bench.model[0].out_features == 12


def test_bad_input(tmp_path):
    with make(tmp_path) as bench:
        with refused(wb.SettingsError, "widht", "Did you mean 'width'"):
            bench.fit(widht=3)
        with pytest.raises(TypeError) as caught:
            bench.fit(width="wide")
        assert "build(width='wide')" in caught.value.__notes__[0]
        assert bench.fit().result().build["width"] == 6  # nothing was lost
        job = bench.fit(max_epochs=1000)
        with pytest.raises(RuntimeError, match=r"running or queued.*fit with other values"):
            bench.fit(width=3)
        job.stop()
        job.result()
    with refused(TaskError, "a parameter lr, which is an argument of the bench too"):
        make(tmp_path, lambda lr=0.1: build())
    with refused(TaskError, "build() returned None"):
        make(tmp_path, lambda: None)
    with refused(TaskError, "returned 'batch_size', which no bench takes from it"):
        make(tmp_path, lambda: {"model": build(), "batch_size": 3})
    with refused(TaskError, "loss= is given to the bench, and", "returned one too"):
        make(tmp_path, lambda: {"model": build(), "loss": F.mse_loss})


def test_a_value_that_no_record_can_hold(tmp_path):
    def with_act(act: nn.Module | None = None) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 6), act or nn.ReLU(), nn.Linear(6, 3))

    with make(tmp_path, with_act) as bench:
        run = bench.fit(act=nn.Tanh()).result()
        on = bench.fit(run.id, max_epochs=3).result()  # it knows its own runs
        assert np.array_equal(on.history["loss"][:6], run.history["loss"])
        assert bench.fit().result().build == {"act": None}
    with make(tmp_path, with_act) as bench:
        with refused(TaskError, f"the model of run {run.id}", "act=Tanh()", "cannot hold"):
            bench.fit(run.id, max_epochs=3)
        again = bench.fit(run.id, max_epochs=3, act=nn.Tanh()).result()
    assert np.array_equal(again.history["loss"], on.history["loss"])


def test_a_class_or_a_function_that_is_the_default_needs_no_word(tmp_path):
    def with_act(act: type[nn.Module] = nn.ReLU, init: Any = nn.init.ones_) -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 6), act(), nn.Linear(6, 3))
        init(model[0].weight)
        return model

    with make(tmp_path, with_act) as bench:
        usual = bench.fit().result()
        other = bench.fit(act=nn.Tanh).result()
    with make(tmp_path, with_act) as bench:
        on = bench.fit(usual.id, max_epochs=3).result()
        assert on.build == usual.build
        with refused(TaskError, "ReLU", "act=<class", "Tanh", "bench.set(act=…)"):
            bench.load(other.id)
        bench.set(act=nn.Tanh)
        for epochs in (3, 4):  # what is set holds for all later fits
            assert bench.fit(other.id, max_epochs=epochs).result().build == other.build
        bench.load(other.id)
        bench.load(usual.id)
        assert isinstance(bench.model[1], nn.ReLU)
        assert bench.fit(usual.id, max_epochs=4).result().build == usual.build


def test_a_parameter_that_is_newer_than_the_run(tmp_path):
    with make(tmp_path, lambda width=9: build(width=width)) as bench:
        run = bench.fit().result()
    with make(tmp_path, lambda width=6, dropout=0.0: build(width, dropout)) as bench:
        on = bench.fit(run.id, max_epochs=3).result()
        assert on.build == {"width": 9, "dropout": 0.0}
        bench.load(run.id)
    with make(tmp_path, build(width=9)) as bench:
        given = bench.fit().result()
    with make(tmp_path) as bench:
        bench.set(width=9)
        bench.load(given.id)
        assert bench.fit(given.id, max_epochs=3).result().resumes


def test_a_record_keeps_tuples_and_asks_before_it_passes_a_strangers_text(tmp_path):
    def deep(hidden: tuple[int, ...] = (6, 5), act: str = "relu") -> nn.Module:
        sizes = (8, *hidden)
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        return nn.Sequential(*layers, ACTS[act](), nn.Linear(sizes[-1], 3))

    with make(tmp_path, deep) as bench:
        run = bench.fit(hidden=(4,), act="celu").result()
    assert run.build == {"hidden": (4,), "act": "celu"}
    with make(tmp_path, deep) as bench:
        bench.load(run)  # this user has signed it
        assert isinstance(bench.model[1], nn.CELU)
    shutil.rmtree(run.folder / "start")
    with make(tmp_path, deep) as bench:
        with refused(TaskError, "act='celu'", "no signature of yours", "bench.set(act='celu')"):
            bench.load(run)
        bench.set(act="celu")
        bench.load(run)
        assert bench.model[0].out_features == 4


def test_continuing_keeps_the_model(tmp_path):
    with make(tmp_path) as bench:
        first = bench.fit(seed=1, width=9).result()
        on = bench.fit("continue", max_epochs=3).result()
        assert np.array_equal(on.history["loss"][:6], first.history["loss"])
        with refused(TaskError, "made with other values", "build(width=5)"):
            bench.fit("continue", width=5)
        bench.set(dropout=0.5)
        assert bench.fit(first.id, max_epochs=3).result().build == {"width": 9, "dropout": 0.5}
        bench.set(width=7)
        with refused(TaskError, "was made with other values than bench.model", "bench.load"):
            bench.find_lr(start=first.id)


def test_auto_does_not_continue_another_model(tmp_path):
    with make(tmp_path) as bench:
        bench.set(max_epochs=2000)
        job = bench.fit("auto", dropout=0.1)
        job.stop(at=5)
        stopped = job.result()
        job = bench.fit("auto", dropout=0.9)
        job.stop(at=5)
        assert not job.result().resumes
        job = bench.fit("auto", dropout=0.1)
        job.stop(at=9)
        assert job.result().resumes[0].run == stopped.id


def test_a_repetition_has_the_values_too(tmp_path):
    with make(tmp_path) as bench:
        run = bench.fit(width=9, dropout=0.4).result()
    assert wb.rerun(run).result().build == run.build


def test_the_export_of_another_model_leaves_the_data_alone(tmp_path):
    arguments = "build, train=Counting(), loss=F.cross_entropy, max_epochs=1"
    code = RETURNS_ARGUMENTS.replace(
        '{"model": model, "optimizer": sgd, "loss": nn.CrossEntropyLoss()}', "model"
    )
    counting = """
class Counting(torch.utils.data.Dataset):
    def __init__(self):
        self.count = 0

    def __len__(self):
        return 40

    def __getitem__(self, n):
        self.count += 1
        return x[n] + 0.01 * self.count, y[n]
"""
    with make_bench(tmp_path, arguments, code + counting) as bench:
        wide = bench.fit(width=12).result()
        first = bench.fit().result()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bench.script(wide)
        again = bench.fit().result()
    assert np.array_equal(again.history["loss"], first.history["loss"])
    assert not any("changed by other code" in getattr(e, "text", "") for e in again.outline)


def test_values_are_kept_as_they_were(tmp_path):
    def taking(sizes: dict | None = None) -> nn.Module:
        return build((sizes or {"width": 6}).pop("width"))

    sizes = {"width": 9}
    with make(tmp_path, taking) as bench:
        assert bench.fit(sizes=sizes).result().build == {"sizes": {"width": 9}}
        assert sizes == {"width": 9}
        sizes["width"] = 12
        bench.fit(sizes=sizes).result()
        assert bench.model[0].out_features == 12


def test_a_mistake_leaves_the_model_as_it_is(tmp_path):
    same = build()
    returned = refused(TaskError, "returned a model with weights of the one before")
    with make(tmp_path / "1", lambda dropout=0.1: same) as bench, returned:
        bench.fit(dropout=0.2)
    with make(tmp_path) as bench:
        bench.fit().result()
        model = bench.model
        for wrong in ({"max_epochs": -4}, {"seed": 2.5}, {"monitor": "nothing"}):
            with pytest.raises((wb.SettingsError, TaskError)):
                bench.fit(width=9, **wrong)
            assert bench.model is model
        job = bench.fit(max_epochs=1000)
        with pytest.raises(RuntimeError, match="running or queued"):
            bench.fit(seed=3)
        job.stop()
        job.result()
