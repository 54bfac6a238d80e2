"""What a Lightning object counts on: how it is called, what it is given, and when its schedulers step."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

import workbench as wb
from tests.lightning.both import boring, loader, pl, trainer


def ours(module, root, train=None, val=None, **settings):
    settings = {"max_epochs": 1, "accelerator": "cpu", **settings}
    return wb.Workbench(
        module, train=loader() if train is None else train, val=val, root=root, **settings
    )


# ---- schedulers of steps -------------------------------------------------------------------------


class Rates(boring.BoringModel):
    """Halves its rate at each step of its scheduler, and notes the rate of each batch."""

    frequency = 1

    def __init__(self):
        super().__init__()
        self.rates = []

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": StepLR(optimizer, 1, 0.5),
                "interval": "step",
                "frequency": self.frequency,
            },
        }

    def on_train_start(self):
        self.rates = []

    def training_step(self, batch, batch_idx):
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        return super().training_step(batch, batch_idx)["loss"] * 0.0


@pytest.mark.parametrize("batches", [5, 6])
@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("frequency", [1, 2, 3])
def test_the_frequency_of_a_step_wise_scheduler_is_lightnings(tmp_path, batches, window, frequency):
    found = []
    for host in ("lightning", "workbench"):
        module = Rates()
        module.frequency = frequency
        data = loader(batches * 4)
        if host == "lightning":
            trainer(max_epochs=3, accumulate_grad_batches=window).fit(module, data)
        else:
            ours(
                module, tmp_path, data, max_epochs=3, accumulate_grad_batches=window
            ).fit().result()
        found.append(module.rates)
    assert found[1] == found[0]


SLOW = torch.randn(20, 32)


class Slowing(boring.BoringModel):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": StepLR(optimizer, 1, 0.5),
                "interval": "step",
                "frequency": 2,
            },
        }


@pytest.mark.parametrize("window", [1, 2])
def test_a_resumed_fit_counts_as_one_in_a_piece(tmp_path, window):
    torch.manual_seed(0)
    if window == 1:
        bench = wb.Workbench(
            Slowing(), train=SLOW, batch_size=4, max_epochs=3, accelerator="cpu", root=tmp_path
        )
    else:
        bench = wb.Workbench(
            Slowing(),
            train=SLOW,
            batch_size=4,
            max_epochs=3,
            accelerator="cpu",
            accumulate_grad_batches=2,
            root=tmp_path,
        )
    whole = bench.fit().result()
    first = bench.fit(max_steps=4).result()
    rest = bench.fit(start=first.id, max_steps=None).result()
    assert rest.history["lr"].tolist() == whole.history["lr"].tolist()
    assert rest.history["loss"].tolist() == whole.history["loss"].tolist()


# ---- setup and teardown --------------------------------------------------------------------------


def test_setup_and_teardown_may_take_their_stage_by_name_alone(tmp_path):
    called = []

    class Data(pl.LightningDataModule):
        def setup(self, *, stage):
            called.append(("data", stage))

        def train_dataloader(self):
            return loader()

    class Module(boring.BoringModel):
        def setup(self, *, stage):
            called.append(("module", stage))

        def teardown(self, *, stage):
            called.append(("end", stage))

    ours(Module(), tmp_path, Data()).fit().result()
    assert called == [("data", "fit"), ("module", "fit"), ("end", "fit")]


class Duck(nn.Module):
    """Like a LightningModule, without Lightning; its stage has a name of its own."""

    def __init__(self):
        super().__init__()
        self.layer, self.stages = nn.Linear(32, 2), []

    def setup(self, what):
        self.stages.append(what)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_an_argument_of_another_name_is_given_by_its_place(tmp_path):
    bench = ours(Duck(), tmp_path)
    bench.fit().result()
    assert bench.model.stages == ["fit"]


# ---- steps ---------------------------------------------------------------------------------------


class Scaled(torch.optim.SGD):
    """Its step takes more than a closure."""

    def step(self, closure=None, *, factor=1.0, note=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(factor)
        Scaled.notes.append((factor, note))
        return super().step()

    notes = []  # noqa: RUF012


class Manual(boring.BoringModel):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        return Scaled(self.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx)["loss"])
        optimizer.step(factor=0.5, note=batch_idx)


class Automatic(boring.BoringModel):
    def configure_optimizers(self):
        return Scaled(self.parameters(), lr=0.1)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure, factor=0.5, note=batch_idx)


class Overridden(Manual):
    """Its own manual_backward and optimizers call Lightning's."""

    calls = 0

    def manual_backward(self, loss, *arguments, **options):
        self.calls += 1
        super().manual_backward(loss * 2.0, *arguments, **options)

    def optimizers(self, use_pl_optimizer=True):
        return super().optimizers(use_pl_optimizer)


