"""Tries one step on two samples before training, restores all state, and adds remedies to
errors.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.optim.optimizers import counted_parameters
from workbench.engine.runtime.restore_devices import restored_devices
from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.engine.step import take_update
from workbench.engine.validation.validate import PLACE, validate
from workbench.instruments.finite import NonFiniteError
from workbench.runs.checkpoints import UNSTORED
from workbench.settings import Settings
from workbench.task.batch import describe, leaves, sample_count
from workbench.task.data.spec import DataSpec, HeldOut
from workbench.task.errors import TaskError
from workbench.task.hints import (
    NO_GRADIENT,
    add_remedy,
    explain_batch_error,
    unknown_parameters,
)
from workbench.task.protocol import Schedule, Task
from workbench.task.state.held import HeldState
from workbench.task.state.of_task import copy_state, held_data, held_state
from workbench.values import first_names, shown

SAMPLES = 2


@dataclass
class _Tried:
    """A batch, and the name of the data from which it came."""

    name: str
    batch: Any
    spec: DataSpec | None = None

    def remedy(self) -> str:
        """What to do where the samples of a list may be ready batches; "": they are not."""
        parts = None if self.spec is None else self.spec.parts
        if parts is None or parts.collate_fn is not None:
            return ""
        listed: Any = parts.dataset
        tensors = leaves(listed[0]) if isinstance(listed, (list, tuple)) else []
        if not tensors or not all(tensor.ndim for _, tensor in tensors):
            return ""
        return (
            f" If each element of the list is a ready batch, give {self.name}=wb.batches(…),"
            " without batch_size."
        )


class DryRunResult(NamedTuple):
    """The result of the dry run."""

    optimizers: int
    schedules: tuple[Schedule, ...]
    lost: tuple[str, ...]
    """Names of the user's objects that it has changed and could not restore."""
    unstored: tuple[str, ...]
    """Names of those that it has changed and that no checkpoint can store."""

    @property
    def warnings(self) -> Iterator[str]:
        """The warnings about these objects."""
        if self.lost:
            lost = first_names(self.lost, 5)
            yield (
                f"the dry run on two samples changed state that it cannot restore: {lost}."
                " wb.Workbench(…, dry_run=False) leaves it out."
            )
        if self.unstored:
            names = first_names(self.unstored, 5)
            yield (
                f"a step changes state that {UNSTORED}: {names}. A fit that continues from a"
                " checkpoint begins with its value at that time."
            )


def dry_run(task: Task, settings: Settings, *, samples: bool = True) -> DryRunResult:
    """Run forward, loss and backward on two training samples, and a validation on two (on one at
    batch_size=1), and restore all state.

    samples: False reads no sample and tries no step; it makes all other checks.
    """
    _check(task, settings)
    calm = settings.replace(
        compile=False, num_workers=0, prefetch_factor=None, find_lr_at=(), find_batch_size_at=()
    )
    lost: list[str] = []
    unstored: list[str] = []
    with restored_devices(task), open_session(task, calm) as session:
        optimizers = session.optimizers
        if samples:
            state, held = copy_state(task, trial=True), (held_state(task, set()), held_data(task))
            try:
                with scratch(session), task.checking_steps():
                    _Trial(session).run()
                    unstored = held[0].state()[1] + _note_changes(task, held[1])
            finally:
                lost = state.put()
    schedules = tuple(schedule for opt in optimizers for schedule in opt.schedules)
    return DryRunResult(len(optimizers), schedules, tuple(lost), tuple(unstored))


def _note_changes(task: Task, data: HeldState) -> list[str]:
    """Note in the specs what the trial has changed in the data; returns what of it no checkpoint
    can store.
    """
    changed, unstored = data.state()
    for whole in (task.train, task.val):
        for spec in () if whole is None else whole.sets:
            spec.changing = tuple(
                f"{path}.{name}"
                for path, values in changed.items()
                for name in values
                if _belongs(path, spec.name)
            )
    return unstored


