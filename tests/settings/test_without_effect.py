"""Settings that have no effect beside the others are refused where they are given; a bench may hold them until they have one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import workbench as wb
from workbench.settings import SettingsError

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
UNUSED = [
    ({"ema_decay": 0.9}, "weight_averaging='ema'"), ({"ema_warmup": False}, "weight_averaging='ema'"),
    ({"averaging_every_n_steps": 2}, "weight_averaging='ema'"), ({"averaging_start": 2}, "weight_averaging='ema'"),
    ({"averaging_start_epoch": 1}, "weight_averaging='ema'"), ({"swa_lrs": 0.1}, "weight_averaging='swa'"),
    ({"swa_epoch_start": 1}, "weight_averaging='swa'"), ({"annealing_epochs": 2}, "weight_averaging='swa'"),
    ({"annealing_strategy": "linear"}, "weight_averaging='swa'"), ({"ema_decay": 0.9, "weight_averaging": "swa"}, "weight_averaging='ema'"),
    ({"swa_lrs": 0.1, "weight_averaging": "ema"}, "weight_averaging='swa'"), ({"annealing_epochs": 2, "weight_averaging": "swa"}, "swa_lrs"),
    ({"decay_fraction": 0.5}, "lr_schedule='wsd'"), ({"restarts": 2, "lr_schedule": "cosine"}, "lr_schedule='cosine_restarts'"),
    ({"lr_power": 1.0}, "lr_schedule='polynomial'"), ({"min_lr_ratio": 0.1}, "a schedule that falls"),
    ({"monitor_mode": "max"}, "monitor"),
    ({"gradient_clip_algorithm": "value"}, "gradient_clip_val"), ({"tbptt_time_dim": 0}, "truncated_bptt_steps"),
    ({"min_epochs": 20}, "max_epochs=10"), ({"min_epochs": 3, "max_epochs": 2}, "max_epochs=2"), ({"min_steps": 9, "max_steps": 5}, "max_steps=5"),
]  # fmt: skip


def bench(root, train=(X, X[:, :1]), **settings):
    return wb.Workbench(
        nn.Linear(4, 1), train=train, loss=F.mse_loss, root=root, accelerator="cpu", **settings
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with bench(tmp_path_factory.mktemp("made")) as found:
        yield found


@pytest.mark.parametrize(("given", "needed"), UNUSED, ids=str)
def test_it_is_refused_where_a_bench_is_made_and_in_a_fit(given, needed, made):
    name = next(iter(given))
    for call in (lambda **settings: bench(made.root, **settings), made.fit):
        with pytest.raises(SettingsError, match=f"{name}={given[name]!r} has no effect") as caught:
            call(**given)
        assert needed in str(caught.value)


def test_a_default_value_asks_for_nothing(made):
    defaults = {
        name: value
        for name, value in wb.Settings().model_dump().items()
        if name not in ("accelerator", "batch_size")
    }
    bench(made.root, **defaults)


def test_it_may_be_set_before_what_it_needs(tmp_path):
    with bench(tmp_path, max_epochs=1) as made:
        made.set(ema_decay=0.9)
        with pytest.raises(SettingsError, match=r"ema_decay=0\.9 has no effect"):
            made.fit()
        made.fit(weight_averaging="ema").result()
        made.set(weight_averaging="ema")
        made.fit().result()
        made.fit(weight_averaging=None).result()  # for one job
        made.set(weight_averaging=None)
        made.fit().result()  # it had an effect, and is kept for the next time


def test_a_minimum_of_the_bench_may_be_above_the_length_of_one_job(tmp_path):
    with bench(tmp_path, min_epochs=5) as made:
        assert made.fit(max_epochs=1).result().epochs == 1


@pytest.mark.parametrize("call", ["Workbench", "set", "fit", "find_lr"])
def test_a_backend_that_torch_does_not_have_is_refused_at_once(call, made):
    with pytest.raises(SettingsError, match=r"compile='max-speed': should be .*'inductor'"):
        bench(made.root, compile="max-speed") if call == "Workbench" else getattr(made, call)(
            compile="max-speed"
        )


def test_a_mode_of_torch_compile_is_an_option(made):
    made.set(compile="max-autotune")
    assert made.settings.compile == {"mode": "max-autotune"}
    made.set(compile={})
    assert made.settings.compile is True
    with pytest.raises(SettingsError, match=r"compile=.*'nope'.*'max-autotune'.*'inductor'"):
        made.set(compile={"backend": "nope"})


class Tens(BatchSampler):
    """Its batches have ten samples, whatever its batch_size says."""

    def __iter__(self):
        return iter([list(range(10)), list(range(10, 20))])

    def __len__(self):
        return 2


def test_a_batch_sampler_that_yields_other_batches_than_its_batch_size(tmp_path):
    data = TensorDataset(X, X[:, :1])
    loader = DataLoader(data, batch_sampler=Tens(RandomSampler(data), 30, False))
    with pytest.raises(
        SettingsError,
        match="batch_size=30 has no effect on train, since its loader has a batch_sampler of its own",
    ):
        bench(tmp_path, loader, batch_size=30)
    with bench(tmp_path, loader, max_epochs=1) as made:
        run = made.fit().result()
    assert run.step == 2
    assert run.settings.batch_size != 30
