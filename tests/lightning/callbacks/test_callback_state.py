"""What callbacks with hooks hold: begun anew by each fit, untouched by a search, set up and torn down in pairs."""

from __future__ import annotations

import copy
import operator
import re
from typing import Any

import pytest
import torch

import workbench as wb
from tests.lightning.both import CountsBatches, boring, loader, pl, trainer

pytestmark = pytest.mark.usefixtures("one_thread")
callbacks = pl.callbacks


def bench_of(root: Any, *own: Any, module: Any = None, **settings: Any) -> wb.Workbench:
    torch.manual_seed(0)
    given = {"train": loader(), "accelerator": "cpu", "max_epochs": 2, **settings}
    return wb.Workbench(
        boring.BoringModel() if module is None else module, root=root, callbacks=list(own), **given
    )


class Validated(boring.BoringModel):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.step(batch))


class Patience(callbacks.Callback):
    """Ends a fit that has got no better in two validations."""

    def __init__(self) -> None:
        self.best, self.wait, self.limit = float("inf"), 0, 2

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        now = float(trainer.callback_metrics["val_loss"])
        self.best, self.wait = (now, 0) if now < self.best - 1e-9 else (self.best, self.wait + 1)
        trainer.should_stop = self.wait >= self.limit


def test_each_fit_begins_with_the_callbacks_of_the_bench(tmp_path: Any) -> None:
    own = Patience()
    with bench_of(
        tmp_path,
        own,
        module=Validated(),
        val=loader(8, seed=2),
        max_epochs=6,
        num_sanity_val_steps=0,
    ) as bench:
        assert [bench.fit().result().epochs for _ in range(2)] == [6, 6]
        own.limit = 0
        assert bench.fit().result().epochs == 1, "what the user sets counts"
        assert bench.fit().result().epochs == 1