def _belongs(path: str, name: str) -> bool:
    return path == name or path.startswith((f"{name}.", f"{name}[", f"{name}:"))


def _check(task: Task, settings: Settings) -> None:
    """Make the checks that need no sample."""
    if task.train is None:
        raise TaskError(
            "no training data: give train= (a Dataset, a DataLoader, arrays (x, y), …)."
        )
    if lazy := _without_shape(task.model):
        raise TaskError(
            f"model: {lazy} has no shape yet (a lazy module gets it from the first batch): call the"
            " model once on a batch, under torch.no_grad(), before you make the bench."
        )
    if task.val is not None and task.val.one_shot:
        raise TaskError(
            "val can be read only once (it is an iterator), and each validation reads it all: "
            "give a Dataset, a DataLoader, or wb.batches(list)."
        )
    task.train.refuse_larger(settings.batch_size)


class _Trial:
    """Tries a training step and a validation on a few samples."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self) -> None:
        """Try a step on two samples."""
        session = self._session
        task = session.task
        assert task.train is not None
        session.train_mode()
        # samples of different lengths may work only one by one
        count = min(SAMPLES, session.settings.batch_size)
        self._train(_peek(task.train, count))
        _warn_of_unowned(session)
        if task.val is not None:
            self._validate([(spec, _peek(spec, count)) for spec in task.val.sets])

    def _train(self, batch: Any) -> None:
        session = self._session
        if session.task.manual:  # with manual optimization an error shows only in a whole update
            # a loss that is not finite after another optimizer's step depends on the learning rates
            with contextlib.suppress(NonFiniteError):
                _explained(
                    "training_step",
                    _Tried("train", batch, session.task.train),
                    lambda: take_update(session, self._window(batch)),
                )
            return
        if session.hooks.within:  # training_step may rely on the hooks before it
            try:
                _explained(
                    "training_step or a hook of its update",
                    _Tried("train", batch, session.task.train),
                    lambda: take_update(session, self._window(batch)),
                )
            except NonFiniteError as error:
                if session.settings.on_nonfinite == "stop":
                    raise TaskError(
                        f"of the first {sample_count(batch)} samples, {error}"
                    ) from error
            return
        for opt in session.optimizers.turn(session.state.step):
            with session.optimizers.only(opt):
                self._evaluate(opt, batch)

    def _evaluate(self, opt: OptimizerHandle, batch: Any) -> None:
        session = self._session
        loss = _explained(
            "the model or the loss",
            _Tried("train", batch, session.task.train),
            lambda: self._loss(opt, batch),
        )
        if loss is None:
            return
        if not loss.requires_grad:
            raise TaskError(f"the loss does not depend on any trainable parameter. {NO_GRADIENT}")
        value = float(loss.detach())
        if value - value != 0.0 and session.settings.on_nonfinite == "stop":
            raise TaskError(
                f"the loss of the first {sample_count(batch)} samples is {value}."
                f" {_non_finite(batch, value)} (batch: {describe(batch)})"
            )
        _warn_of_outside_parameters(session.task, session.optimizers, loss)
        _explained("backward", _Tried("train", batch, session.task.train), lambda: loss.backward())
        trained = [
            p
            for module in session.task.modules
            for p in nn.Module.parameters(module)
            if p.requires_grad
        ]
        session.task.partial = any(p.grad is None for p in trained)
        for name, parameter in session.parameters.items():
            if parameter.grad is not None and parameter.grad.is_sparse:
                session.task.seen_sparse = name
            if parameter.grad is not None and parameter.grad.layout not in (
                torch.strided,
                torch.sparse_coo,
            ):
                raise TaskError(
                    f"the gradient of {name!r} has the layout {parameter.grad.layout}, which norms"
                    " and clipping do not support."
                )

    def _loss(self, opt: OptimizerHandle, batch: Any) -> Tensor | None:
        """The loss of the batch (of its first piece in time); None if the step left it out."""
        session = self._session
        extra: dict[str, Any] = {}
        (item,) = self._window(batch)
        if session.plan.tbptt is not None:
            item, extra = item.batch, {"hiddens": None}
        with session.precision.autocast():
            result = session.task.training_step(session.to_device(item), 0, **opt.extra, **extra)
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if result is None:
            return None
        if not isinstance(loss, Tensor):
            got = (
                f"a dict with {sorted(map(str, result))}"
                if isinstance(result, Mapping)
                else shown(loss)
            )
            several = isinstance(loss, (tuple, list)) and any(
                isinstance(entry, Tensor) for entry in loss
            )
            remedy = (
                "give the loss alone (loss=lambda output, y: your_loss(output, y)[0], say)"
                if several
                else "a loss must be computed with torch from the output"
            )
            raise TaskError(f"the loss is {got}, no tensor: {remedy}.")
        if loss.numel() != 1:
            raise TaskError(
                f"the loss has shape {tuple(loss.shape)} for a batch of {sample_count(batch)}; it"
                " must be one number. Take its mean: loss=lambda output, y: your_loss(output,"
                " y).mean(), or reduction='mean'."
            )
        return loss

    def _window(self, batch: Any) -> list[Any]:
        """The batch, or its first piece in time (truncated BPTT)."""
        return list(itertools.islice(self._session.data.split([batch]), 1))

    def _validate(self, held_out: Sequence[tuple[DataSpec, Any]]) -> None:
        """Try a validation of one batch of each set."""
        session = self._session
        source = "validation_step" if hasattr(session.task, "module") else "the model or a metric"
        tried = _Tried("", None, None)

        def sets() -> Iterator[HeldOut]:
            for spec, batch in held_out:
                tried.name, tried.batch, tried.spec = spec.name, batch, spec
                yield spec, [batch]

        _explained(source, tried, lambda: validate(session, sets(), trial=True))


def _without_shape(model: nn.Module) -> str:
    """The names of parameters that a lazy module has not made yet: "0.weight (and 3 more)"."""
    names = [
        name
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if is_lazy(tensor)
    ]
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return names[0] + more if names else ""


def _peek(spec: DataSpec, count: int) -> Any:
    try:
        return spec.peek(count)
    except TaskError:
        raise
    except Exception as error:
        remedy = _text_remedy(spec) if isinstance(error, ValueError) else ""
        raise TaskError(
            f"reading {count} sample{'s' if count > 1 else ''} of {spec.name} failed with"
            f" {_said(error).rstrip('.')}.{remedy}"
        ) from error


def _text_remedy(spec: DataSpec) -> str:
    """The remedy for samples with text, which a collator cannot turn into tensors; "" where
    there is none, or no sample can be read.
    """
    try:
        sample = spec.parts.dataset[0] if spec.parts.collate_fn is not None else None
    except Exception:  # noqa: BLE001  # the caller reports its own error
        return ""
    columns = (
        [name for name, value in sample.items() if isinstance(value, str)]
        if isinstance(sample, Mapping)
        else []
    )
    if not columns:
        return ""
    return (
        f" The samples hold text ({', '.join(map(repr, columns))}): tokenize it, then leave it out,"
        f" dataset.remove_columns({columns})."
    )


def _warn_of_outside_parameters(
    task: Task, optimizers: Sequence[OptimizerHandle], loss: Tensor
) -> None:
    """Warn of parameters in a function's closure: no optimizer has them."""
    known = [p for module in task.modules for p in nn.Module.parameters(module)]
    known += [
        p for opt in optimizers for group in opt.optimizer.param_groups for p in group["params"]
    ]
    unknown = unknown_parameters(loss, known)
    if unknown:
        warnings.warn(
            f"the loss depends on {counted_parameters(unknown)} that no optimizer of the run"
            " trains: to train them, give the nn.Module that has them as loss=, or make it a part"
            " of the model; else requires_grad_(False) saves their gradients.",
            stacklevel=2,
        )


