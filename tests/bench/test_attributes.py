"""Attributes of a bench that would do nothing are refused, with what to write instead."""

import pickle

import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.engine.problems import labelled, plain_net


@pytest.fixture
def bench(tmp_path):
    with wb.Workbench(plain_net(), train=labelled(), loss=F.cross_entropy, root=tmp_path, accelerator="cpu", max_steps=1) as b:
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


def test_a_method_may_be_replaced_and_a_subclass_has_attributes_of_its_own(bench, tmp_path):
    bench.fit = lambda: "replaced"
    assert bench.fit() == "replaced"

    class Mine(wb.Workbench):
        def __init__(self, *args, **options):
            self.note = "first"
            super().__init__(*args, **options)
            self.note = "then"

    with Mine(plain_net(), train=labelled(), loss=F.cross_entropy, root=tmp_path / "mine", accelerator="cpu") as b:
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