class Average(callbacks.Callback):
    """Averages the weights by hand, in a dict of tensors and in a module."""

    def __init__(self) -> None:
        self.shadow: dict[str, Any] = {}
        self.net: Any = None
        self.seen: dict[str, list[Any]] = {"losses": []}
        self.second: list[Any] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not self.shadow:
            self.shadow = {
                name: value.detach().clone() for name, value in pl_module.named_parameters()
            }
            self.net = copy.deepcopy(pl_module.layer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            self.second = _held(self)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        with torch.no_grad():
            for name, value in pl_module.named_parameters():
                self.shadow[name].lerp_(value, 0.1)
            for mine, value in zip(
                self.net.parameters(), pl_module.layer.parameters(), strict=True
            ):
                mine.lerp_(value, 0.1)
        self.seen["losses"].append(float(outputs["loss"]))


def _held(own: Average) -> list[Any]:
    return [
        *(value.tolist() for value in own.shadow.values()),
        *(p.tolist() for p in own.net.parameters()),
        list(own.seen["losses"]),
    ]


def test_a_search_leaves_tensors_and_modules_within_as_they_were(tmp_path: Any) -> None:
    own = Average()
    with bench_of(tmp_path, own) as bench:
        bench.fit().result()
        before, shadow, net = _held(own), own.shadow, own.net
        assert len(own.seen["losses"]) == 12
        bench.find_lr(num_training=10).result()
        assert _held(own) == before
        assert own.shadow is shadow
        assert own.net is net
        bench.fit().result()
        assert _held(own) == before, "the second fit averages from the start again"


def test_a_search_within_a_fit_leaves_no_trace(tmp_path: Any) -> None:
    found = []
    for more in ({}, {"find_lr_at": {1}}):
        own = Average()
        with bench_of(tmp_path / str(len(found)), own, **more) as bench:
            bench.fit().result()
        assert len(own.second[-1]) == 6
        found.append(own.second)
    assert found[0] == found[1]


class Hooked(callbacks.Callback):
    """Registers a hook on a layer in `setup`, which `teardown` removes."""

    def __init__(self) -> None:
        self.calls = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.handle = pl_module.layer.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.handle.remove()


class Fails(boring.BoringModel):
    fails = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.fails:
            raise ValueError("no more")
        return super().training_step(batch, batch_idx)


def test_each_setup_has_its_teardown(tmp_path: Any) -> None:
    own, module = Hooked(), Fails()
    with bench_of(tmp_path, own, module=module, max_epochs=1) as bench:
        left = [len(module.layer._forward_hooks)]
        bench.fit().result()
        calls = own.calls
        left.append(len(module.layer._forward_hooks))
        bench.find_lr(num_training=5).result()
        left.append(len(module.layer._forward_hooks))
        module.fails = True
        with pytest.raises(ValueError, match="no more"):
            bench.fit().result()
        left.append(len(module.layer._forward_hooks))
        module.fails = False
        bench.fit().result()
        assert own.calls == calls
        assert left == [0, 0, 0, 0]


class Helper(callbacks.Callback):
    """Has methods with names of hooks that a module has, and a callback has not."""

    def __init__(self) -> None:
        self.ran = 0

    def _help(self, *_: Any, **__: Any) -> None:
        self.ran += 1

    optimizer_zero_grad = optimizer_step = backward = configure_gradient_clipping = (
        lr_scheduler_step
    ) = _help
    on_validation_model_eval = on_validation_model_train = on_validation_model_zero_grad = _help


def test_a_modules_hooks_are_not_those_of_a_callback(tmp_path: Any) -> None:
    theirs, own = Helper(), Helper()
    trainer(max_epochs=1, callbacks=[theirs]).fit(boring.BoringModel(), loader(), loader(8, seed=2))
    with bench_of(tmp_path, own, val=loader(8, seed=2), max_epochs=1) as bench:
        bench.fit().result()
    assert theirs.ran == own.ran == 0


# ---- parameter groups of a fit that continues ----------------------------------------------------


class Starts(boring.BoringModel):
    """Adds its second layer to the optimizer when a fit starts."""

    adds: tuple[str, ...] = ("rest",)

    def __init__(self) -> None:
        super().__init__()
        self.rest, self.other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.rest.requires_grad_(False)
        self.other.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.other(self.rest(torch.tanh(self.layer(x))))

    def on_fit_start(self) -> None:
        for name in self.adds:
            getattr(self, name).requires_grad_(True)
            self.trainer.optimizers[0].add_param_group(
                {"params": list(getattr(self, name).parameters()), "lr": 0.001}
            )

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layer.parameters(), lr=0.1, momentum=0.5)


class Groups(callbacks.Callback):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.last = [
            (len(group["params"]), group["lr"]) for group in trainer.optimizers[0].param_groups
        ]


def test_a_group_that_a_fit_adds_at_its_start_continues(tmp_path: Any) -> None:
    torch.manual_seed(0)
    host = trainer(max_epochs=1)
    host.fit(Starts(), loader())
    host.save_checkpoint(tmp_path / "one.ckpt")
    host = trainer(max_epochs=2)
    host.fit(Starts(), loader(), ckpt_path=tmp_path / "one.ckpt")
    assert [len(group["params"]) for group in host.optimizers[0].param_groups] == [2, 2]
    own = Groups()
    torch.manual_seed(0)
    module = Starts()
    with bench_of(tmp_path, own, module=module) as bench:
        whole = bench.fit().result()
        cut = bench.fit(max_epochs=1).result()
        rest = bench.fit(start="continue", max_epochs=2).result()
        assert rest.history["loss"].tolist() == whole.history["loss"].tolist()
        assert own.last == [(2, 0.1), (2, 0.001)]
        for adds in (("other",), ("rest", "other")):
            module.adds = adds
            with pytest.raises(
                wb.TaskError,
                match=r"on_fit_start leaves the optimizer with parameter groups of 2 and 2.* begin a new fit",
            ):
                bench.fit(start=cut.id, max_epochs=2).result()