def _warn_of_unowned(session: Session) -> None:
    """Warn of parameters that get a gradient and belong to no optimizer, but for those that an
    overridden `parameters()` leaves out.
    """
    owned = {
        id(p)
        for opt in session.optimizers
        for group in opt.optimizer.param_groups
        for p in group["params"]
    }
    meant = {id(p) for module in session.task.modules for p in module.parameters()}
    unowned = [
        name
        for name, p in session.parameters.items()
        if p.grad is not None and id(p) in meant - owned
    ]
    if unowned:
        names = ", ".join(map(repr, unowned[:3])) + (", …" if len(unowned) > 3 else "")
        which = (
            f"{len(unowned)} parameters ({names}) get gradients and are"
            if len(unowned) > 1
            else f"the parameter {names} gets a gradient and is"
        )
        warnings.warn(
            f"{which} in no optimizer, so that no update changes them: give them to the optimizer,"
            " or freeze them with requires_grad_(False), which saves their gradients.",
            stacklevel=2,
        )


_TWO = (
    "Where code needs more than two samples at once, wb.Workbench(…, dry_run=False) leaves this"
    " trial out."
)


def _explained(what: str, tried: _Tried, call: Any) -> Any:
    """Run `call`; an error gets a note with the batch and, where one is known, the remedy."""
    try:
        with warnings.catch_warnings(record=True) as leaked:
            warnings.filterwarnings("error", message="Using a target size")
            result = call()
    except (TaskError, NonFiniteError) as error:
        if error.__cause__ is not None:  # of the user's code
            if tried.remedy():
                add_remedy(error, tried.remedy().strip())
            else:
                error.add_note(_TWO)
        raise
    except Exception as error:
        remedy = explain_batch_error(error, tried.batch, check=tried.name != "train") or _TWO
        raise TaskError(
            f"{what} failed on a batch of {tried.name} ({describe(tried.batch)}) with "
            f"{_said(error, remedy)}. {remedy}{tried.remedy()}{_noted(error, remedy)}"
        ) from error
    for warning in leaked:  # those before an error would only repeat it
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return result


