"""Calls the hooks of a Lightning-like object, and collects the values that it logs in them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workbench.task.batch import to_device
from workbench.task.device import default_device
from workbench.task.hooks import CheckpointEdits, Hooks, Stage, Values, copy_of, in_its_turn
from workbench.task.lightning.overrides import hooks_of, own_method
from workbench.task.lightning.proxies import HookOptimizer
from workbench.task.lightning.setup import Preparation
from workbench.task.lightning.unsupported import explain_no_logger

TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks that move a batch to the device."""


class Transfer(NamedTuple):
    """Moves a batch to the device with the user's hooks; a hook is None where the user wrote
    none.
    """

    before: Callable[..., Any] | None
    move: Callable[..., Any] | None
    after: Callable[..., Any] | None

    def __call__(self, batch: Any, device: torch.device, dataloader_idx: int = 0) -> Any:
        if self.before is not None:
            batch = self.before(batch, dataloader_idx)
        batch = (
            to_device(batch, device)
            if self.move is None
            else self.move(batch, device, dataloader_idx)
        )
        return batch if self.after is None else self.after(batch, dataloader_idx)


class DataHooks(Hooks):
    """The hooks of objects that make the data. sources: these objects by stage; a DataModule's
    hook replaces the module's.
    """

    def __init__(
        self, preparation: Preparation, sources: Mapping[str, Any], module: Any = None
    ) -> None:
        self.preparation = preparation
        self.transfer_hooks: dict[str, Transfer] = {}
        for stage in ("train", "val", "test", "predict"):
            asked = [source for source in (sources.get(stage), module) if source is not None]
            methods = [
                next(filter(None, (own_method(source, name) for source in asked)), None)
                for name in TRANSFER
            ]
            self.transfer_hooks[stage] = Transfer(*methods)
        self.transfers = any(any(transfer) for transfer in self.transfer_hooks.values())

    def transfer(self, batch: Any, device: torch.device, stage: Stage) -> Any:
        return self.transfer_hooks[stage](batch, device, self.preparation.log.dataloader_idx or 0)

    def fit_ended(self) -> None:
        self.preparation.fit_ended()

    def failed(self, error: BaseException) -> None:
        for source in self.preparation.data:
            hook = own_method(source, "on_exception")
            if hook is not None:
                hook(error)

    def discarding_logs(self) -> contextlib.AbstractContextManager[None]:
        return self.preparation.log.discarding_logs()

    def state(self) -> dict[str, Any]:
        states = {}
        for number, source in enumerate(self.preparation.data):
            give = own_method(source, "state_dict")
            data_state = None if give is None else give()
            if data_state:
                states[number] = data_state
        return {"data": states, "lightning": {"data": self._names_of_data}} if states else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for number, data_state in state.get("data", {}).items():
            take = own_method(self.preparation.data[number], "load_state_dict")
            if take is not None:
                take(data_state)

    def of_lightning(self, checkpoint: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
        names = {
            number: name for number, name in enumerate(self._names_of_data) if name in checkpoint
        }
        return {"data": {number: checkpoint[name] for number, name in names.items()}}, frozenset(
            names.values()
        )

    @property
    def _names_of_data(self) -> list[str]:
        """The names under which Lightning stores the states of the objects that make the data."""
        return [type(source).__qualname__ for source in self.preparation.data]


_WITHIN = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_backward",
    "backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
_AUTOMATIC = (
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "optimizer_step",
    "configure_gradient_clipping",
    "lr_scheduler_step",
)
_OF_A_FIT = (
    "on_fit_start",
    "on_fit_end",
    "on_train_start",
    "on_train_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_validation_model_zero_grad",
)
_STAGES: Mapping[str, str] = {"val": "validation", "test": "test", "predict": "predict"}
_OF_AN_EVALUATION = (
    "start",
    "end",
    "epoch_start",
    "epoch_end",
    "batch_start",
    "batch_end",
    "model_eval",
    "model_train",
)


class LightningHooks(DataHooks):
    """The hooks of one module. `outputs`: the outputs of its steps by batch number, while a hook
    needs them.
    """

    def __init__(
        self,
        preparation: Preparation,
        sources: Mapping[str, Any],
        module: Any,
        model: nn.Module,
        *,
        manual: bool,
    ) -> None:
        """model: the module itself, or an nn.Module with the networks that it has as attributes."""
        super().__init__(preparation, sources, module)
        self._log, self._trainer = preparation.log, preparation.trainer
        self._module, self._model = module, model
        self._name = type(module).__name__
        self._manual = manual
        within = _WITHIN if manual else _WITHIN + _AUTOMATIC
        evaluating = [
            f"on_{stage}_{moment}" for stage in _STAGES.values() for moment in _OF_AN_EVALUATION
        ]
        self.overridden = hooks_of(module, [*within, *_OF_A_FIT, *evaluating])
        self._saves = own_method(module, "on_save_checkpoint")
        self._loads = own_method(module, "on_load_checkpoint")
        self._callbacks = preparation.callbacks
        self.objects = tuple(self._callbacks.objects)
        self.within = any(map(self._has, within))
        self.clips = "configure_gradient_clipping" in self.overridden
        self.zeroes = "optimizer_zero_grad" in self.overridden
        self.needs_outputs = {
            "train": self._has("on_train_batch_end"),
            **{stage: self._has(f"on_{name}_batch_end") for stage, name in _STAGES.items()},
        }
        """The stages whose step outputs a hook needs."""
        self.outputs: dict[int, Any] = {}
        self._edited: Mapping[str, Any] | None = None
        """The states of the callbacks, as `on_load_checkpoint` left them."""
        self.index = 0
        """The index of the optimizer whose step runs."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "outputs": {}, "clipper": None}

    def keep(self) -> Callable[[], object]:
        return self._callbacks.keep()

    def _has(self, name: str) -> bool:
        """Whether the module or a callback has this hook."""
        return name in self.overridden or self._callbacks.has(name)

    def _say(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call a hook of the callbacks and of the module, where they have it, and collect the
        values that it logs. Returns the result of the module's hook.
        """
        hook = self.overridden.get(name)
        if hook is None and not self._callbacks.has(name):
            return None
        self._trainer.refresh()
        before, self._log.hook = self._log.hook, name
        which = () if named.get("dataloader_idx") is None else (named["dataloader_idx"],)
        try:
            with default_device.in_users_code():
                self._callbacks.call(name, *arguments, *which)
                return None if hook is None else hook(*arguments, index=self.index, **named)
        except AttributeError as error:
            explain_no_logger(error)
            raise
        finally:
            self._log.hook = before

    def _optimizer(self, index: int) -> Any:
        self.index = index
        return self._trainer.optimizers[index]

    # -- of a fit

    def fit_started(self) -> None:
        self._say("on_fit_start")

    def sanity_started(self) -> None:
        self._say("on_sanity_check_start")

    def sanity_ended(self) -> None:
        self._say("on_sanity_check_end")

    def train_started(self) -> None:
        self._say("on_train_start")

    def epoch_started(self) -> None:
        self.outputs.clear()
        self._say("on_train_epoch_start")

    def epoch_ended(self) -> None:
        self._gather("on_train_epoch_end", evaluation=False)
        self._say("on_train_epoch_end")

    def train_ended(self) -> None:
        self._say("on_train_end")

    def fit_ended(self) -> None:
        self._say("on_fit_end")
        super().fit_ended()

    def failed(self, error: BaseException) -> None:
        self.preparation.failed()
        self._say("on_exception", error)
        super().failed(error)

    @property
    def stop_requested(self) -> bool:
        return self._trainer.should_stop

    def clear_stop(self) -> None:
        self._trainer.should_stop = False

    # -- of a batch and an update

    def batch_started(self, batch: Any, batch_idx: int) -> bool:
        self._log.begin_batch(batch)
        self._trainer.set_batch_idx(batch_idx)
        return bool(self._say("on_train_batch_start", batch, batch_idx) != -1)

    def batch_ended(self, result: Any, batch: Any, batch_idx: int) -> None:
        if self.needs_outputs["train"]:
            self._log.begin_batch(batch)
            self._say("on_train_batch_end", self._outputs(batch_idx), batch, batch_idx)
            self.outputs.clear()  # with the outputs of batches that an optimizer evaluated again
        self._log.end_batch()

    def _outputs(self, batch_idx: int) -> dict[str, Any]:
        """Return the training step's output as Lightning passes it to hooks: the loss detached, and
        divided by the accumulated batches.
        """
        output = self.outputs.pop(batch_idx, None)
        outputs = {} if output is None else {"loss": output}
        if isinstance(output, Mapping):
            outputs = dict(output)
        if isinstance(outputs.get("loss"), Tensor):
            loss, batches = outputs["loss"].detach(), self._trainer.accumulate_grad_batches
            outputs["loss"] = loss if self._manual or batches == 1 else loss / batches
        return outputs

    def backward(self, loss: Tensor, **options: Any) -> None:
        self._say("on_before_backward", loss)
        hook = self.overridden.get("backward")
        if hook is None:
            super().backward(loss, **options)
        else:
            # Lightning 1
            beside = (self._optimizer(self.index),) if "optimizer" in hook.names else ()
            self._say("backward", loss, *beside, **options)

    def after_backward(self) -> None:
        self._say("on_after_backward")

    def zero_grad(self, index: int, batch_idx: int) -> None:
        optimizer = self._optimizer(index)
        self._say("on_before_zero_grad", optimizer)
        self._say("optimizer_zero_grad", self._trainer.current_epoch, batch_idx, optimizer)

    def before_step(self, index: int) -> None:
        self._say("on_before_optimizer_step", self._optimizer(index))

    def clip(self, index: int, clip_val: float | None, algorithm: str) -> None:
        limits = {
            "gradient_clip_val": clip_val,
            "gradient_clip_algorithm": None if clip_val is None else algorithm,
        }
        self._say("configure_gradient_clipping", self._optimizer(index), **limits)

    def step(
        self, index: int, batch_idx: int, closure: Callable[[], Any], take: Callable[..., Any]
    ) -> None:
        if "optimizer_step" not in self.overridden:
            take(closure)
            return
        view = HookOptimizer(self._optimizer(index), closure, take, f"{self._name}.optimizer_step")
        self._say("optimizer_step", self._trainer.current_epoch, batch_idx, view, view.evaluate)
        view.check()

    def step_schedule(
        self, scheduler: Any, metric: float | None, usual: Callable[[], None]
    ) -> None:
        if "lr_scheduler_step" in self.overridden:
            with in_its_turn(scheduler):
                self._say("lr_scheduler_step", scheduler, metric)
        else:
            super().step_schedule(scheduler, metric, usual)

    # -- of an evaluation

    def validation_begins(self) -> None:
        if "on_validation_model_zero_grad" in self.overridden:
            with self._trainer.ahead("val"):
                self._say("on_validation_model_zero_grad")
        elif self.zeroes:  # as in Lightning, gradients that the module did not zero are zeroed
            self._model.zero_grad()

    def evaluation_mode(self, stage: Stage) -> bool:
        hook = f"on_{_STAGES[stage]}_model_eval"
        self._say(hook)
        return hook in self.overridden

    def training_mode(self, stage: Stage) -> None:
        if stage != "predict":  # Lightning has no such hook
            self._say(f"on_{_STAGES[stage]}_model_train")

    def evaluation_started(self, stage: Stage) -> None:
        self.outputs.clear()
        self._say(f"on_{_STAGES[stage]}_start")
        self._say(f"on_{_STAGES[stage]}_epoch_start")

    def evaluation_batch_started(self, stage: Stage, batch: Any, batch_idx: int) -> None:
        self._log.begin_batch(batch)
        self._say(
            f"on_{_STAGES[stage]}_batch_start",
            batch,
            batch_idx,
            dataloader_idx=self._log.dataloader_idx,
        )

    def evaluation_batch_ended(self, stage: Stage, result: Any, batch: Any, batch_idx: int) -> None:
        if self.needs_outputs[stage]:
            output = self.outputs.pop(batch_idx, None)
            self._say(
                f"on_{_STAGES[stage]}_batch_end",
                output,
                batch,
                batch_idx,
                dataloader_idx=self._log.dataloader_idx,
            )
        self._log.end_batch()

    def evaluation_set_ended(self, stage: Stage) -> None:
        self._log.end_set()

    def evaluation_ended(self, stage: Stage) -> None:
        if stage != "predict":
            self._gather(
                f"on_{_STAGES[stage]}_epoch_end", f"on_{_STAGES[stage]}_end", evaluation=True
            )
        self._say(f"on_{_STAGES[stage]}_epoch_end")
        self._say(f"on_{_STAGES[stage]}_end")

    def _gather(self, *hooks: str, evaluation: bool) -> None:
        """Gather the values that all ranks have logged, so that the next hooks find them in
        `trainer.callback_metrics`.
        """
        self._log.end_batch()
        if any(map(self._has, hooks)):
            self._log.gather(evaluation=evaluation)

    # -- what the module logs

    def logged(self) -> Values:
        return self._log.steps()

    def epoch_logged(self) -> Values:
        return self._log.end(evaluation=False)

    def evaluated(self, stage: Stage) -> Values:
        return self._log.end(evaluation=True)

    @property
    def read_sanity(self) -> bool:
        return self._trainer.read_sanity_stage

    @property
    def epoch_names(self) -> frozenset[str]:
        return self._log.epoch_names

    def forget(self) -> None:
        self._log.forget()
        self.outputs.clear()
        self._trainer.should_stop = False

    @property
    def on_bar(self) -> frozenset[str]:
        return self._log.on_bar

    # -- what a checkpoint keeps of it

    def state(self) -> dict[str, Any]:
        state = {
            **super().state(),
            "logged": self._log.state(),
            "should_stop": self._trainer.should_stop,
            "lightning": self._for_lightning(),
        }
        states = self._callbacks.state()
        if self._saves is not None or self._callbacks.has("on_save_checkpoint"):
            checkpoint = self._checkpoint(states)
            before = copy_of(checkpoint)
            self._callbacks.call("on_save_checkpoint", checkpoint)
            if self._saves is not None:
                self._saves(checkpoint)
            states = checkpoint.get("callbacks", {})
            self.edits = CheckpointEdits.between(before, checkpoint)
            state |= {
                "module": dict(self.edits.entries),
                "removed": list(self.edits.removed),
                "gone": list(self.edits.gone),
            }
        return state | ({"callbacks": states} if states else {})

    def _for_lightning(self) -> dict[str, Any]:
        """Further entries of a checkpoint in Lightning's form: the module's hyperparameters and
        the names of its DataModules.
        """
        entries: dict[str, Any] = {"data": self._names_of_data}
        hparams = getattr(self._module, "hparams", None)
        if isinstance(hparams, Mapping) and hparams:
            plain = {
                name: value
                for name, value in hparams.items()
                if isinstance(name, str) and _can_be_kept(value)
            }
            entries |= {
                "hparams_name": getattr(self._module, "_hparams_name", None),
                "hyper_parameters": plain,
            }
            entries["not_plain"] = [str(name) for name in hparams if name not in plain]
        return entries

    def of_lightning(self, checkpoint: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
        state, names = super().of_lightning(checkpoint)
        states = self._callbacks.of_lightning(checkpoint)
        names |= states.keys()
        # on_load_checkpoint gets all entries
        every = self._loads is not None or self._callbacks.has("on_load_checkpoint")
        return {**state, "callbacks": states}, (
            names | frozenset(map(str, checkpoint)) if every else names
        )

    def restoring(self, checkpoint: Mapping[str, Any], kept: Mapping[str, Any]) -> CheckpointEdits:
        if self._loads is None and not self._callbacks.has("on_load_checkpoint"):
            return CheckpointEdits()
        gone = kept.get("gone", ())
        merged = {
            **self._checkpoint(kept.get("callbacks", {})),
            **checkpoint,
            **kept.get("module", {}),
        }
        merged = {name: value for name, value in merged.items() if name not in gone}
        before = {"optimizer_states": [], "lr_schedulers": [], **copy_of(merged)}
        if self._loads is not None:
            self._loads(merged)
        edits = CheckpointEdits.between(before, merged)
        return (
            replace(edits, checkpoint=merged)
            if self._callbacks.has("on_load_checkpoint")
            else edits
        )

    def weights_restored(self, edits: CheckpointEdits) -> CheckpointEdits:
        self._edited = None
        if edits.checkpoint is None:
            return CheckpointEdits()
        before = {"optimizer_states": [], "lr_schedulers": [], **copy_of(edits.checkpoint)}
        self._callbacks.call("on_load_checkpoint", edits.checkpoint)
        self._edited = edits.checkpoint.get("callbacks") or {}
        return CheckpointEdits.between(before, edits.checkpoint)

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._callbacks.load_state(
            state.get("callbacks", {}) if self._edited is None else self._edited
        )
        self._edited = None
        self._log.load_state(state.get("logged", {}))
        self._trainer.should_stop = bool(state.get("should_stop", False))

    def _checkpoint(self, callbacks: Mapping[str, Any]) -> dict[str, Any]:
        """The dictionary that Lightning gives to `on_save_checkpoint`, with the present values.
        callbacks: their states.
        """
        trainer, module = self._trainer, self._module
        checkpoint = {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "pytorch-lightning_version": _version(),
            "state_dict": dict(self._model.state_dict()),
            "loops": {},
            "callbacks": dict(callbacks),
            "optimizer_states": [optimizer.state_dict() for optimizer in trainer.optimizers],
            "lr_schedulers": [
                config.scheduler.state_dict() for config in trainer.lr_scheduler_configs
            ],
        }
        for source in (module, *self.preparation.data):
            hparams = getattr(source, "hparams", None)
            if isinstance(hparams, Mapping) and hparams:
                checkpoint |= {
                    "hparams_name": getattr(source, "_hparams_name", None),
                    "hyper_parameters": dict(hparams),
                }
        states = super().state().get("data", {})
        return checkpoint | {
            type(self.preparation.data[number]).__qualname__: data_state
            for number, data_state in states.items()
        }


def _can_be_kept(value: Any) -> bool:
    """Whether a checkpoint can hold this value, so that a Trainer reads it with
    weights_only=True.
    """
    try:
        return _is_plain(value)
    except RecursionError:  # it contains itself
        return False


def _is_plain(value: Any) -> bool:
    if type(value) in (dict, list, tuple):
        inside = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        return all(map(_is_plain, inside))
    return type(value) in (
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        torch.dtype,
        torch.device,
        torch.Size,
        Tensor,
    )


def _version() -> str:
    """Lightning's version, if it is loaded: it is never imported here."""
    package = sys.modules.get("lightning") or sys.modules.get("pytorch_lightning")
    return str(getattr(package, "__version__", ""))
