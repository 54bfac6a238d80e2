"""Makes a task of an object with `training_step` and `configure_optimizers`: a LightningModule, or
one like it.

Its steps and optimizers are here, its hooks in `hooks.py`; both look them up by name, once.
Lightning is never imported. Features that are not supported raise TaskError.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.settings import Settings
from workbench.task.data.loader_parts import length_of
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.lightning.hooks import LightningHooks
from workbench.task.lightning.logging.log import suffix
from workbench.task.lightning.members import LightningMembers, Manual
from workbench.task.lightning.optimizers import optimizations_of
from workbench.task.lightning.overrides import (
    LR_NAMES,
    Step,
    attribute_places,
    has_loader,
    networks_of,
    own_method,
    spec_of,
    step_of,
    temporarily_set,
)
from workbench.task.lightning.setup import Preparation
from workbench.task.lightning.trainer import unknown
from workbench.task.lightning.unsupported import explain_no_logger
from workbench.task.metrics.step_output import loss_parts, reported_weight, score_weight
from workbench.task.optim.optimizer_factory import leading_group, set_weight_decay
from workbench.task.optim.schedulers import refuse_built_in
from workbench.task.protocol import (
    Handle,
    Optimization,
    Phase,
    Progress,
    Scores,
    StepResult,
    Task,
    Tracker,
)
from workbench.values import shown

__all__ = ["LightningTask", "has_loader"]

SEED = "PL_GLOBAL_SEED"
"""The environment variable in which Lightning's `seed_everything` stores its seed."""