def _said(error: BaseException, remedy: str = "") -> str:
    """The error's first line, without the remedy that a validation has added to it."""
    lines = str(error).removesuffix(remedy).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0].removesuffix('.')}"


def _noted(error: BaseException, remedy: str) -> str:
    """The notes that the task has added to the error, without those that the message already
    has.
    """
    return "".join(
        f" {note}"
        for note in getattr(error, "__notes__", ())
        if note != remedy and not note.startswith(PLACE)
    )


_IGNORED = -100
"""The default `ignore_index` of torch's losses: the label that they leave out."""


def _non_finite(batch: Any, value: float) -> str:
    bad = [
        name
        for name, t in leaves(batch, "")
        if t.is_floating_point() and not bool(torch.isfinite(t).all())
    ]
    if bad:
        return (
            f"The data holds NaN or infinite values in {', '.join(f'element {b}' for b in bad)}:"
            " clean it first."
        )
    if value != value and (ignored := _all_ignored(batch)):
        return (
            f"All labels of these samples are {_IGNORED} (element {ignored}), which losses leave"
            " out: the mean over none is NaN. If whole batches do have labels, wb.Workbench(…,"
            " dry_run=False) leaves this trial out."
        )
    return (
        "The data is finite: look for log(0), 0/0 or overflow in the model or the loss. Where whole"
        " batches do have a finite loss, wb.Workbench(…, dry_run=False) leaves this trial out."
    )


def _all_ignored(batch: Any) -> str:
    """The name of the first part of a batch that holds only ignored labels; "": no part does."""
    labels = (
        (name, t)
        for name, t in leaves(batch, "")
        if not t.is_floating_point() and not t.is_complex() and t.numel()
    )
    return next((name or "y" for name, t in labels if bool((t == _IGNORED).all())), "")