@pytest.mark.parametrize("cls", [Manual, Automatic, Overridden])
def test_the_step_gets_what_the_module_gives_it(tmp_path, cls):
    ends = []
    for host in ("lightning", "workbench"):
        torch.manual_seed(0)
        module = cls()
        if host == "lightning":
            Scaled.notes.clear()
            trainer().fit(module, loader())
        else:
            bench = ours(module, tmp_path)
            Scaled.notes.clear()
            bench.fit().result()
        ends.append(
            (
                module.layer.weight.detach().clone(),
                list(Scaled.notes),
                getattr(module, "calls", 0) > 0,
            )
        )
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1:] == ends[1][1:]
    assert ends[0][1] == [(0.5, n) for n in range(6)]


# ---- the order of samples ------------------------------------------------------------------------


def test_seed_everything_decides_the_order_of_samples(tmp_path, monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    monkeypatch.delenv("PL_SEED_WORKERS", raising=False)
    data = torch.arange(24.0).repeat_interleave(32).reshape(24, 32)

    def order(**settings):
        seen = []

        class Sees(boring.BoringModel):
            def training_step(self, batch, batch_idx):
                seen.extend(batch[:, 0].tolist())
                return super().training_step(batch, batch_idx)["loss"]

        bench = ours(Sees(), tmp_path, data, batch_size=4, **settings)
        seen.clear()
        return bench.fit().result().settings.seed, list(seen)

    plain = order()
    assert plain[0] == 0
    pl.seed_everything(7, verbose=False)
    seven = order()
    assert seven[0] == 7
    assert seven[1] != plain[1]
    assert order(seed=7) == seven
    assert order(seed=0) == plain  # what the user sets wins
    pl.seed_everything(8, verbose=False)
    assert order()[1] != seven[1]


# ---- what is logged by step in a check -----------------------------------------------------------


class ByStep(boring.BoringModel):
    how = {"on_step": True, "on_epoch": False}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.known = []

    def validation_step(self, batch, batch_idx):
        self.log("val_x", float(batch_idx), **self.how)

        self.note()

    def note(self):
        for found in (self.trainer.callback_metrics, self.trainer.logged_metrics):
            self.known.append(
                {name: float(value) for name, value in found.items() if name.startswith("val_x")}
            )

    def on_validation_end(self):
        self.note()


class ByBoth(ByStep):
    how = {"on_step": True, "on_epoch": True}  # noqa: RUF012


@pytest.mark.filterwarnings("ignore:.*a record has one value for each validation")
@pytest.mark.parametrize("cls", [ByStep, ByBoth])
def test_values_of_single_batches_of_a_check_are_where_lightning_has_them(tmp_path, cls):
    theirs, module = cls(), cls()
    trainer(num_sanity_val_steps=0).fit(theirs, loader(8), loader(12))
    bench = ours(module, tmp_path, loader(8), loader(12), num_sanity_val_steps=0)
    module.known.clear()
    run = bench.fit().result()
    recorded = {name for name in run.validation if name.startswith("val_x")}
    assert recorded == (set() if cls is ByStep else {"val_x", "val_x_epoch"})
    steps = [
        {name: value for name, value in one.items() if name in ("val_x_step", "val_x")}
        for one in module.known[1:-2:2]
    ]
    assert steps == [
        {name: value for name, value in one.items() if name in ("val_x_step", "val_x")}
        for one in theirs.known[1:-2:2]
    ]
    assert module.known[-2] == theirs.known[-2]  # at the end
    assert module.known[-1].items() >= theirs.known[-1].items()


def test_a_value_that_no_record_will_have_is_named(tmp_path):
    with pytest.warns(
        UserWarning, match=r"self\.log\('val_x', on_step=True, on_epoch=False\) in validation_step"
    ):
        ours(ByStep(), tmp_path, loader(8), loader(12))
