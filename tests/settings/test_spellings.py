"""Lightning's own spellings mean here what they mean there, or are refused in a line that says what to use."""

import inspect
from datetime import timedelta

import pytest
import torch
from torch import nn

import workbench as wb
from tests.lightning.both import boring, loader, pl, trainer
from workbench.settings import Settings
from workbench.task.errors import TaskError

DATA = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(12, 1)


def bench_of(root, model=None, data=DATA, **settings):
    torch.manual_seed(0)
    given = {"batch_size": 4, "max_epochs": 1, "accelerator": "cpu", **settings}
    return wb.Workbench(
        model or nn.Linear(4, 1),
        train=data,
        val=data,
        loss=nn.functional.mse_loss,
        root=root,
        **given,
    )


def defaults():
    parameters = list(inspect.signature(pl.Trainer.__init__).parameters.values())[1:]
    return {one.name: one.default for one in parameters}


def test_every_argument_of_lightnings_trainer_is_known_with_its_default():
    given = defaults()
    assert len(given) > 35
    assert Settings.make(**given).epochs == 10
    for name, value in given.items():
        Settings.make(**{name: value})


SAME = {
    "precision": [(16, "16-mixed"), ("16", "16-mixed"), ("bf16", "bf16-mixed"), (32, "32-true"), ("32", "32-true"), (64, "64-true"), ("64", "64-true"), (None, "32-true")],
    "max_epochs": [(-1, -1), (None, None)],
    "max_steps": [(-1, None)],
    "limit_train_batches": [(None, 1.0), (1, 1), (1.0, 1.0)],
    "limit_val_batches": [(None, 1.0), (0, 0)],
    "val_check_interval": [(None, 1.0), (timedelta(minutes=5), "00:00:05:00")],
    "check_val_every_n_epoch": [(None, None)],
    "num_sanity_val_steps": [(None, 2)],
    "log_every_n_steps": [(None, 1)],
    "gradient_clip_algorithm": [(None, "norm")],
    "fast_dev_run": [(True, 1), (False, 0), (3, 3)],
    "deterministic": [("warn", "warn"), (True, True), (None, False)],
    "benchmark": [(True, True), (False, False), (None, None)],
    "enable_progress_bar": [(False, False), (True, True), (None, True)],
    "devices": [("auto", "auto"), ("2", 2), (-1, "auto"), ("-1", "auto"), ("0,1", (0, 1)), ("0,", (0,))],
    "strategy": [("ddp", "pool"), ("ddp_find_unused_parameters_true", "pool"), ("ddp_spawn_find_unused_parameters_false", "pool")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "said", "means"), [(name, *pair) for name, pairs in SAME.items() for pair in pairs]
)
def test_a_spelling_of_lightnings_means_the_same(name, said, means):
    found = getattr(Settings.make(**{name: said}), name)
    assert found == means
    assert type(found) is type(means)
    assert getattr(Settings().replace(**{name: said}), name) == means


HOLDS = {
    "logger": [False, None], "callbacks": [[], None, ()], "enable_checkpointing": [True, None],
    "enable_model_summary": [True, False, None], "inference_mode": [True, False], "use_distributed_sampler": [True],
    "profiler": [None], "barebones": [False], "plugins": [None, []], "sync_batchnorm": [False],
    "default_root_dir": [None], "enable_autolog_hparams": [True],
    "model_registry": [None],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in HOLDS.items() for value in values]
)
def test_what_holds_here_anyway_is_accepted(tmp_path, name, value):
    assert Settings.make(**{name: value}) == Settings()
    bench = bench_of(tmp_path, **{name: value})
    assert bench.set(**{name: value}) == bench.settings


OTHERWISE = {
    "logger": (True, "trackers="), "callbacks": ([print], "listeners="), "enable_checkpointing": (False, "save_top_k=0"),
    "use_distributed_sampler": (False, "sampler"), "profiler": ("simple", "bench.profile()"), "barebones": (True, "track_grad_norm"),
    "plugins": (["x"], "precision="), "sync_batchnorm": (True, "convert_sync_batchnorm"),
    "default_root_dir": ("runs", "root="),
    "enable_autolog_hparams": (False, "record"), "model_registry": ("mine", r"bench\.load"),
    "auto_lr_find": (True, r"bench\.find_lr"), "auto_scale_batch_size": (True, r"bench\.find_batch_size"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "instead"), [(name, *rest) for name, rest in OTHERWISE.items()]
)
def test_what_is_not_done_is_refused_in_a_line_with_what_to_use(tmp_path, name, value, instead):
    with pytest.raises(wb.SettingsError, match=instead) as caught:
        bench_of(tmp_path, **{name: value})
    assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 260


class Module(nn.Linear):
    def training_step(self, batch):
        return self(batch[0]).sum()


