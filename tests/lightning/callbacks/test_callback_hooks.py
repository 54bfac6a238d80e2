"""Callbacks with hooks alone: called where Lightning's Trainer calls them, with the same losses, states and weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import workbench as wb
from tests.lightning.both import CountsBatches, Losses, boring, loader, pl, same_state, trainer
from tests.lightning.ranks.rank_fits import Net, alone, batches, fit, same
from tests.on_ranks import on_ranks
from workbench.task.lightning.callbacks.translate import with_hooks

pytestmark = pytest.mark.usefixtures("one_thread")
callbacks = pl.callbacks

AROUND = (
    "setup",
    "teardown",
    "state_dict",
    "load_state_dict",
    "on_save_checkpoint",
    "on_load_checkpoint",
    "on_exception",
    "state_key",
)
HOOKS = [
    name for name in vars(callbacks.Callback) if not name.startswith("_") and name not in AROUND
]

LOOKS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")
"""Where people look at gradients."""


def _writing(name: str) -> Any:
    def hook(self: Any, trainer: Any, pl_module: Any, *arguments: Any) -> None:
        flags = [
            flag
            for flag in ("training", "validating", "testing", "predicting", "sanity_checking")
            if getattr(trainer, flag)
        ]
        numbers = [value for value in arguments if isinstance(value, int)]
        values = [
            f"{float(v.detach().double().sum()):.6g}"
            for v in arguments
            if isinstance(v, torch.Tensor)
        ]
        values += [
            f"{float(one.detach()):.6g}"
            for v in arguments
            if isinstance(v, dict)
            for one in v.values()
        ]
        gradients = sum(p.grad is not None for p in pl_module.parameters()) if name in LOOKS else ""
        place = (trainer.current_epoch, trainer.global_step)
        self.tape.append(
            f"{name} {place} {flags} {numbers} {values} {gradients} {pl_module.training}"
        )

    return hook


class Writes(callbacks.Callback):
    """Writes down each of its hooks, and what it finds there."""

    def __init__(self) -> None:
        self.tape: list[str] = []


for _name in HOOKS:
    setattr(Writes, _name, _writing(_name))


class Module(boring.BoringModel):
    """Writes down its own hooks to the callback's list, between those of the callback."""

    def _write(self, name: str) -> None:
        self.trainer.callbacks[0].tape.append(f"the module's {name}")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._write("on_train_batch_start")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._write("on_train_batch_end")

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self._write("on_before_zero_grad")

    def on_train_epoch_end(self) -> None:
        self._write("on_train_epoch_end")

    def on_validation_epoch_start(self) -> None:
        self._write("on_validation_epoch_start")

    def on_fit_end(self) -> None:
        self._write("on_fit_end")


def both(
    make: Any, own: Any, root: Any, *, verb: str = "fit", val: Any = None, **settings: Any
) -> tuple[Any, Any, Any, Any]:
    """(host, their module, bench, run or result); own: makes the list of callbacks."""
    sides = []
    for side in ("theirs", "ours"):
        torch.manual_seed(0)
        module, listed = make(), own()
        if side == "theirs":
            host = trainer(callbacks=listed, **settings)
            given = (loader(),) if verb == "fit" else ()
            getattr(host, verb)(module, *given, *(() if val is None else (val,)))
            sides += [host, module]
        else:
            sets = {
                "val"
                if verb in ("fit", "predict")
                else {"validate": "val", "test": "test"}[verb]: val
            }
            bench = wb.Workbench(
                module,
                train=loader(),
                root=root,
                accelerator="cpu",
                callbacks=listed,
                **sets,
                **{"max_epochs": 1, **settings},
            )
            for one in listed:
                vars(one).get("tape", []).clear()
            job = bench.predict(val) if verb == "predict" else getattr(bench, verb)()
            sides += [bench, job.result()]
    return sides[0], sides[1], sides[2], sides[3]


CASES: dict[str, dict[str, Any]] = {
    "a fit": {},
    "two epochs": {"max_epochs": 2},
    "windows": {"accumulate_grad_batches": 3, "max_epochs": 2},
    "validations within epochs": {"val_check_interval": 2},
    "validate": {"verb": "validate"},
    "test": {"verb": "test"},
    "predict": {"verb": "predict"},
}


@pytest.mark.parametrize("make", [Module, boring.BoringModel], ids=["before the module's", "alone"])
@pytest.mark.parametrize("case", CASES)
def test_they_are_called_where_lightning_calls_them(case: str, make: Any, tmp_path: Any) -> None:
    how = {"val": loader(8, seed=2), **CASES[case]}
    host, theirs, bench, _ = both(make, lambda: [Writes()], tmp_path, **how)
    with bench:
        tape = host.callbacks[0].tape
        assert tape
        assert bench_callback(bench).tape == tape
        same_state(bench.model, theirs, exact=case != "windows")


