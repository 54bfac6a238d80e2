"""Validates: the metrics of one pass over held-out data, weighted by samples, without changing
the training state.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.engine.data.sample_count import note_count
from workbench.engine.distributed.fsdp_forward import PaddingBatch
from workbench.engine.session import Session
from workbench.engine.validation.epoch_metrics import EpochMetrics
from workbench.engine.validation.watch import Watch
from workbench.events import Message
from workbench.instruments import finite
from workbench.instruments.memory import explain_out_of_memory
from workbench.task import rng
from workbench.task.batch import describe, on_host
from workbench.task.data.spec import DataSpec, HeldOut
from workbench.task.errors import TaskError
from workbench.task.hints import add_remedy, explain_batch_error
from workbench.task.hooks import Values
from workbench.task.modules import Modes
from workbench.task.protocol import Task

_NONFINITE = "the validation loss is not finite"
PLACE = "in batch "
"""How the note begins that says where a validation failed."""


def validate(
    session: Session,
    sets: Iterable[HeldOut],
    stage: Literal["val", "test"] = "val",
    *,
    trial: bool = False,
    aside: bool = False,
    cut: Callable[[], bool] = lambda: False,
    watch: Watch | None = None,
) -> dict[str, float]:
    """The metrics of each set, in evaluation mode: means over its samples, and metrics over all of
    its batches.

    The names of several sets' metrics end with the set's ("val_loss/clean"). What the task itself
    logged and reduced is added, and wins over ours of the same name. trial: a few batches, for
    which a metric may have no value. aside: restore what metrics keep for themselves. cut: called
    after the last batch of a set; whether some were left out, so that no metric over the whole set
    is computed. watch: looks at the first batch.
    """
    if watch is not None:
        watch.begin()
    trial = trial or session.state.stage == "sanity"
    computed: dict[str, float] = {}
    sums = _Sums()
    with evaluating(session, stage):
        for spec, batches in sets:
            over = EpochMetrics(
                session.task,
                session.ranks,
                session.device,
                stage,
                trial=trial,
                aside=trial or aside,
            )
            with _reading(session.task, spec) as suffix, over.open():
                for name, value, weight in _scores(session, spec, batches, stage, over, watch):
                    sums.add(name + suffix, value, weight)
                stopped = cut()
                computed |= (
                    {}
                    if stopped
                    else {name + suffix: value for name, value in over.compute().items()}
                )
                if spec.key:
                    session.hooks.evaluation_set_ended(stage)
            if stopped:
                break
        means = _means(session.ranks.all_gather_object(sums.result()))
        if twice := means.keys() & computed.keys():
            raise TaskError(
                f"metrics=: two of them are reported as {min(twice)!r}: rename one of them."
            )
        session.hooks.scores = means | computed
    return means | computed | floats(session.hooks.evaluated(stage))


def _scores(
    session: Session,
    spec: DataSpec,
    batches: Iterable[Any],
    stage: Literal["val", "test"],
    over: EpochMetrics,
    watch: Watch | None,
) -> Iterator[tuple[str, Tensor | float, float]]:
    """Each batch's values by name, with its weight."""
    for number, batch in enumerate(batches):
        if batch is None:
            over.skip()
            continue
        if isinstance(batch, PaddingBatch):
            session.run_padding(
                batch.batch,
                stage,
                partial(session.weights.validation_step, batch_idx=number, stage=stage),
            )
            continue
        moved = session.to_device(batch, stage)
        session.hooks.evaluation_batch_started(stage, moved, number)
        try:
            with session.precision.autocast():
                scores = session.weights.validation_step(moved, number, stage)
                over.update(scores)
        except Exception as error:
            error.add_note(
                f"{PLACE}{number} of the {'test' if stage == 'test' else 'validation'} data, on"
                f" {describe(moved)}"
            )
            if remedy := explain_out_of_memory(error, session.data.batch_size(stage)):
                error.add_note(remedy)
            else:
                add_remedy(error, explain_batch_error(error, moved, check=True))
            raise
        if watch is not None and watch.due:
            watch.look(session, moved, scores.outputs)
        note_count(session, stage, moved, scores.weight)
        _note_nonfinite(session, spec, number, moved, scores.values.get("val_loss"))
        session.hooks.evaluation_batch_ended(stage, scores, moved, number)
        scores.outputs = None  # its memory is free for the next batch
        session.sync_device()
        for name, value in scores.values.items():
            yield name, value, scores.weight


