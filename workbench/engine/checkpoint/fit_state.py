"""Saves all state of a fit but its weights (`state_of`) and restores it into a fresh session
(`restore`).

The state is taken between two updates or after an epoch. The task's objects are stored in plain
form (task/state/serialization.py). The weights are stored next to it, unless those are the averaged
ones.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from workbench.engine.checkpoint import optimizer_state, per_rank
from workbench.engine.checkpoint.files import (
    OF_STRUCTURE,
    extra_state_of,
    mismatch,
    restoring,
)
from workbench.engine.distributed.whole_weights import WholeWeights
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.state import TrainState
from workbench.engine.validation.schedule import ValidationSchedule
from workbench.events import Message
from workbench.task.batch import to_device
from workbench.task.errors import TaskError
from workbench.task.hooks import CheckpointEdits, Hooks
from workbench.task.protocol import Task
from workbench.task.rng import RandomState
from workbench.task.state.of_task import freed, load_held
from workbench.task.state.serialization import to_plain

_COUNTERS = (
    "step",
    "epoch",
    "batch_idx",
    "epoch_step",
    "pieces",
    "epochs_scheduled",
    "mid_epoch",
    "validation_due",
    "left_out",
    "metrics",
    "clip_next",
)


@dataclass(frozen=True)
class ResumePoint:
    """A place to resume from: the position in the data and the random states."""

    random: RandomState
    data: dict[str, Any]

    @classmethod
    def here(cls, session: Session) -> ResumePoint:
        """The present point: between two updates, before a batch of the next is read, or after
        an epoch's last update.
        """
        data, parallel = session.data, session.parallel
        if not parallel.several or session.state.validation_due or not session.state.mid_epoch:
            return cls(
                RandomState.capture(),
                data.position(0 if session.state.validation_due else session.state.batch_idx),
            )
        # Each rank counts its own batches, since it may have had fewer than the others.
        read = (
            data.batches_read - parallel.waiting
            if session.plan.tbptt is None
            else session.state.batch_idx
        )
        return cls(RandomState.capture(), data.position(read, data.begun))


def state_of(
    session: Session, validation: ValidationSchedule, point: ResumePoint, held: Mapping[str, Any]
) -> dict[str, Any]:
    """All state but the weights, in plain form. held: `HeldState.state`.

    Raises NotPlainError where something cannot be stored in a file.
    """
    model, *others = session.task.modules
    average, spikes = session.average, session.spikes
    # then the gradients between two updates count
    task_zeroes = session.task.manual or session.hooks.zeroes
    parts: list[tuple[str, dict[str, Any]]] = [
        ("the fit", {name: getattr(session.state, name) for name in _COUNTERS}),
        (
            "the fit",
            {
                "settings": _settings(session),
                "plan": optimizer_state.plan(session.settings, session.total_steps.planned()),
            },
        ),
        ("the fit", {"world": session.ranks.world}),
        (
            "the fit",
            {
                "seconds": session.meter.seconds,
                "waited": session.meter.waited,
                "samples": session.meter.samples,
            },
        ),
        ("the fit", {"length": session.total_steps.state_dict(session.state.epoch)}),
        (
            "the optimizer",
            {
                "scaler": session.precision.state_dict(),
                "gradients": session.weights.gradients() if task_zeroes else {},
            },
        ),
        ("the average", {"average": None if average is None else average.state_dict()}),
        (
            "on_spike",
            {
                "spikes": None if spikes is None else spikes.state_dict(),
                "spike_buffers": [] if spikes is None else spikes.buffers(),
            },
        ),
        ("get_extra_state()", {"extra_state": extra_state_of(model)}),
        (
            "the loss",
            {"others": [_other(session.task, session.weights, module) for module in others]},
        ),
        ("the hidden state", {"hiddens": session.state.hiddens}),
        (
            "what was logged",
            {"noted": session.state.step_logs, "epoch_loss": session.meter.epoch_loss.state_dict()},
        ),
        ("the validation schedule", {"checks": validation.state()}),
        ("the training data", {"data": point.data, "random": point.random.state_dict()}),
        (f"what {type(model).__name__} saves of its own", {"moments": session.hooks.state()}),
    ]
    state: dict[str, Any] = {
        "held": held,
        "optimizers": [
            optimizer_state.state_of(opt, session.settings) for opt in session.optimizers
        ],
    }
    edits = session.hooks.edits  # of this session's own settings
    packed_states = to_plain(
        {"optimizers": edits.optimizers, "schedulers": edits.schedulers}, "on_save_checkpoint"
    )
    replace(edits, **packed_states).put_states(state["optimizers"])
    for whose, entries in parts:
        state |= to_plain(entries, whose)
    return state


def restore(session: Session, validation: ValidationSchedule, state: Mapping[str, Any]) -> None:
    """Restore a freshly opened session from this state; the session keeps its own settings.

    The session takes over the objects in `state`: do not use it afterwards. Raises TaskError where
    it is of another model or other optimizers; then nothing has changed.
    """
    state, alike = per_rank.state_of_rank(session.ranks, state)
    weights, edits = _restored(session.hooks, session.weights, state)
    optimizer_state.add_parameters(session.optimizers, session.task, state["optimizers"])
    _refuse_another(session, state, weights)
    for name in _COUNTERS:
        setattr(session.state, name, state[name])
    session.data.begin_epoch(session.state.epoch)
    with _epoch_of_loaders(session.state, state["data"]):
        session.data.reload_as(state["data"])
    doubts = session.data.place(state["data"])
    _put_weights(session, state, weights)
    session.hooks.weights_restored(edits).put_states(state["optimizers"])
    session.hooks.load_state(state["moments"])
    optimizer_state.restore(session, state["optimizers"], state["settings"], state["plan"])
    for opt in session.optimizers:
        opt.continued = True
    if session.settings.lr != session.optimizers.base_lr:
        session.optimizers.set_lr(session.settings.lr)
    session.weights.load_gradients(state["gradients"])
    session.precision.load_state_dict(state["scaler"])
    if session.average is not None and state["average"] is not None:
        session.average.load_state_dict(state["average"])
    if session.spikes is not None and state.get("spikes") is not None:
        session.spikes.load_state_dict(state["spikes"], state["spike_buffers"], session.task)
    session.state.hiddens, session.state.step_logs = (
        to_device(state["hiddens"], session.device),
        dict(state["noted"]),
    )
    validation.load_state(state["checks"])
    session.meter.epoch_loss.load_state_dict(state["epoch_loss"])
    session.meter.continue_from(state["seconds"], state.get("waited", 0.0), state.get("samples", 0))
    session.ranks.continue_from(state["seconds"])
    session.state.resumed = True
    session.notes += [
        Message(
            f"the run may not continue exactly as without the interruption: {doubt}.",
            "warning",
            session.state.step,
        )
        for doubt in doubts
    ]
    RandomState.from_state(state["random"]).restore()
    if not alike:
        per_rank.rewind(session)


@contextlib.contextmanager
def _epoch_of_loaders(state: TrainState, position: Mapping[str, Any]) -> Iterator[None]:
    """Context manager in which the task sees the epoch in which its loaders were made."""
    now = state.epoch
    state.epoch = position.get("loaded", (now,))[0]
    try:
        yield
    finally:
        state.epoch = now


@contextlib.contextmanager
def first_steps(optimizers: Sequence[OptimizerHandle], path: Path) -> Iterator[None]:
    """Context manager for the first updates of a fit that continues from the checkpoint in this
    directory.

    Raises TaskError, as `restoring` does, where an optimizer cannot step with its restored state:
    most optimizers load any state, and read it only when they step.
    """
    steps = {id(opt.optimizer): opt.steps for opt in optimizers}
    try:
        yield
    except OF_STRUCTURE as error:
        opt = _stepping(optimizers, error)
        if opt is None or opt.steps > steps[id(opt.optimizer)]:
            raise
        if opt.grown:
            kind = type(opt.optimizer).__name__
            raise TaskError(
                f"{kind} cannot step with the state of the checkpoint and the parameters that were"
                f" frozen until now ({type(error).__name__}: {error}). Freeze them again, or begin"
                " from the weights: bench.load(run), then bench.fit()."
            ) from error
        if any(
            not p.requires_grad for group in opt.optimizer.param_groups for p in group["params"]
        ):
            kind = type(opt.optimizer).__name__
            raise TaskError(
                f"{kind} cannot step while some parameters have no gradient, because they are"
                f" frozen now ({type(error).__name__}: {error}): its step() has to skip those whose"
                " grad is None. Let them train again, or begin from the weights: bench.load(run),"
                " then bench.fit()."
            ) from error
        with restoring(path):
            raise


def _stepping(optimizers: Sequence[OptimizerHandle], error: Exception) -> OptimizerHandle | None:
    """The optimizer whose own code raised this error; None: other code did, also within a
    closure.
    """
    stepping = {id(opt.optimizer): opt for opt in optimizers}
    handle: OptimizerHandle | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if id(frame.f_locals.get("self")) in stepping:
            handle = stepping[id(frame.f_locals["self"])]
        elif str(frame.f_globals.get("__name__")).startswith("workbench."):
            handle = None
    return handle


def _restored(
    hooks: Hooks, whole: WholeWeights, state: Mapping[str, Any]
) -> tuple[dict[str, Tensor], CheckpointEdits]:
    """Call the task's hook with the checkpoint; returns the weights that the model is to get, and
    the hook's changes. The model keeps its own weights where the hook left some out.
    """
    weights, kept = state.get("raw", state["weights"]), state["moments"]
    checkpoint = {
        "epoch": state["epoch"],
        "global_step": state["step"],
        "state_dict": dict(weights),
        "optimizer_states": [entry["state"] for entry in state["optimizers"]],
        "lr_schedulers": [
            schedule["state"] for entry in state["optimizers"] for schedule in entry["own"]
        ],
    }
    edits = hooks.restoring(checkpoint, kept)
    edits.put_states(state["optimizers"])
    restored = edits.stored(weights)
    missing = {*kept.get("removed", ()), *edits.removed} - restored.keys()
    here = whole.trained() if missing else {}
    return {**restored, **{name: here[name] for name in missing if name in here}}, edits


def _settings(session: Session) -> dict[str, Any]:
    """The present settings, with live changes."""
    values = {
        "lr": session.optimizers.base_lr,
        "gradient_clip_val": session.state.clip_val,
        "batch_size": session.data.settings.batch_size,
    }
    return session.settings.replace(**values).model_dump()


def _other(task: Task, weights: WholeWeights, module: nn.Module) -> dict[str, Any]:
    """The state of a module other than the model; if it is trained too, its tensors are stored
    among the weights.
    """
    tensors = {} if _is_trained(task, module) else weights.tensors(module)
    return {"tensors": tensors, "extra_state": extra_state_of(module)}


def _is_trained(task: Task, module: nn.Module) -> bool:
    return any(module is trained for trained in task.trained_modules.values())


def _pairs(
    task: Task, state: Mapping[str, Any]
) -> list[tuple[nn.Module, Mapping[str, Any]]] | None:
    """Each further module with its part of a checkpoint; None: the checkpoint has more or fewer of
    them.

    Modules without state are left out: an earlier version counted a torchmetrics metric as one.
    """
    others = [module for module in task.modules[1:] if module.state_dict()]
    kept = [entry for entry in state["others"] if entry["tensors"] or entry["extra_state"]]
    if len(others) > len(kept):  # the tensors of a trained one are among the weights
        others = [
            module for module in others if not _is_trained(task, module) or extra_state_of(module)
        ]
    return list(zip(others, kept, strict=True)) if len(others) == len(kept) else None


def _refuse_another(
    session: Session, state: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> None:
    pairs = _pairs(session.task, state)
    wrong = mismatch(session.task.trained_modules, weights, grown=True)
    if pairs is None:
        count = len(session.task.modules) - 1
        saved = len(state["others"])
        wrong = wrong or f"it has {saved} modules besides the model, and here there are {count}"
    for module, kept in pairs or ():
        if kept["tensors"]:
            wrong = wrong or mismatch(module, kept["tensors"], grown=True)
    wrong = wrong or optimizer_state.mismatch(
        session.optimizers,
        session.settings,
        state["optimizers"],
        freed(session.task, state["held"]),
    )
    untrained = [
        prefix
        for prefix in session.task.trained_modules
        if not any(name.startswith(prefix) for name in weights)
    ]
    if wrong is not None and untrained:
        raise TaskError(
            "the checkpoint is of a fit that did not train the parameters of the loss"
            f" ({', '.join(untrained).rstrip('.')}): continue it after loss.requires_grad_(False);"
            " to train them too: bench.load(run), then bench.fit()."
        )
    if wrong is not None:
        raise TaskError(
            f"the checkpoint is of another model or other optimizers: {wrong}. Make the bench in"
            " the same way as for that run; to take weights that fit as a new start:"
            " bench.load(run), then bench.fit()."
        )


def _put_weights(session: Session, state: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    model = session.task.model
    load = session.weights.load
    load(session.task.trained_modules, weights, state["extra_state"])
    if per_rank.BUFFERS in state:
        load(model, state[per_rank.BUFFERS])
    for module, kept in _pairs(session.task, state) or ():
        load(module, kept["tensors"], kept["extra_state"])
    for module, buffers in zip(
        session.task.modules[1:], state.get(per_rank.OTHER_BUFFERS, ()), strict=False
    ):
        load(module, buffers)
    session.state.moved, missing = load_held(session.task, state["held"], session.device)
    for name in missing:
        text = f"the checkpoint has state of the module {name!r}, which the model no longer has."
        session.notes.append(Message(text, "warning", session.state.step))