def bench_callback(bench: wb.Workbench) -> Any:
    return bench._task.hooks.objects[0]  # type: ignore[union-attr]


def test_a_lambda_callback_runs(tmp_path: Any) -> None:
    seen: list[Any] = []
    own = callbacks.LambdaCallback(
        setup=lambda trainer, pl_module, stage: seen.append(stage),
        on_train_epoch_end=lambda trainer, pl_module: seen.append(trainer.current_epoch),
    )
    with wb.Workbench(
        boring.BoringModel(),
        train=loader(),
        root=tmp_path,
        accelerator="cpu",
        max_epochs=2,
        callbacks=own,
    ) as bench:
        seen.clear()
        bench.fit().result()
    assert seen == ["fit", 0, 1]


# ---- fine-tuning ---------------------------------------------------------------------------------


class Tuned(boring.BoringModel):
    """Its backbone may be frozen; it has batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Tanh())

    def forward(self, x: Any) -> Any:
        return self.layer(self.backbone(x))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(
            [p for p in self.parameters() if p.requires_grad], lr=0.1, momentum=0.5
        )
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]


class Fine(callbacks.BaseFinetuning):
    """Unfreezes the backbone in the second epoch."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone, train_bn=False)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer)


FINETUNING = {
    "BaseFinetuning": Fine,
    "BackboneFinetuning": lambda: callbacks.BackboneFinetuning(
        1, lambda epoch: 1.5, backbone_initial_ratio_lr=0.1, train_bn=False
    ),
}
"""A scheduler gives each group its rate, so that BackboneFinetuning's, which sets one itself, has none."""


class Constant(Tuned):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(
            [p for p in self.parameters() if p.requires_grad], lr=0.1, momentum=0.5
        )


def _tuned(kind: str) -> Any:
    return Tuned if kind == "BaseFinetuning" else Constant


@pytest.mark.parametrize("kind", FINETUNING)
def test_fine_tuning_is_lightnings(kind: str, tmp_path: Any) -> None:
    seen = Losses()
    torch.manual_seed(0)
    theirs = _tuned(kind)()
    trainer(max_epochs=4, callbacks=[FINETUNING[kind](), seen]).fit(theirs, loader())
    torch.manual_seed(0)
    with wb.Workbench(
        _tuned(kind)(),
        train=loader(),
        root=tmp_path,
        accelerator="cpu",
        max_epochs=4,
        callbacks=[FINETUNING[kind]()],
    ) as bench:
        assert not bench.model.backbone[0].weight.requires_grad, "setup has frozen it"
        run = bench.fit().result()
        assert run.history["loss"].tolist() == torch.tensor(seen.values).numpy().tolist()
        same_state(bench.model, theirs)
        assert bench.model.backbone[0].weight.requires_grad
        again = bench.fit().result()
        assert again.history["loss"].tolist() == run.history["loss"].tolist(), (
            "it begins frozen again"
        )


@pytest.mark.parametrize("kind", FINETUNING)
def test_a_search_leaves_no_trace(kind: str, tmp_path: Any) -> None:
    found = []
    for searches in (False, True):
        torch.manual_seed(0)
        own = FINETUNING[kind]()
        with wb.Workbench(
            _tuned(kind)(),
            train=loader(),
            root=tmp_path,
            accelerator="cpu",
            max_epochs=3,
            callbacks=[own],
        ) as bench:
            first = bench.fit(max_epochs=2).result()
            if searches:
                before = {
                    name: (p.requires_grad, p.clone()) for name, p in bench.model.named_parameters()
                }
                kept, tracks = str(own.state_dict()), bench.model.backbone[1].track_running_stats
                bench.find_lr(num_training=10).result()
                bench.find_batch_size(max_trials=1).result()
                assert str(own.state_dict()) == kept
                assert bench.model.backbone[1].track_running_stats is tracks
                assert all(
                    p.requires_grad is before[name][0] and torch.equal(p, before[name][1])
                    for name, p in bench.model.named_parameters()
                )
            rest = bench.fit(start="continue", max_epochs=3).result()
            found.append([*first.history["loss"].tolist(), *rest.history["loss"].tolist()])
    assert found[0] == found[1]


@pytest.mark.parametrize("steps", [3, 6, 9, 15, 18])
@pytest.mark.parametrize("kind", FINETUNING)
def test_a_run_goes_on_with_other_objects(kind: str, steps: int, tmp_path: Any) -> None:
    def bench(*more: Any) -> wb.Workbench:
        torch.manual_seed(0)
        own = [FINETUNING[kind](), *more]
        return wb.Workbench(
            _tuned(kind)(),
            train=loader(),
            root=tmp_path,
            accelerator="cpu",
            max_epochs=4,
            gradient_clip_val=0.5,
            callbacks=own,
        )

    with bench() as one:
        whole = one.fit().result()
        weights = {name: value.clone() for name, value in one.model.state_dict().items()}
    with bench(Counts()) as one:
        cut = one.fit(max_steps=steps).result()
    counts = Counts()
    with bench(counts) as one:
        rest = one.fit(start=cut.id, max_steps=None).result()
        assert counts.batches == 24
        assert rest.history["loss"].tolist() == whole.history["loss"].tolist()
        assert rest.history["lr"].tolist() == whole.history["lr"].tolist()
        assert all(
            torch.equal(value, weights[name]) for name, value in one.model.state_dict().items()
        )


