"""Makes a task of an nn.Module, a loss and data: the model gets the inputs, the loss gets output
and target.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from workbench.settings import Settings, setting_text
from workbench.settings.optimizers import is_named, named_or_self
from workbench.task import hints
from workbench.task.batch import TARGETS, holds_text, is_several, sample_count
from workbench.task.batch_transforms import (
    CutMix,
    LabelSmoothing,
    MixedTarget,
    MixUp,
    OneOf,
    cutmix,
    label_smoothing,
    mixup,
    one_of,
    smoothed,
)
from workbench.task.data.combined import side_by_side
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.metrics.metrics import (
    batch_values,
    checked_metrics,
    describe_arguments,
    is_metric_object,
    split,
)
from workbench.task.metrics.over_epoch import OverEpoch
from workbench.task.metrics.step_output import loss_parts, reported_weight, score_weight
from workbench.task.optim import named_optimizers
from workbench.task.optim.group_checks import (
    checked_rules,
    divides,
    freezes,
    options_by_rule,
    rule_text,
)
from workbench.task.optim.groups import freeze_by
from workbench.task.optim.optimizer_factory import OptimizerFactory
from workbench.task.optim.part_optimizers import PartFactory
from workbench.task.optim.schedulers import MakeScheduler, refuse_built_in, schedule_of
from workbench.task.protocol import Optimization, Phase, Schedule, Scores, StepResult, Task
from workbench.task.signature import fits, parameters
from workbench.values import shown

MakeOptimizer = Callable[..., Optimizer] | Mapping[str, Callable[..., Optimizer]]


class Supervised(Task):
    """Batches are (x, …, y), or dicts with the target under one of `TARGETS`; without a loss,
    `output.loss` is used.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[..., Any] | None,
        train: DataSpec | None,
        val: DataSpec | None,
        test: DataSpec | None,
        predict: DataSpec | None = None,
        optimizer: MakeOptimizer,
        scheduler: MakeScheduler | None,
        metrics: Any,
        groups: Any = None,
        batch_transform: Any = None,
    ) -> None:
        if (
            loss is not None
            and train is not None
            and not train.made_by_object
            and side_by_side(train.parts.dataset)
        ):
            raise TaskError(
                "train holds several loaders, and with loss= a batch must be (x, y): make one of"
                " them (torch.utils.data.ConcatDataset puts data sets one after another,"
                " StackDataset side by side), or let the model take all and return its loss."
            )
        self.model = model
        self.train, self.val, self.test, self.predict = train, val, test, predict
        self._loss = loss
        self.loss_is_mean = loss is None or _is_mean(loss)
        self.rules = checked_rules(groups)
        """Those of `groups=`."""
        self.dividing_rules = self.rules if divides(self.rules) else ()
        """Those that divide the parameters of each optimizer."""
        self.freezes = freezes(self.rules)
        if self.rules and not any(map(is_lazy, self.trained_parameters().values())):
            options_by_rule(self.rules, self.trained_parameters())
        if isinstance(optimizer, Mapping):
            by_parts = PartFactory(optimizer, self.trained_parameters, self.dividing_rules)
            self.optimizer_factory = OptimizerFactory(by_parts)
        else:
            self.optimizer_factory = OptimizerFactory(
                optimizer, self.dividing_rules, self.trained_parameters
            )
        self.batch_transforms = checked_transforms(batch_transform, loss)
        """What changes each training batch, one after another."""
        self._kept_batches: dict[int, Any] | None = None
        """The changed batches of an update that is evaluated several times, by number; None: each
        evaluation changes them anew.
        """
        self._scheduler = scheduler
        self.metrics, self.epoch_metrics = split(checked_metrics(metrics))
        self.one_collection = is_metric_object(metrics)
        """Whether `metrics=` was a collection, which names its own values, and not a dict."""
        self.names_its_metrics: bool | None = None
        """Whether a function of `metrics` has returned several numbers by name; None: none was
        called yet.
        """
        self._scores_loss = True
        """Whether the last batch of a validation had a loss."""
        self._carries = False
        """Whether the model takes a hidden state and returns (output, hiddens)."""
        self._tries = False
        """Whether the dry run is trying steps."""
        self._elements: int | None = None
        """How many elements the last training or validation batch had; None: it was not a tuple."""

    @property
    def loss_is_module(self) -> bool:
        """Whether the loss is an nn.Module, which may hold weights of its own."""
        return isinstance(self._loss, nn.Module)

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        others = (self._loss, *self.metrics.values())
        return (self.model, *(other for other in others if isinstance(other, nn.Module)))

    @property
    def trained_modules(self) -> Mapping[str, nn.Module]:
        """The model, and the loss if it has trainable parameters of its own (class centres,
        weights of its terms).
        """
        known, loss = set(map(id, nn.Module.parameters(self.model))), self._loss
        if not isinstance(loss, nn.Module) or not any(
            p.requires_grad and id(p) not in known for p in loss.parameters()
        ):
            return {"": self.model}
        members = (
            *self.model.named_children(),
            *self.model.named_parameters(),
            *self.model.named_buffers(),
        )
        name, reserved = "loss", {name.partition(".")[0] for name, _ in members}
        while name in reserved:
            name += "_"
        return {"": self.model, f"{name}.": loss}

    @contextlib.contextmanager
    def running(self, settings: Settings, phase: Phase = "fit") -> Iterator[None]:
        """Context manager of a job; with `truncated_bptt_steps`, each call of the model takes
        and returns a hidden state in it.
        """
        self._carries = settings.truncated_bptt_steps is not None
        try:
            with super().running(settings, phase):
                yield
        finally:
            self._carries, self._kept_batches = False, None

    @contextlib.contextmanager
    def checking_steps(self) -> Iterator[None]:
        self._tries = True
        try:
            yield
        finally:
            self._tries = False

    def weight(self, batch: Any) -> float:
        return float(self.samples_in(batch)) if self.loss_is_mean else 1.0

    def training_step(self, batch: Any, batch_idx: int, **extra: Any) -> StepResult:
        carries = "hiddens" in extra
        if self.batch_transforms:
            batch = self._transformed(batch, batch_idx, carries=carries)
        result, _, _, hiddens = self._forward(batch, extra.get("hiddens"), carries=carries)
        if not carries and isinstance(result, Tensor):
            return result
        weight = reported_weight(result, "the loss")
        loss: Any = _loss_in(result)
        parts = loss_parts(result)
        self.loss_part_names = self.loss_part_names.union(parts)
        outputs = {**parts, "loss": loss}
        if weight is not None:
            outputs["weight"] = weight
        if carries:
            outputs["hiddens"] = hiddens
        return outputs if len(outputs) > 1 else loss

    def begin_evaluation(self, *, again: bool) -> None:
        if not again:
            self._kept_batches = {}

    def _transformed(self, batch: Any, batch_idx: int, *, carries: bool) -> Any:
        kept = self._kept_batches
        if kept is not None and batch_idx in kept:
            return kept[batch_idx]
        if carries:
            raise TaskError(
                "batch_transform= changes a batch as a whole, and truncated_bptt_steps cuts it into"
                " pieces: leave one of them out."
            )
        for number, transform in enumerate(self.batch_transforms):
            batch = transform(batch)
            if batch is None:
                raise TaskError(
                    f"batch_transform[{number}]={shown(transform)} returned None: it must return"
                    " the batch."
                )
        if kept is not None:
            kept[batch_idx] = batch
        return batch

    def validation_step(
        self, batch: Any, batch_idx: int, stage: Literal["val", "test"] = "val"
    ) -> Scores:
        result, output, target, _ = self._forward(batch, None, carries=self._carries)
        self._scores_loss = result is not None
        if result is None and self._loss is not None:
            raise TaskError(
                "the loss returned None. Training leaves such a batch out, but a validation or a"
                " test needs a number for each: return one where torch.is_grad_enabled() is False,"
                " or leave these samples out of its data."
            )
        values: dict[str, Tensor | float] = (
            {} if result is None else {f"{stage}_loss": _loss_in(result)}
        )
        counts = _counts(batch, target) if self.metrics else set()
        for name, metric in self.metrics.items():
            try:
                score = self._called_with(metric, f"metrics[{name!r}]", output, target)
            except (TypeError, AttributeError, ValueError, LookupError) as error:
                if not isinstance(error, TaskError):
                    error.add_note(
                        f"It was metrics[{name!r}], called with"
                        f" {describe_arguments(output, target)}."
                    )
                raise
            self.names_its_metrics = bool(self.names_its_metrics) or isinstance(score, Mapping)
            batch_scores = batch_values(stage, name, score, counts)
            if twice := batch_scores.keys() & values.keys():
                raise TaskError(
                    f"metrics[{name!r}]: there is another metric that is reported as"
                    f" {min(twice)!r}: rename one of them."
                )
            values |= batch_scores
        return Scores(
            values,
            score_weight(result, self.samples_in(batch), "the loss"),
            (output, target) if self.epoch_metrics else None,
            output,
        )

    def reported(self, settings: Settings) -> tuple[str, ...] | None:
        if self.val is None or settings.limit_val_batches == 0:
            return ("train_loss",)
        known = not self.metrics or self.names_its_metrics is False
        if not known or any(
            isinstance(metric, OverEpoch) or hasattr(metric, "items")
            for metric in self.epoch_metrics.values()
        ):
            return None  # a function may return a dict with names of its own
        names = [
            f"val_{name}"
            for name in (
                *(["loss"] if self._scores_loss else []),
                *self.metrics,
                *self.epoch_metrics,
            )
        ]
        return (
            *(name + self.suffix_of(dataset) for dataset in self.val.sets for name in names),
            "train_loss",
        )

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """The model's output for a batch with or without its target.

        A training batch has the target in addition: the keys in `TARGETS` of a dict, the last part
        of a tuple that is as long as the batches of training and validation. Without a loss= the
        model gets the whole batch.
        """
        inputs: Any = batch
        if self._loss is not None and isinstance(batch, Mapping):
            inputs = {key: value for key, value in batch.items() if key not in TARGETS}
        elif self._loss is not None and is_several(batch) and len(batch) > 1:
            inputs = batch[:-1] if self._elements in (None, len(batch)) else batch
        return self._call_carrying(inputs, None)[0] if self._carries else self._called(inputs)

    def _forward(self, batch: Any, hiddens: Any, *, carries: bool) -> tuple[Any, Any, Any, Any]:
        """The loss function's result, the output, the target, and the hidden state after the
        batch.
        """
        several = is_several(batch)
        if several:
            self._elements = len(batch)
        if self._loss is None:
            output, hiddens = (
                self._call_carrying(batch, hiddens) if carries else (self._called(batch), None)
            )
            return self._loss_of(output, batch), output, _target(batch), hiddens
        inputs, target = (
            (tuple(batch[:-1]), batch[-1]) if several and len(batch) >= 2 else _split(batch)
        )
        output, hiddens = (
            self._call_carrying(inputs, hiddens) if carries else (self._called(inputs), None)
        )
        try:
            if isinstance(target, MixedTarget):
                return target.loss(self._loss, output), output, target, hiddens
            if not self._tries:
                return self._loss(output, target), output, target, hiddens
            hints.refuse_one_class(self._loss, output)
            return (
                self._called_with(self._loss, "the loss", output, target),
                output,
                target,
                hiddens,
            )
        except TaskError:
            raise
        except Exception as error:
            if isinstance(target, MixedTarget):
                target = target.shares[0][0]
            remedy = hints.explain_loss_error(self._loss, output, target, error)
            if remedy is not None:
                raise TaskError(f"the loss failed with {type(error).__name__}: {remedy}") from error
            if (
                carries
                or not is_several(output)
                or not isinstance(error, TypeError | AttributeError)
            ):
                raise
            raise TaskError(
                f"the model returned {len(output)} parts, which the loss did not take"
                f" ({type(error).__name__}: {error}): return the output alone, give a loss for all"
                " of them, or, where they are (output, hiddens), set truncated_bptt_steps when the"
                " bench is made."
            ) from error

    def _call_carrying(self, inputs: Any, hiddens: Any) -> tuple[Any, Any]:
        """The output of a model that carries a hidden state, and that state."""
        places: tuple[Any, ...] = ()
        names: dict[str, Any] = {}
        if isinstance(inputs, Mapping):
            names = {**inputs, "hiddens": hiddens}
        else:
            places = (*_as_tuple(inputs), hiddens)
        try:
            called = self.model(*places, **names)
        except TypeError as error:
            if fits(self.model.forward, *places, **names):
                raise
            raise TaskError(
                "truncated_bptt_steps: the model is called as model(x, hiddens) (None at the start"
                f" of a batch), which {type(self.model).__name__}.forward does not take ({error}):"
                " give it that argument, or leave the setting off."
            ) from error
        if not is_several(called) or len(called) != 2:
            got = f"{len(called)} parts" if is_several(called) else f"a {type(called).__name__}"
            raise TaskError(
                "truncated_bptt_steps: the model is called as model(x, hiddens) (None at the start"
                f" of a batch) and must return (output, hiddens); {type(self.model).__name__}"
                f" returned {got}."
            )
        return called[0], called[1]

    def _called(self, inputs: Any) -> Any:
        """Call the model with inputs by position or by name."""
        names: Mapping[str, Any] = {}
        places: tuple[Any, ...] = ()
        if type(inputs) is tuple:
            places = inputs
        elif isinstance(inputs, Mapping):
            names = without_unknown_texts(self.model, inputs)
        else:
            places = _as_tuple(inputs)
        try:
            return self.model(*places, **names)
        except TypeError as error:
            if fits(self.model.forward, *places, **names):
                raise
            shown_inputs = names if isinstance(inputs, Mapping) else inputs
            if self._loss is None:
                raise TaskError(hints.explain_missing_loss(self.model, shown_inputs)) from error
            if unknown := hints.explain_unknown_inputs(self.model, shown_inputs):
                raise TaskError(unknown) from error
            left_out = (
                "the target's key" if shown_inputs is names else "the last element of a batch"
            )
            error.add_note(f"The model is called with all but {left_out}.")
            raise

    def _loss_of(self, output: Any, batch: Any) -> Tensor | dict[str, Tensor] | None:
        """The loss in an output, or the sum of its losses with each by its name, as detection
        models of torchvision give them.

        None: the model gives predictions alone in a validation, which reports metrics then.
        """
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor):
            return loss
        if self.model.training and hints.are_losses(output):
            return {**output, "loss": sum(output.values())}
        if self.model.training or not (self.metrics or self.epoch_metrics):
            raise TaskError(hints.explain_output_without_loss(self.model, output, batch))
        return None

    def _called_with(
        self, function: Callable[..., Any], label: str, output: Any, target: Any
    ) -> Any:
        """Call a loss or a metric; in a dry run, check the shapes that it compares."""
        # compiled
        if (
            not self._tries
            or hasattr(function, "_torchdynamo_orig_callable")
            or hasattr(function, "_orig_mod")
        ):
            return function(output, target)
        with hints.ShapeCheck(label, function, output, target):
            return function(output, target)

    @property
    def implied(self) -> dict[str, Any]:
        """The settings that data and optimizer imply: a rate that the user put into `optimizer=` is
        the rate until `lr` is set.
        """
        return super().implied | self._implied_by(self.optimizer_factory)

    def implied_by(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that data and optimizer imply beside those that the user gave, of which one
        may name another optimizer.
        """
        choice = given.get("optimizer")
        if choice is None:
            return self.implied
        named = self.factory_of(Settings.make(optimizer=choice))
        return super().implied | self._implied_by(named)

    def _implied_by(self, factory: OptimizerFactory) -> dict[str, float]:
        parameters = self._trained()
        rate = factory.own_rate(parameters) if parameters else None
        return {} if rate is None else {"lr": rate}

    def factory_of(self, settings: Settings) -> OptimizerFactory:
        """What makes the optimizer: the one that the settings name, else the bench's own."""
        if settings.optimizer is None:
            return self.optimizer_factory
        return named_optimizers.factory_of(
            settings.optimizer, self.dividing_rules, self.trained_parameters
        )

    @property
    def optimizer_text(self) -> str:
        named = named_or_self(self.optimizer_factory.make)
        return (
            setting_text.short("optimizer", named)
            if is_named(named)
            else self.optimizer_factory.name
        )

    @property
    def loss_text(self) -> str:
        return "" if self._loss is None else hints.loss_name(self._loss)

    @property
    def groups_text(self) -> str:
        return ", ".join(map(rule_text, self.rules))

    def refuse_optimizer(self, settings: Settings) -> None:
        if settings.optimizer is not None:
            factory = self.factory_of(settings)
            named_optimizers.refuse_unfit(settings, self.model, self._trained(), factory)

    def freeze(self, parameters: Mapping[str, Tensor], epoch: int) -> Mapping[str, Tensor]:
        return freeze_by(self.rules, parameters, epoch)

    def configure(self, settings: Settings, updates: int | None) -> Optimization:
        parameters = named_optimizers.grouped(settings.optimizer, self.model, self._trained())
        optimizer = self.factory_of(settings)(parameters, settings.lr, settings.weight_decay)
        return Optimization(optimizer, self._schedules(optimizer, settings, updates))

    def _trained(self) -> list[nn.Parameter]:
        """The parameters for the optimizer: those that `parameters()` returns, which a model may
        override.
        """
        all_parameters = itertools.chain.from_iterable(
            module.parameters() for module in self.trained_modules.values()
        )
        return [*dict.fromkeys(p for p in all_parameters if p.requires_grad)]

    def _schedules(
        self, optimizer: Optimizer, settings: Settings, updates: int | None
    ) -> tuple[Schedule, ...]:
        if self._scheduler is None:
            return ()
        refuse_built_in(settings, "scheduler=")
        if updates is None:
            raise TaskError(
                f"scheduler= needs the number of updates, and {_why_unknown(settings)}: give"
                " max_steps."
            )
        schedulers = self._scheduler(optimizer, updates)
        listed = schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]
        where = "scheduler(optimizer, updates) returned"
        schedules = tuple(
            schedule_of(scheduler, where, interval="step", monitor="val_loss")
            for scheduler in listed
        )
        for schedule in schedules:
            if getattr(schedule.scheduler, "optimizer", optimizer) is not optimizer:
                raise TaskError(
                    f"{where} a {type(schedule.scheduler).__name__} of another optimizer, which"
                    " would change no rate of this run: make it of the optimizer that it is given."
                )
        return schedules