def _note_nonfinite(
    session: Session, spec: DataSpec, number: int, batch: Any, loss: Tensor | float | None
) -> None:
    """Say once in a fit which batch has a validation loss that is not finite, and whether the data
    are the cause. A device is not waited for: there the health knows only the mean.
    """
    state = session.state
    reported = _NONFINITE in state.counts_seen
    if loss is None or reported or not session.plan.on_cpu or state.searching:
        return
    value = float(torch.as_tensor(loss).detach().float().mean())
    if math.isfinite(value):
        return
    state.counts_seen.add(_NONFINITE)
    bad_inputs = finite.bad_values([batch])
    cause = "its values are finite. Look for log(0), 0/0 or overflow in the model or the loss"
    if bad_inputs:
        cause = finite.of_batch(bad_inputs)
    dataset = f" {spec.name}" if spec.key else ""
    text = f"{_NONFINITE} ({value}) in batch {number} of the validation data{dataset}: {cause}."
    session.notes.append(Message(text, "warning", state.step))


@contextlib.contextmanager
def _reading(task: Task, spec: DataSpec) -> Iterator[str]:
    """Context manager in which the task knows which of several sets is read. Yields what the
    names of its metrics end with.
    """
    task.dataloader_idx = spec.index
    try:
        yield task.suffix_of(spec)
    finally:
        task.dataloader_idx = None


@contextlib.contextmanager
def evaluating(session: Session, stage: Literal["val", "test", "predict"]) -> Iterator[None]:
    """Context manager in which all modules are in evaluation mode without gradients; modes and
    random numbers are restored.
    """
    modes, before, hooks = Modes.of(session.task.modules), session.state.stage, session.hooks
    with rng.preserved(), torch.no_grad(), session.optimizers.modes.evaluating():
        try:
            session.state.stage = "sanity" if before == "sanity" else stage
            if not hooks.evaluation_mode(stage):
                for module in session.task.modules:
                    module.eval()
            # Each rank has statistics of its own share; report with those that the fit keeps.
            session.ranks.broadcast(
                [buffer for module in session.task.modules for buffer in module.buffers()]
            )
            hooks.evaluation_started(stage)
            yield
            hooks.evaluation_ended(stage)
            hooks.training_mode(stage)
        finally:
            session.weights.reshard()
            modes.restore()
            session.state.stage = before


def floats(values: Values) -> dict[str, float]:
    """Scalars as Python numbers, waiting for the device once at most."""
    return dict(zip(values, on_host(list(values.values())), strict=True))


class _Sums:
    """The values of batches and their weights, by name."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[list[Tensor | float], list[float]]] = {}

    def add(self, name: str, value: Tensor | float, weight: float) -> None:
        values, weights = self._found.setdefault(name, ([], []))
        values.append(value)
        weights.append(weight)

    def result(self) -> dict[str, tuple[float, float]]:
        return {name: _summed(*sums) for name, sums in self._found.items()}


def _summed(values: list[Tensor | float], weights: list[float]) -> tuple[float, float]:
    """The sum of values times weights, and the sum of the weights."""
    if all(isinstance(v, Tensor) for v in values):
        # On the device until the end: one copy to the host for the whole pass. float64 stays
        # float64, everything else is float32.
        wide = (
            v.detach().to(torch.promote_types(v.dtype, torch.float32))
            for v in values
            if isinstance(v, Tensor)
        )
        column = torch.stack([v.mean() for v in wide]).cpu()
    else:
        column = torch.tensor([float(v) for v in values], dtype=torch.float64)
    share = torch.tensor(weights, dtype=torch.float64)
    return float((column.double() * share).sum()), float(share.sum())


def _means(sums: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, float]:
    """The means over the samples of all ranks, some of which may have had none."""
    names = dict.fromkeys(name for of_rank in sums for name in of_rank)
    by_name = {name: [of_rank[name] for of_rank in sums if name in of_rank] for name in names}
    return {name: sum(s for s, _ in of) / sum(w for _, w in of) for name, of in by_name.items()}