class LightningTask(Task):
    """Runs an object's own hooks: `training_step`, `validation_step`, `test_step`,
    `configure_optimizers`, `log`, …
    """

    def __init__(
        self,
        module: Any,
        preparation: Preparation,
        *,
        train: DataSpec | None,
        val: DataSpec | None,
        test: DataSpec | None,
        predict: DataSpec | None = None,
        sources: Mapping[str, Any],
    ) -> None:
        """sources: the objects that make these data, where they are not the module itself."""
        self.module = module
        self.preparation: Preparation = preparation
        self._name = type(module).__name__
        self.model = module if isinstance(module, nn.Module) else networks_of(module)
        self.train = train or spec_of("train", module, preparation.serving)
        self.val = val or spec_of("val", module, preparation.serving)
        self.test = test or spec_of("test", module, preparation.serving)
        self.predict = predict or spec_of("predict", module, preparation.serving)
        step = step_of(module, "training_step")
        if step is None:
            raise TaskError(f"{self._name} defines no training_step: write one.")
        self._step: Step = step
        self._scoring = {
            "val": step_of(module, "validation_step"),
            "test": step_of(module, "test_step"),
        }
        self._predict = step_of(module, "predict_step")
        self._split = own_method(module, "tbptt_split_batch")
        if self._scoring["val"] is None:
            self.val = None
        if self._scoring["test"] is None:
            self.test = None
        self.manual = getattr(module, "automatic_optimization", True) is False
        self._trainer, self._log = preparation.trainer, preparation.log
        self._log.samples_in = self.samples_in
        specs = {"train": self.train, "val": self.val, "test": self.test, "predict": self.predict}
        self._trainer.set_model(self.model, specs)
        self.hooks: LightningHooks = LightningHooks(
            preparation, sources, module, self.model, manual=self.manual
        )
        self._manual = Manual(self._name, self._trainer) if self.manual else None
        self._trainer.set_manual(self._manual)
        self._members = LightningMembers(module, self.hooks, self._manual)
        self._made: tuple[Optimization, ...] = ()
        """The optimizers of the running session."""
        self._accumulates = False
        self._last: tuple[weakref.ref[Optimizer], ...] = ()
        self._reads_rate: bool | None = None if attribute_places(module, LR_NAMES) else False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_last": (), "_made": ()}

    # -- settings

    @property
    def implied(self) -> dict[str, Any]:
        """The settings that the object itself implies: its learning rate, its loader's batch
        size, …
        """
        settings = {
            **(self.train.defaults if self.train else {}),
            **self.preparation.callback_settings,
        }
        pieces = getattr(self.module, "truncated_bptt_steps", None)
        # 0: off, in Lightning 1; a manual module splits its batches itself, as in Lightning 2.
        if isinstance(pieces, int) and pieces > 0 and not self.manual:
            settings["truncated_bptt_steps"] = pieces
        seed = os.environ.get(SEED, "")
        if seed.isdecimal():
            settings["seed"] = int(seed)
        settings["lr"] = self._own_rate(Settings.make(**settings))
        return settings

    def _own_rate(self, settings: Settings) -> float:
        """Return the rate with which the user's own training loop would train."""
        homes = attribute_places(self.module, LR_NAMES)
        rates = [
            float(namespace[name])
            for namespace, name in homes
            if isinstance(namespace[name], (int, float))
        ]
        with self._attached(settings, lambda: self._likely_updates(settings)):
            actual_rates = _rates(self._optimizations())
            # If two attributes differ, the one that configure_optimizers used; else the rate in its
            # code.
            standing = next((rate for rate in actual_rates if rate in rates), None)
            if standing is None and rates and self._reads(rates[0], actual_rates):
                return rates[0]
            return actual_rates[leading_group(actual_rates)] if standing is None else standing

    def _likely_updates(self, settings: Settings) -> int | None:
        """An estimate of the updates of a fit with these settings, for a schedule that is made
        only to read its rate.
        """
        batches = None if self.train is None else length_of(self.train.loader(settings))
        return (
            None
            if batches is None or settings.epochs is None
            else max(1, batches) * settings.epochs
        )

    @property
    def dataloader_idx(self) -> int | None:
        """The number of the set that is read, which is appended to the names of logged values."""
        return self._log.dataloader_idx

    @dataloader_idx.setter
    def dataloader_idx(self, number: int | None) -> None:
        self._log.dataloader_idx = number

    def suffix_of(self, spec: DataSpec) -> str:
        return "" if spec.index is None else suffix(spec.index)

    @property
    def takes_index(self) -> bool:
        """Whether training_step takes the number of the batch."""
        return self._step.takes_index

    @property
    def homes(self) -> dict[str, str]:
        """The places of `lr` and `batch_size` on `network`, as the left side of an assignment, for
        the exported script.
        """
        homes = {}
        for setting, names in (("lr", LR_NAMES), ("batch_size", ("batch_size",))):
            places = [
                (
                    f"network.{name}"
                    if namespace is vars(self.module)
                    else f"network.hparams[{name!r}]"
                )
                for namespace, name in attribute_places(self.module, names)
            ]
            if places:
                homes[setting] = " = ".join(places)
        return homes

    # -- while a job runs

    @contextlib.contextmanager
    def running(self, settings: Settings, phase: Phase = "fit") -> Iterator[None]:
        """Context manager of a job, in which `lr` and `batch_size` are the job's, and `self.log`
        works; everything is restored afterwards.
        """
        self._accumulates = settings.accumulate_grad_batches != 1
        rate, size = (
            attribute_places(self.module, LR_NAMES),
            attribute_places(self.module, ("batch_size",)),
        )
        with (
            temporarily_set(rate, settings.lr),
            temporarily_set(size, settings.batch_size),
            self._attached(settings),
            super().running(settings, phase),
        ):
            yield

    @contextlib.contextmanager
    def _attached(
        self, settings: Settings, count: Callable[[], int | None] = unknown
    ) -> Iterator[None]:
        """Context manager in which the object has the replacement of Trainer, and logs to this
        task; its attributes are restored afterwards.

        count: returns the updates of the whole fit, if they are known before there is a session.
        """
        manual = contextlib.nullcontext() if self._manual is None else self._manual.apart()
        before, self._made = self._made, ()
        try:
            with (
                self.preparation.attached(),
                self._trainer.planned(settings, count),
                self._log.discarding_logs(),
                manual,
                self._members.attached(),
            ):
                yield
        finally:
            self._made = before
            self.hooks.outputs.clear()

    def follow(self, progress: Progress) -> None:
        super().follow(progress)
        self._log.follow(progress, self.module)
        self._trainer.set_optimizers(self._made)
        self._trainer.refresh()

    def use_trackers(self, trackers: Sequence[Tracker]) -> None:
        self._trainer.use_trackers(trackers)

    def drive(self, handle: Handle) -> None:
        assert self._manual is not None
        self._manual.begin(self._made, handle, accumulates=self._accumulates)

    # -- steps

    def _call(self, step: Step, name: str, batch: Any, batch_idx: int, **extra: Any) -> Any:
        """Call a step of the object; the values that it logs belong to this batch."""
        log = self._log
        before, log.hook = log.hook, name
        if log.batch is not batch:
            log.begin_batch(batch)
        self._trainer.set_batch_idx(batch_idx)
        self._trainer.refresh()
        try:
            output = step(batch, batch_idx, **extra)
        except AttributeError as error:
            explain_no_logger(error)
            raise
        log.hook = before
        return output

    def training_step(self, batch: Any, batch_idx: int, **extra: Any) -> StepResult:
        if "hiddens" in extra and "hiddens" not in self._step.extras:
            raise TaskError(
                f"truncated_bptt_steps: {self._name}.training_step must take the hidden state,"
                " training_step(self, batch, batch_idx, hiddens), and return {'loss': loss,"
                " 'hiddens': hiddens}."
            )
        hooks = self.hooks
        hooks.index = extra.get("optimizer_idx", 0)
        output = self._call(self._step, "training_step", batch, batch_idx, **extra)
        if hooks.needs_outputs["train"]:
            hooks.outputs[batch_idx] = output
        if not hooks.within:
            self._log.end_batch()
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            if output is None or self.manual:
                return None
            got = (
                f"a dict with {sorted(output)}"
                if isinstance(output, Mapping)
                else f"{shown(output)}"
            )
            raise TaskError(
                f"training_step returned {got}: it must return the loss, or a dict with 'loss'."
            )
        parts = {
            name: value
            for name, value in loss_parts(output).items()
            if not self._log.logs_in_training(name)
        }
        self.loss_part_names = self.loss_part_names.union(parts)
        outputs: dict[str, Any] = {**parts, "loss": loss}
        weight = reported_weight(output, "training_step")
        if weight is not None:
            outputs["weight"] = weight
        if "hiddens" in extra:
            if not isinstance(output, Mapping) or "hiddens" not in output:
                raise TaskError(
                    "truncated_bptt_steps: training_step must return {'loss': loss, 'hiddens':"
                    " hiddens}."
                )
            outputs["hiddens"] = output["hiddens"]
        return outputs if len(outputs) > 1 else loss

    def validation_step(
        self, batch: Any, batch_idx: int, stage: Literal["val", "test"] = "val"
    ) -> Scores:
        step = self._scoring[stage]
        assert step is not None
        name = "validation_step" if stage == "val" else "test_step"
        output = self._call(step, name, batch, batch_idx, dataloader_idx=self.dataloader_idx)
        if self.hooks.needs_outputs[stage]:
            self.hooks.outputs[batch_idx] = output
        weight = score_weight(output, self.samples_in(batch), name)
        self._log.set_weight(weight)
        loss = (
            output.get("loss", output.get(f"{stage}_loss"))
            if isinstance(output, Mapping)
            else output
        )
        is_number = (
            isinstance(loss, Tensor) and loss.numel() == 1 and not self._log.has(f"{stage}_loss")
        )
        return Scores({f"{stage}_loss": loss} if is_number else {}, weight, outputs=output)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """The result of the object's own predict_step, else of the object called with the whole
        batch, as Lightning does.
        """
        step = self._predict or self._forward()
        output = self._call(step, "predict_step", batch, batch_idx)
        if self.hooks.needs_outputs["predict"]:
            self.hooks.outputs[batch_idx] = output
        return output

    def _forward(self) -> Step:
        call = own_method(self.module, "forward")
        if callable(self.module) and (call is not None or not isinstance(self.module, nn.Module)):
            # the module itself is called, for registered forward hooks; an object without a forward
            # may be callable too
            call = self.module
        if call is None:
            raise TaskError(
                f"{self._name} defines neither predict_step nor forward: write one of them to"
                " predict."
            )
        return Step(lambda batch: call(batch))

    def split(self, batch: Any, length: int, time_dim: int) -> Sequence[Any] | None:
        return None if self._split is None else list(self._split(batch, length))

    # -- optimizers

    def configure(
        self, settings: Settings, updates: int | None
    ) -> Optimization | Sequence[Optimization]:
        with self.preparation.attached(), self._trainer.planned(settings, lambda: updates):
            optimizations = self._optimizations()
            if self._reads_rate is None and settings.lr not in _rates(optimizations):
                self._reads(settings.lr, _rates(optimizations))
                # a second call, since the object may keep the optimizers of the last call
                optimizations = self._optimizations()
        if any(optimization.schedules for optimization in optimizations):
            where = f"the scheduler of {self._name}.configure_optimizers()"
            refuse_built_in(settings, where, manual=self.manual)
        for optimization in optimizations:
            if self._reads_rate is not False:
                optimization.lr = None  # the object used the job's rate itself
            if settings.weight_decay is not None:
                set_weight_decay(optimization.optimizer, settings.weight_decay)
        self._made = optimizations
        return optimizations[0] if len(optimizations) == 1 else optimizations

    def _optimizations(self) -> tuple[Optimization, ...]:
        optimizations = optimizations_of(self.module, manual=self.manual)
        before = [last() for last in self._last]
        if any(optimization.optimizer is old for optimization in optimizations for old in before):
            raise TaskError(
                f"{self._name}.configure_optimizers() returned the same optimizer again, with the "
                "state of the job before: make it in configure_optimizers, not in __init__."
            )
        if len(optimizations) > 1 and not self.manual and "optimizer_idx" not in self._step.extras:
            raise TaskError(
                f"{self._name}.configure_optimizers() returned {len(optimizations)} optimizers: let"
                " training_step take optimizer_idx (which one its loss is for), or set"
                " self.automatic_optimization = False and step them there."
            )
        self._last = tuple(weakref.ref(optimization.optimizer) for optimization in optimizations)
        return optimizations

    def _reads(self, rate: float, rates: tuple[float, ...]) -> bool:
        """Whether `configure_optimizers` reads the object's rate: with `rate` as the attribute, the
        optimizers have other rates than `rates`.
        """
        if self._reads_rate is None:
            with temporarily_set(attribute_places(self.module, LR_NAMES), 2 * rate or 1.0):
                self._reads_rate = _rates(self._optimizations()) != rates
        return self._reads_rate


def _rates(optimizations: Sequence[Optimization]) -> tuple[float, ...]:
    """Return the rate at which each optimizer was made."""
    return tuple(optimization.lr for optimization in optimizations if optimization.lr is not None)