def without_unknown_texts(model: nn.Module, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs by name, without texts (file names, say) that the model's forward does not
    take.
    """
    texts = [name for name, value in inputs.items() if holds_text(value)]
    takes = parameters(model.forward) if texts else None
    if takes is None or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()
    ):
        return inputs
    return {name: value for name, value in inputs.items() if name in takes or name not in texts}


def checked_transforms(given: Any, loss: Any) -> tuple[Callable[[Any], Any], ...]:
    """The transforms in `batch_transform=`; raises TaskError for what is none, or does not fit the
    loss.
    """
    if given is None:
        return ()
    transforms = tuple(given) if isinstance(given, list | tuple) else (given,)
    smoothing = ""
    for number, transform in enumerate(transforms):
        text = f"batch_transform[{number}]={shown(transform)}"
        singles = _single(transform)
        for single in singles:
            _check_transform(text, single, loss)
        smooth = next((each for each in singles if isinstance(each, LabelSmoothing)), None)
        if smooth is not None:
            called = f"batch_transform[{number}] has wb.label_smoothing({smooth.epsilon:g})"
            if smoothing:
                raise TaskError(
                    f"{smoothing}, and {called}, which would count alone: leave one out."
                )
            smoothing = called
    return transforms


def _single(transform: Any) -> Sequence[Any]:
    """The transform, or all those of which `wb.one_of` draws one."""
    if not isinstance(transform, OneOf):
        return [transform]
    return [single for inner in transform.transforms for single in _single(inner)]


def _check_transform(text: str, transform: Any, loss: Any) -> None:
    if transform in (mixup, cutmix, label_smoothing, one_of):
        name = transform.__name__
        raise TaskError(f"{text}: wb.{name} is not called: give wb.{name}(…).")
    if not callable(transform) or isinstance(transform, type) or not fits(transform, ()):
        raise TaskError(
            f"{text}: {shown(transform)} is no function of a batch: give wb.mixup(0.2), or a"
            " function of one batch that returns a batch."
        )
    if isinstance(transform, MixUp | CutMix | LabelSmoothing):
        _check_mixable(text, transform, loss)


def _check_mixable(text: str, transform: MixUp | CutMix | LabelSmoothing, loss: Any) -> None:
    if loss is None:
        raise TaskError(
            f"{text} needs loss=, since the model would get the mixed targets: give"
            " loss=F.cross_entropy and a model that returns its scores."
        )
    name = getattr(loss, "__name__", type(loss).__name__)
    if name in _REGRESSION:
        raise TaskError(
            f"{text} mixes classes, and loss={name} is for numbers: leave it out, or mix inputs and"
            " targets in a function of your own."
        )
    if isinstance(transform, LabelSmoothing):
        try:
            smoothed(loss, transform.epsilon)
        except ValueError as error:
            raise TaskError(str(error)) from None


_REGRESSION = (
    "mse_loss", "MSELoss", "l1_loss", "L1Loss", "smooth_l1_loss", "SmoothL1Loss", "huber_loss",
    "HuberLoss", "gaussian_nll_loss", "GaussianNLLLoss", "poisson_nll_loss", "PoissonNLLLoss",
)  # fmt: skip
"""Torch's losses for numbers."""


def check_optimizer(optimizer: Any) -> None:
    """Raise TaskError for an optimizer instance: it would keep the parameters and state of one
    run for all runs.
    """
    if isinstance(optimizer, Optimizer):
        kind = type(optimizer)
        raise TaskError(
            f"optimizer={kind.__name__}(…) is an optimizer that is already made; each run needs its"
            f" own. Give what makes it: optimizer=torch.optim.{kind.__name__}, or with options"
            f" functools.partial(torch.optim.{kind.__name__}, …)."
        )
    if is_named(optimizer):
        raise TaskError(
            f"optimizer={shown(optimizer)} is a setting, which the bench is given:"
            f" wb.Workbench(…, optimizer={shown(optimizer)})."
        )
    if not callable(optimizer) and not isinstance(optimizer, Mapping):
        raise TaskError(
            f"optimizer={shown(optimizer)} cannot be called: give e.g. torch.optim.AdamW."
        )


def _is_mean(loss: Callable[..., Any]) -> bool:
    """Whether a loss is a mean over samples: its `reduction`, which is "mean" by default."""
    if isinstance(loss, functools.partial) and "reduction" in loss.keywords:
        return bool(loss.keywords["reduction"] == "mean")
    return getattr(loss, "reduction", "mean") == "mean"


def _as_tuple(batch: Any) -> tuple[Any, ...]:
    if type(batch) is tuple:
        return batch
    return tuple(batch) if is_several(batch) else (batch,)


def _split(batch: Any) -> tuple[tuple[Any, ...] | dict[str, Any], Any]:
    """The inputs and the target of a batch that is not a tuple of at least two."""
    if isinstance(batch, Mapping):
        for key in TARGETS:
            if key in batch:
                return {k: v for k, v in batch.items() if k != key}, batch[key]
        raise TaskError(
            f"a batch is a dict with {sorted(batch)}, and none of these is a target: name it one of"
            f" {list(TARGETS)}."
        )
    description = f"{len(batch)} element(s)" if is_several(batch) else f"a {type(batch).__name__}"
    raise TaskError(
        f"a batch is {description}; with loss= it must be (x, y), (x1, x2, y) or a dict with a "
        "target; an autoencoder takes (x, x)."
    )


def _counts(batch: Any, target: Any) -> set[int]:
    """The possible numbers of samples of a batch: the first dimensions of its parts."""
    return {sample_count(batch), sample_count(target)}


def _target(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return next((batch[key] for key in TARGETS if key in batch), None)
    return batch[-1] if is_several(batch) else None


def _loss_in(result: Any) -> Any:
    """The loss in the loss function's result: a number, or {"loss": …, "weight": …}."""
    if not isinstance(result, Mapping):
        return result
    if not isinstance(result.get("loss"), Tensor):
        raise TaskError(
            f"the loss returned a dict with {sorted(result)}: it needs the loss, a tensor, under"
            " 'loss'."
        )
    return result["loss"]


def _why_unknown(settings: Settings) -> str:
    """Why the number of updates of a run cannot be known in advance."""
    if settings.epochs is None:
        return "the run has no number of epochs"
    if settings.truncated_bptt_steps is not None:
        return (
            "with truncated_bptt_steps each batch makes one for each of its pieces, whose number is"
            " known only when it is read"
        )
    return "the train loader has no length"
