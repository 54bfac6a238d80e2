"""Attributes of a bench that would do nothing are refused, with what to write instead."""

import pickle
import re

import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.engine.problems import labelled, plain_net
from workbench.settings.spellings import ATTRIBUTES


@pytest.fixture
def bench(tmp_path):
    with wb.Workbench(
        plain_net(),
        train=labelled(),
        loss=F.cross_entropy,
        root=tmp_path,
        accelerator="cpu",
        max_steps=1,
    ) as b:
        yield b


@pytest.mark.parametrize(("name", "value", "remedy"), [
    ("lr", 3, r"bench\.set\(lr=3\)"),
    ("max_epochs", 5, r"bench\.set\(max_epochs=5\)"),
    ("lr", torch.zeros(1000), r"bench\.set\(lr=…\)"),
    ("max_epoch", 5, r"Did you mean bench\.set\(max_epochs=5\)\?"),
    ("nonsense", 5, r"bench\.set\(…\)"),
    ("settings", None, r"bench\.set\(lr=…\)"),
    ("loss", F.mse_loss, r"wb\.Workbench\(…, loss=…\)"),
    ("train", None, r"wb\.Workbench\(…, train=…\)"),
    ("model", None, r"wb\.Workbench\(…, model=…\)"),
    ("root", "elsewhere", r"wb\.Workbench\(…, root=…\)"),
    ("runs", [], "cannot be set"),
])  # fmt: skip
def test_an_attribute_that_would_do_nothing(bench, name, value, remedy):
    with pytest.raises(AttributeError, match=remedy):
        setattr(bench, name, value)
    assert bench.settings.lr == 1e-3
    assert bench.settings.max_epochs is None


def test_a_setting_is_read_among_the_settings(bench):
    with pytest.raises(AttributeError, match=r"bench\.settings\.lr"):
        _ = bench.lr
    assert not hasattr(bench, "nonsense")
    assert bench.model is not None


@pytest.mark.parametrize(("name", "remedy"), [
    ("lr_find", "find_lr()"), ("find_learning_rate", "find_lr()"), ("scale_batch_size", "find_batch_size()"), ("train", "fit() trains"),
    ("save", "bench.load('0001-fit', 'best')"), ("plot", "run.plot()"), ("history", "run.history"), ("evaluate", "validate()"),
    ("predict_proba", "predict(data)"), ("criterion", "wb.Workbench(…, "), ("state_dict", "torch.save"), ("find_lrs", "Did you mean 'find_lr'?"),
])  # fmt: skip
def test_other_libraries_names_of_a_bench_are_answered(bench, name, remedy):
    with pytest.raises(AttributeError, match=re.escape(remedy)):
        getattr(bench, name)


@pytest.mark.parametrize(("result", "name", "remedy"), [
    (wb.Run.from_events([]), "model", "bench.load(run, 'best')"),
    (wb.Run.from_events([]), "best_model_path", "checkpoints"),
    (wb.Run.from_events([]), "losses", "history"),
    (wb.Run.from_events([]), "save", "save_pretrained"),
    (wb.Run.from_events([]), "plotz", "Did you mean 'plot'?"),
    (wb.LRCurve.from_events([]), "suggest", "bench.set(lr=curve.suggestion)"),
    (wb.LRCurve.from_events([]), "valley", "bench.set(lr=curve.suggestion)"),
    (wb.LRCurve.from_events([]), "results", "losses"),
    (wb.BatchSizes.from_events([]), "suggestion", "bench.set(batch_size=sizes.best)"),
])  # fmt: skip
def test_other_libraries_names_of_a_result_are_answered(result, name, remedy):
    with pytest.raises(AttributeError, match=re.escape(remedy)):
        getattr(result, name)
    assert not hasattr(result, "nonsense")
    assert not hasattr(result, "__nonsense__")


def test_every_named_attribute_of_another_library_is_none_of_our_own(bench):
    """Else its answer would never be read."""
    objects = {
        "bench": bench,
        "run": wb.Run.from_events([]),
        "curve": wb.LRCurve.from_events([]),
        "sizes": wb.BatchSizes.from_events([]),
    }
    for kind, result in objects.items():
        known = {name for names in ATTRIBUTES[kind].values() for name in names}
        assert not known & {*dir(result), *vars(result)}, kind


def test_a_method_may_be_replaced_and_a_subclass_has_attributes_of_its_own(bench, tmp_path):
    bench.fit = lambda: "replaced"
    assert bench.fit() == "replaced"

    class Mine(wb.Workbench):
        def __init__(self, *args, **options):
            self.note = "first"
            super().__init__(*args, **options)
            self.note = "then"

    with Mine(
        plain_net(),
        train=labelled(),
        loss=F.cross_entropy,
        root=tmp_path / "mine",
        accelerator="cpu",
    ) as b:
        assert b.note == "then"
        with pytest.raises(AttributeError, match=r"bench\.set\(lr=3\)"):
            b.lr = 3


def test_a_job_and_settings(bench):
    job = bench.fit()
    job.result()
    with pytest.raises(AttributeError, match=r"job\.change\(lr=…\)"):
        job.lr = 3
    with pytest.raises(AttributeError, match=r"bench\.fit\(max_epochs=…\)"):
        job.max_epochs = 3
    with pytest.raises(AttributeError, match=r"frozen: bench\.set\(lr=…\)"):
        bench.settings.lr = 3
    assert pickle.loads(pickle.dumps(bench.settings)) == bench.settings