class Data:
    def train_dataloader(self):
        return loader(8)


@pytest.mark.parametrize(
    ("given", "types", "call"),
    [
        ((nn.Linear(4, 1), DATA), "Linear, tuple", "model, train=…, val=…, loss=…"),
        ((DATA, nn.Linear(4, 1)), "tuple, Linear", "model, train=…, val=…, loss=…"),
        (
            (nn.Linear(4, 1), DATA, DATA, nn.functional.mse_loss),
            "Linear, tuple, tuple, function",
            "model, train=…, val=…, loss=…",
        ),
        ((Module(4, 1), Data()), "Module, Data", "model, train=datamodule"),
    ],
)
def test_arguments_without_a_name_are_refused_with_the_call_that_was_meant(
    tmp_path, given, types, call
):
    with pytest.raises(TaskError) as caught:
        wb.Workbench(*given, root=tmp_path)
    assert str(caught.value).startswith(f"wb.Workbench({types}): the model comes first")
    assert f"wb.Workbench({call})" in str(caught.value)


def test_no_limit_of_epochs_lasts_until_another_length(tmp_path):
    run = bench_of(tmp_path, max_epochs=-1, max_steps=7).fit().result()
    assert (run.step, run.status) == (7, "finished")
    net, mse = nn.Linear(4, 1), nn.functional.mse_loss
    stops = wb.EarlyStopping("val_loss", patience=0, stopping_threshold=1e9)
    stopped = wb.Workbench(
        net,
        train=DATA,
        val=DATA,
        loss=mse,
        batch_size=4,
        max_epochs=-1,
        max_steps=-1,
        early_stopping=stops,
        accelerator="cpu",
        root=tmp_path,
    )
    run = stopped.fit().result()
    assert run.epochs == 1  # nothing else ends it
    assert "The run was ended by a metric" in stopped.script(run)


def test_no_limit_of_epochs_for_a_module(tmp_path):
    asked = []

    class Asks(boring.BoringModel):
        def on_train_start(self):
            asked.append(self.trainer.max_epochs)

    trainer(max_epochs=-1, max_steps=2).fit(Asks(), loader(8))
    wb.Workbench(
        Asks(), train=loader(8), max_epochs=-1, max_steps=2, root=tmp_path, accelerator="cpu"
    ).fit().result()
    assert set(asked) == {-1}


def test_checks_by_updates_alone(tmp_path):
    run = (
        bench_of(tmp_path, max_epochs=4, check_val_every_n_epoch=None, val_check_interval=5)
        .fit()
        .result()
    )
    assert run.validation["step"].tolist() == [5, 10, 12]  # across epochs of 3, and at the end
    with pytest.raises(
        wb.SettingsError, match=r"check_val_every_n_epoch=None with val_check_interval=1.0"
    ):
        bench_of(tmp_path, check_val_every_n_epoch=None).fit().result()


class Roots(nn.Module):
    """Remembers how torch was to choose its kernels."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.seen = set()

    def forward(self, x):
        chosen = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        self.seen.add((*chosen, torch.backends.cudnn.benchmark))
        return self.layer(x)


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({"deterministic": "warn"}, (True, True, False)),
        ({"deterministic": True}, (True, False, False)),
        ({"benchmark": True}, (False, False, True)),
        ({"deterministic": "warn", "benchmark": True}, (True, True, True)),
        ({}, (False, False, False)),
    ],
)
def test_how_torch_chooses_its_kernels(tmp_path, settings, seen):
    net = Roots()
    bench = bench_of(tmp_path, net, **settings)
    bench.fit().result()
    assert net.seen == {seen}
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark is False


def test_the_progress_line_can_be_left_out(tmp_path, capfd):
    bench_of(tmp_path, enable_progress_bar=False).fit().result()
    assert capfd.readouterr().err == ""


# ---- double precision ----------------------------------------------------------------------------

DOUBLE = DATA[0].double(), DATA[1].double()


def test_64_true_trains_a_double_model_in_double(tmp_path):
    bench = bench_of(tmp_path, nn.Linear(4, 1).double(), DOUBLE, precision=64, lr=0.1)
    run = bench.fit().result()
    assert run.settings.precision == "64-true"
    assert {p.dtype for p in bench.model.parameters()} == {torch.float64}
    assert bench.find_lr(num_training=5).result().lrs.size == 5


def test_64_true_refuses_a_float_model_by_name(tmp_path):
    with pytest.raises(
        TaskError,
        match=r"precision='64-true': 'weight' of Linear is float32. Call model.double\(\)",
    ):
        bench_of(tmp_path, precision="64-true")
    with pytest.raises(TaskError, match="differ in type"):
        bench_of(tmp_path, nn.Linear(4, 1).double(), precision="64-true")