# ---- state ---------------------------------------------------------------------------------------


class Counts(CountsBatches):
    """Keeps something in the checkpoint itself, too."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[int] = []

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = checkpoint["callbacks"][self.state_key]["batches"] * 10

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.loaded.append(checkpoint["mine"])


def test_their_state_is_in_checkpoints_and_in_lightnings_files(tmp_path: Any) -> None:
    def bench(own: Any, name: str) -> wb.Workbench:
        return wb.Workbench(
            boring.BoringModel(),
            train=loader(),
            root=tmp_path / name,
            accelerator="cpu",
            max_epochs=2,
            callbacks=[own],
        )

    first, second = Counts(), Counts()
    with bench(first, "first") as one:
        run = one.fit().result()
        assert first.batches == 12
        run.to_lightning(tmp_path / "ours.ckpt")
    theirs = Counts()
    host = trainer(max_epochs=3, callbacks=[theirs])
    host.fit(boring.BoringModel(), loader(), ckpt_path=tmp_path / "ours.ckpt")
    assert (theirs.batches, theirs.loaded) == (18, [120])
    host.save_checkpoint(tmp_path / "theirs.ckpt")
    with bench(second, "second") as other:
        other.fit(start=tmp_path / "theirs.ckpt", max_epochs=4).result()
    assert (second.batches, second.loaded) == (24, [180])


def test_two_states_need_two_keys(tmp_path: Any) -> None:
    with pytest.raises(
        wb.TaskError, match="two of them keep their state as 'Counts': override state_key"
    ):
        wb.Workbench(
            boring.BoringModel(), train=loader(), root=tmp_path, callbacks=[Counts(), Counts()]
        )


# ---- what they may do ----------------------------------------------------------------------------


class Does(callbacks.Callback):
    """Logs, in both ways, and ends the fit."""

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        pl_module.log("doubled", 2 * outputs["loss"], on_step=False, on_epoch=True)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.log("checked", float(trainer.global_step))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.known = {name: float(value) for name, value in trainer.callback_metrics.items()}
        trainer.should_stop = trainer.current_epoch == 1


def test_they_log_and_end_a_fit(tmp_path: Any) -> None:
    host, _, bench, run = both(
        boring.BoringModel, lambda: [Does()], tmp_path, val=loader(8, seed=2), max_epochs=5
    )
    with bench:
        assert (run.epochs, run.step) == (host.current_epoch, host.global_step)
        theirs = host.callbacks[0].known
        assert {
            name: bench_callback(bench).known[name] for name in ("doubled", "checked")
        } == pytest.approx({n: theirs[n] for n in ("doubled", "checked")})
        assert run.metrics["checked"] == 12.0
        assert not hasattr(bench_callback(bench), "log"), "which it has while a job runs"


class Brings(boring.BoringModel):
    def configure_callbacks(self) -> Any:
        return [Counts(), callbacks.EarlyStopping("val_loss", patience=3)]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.step(batch))


def test_those_of_the_module_replace_those_of_their_class(tmp_path: Any) -> None:
    given = [Counts(), Does()]
    with pytest.warns(UserWarning, match="EarlyStopping became"):
        host, _, bench, _ = both(
            Brings, lambda: given, tmp_path, val=loader(8, seed=2), max_epochs=2
        )
    with bench:
        kinds = [
            type(one).__name__
            for one in host.callbacks
            if not isinstance(one, callbacks.EarlyStopping)
        ]
        assert (
            [type(one).__name__ for one in bench._task.hooks.objects] == kinds == ["Does", "Counts"]
        )  # type: ignore[union-attr]
        assert len(bench.settings.early_stopping) == 1


def test_an_error_is_theirs(tmp_path: Any) -> None:
    class Fails(callbacks.Callback):
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if trainer.global_step == 3:
                raise ValueError("no more")

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.told = exception

    own = Fails()
    with wb.Workbench(
        boring.BoringModel(),
        train=loader(),
        root=tmp_path,
        accelerator="cpu",
        max_epochs=2,
        callbacks=[own],
    ) as bench:
        with pytest.raises(ValueError, match="no more"):
            bench.fit().result()
        assert str(own.told) == "no more"


class Epochs(Writes):
    """Writes down the progress of the fit loop instead."""


def _counting(name: str) -> Any:
    def hook(self: Any, trainer: Any, pl_module: Any, *arguments: Any) -> None:
        progress = trainer.fit_loop.epoch_progress
        for counts in (progress.current, progress.total):
            self.tape.append(
                f"{name} {counts.ready} {counts.started} {counts.processed} {counts.completed}"
            )

    return hook


for _name in HOOKS:
    setattr(Epochs, _name, _counting(_name))


def test_the_epochs_of_the_fit_loop_are_lightnings(tmp_path: Any) -> None:
    host, _, bench, run = both(
        boring.BoringModel, lambda: [Epochs()], tmp_path, val=loader(8, seed=2), max_epochs=3
    )
    with bench:
        own = bench_callback(bench)
        assert own.tape == host.callbacks[0].tape
        own.tape.clear()
        bench.fit(start=run.id, max_epochs=4).result()
        assert own.tape[0] == "on_fit_start 3 3 3 3"
        assert "on_train_epoch_start 4 3 3 3" in own.tape
        with pytest.raises(
            wb.TaskError,
            match=r"self\.trainer\.fit_loop\.epoch_loop is not supported. Supported is epoch_progress",
        ):
            _ = bench._task.preparation.trainer.fit_loop.epoch_loop  # type: ignore[union-attr]


# ---- refusals ------------------------------------------------------------------------------------


class Removed(callbacks.Callback):
    def on_epoch_end(self, trainer: Any, pl_module: Any) -> None: ...


class Strategic(callbacks.Callback):
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.strategy.connect(pl_module)


def test_what_is_refused(tmp_path: Any) -> None:
    given = {"train": loader(), "root": tmp_path, "accelerator": "cpu", "max_epochs": 1}
    with pytest.raises(
        wb.TaskError,
        match="Removed defines on_epoch_end, which is not called here: Lightning 2 does not call it either",
    ):
        wb.Workbench(boring.BoringModel(), callbacks=[Removed()], **given)
    with pytest.raises(
        wb.TaskError,
        match=r"callbacks=: the hooks of Counts get a LightningModule, and model is a Linear: .*hooks=",
    ):
        wb.Workbench(
            nn.Linear(32, 2), loss=lambda output, y: output.sum(), callbacks=[Counts()], **given
        )
    with (
        wb.Workbench(
            boring.BoringModel(), callbacks=[Strategic()], dry_run=False, **given
        ) as bench,
        pytest.raises(wb.TaskError, match=r"self\.trainer\.strategy\.connect is not supported"),
    ):
        bench.fit().result()
    with wb.Workbench(boring.BoringModel(), callbacks=[Counts()], **given) as bench:
        for call in (bench.fit, bench.set):
            with pytest.raises(
                wb.SettingsError,
                match=r"callbacks=: Does works by its hooks.*wb\.Workbench\(…, callbacks=\[…\]\)",
            ):
                call(callbacks=[Does()])
        run = bench.fit().result()
        with pytest.raises(
            wb.ExportError,
            match=r"callbacks with hooks \(Counts\): write what they do in the module's own hooks",
        ):
            bench.script(run, format="script")


# ---- several ranks -------------------------------------------------------------------------------


class Ranked(callbacks.BaseFinetuning):
    """Freezes the first layer, and writes down what it finds."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.net[0])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[0], optimizer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        pl_module.seen.append((trainer.current_epoch, batch_idx, trainer.world_size))
        for parameter in pl_module.parameters():
            if parameter.grad is not None:
                pl_module.log(
                    f"x{tuple(parameter.shape)}",
                    parameter.grad.norm(),
                    on_step=False,
                    on_epoch=True,
                    sync_dist=True,
                )


class WithCallback(Net):
    def configure_callbacks(self) -> Any:
        return [Ranked()]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(
            [p for p in self.parameters() if p.requires_grad], lr=self.lr, momentum=0.9
        )


def test_two_ranks_are_one_process() -> None:
    def rank() -> Any:
        return fit(WithCallback(), batches(24, 4))

    found, single = on_ranks(2, rank), alone(WithCallback, 24)
    for one in found:
        same(one, single)
        assert [seen[:2] for seen in one["seen"]] == [seen[:2] for seen in single["seen"]]
        assert {seen[2] for seen in one["seen"]} == {2}
    torch.testing.assert_close(found[0]["weights"], found[1]["weights"], rtol=0, atol=0)


def test_only_those_without_a_counterpart_have_their_hooks_called() -> None:
    given = [
        callbacks.EarlyStopping("val_loss"),
        Counts(),
        callbacks.ModelPruning("l1_unstructured"),
        callbacks.LambdaCallback(),
        Fine(),
    ]
    assert [type(one).__name__ for one in with_hooks(given)] == ["Counts", "LambdaCallback", "Fine"]