def test_fine_tuning_continues_after_a_second_fit(tmp_path: Any) -> None:
    class Tuned(boring.BoringModel):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = torch.nn.Linear(32, 32)

        def forward(self, x: Any) -> Any:
            return self.layer(torch.tanh(self.backbone(x)))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(
                [p for p in self.parameters() if p.requires_grad], lr=0.1, momentum=0.5
            )

    class Fine(callbacks.BaseFinetuning):
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.backbone)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.backbone, optimizer)

    groups = Groups()
    torch.manual_seed(0)
    with bench_of(tmp_path, Fine(), groups, module=Tuned(), max_epochs=4) as bench:
        whole = bench.fit().result()
        bench.fit(max_steps=15).result()
        rest = bench.fit(start="continue", max_steps=24).result()
        assert rest.history["loss"].tolist() == whole.history["loss"].tolist()
        assert [number for number, _ in groups.last] == [2, 2]


class Adds(boring.BoringModel):
    """Adds its second layer to the optimizer in the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.rest = torch.nn.Linear(2, 2)
        self.rest.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.rest(torch.tanh(self.layer(x)))

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.rest.requires_grad_(True)
            self.optimizers().add_param_group({"params": list(self.rest.parameters()), "lr": 0.001})

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layer.parameters(), lr=0.1)


class Rates(callbacks.Callback):
    def __init__(self) -> None:
        self.rates: list[list[float]] = []

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.rates.append([float(group["lr"]) for group in trainer.optimizers[0].param_groups])


@pytest.mark.parametrize(
    "how", [{"lr_schedule": "cosine"}, {"lr_schedule": "linear", "warmup": 3}, {"warmup": 8}]
)
def test_the_schedule_of_the_bench_has_the_group_that_a_hook_adds(
    how: dict[str, Any], tmp_path: Any
) -> None:
    own = Rates()
    with bench_of(tmp_path, own, module=Adds(), max_epochs=4, **how) as bench:
        whole, rates = bench.fit().result(), own.rates
        assert all(second / 0.001 == pytest.approx(first / 0.1) for first, second in rates[6:])
        assert rates[0:6] == [one[:1] for one in rates[0:6]]
        rates = list(rates)
        cut = bench.fit(max_steps=15).result()
        rest = bench.fit(start=cut.id, max_steps=None).result()
        assert rest.history["loss"].tolist() == whole.history["loss"].tolist() or how.get(
            "lr_schedule"
        )
        if "lr_schedule" not in how:
            assert own.rates == rates[15:]


def test_a_new_schedule_has_the_rates_of_added_groups(tmp_path: Any) -> None:
    own = Rates()
    with bench_of(tmp_path, own, module=Adds()) as bench:
        bench.fit().result()
        assert own.rates[-1] == [0.1, 0.001]
        bench.fit(start="continue", max_epochs=4, lr_schedule="cosine").result()
        assert [second / first for first, second in own.rates[:-1]] == pytest.approx(
            [0.01] * (len(own.rates) - 1)
        )
        assert own.rates[0][0] == pytest.approx(0.05, rel=0.2)


def test_one_cycle_refuses_an_added_group(tmp_path: Any) -> None:
    match = r"lr_schedule='one_cycle': a hook has added a parameter group.*lr_schedule='cosine'"
    with (
        bench_of(tmp_path, module=Adds(), lr_schedule="one_cycle") as bench,
        pytest.raises(wb.TaskError, match=match),
    ):
        bench.fit().result()


# ---- checkpoints and errors ----------------------------------------------------------------------


class Migrates(CountsBatches):
    """Changes its own state in a checkpoint that is loaded, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.loads = 0

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = 1

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.loads += checkpoint["mine"]
        checkpoint["callbacks"] = {self.state_key: {"batches": 1000}}
        with torch.no_grad():
            pl_module.layer.weight.fill_(7.0)


class Sees(callbacks.Callback):
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.weight = float(pl_module.layer.weight.detach().flatten()[0])


