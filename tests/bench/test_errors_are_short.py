"""An error is short: the nearest name and not all of them, a tensor by its shape, and in a notebook the user's own line."""

from __future__ import annotations

import json
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

import workbench as wb
from tests import warm
from workbench.settings import Settings
from workbench.values import shown

DATA = torch.randn(8, 4), torch.zeros(8, 1)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return wb.Workbench(
        nn.Linear(4, 1),
        train=DATA,
        loss=nn.functional.mse_loss,
        root=root,
        accelerator="cpu",
        batch_size=4,
        max_epochs=1,
    )


MEANT = [
    ("find_lr", "start_lr", "min_lr"), ("find_lr", "end_lr", "max_lr"), ("find_lr", "num_it", "num_training"),
    ("find_lr", "num_trainin", "num_training"), ("find_lr", "early_stop_treshold", "early_stop_threshold"),
    ("find_lr", "batchsize", "batch_size"), ("find_lr", "max_learning_rate", "max_lr"),
    ("find_batch_size", "start", "init_val"), ("find_batch_size", "max_batch_size", "max_val"),
    ("find_batch_size", "step_per_trial", "steps_per_trial"),
    ("fit", "strat", "start"), ("fit", "epochs", "max_epochs"), ("fit", "learning_rate", "lr"),
    ("predict", "dat", "data"), ("set", "max_epoch", "max_epochs"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "given", "meant"), MEANT)
def test_names_of_arguments_count(bench, method, given, meant):
    with pytest.raises(
        wb.SettingsError, match=rf"unknown \w+ '{given}'.* Did you mean '{meant}'\?"
    ) as caught:
        getattr(bench, method)(**{given: 1})
    assert len(str(caught.value)) < 120


def test_names_of_a_benchs_arguments_count(tmp_path):
    for given, meant in {
        "optimiser": "optimizer",
        "colate_fn": "collate_fn",
        "losss": "loss",
        "metric": "metrics",
        "trian": "train",
    }.items():
        with pytest.raises(wb.SettingsError, match=f"'{given}'. Did you mean '{meant}'"):
            wb.Workbench(nn.Linear(4, 1), root=tmp_path, **{given: None})


def test_an_argument_of_another_method_says_whose_it_is(bench):
    with pytest.raises(wb.SettingsError, match=r"'max_lr': it is an argument of bench.find_lr\(\)"):
        bench.fit(max_lr=1e-5)
    with pytest.raises(
        wb.SettingsError, match=r"'init_val': it is an argument of bench.find_batch_size\(\)"
    ):
        bench.set(init_val=4)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(3, 200), "<Tensor of shape (3, 200)>"),
        (np.zeros((400, 2)), "<ndarray of shape (400, 2)>"),
        (list(range(1000)), "[0, 1, 2"),
        ("x" * 1000, "'xxx"),
        (nn.Linear(3, 4), "Linear(in_features=3"),
        ({"a": torch.zeros(500)}, "{'a': tensor("),
    ],
    ids=["tensor", "array", "list", "text", "module", "dict"],
)
def test_a_value_is_shown_short(value, text):
    assert shown(value).startswith(text)
    assert len(shown(value)) <= 80
    with pytest.raises(wb.SettingsError) as caught:
        Settings.make(batch_size=value)
    assert f"batch_size={shown(value)}" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_number_in_an_array_is_a_number():
    for one in (torch.tensor(0.25), np.float32(0.25), np.array(0.25)):
        assert Settings.make(lr=one).lr == 0.25
        assert type(Settings.make(lr=one).lr) is float
    assert Settings.make(batch_size=torch.tensor(7)).batch_size == 7


def test_a_model_or_a_loss_that_is_none_is_shown_short(tmp_path):
    big = torch.zeros(300, 300)
    for given in (
        {"model": big},
        {"model": nn.Linear(4, 1), "loss": big},
        {"model": nn.Linear(4, 1), "optimizer": big, "loss": nn.functional.mse_loss},
    ):
        model = given.pop("model")
        with pytest.raises(ValueError, match=r"Tensor of shape \(300, 300\)") as caught:
            wb.Workbench(model, train=DATA, root=tmp_path, **given)
        assert len(str(caught.value)) < 250


STOPS = ("cancel", "kill", "terminate", "abort")
HINTS = {
    **dict.fromkeys(STOPS, r"stop\(\)"), "running": "status", "cancelled": "status", "finished": r"done\(\)", "join": r"wait\(\)",
    "get": r"result\(\)", "logs": "output", "add_done_callback": "listeners", "resul": "'result'", "setings": "'settings'",
    "plot": r"use \.result\(\)\.plot",
}  # fmt: skip


def test_an_attribute_that_no_job_has_names_the_one_that_is_meant(bench):
    job = bench.fit()
    job.result()
    for name, hint in HINTS.items():
        with pytest.raises(AttributeError, match=hint):
            getattr(job, name)


# ---- in IPython ----------------------------------------------------------------------------------

SHELL = textwrap.dedent("""
    import json, sys
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    shell.run_line_magic("colors", "nocolor")
    shown = []
    shell._showtraceback = lambda kind, value, lines: shown.append("\\n".join(lines))
    for cell in json.loads(sys.argv[1]):
        shown.clear()
        shell.run_cell(cell)
        print("\\n@@" + json.dumps(shown))
""")

MAKE = """
import torch, workbench as wb
from torch import nn
data = torch.randn(8, 4), torch.zeros(8, 1)
def made(net, **settings):
    return wb.Workbench(net, train=data, loss=nn.functional.mse_loss, accelerator='cpu', batch_size=4, max_epochs=1, **settings)
class Broken(nn.Linear):
    def forward(self, x):
        return torch.cat([super().forward(x), x[:, :, None]])  # the mistake
class Late(nn.Linear):
    calls = 0
    def forward(self, x):
        Late.calls += 1
        if len(x) == 4:
            raise RuntimeError("late")  # the other mistake
        return super().forward(x)
bench = made(nn.Linear(4, 1))
"""
CELLS = [
    MAKE,
    "bench.set(lr='fast')  # my line",
    "def mine():\n    return made(nn.Linear(4, 1), max_epoch=3)\nmine()  # my line",
    "made(Broken(4, 1))  # my line",
    "made(Late(4, 1)).fit().result()  # my line",
    "bench.script()  # my line",
    "%xmode Verbose",
    "bench.set(lr='fast')  # my line",
    "%xmode Context",
    "import traceback\ntry:\n    bench.set(lr='fast')\nexcept ValueError as error:\n    assert 'settings.py' in ''.join(traceback.format_exception(error))\n    assert 'settings.py' in ''.join(traceback.format_exception(error)), 'still'",
]  # fmt: skip


@pytest.fixture(scope="module")
def tracebacks(tmp_path_factory):
    done = warm.python().run(
        "-c", SHELL, json.dumps(CELLS), folder=tmp_path_factory.mktemp("notebook")
    )
    found = [json.loads(line[2:]) for line in done.stdout.splitlines() if line.startswith("@@")]
    assert len(found) == len(CELLS), done.stderr
    assert found[0] == []
    return ["\n".join(one) for one in found]


def test_a_bad_value_ends_at_the_users_line(tracebacks):
    text = tracebacks[1]
    assert "lr='fast'" in text
    assert "# my line" in text
    assert "workbench/" not in text
    assert len(text.splitlines()) < 10


def test_functions_of_the_users_own_keep_their_frames(tracebacks):
    text = tracebacks[2]
    assert (
        text.index("----> 3 mine()  # my line")
        < text.index("----> 2     return made(")
        < text.index("Did you mean 'max_epochs'")
    )
    assert "workbench/" not in text


def test_a_mistake_in_the_users_own_code_keeps_its_frames(tracebacks):
    text = tracebacks[3]
    assert "# the mistake" in text
    assert "# my line" in text
    assert "direct cause" in text
    assert "workbench/" not in text
    assert "_call_impl" not in text


def test_an_error_of_the_users_own_is_shown_as_it_is(tracebacks):
    text = tracebacks[4]
    assert "# the other mistake" in text
    assert "# my line" in text
    assert "RuntimeError: late" in text


def test_an_export_that_is_refused_ends_at_the_users_line(tracebacks):
    text = tracebacks[5]
    assert "# my line" in text
    assert "workbench/" not in text


def test_all_frames_are_there_for_who_asks(tracebacks):
    assert "workbench/settings/settings.py" in tracebacks[7]
    assert tracebacks[9] == ""