def test_on_load_checkpoint_comes_after_the_weights(tmp_path: Any) -> None:
    for own in ([Migrates()], []):
        host = trainer(max_epochs=1, callbacks=own)
        host.fit(boring.BoringModel(), loader())
        host.save_checkpoint(tmp_path / f"{len(own)}.ckpt")
    theirs = Migrates(), Sees()
    trainer(max_epochs=2, callbacks=list(theirs)).fit(
        boring.BoringModel(), loader(), ckpt_path=tmp_path / "1.ckpt"
    )
    wanted = [1006, 1, 7.0]
    assert [theirs[0].batches, theirs[0].loads, theirs[1].weight] == wanted
    own = Migrates(), Sees()
    with bench_of(tmp_path / "bench", *own) as bench:
        cut = bench.fit(max_epochs=1).result()
        for start in (tmp_path / "1.ckpt", cut.id):
            bench.fit(start=start, max_epochs=2).result()
            assert [own[0].batches, own[0].loads, own[1].weight] == wanted
        own[0].loads = 0
        for name in ("0.ckpt", "1.ckpt"):
            bench.load(tmp_path / name)
        assert own[0].loads == 0, "which takes the weights alone"
        assert not (bench.model.layer.weight == 7.0).any()


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_on_exception_of_an_evaluation(verb: str, tmp_path: Any) -> None:
    class Bad(boring.BoringModel):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            raise ValueError("no more")

        test_step = predict_step = validation_step

    class Told(callbacks.Callback):
        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.told = str(exception)

    theirs, own = Told(), Told()
    with pytest.raises(ValueError, match="no more"):
        getattr(trainer(callbacks=[theirs]), verb)(Bad(), loader(8))
    with bench_of(
        tmp_path, own, module=Bad(), val=loader(8), test=loader(8), dry_run=False
    ) as bench:
        job = bench.predict(loader(8)) if verb == "predict" else getattr(bench, verb)()
        with pytest.raises(ValueError, match="no more"):
            job.result()
    assert own.told == theirs.told == "no more"


class Validates(Validated):
    """Its hooks read what Lightning's Trainer has and the bench has not."""

    def __init__(self, read: str) -> None:
        super().__init__()
        self.read = read

    def on_fit_end(self) -> None:
        operator.attrgetter(self.read)(self)


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (
            "logger.version",
            r"self\.logger\.version is not supported. Instead: self\.logger\.experiment is the object of tensorboard",
        ),
        (
            "trainer.log_dir",
            r"self\.trainer\.log_dir is not supported. Instead: trackers have folders of their own.*default_root_dir",
        ),
        (
            "trainer.checkpoint_callback.best_model_path",
            "checkpoint_callback is None: the bench writes the checkpoints itself.*run.checkpoints",
        ),
    ],
)
def test_what_the_stand_ins_lack_is_named(read: str, said: str, tmp_path: Any) -> None:
    with bench_of(
        tmp_path,
        module=Validates(read),
        val=loader(8),
        max_epochs=1,
        trackers="tensorboard",
        dry_run=False,
    ) as bench:
        with pytest.raises(AttributeError) as caught:
            bench.fit().result()
        told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert re.search(said, told)


class Teaches(callbacks.Callback):
    """It has a network of its own, whose mode it changes."""

    def __init__(self) -> None:
        self.teacher = torch.nn.Linear(3, 1)
        self.modes: list[bool] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.modes.append(self.teacher.training)
        self.teacher.eval()


def test_a_search_and_a_fresh_fit_put_the_mode_of_a_callbacks_network_back(tmp_path: Any) -> None:
    teaches = Teaches()
    with bench_of(tmp_path, teaches, dry_run=False) as bench:
        bench.find_lr(num_training=5).result()
        assert teaches.teacher.training
        for _ in range(2):
            bench.fit(max_epochs=1).result()
            assert teaches.modes[:2] == [True, False]
