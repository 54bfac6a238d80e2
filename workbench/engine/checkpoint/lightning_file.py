"""Reads the checkpoints (.ckpt) that Lightning's Trainer writes, and writes ones that it reads.
Lightning is not imported.

A file may come from anywhere: only tensors and plain values are read, and no code in it is run.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from workbench.engine.checkpoint import archive, optimizer_state
from workbench.engine.checkpoint.files import (
    Expected,
    Modules,
    load_tensors,
    read_state,
    read_weights,
)
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.events import LARGEST, Message
from workbench.runs.checkpoints import Checkpoint
from workbench.runs.folder.files import replace_by
from workbench.runs.printable import printable
from workbench.task.errors import TaskError
from workbench.task.hooks import CheckpointEdits
from workbench.task.modules import own_name
from workbench.task.optim.optimizer_factory import leading_group, rates_of
from workbench.task.protocol import Task
from workbench.units import counted, rate
from workbench.values import shown

ENDING = ".ckpt"
VERSION = "2.0.0"
"""The version of Lightning since which its checkpoints have this form; a newer one would make an
older Lightning warn.
"""
_LOOPS, _EPOCHS, _BATCHES = "loops", "epoch_progress", "epoch_loop.batch_progress"
_STEPS = "epoch_loop.automatic_optimization.optim_progress"
_SCALER = ("MixedPrecision", "native_amp_scaling_state")
_READ = frozenset(
    (
        "epoch",
        "global_step",
        "pytorch-lightning_version",
        "state_dict",
        _LOOPS,
        "optimizer_states",
        "lr_schedulers",
        *_SCALER,
        "hparams_name",
        "hyper_parameters",
        "hparams_type",
        "datamodule_hparams_name",
        "datamodule_hyper_parameters",
        "datamodule_hparams_type",
    )
)
"""Entries that are restored, or that only say how the objects were made."""
_OF_A_BUILD = frozenset(
    (
        "params",
        "lr",
        "initial_lr",
        "max_lr",
        "min_lr",
        "swa_lr",
        "momentum_cycled",
        "max_momentum",
        "base_momentum",
        "name",
        "param_names",
        "maximize",
        "foreach",
        "fused",
        "capturable",
        "differentiable",
        "decoupled_weight_decay",
    )
)
"""Entries of a parameter group that schedules add, or that depend on the version of torch."""
_LIKE_WEIGHTS = (
    "momentum_buffer",
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "exp_inf",
    "square_avg",
    "acc_delta",
    "sum",
    "prev",
)
"""Entries of an optimizer's state that have the shape of their parameter."""


def is_one(path: Path) -> bool:
    """Whether this is the path of a file of Lightning, and not of a checkpoint's directory."""
    return path.suffix == ENDING


@dataclass(frozen=True)
class Position:
    """Where the training was when the file was written, between two epochs."""

    step: int
    """The updates taken."""
    epoch: int
    """The epochs finished."""
    validation_due: bool
    """Whether all updates of one more epoch are taken, whose validation is due."""
    judged: bool
    """Whether schedulers that watch a metric have seen that of the last epoch."""
    lr: float | None
    """The base rate of the first optimizer that is not at 0; None: the file has none."""

    @property
    def past(self) -> dict[str, Any]:
        """The state on which the length of a resumed fit depends (`total_steps.NAMES`)."""
        counters = {
            "step": self.step,
            "epoch": self.epoch,
            "batch_idx": 0,
            "epoch_step": 0,
            "mid_epoch": self.validation_due,
        }
        return {
            **counters,
            "validation_due": self.validation_due,
            "settings": {"batch_size": 1},
            "length": {"per_epoch": None, "ahead": 0},
        }


# -- reading


def read(path: Path, *, peek: bool = False) -> dict[str, Any]:
    """Read a file of Lightning: containers, tensors and plain values, in host memory.

    peek: tensors are mapped from the file and read when used; use them before the file changes.
    Raises TaskError where it is no such file, or holds something that only running code could read.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path}{' (it is a folder)' if path.is_dir() else ''}."
        )
    try:
        if zipfile.is_zipfile(path):
            archive.check_state(path)
        if not peek:
            archive.check_memory(path)
        checkpoint: dict[str, Any] = torch.load(
            str(path), map_location="cpu", weights_only=True, mmap=peek and zipfile.is_zipfile(path)
        )
    except pickle.UnpicklingError as error:
        # torch's own message proposes to run whatever the file contains
        _refuse_classes(path, error)
    except RuntimeError as error:
        raise _not_one(path, printable(str(error).partition(". ")[0].partition("\n")[0])) from error
    except archive.NotReadError as error:
        raise _not_one(path, str(error)) from None
    except MemoryError as error:
        raise _not_one(path, "there is not enough memory for it") from error
    except (EOFError, OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        # raised by torch's reader for other files
        raise _not_one(path, "it is not a file that torch.save wrote") from error
    weights = checkpoint.get("state_dict") if isinstance(checkpoint, dict) else None
    if weights is None and _is_state_dict(checkpoint):
        load = f"bench.model.load_state_dict(torch.load({str(path)!r}, weights_only=True))"
        raise _not_one(
            path,
            "it is a state dict alone",
            f"{load}, then bench.fit(), which starts from the weights that the model has",
        )
    if not isinstance(weights, Mapping) or not all(isinstance(name, str) for name in weights):
        contents = sorted(map(str, checkpoint)) if isinstance(checkpoint, dict) else checkpoint
        raise _not_one(path, f"it holds no `state_dict`, but {shown(contents)}")
    return checkpoint


def _refuse_classes(path: Path, error: pickle.UnpicklingError) -> NoReturn:
    try:
        unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except Exception:  # noqa: BLE001  # not a file of this kind
        unsafe = []
    names = sorted(map(printable, unsafe)) or re.findall(
        r"GLOBAL ([\w.]+) was not an allowed", str(error)
    )
    if not names:
        raise _not_one(path, "it is not a pickle of tensors and plain values") from error
    listed = ", ".join(f"`{name}`" for name in names)
    raise TaskError(
        f"{path} holds a pickled {listed}; only tensors and plain values are read, since a file can"
        " run code where it is loaded. Remedy: in a process in which you trust it, checkpoint ="
        " torch.load(path, weights_only=False); remove what is not plain (often from"
        " checkpoint['hyper_parameters']), or keep {'state_dict': checkpoint['state_dict']}"
        " alone; torch.save it, and load that file."
    ) from error


def _is_state_dict(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(
            isinstance(entry, Tensor) or str(name).endswith("_extra_state")
            for name, entry in value.items()
        )
    )


def _not_one(
    path: Path,
    why: str,
    remedy: str = "give a file that trainer.save_checkpoint or ModelCheckpoint wrote",
) -> TaskError:
    return TaskError(f"{path} is not a checkpoint of Lightning's Trainer ({why}): {remedy}.")


def position(path: Path, checkpoint: Mapping[str, Any]) -> Position:
    """The position at which a fit continues; raises TaskError where no fit can continue from
    this file.
    """
    weights_alone = f"Remedy: bench.load({str(path)!r}) takes its weights, then bench.fit()."
    if not isinstance(checkpoint.get("optimizer_states"), list) or not isinstance(
        checkpoint.get("lr_schedulers"), list
    ):
        raise TaskError(
            f"{path} holds weights without the states of optimizers and schedulers"
            f" (save_weights_only=True?), so no fit can continue from it. {weights_alone}"
        )
    try:
        loop = checkpoint[_LOOPS]["fit_loop"]
        epochs, batches = loop[_EPOCHS]["current"], loop[_BATCHES]
        begun, finished, judged = (
            _count(epochs["ready"]),
            _count(epochs["processed"]),
            _count(epochs["completed"]),
        )
        step = _count(loop[_STEPS]["optimizer"]["step"]["total"]["completed"])
        by_hand = _count(
            loop["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]
        )
        done, done_in_all, last = (
            _count(batches["current"]["processed"]),
            _count(batches["total"]["processed"]),
            batches["is_last_batch"] is True,
        )
    except (KeyError, TypeError, ValueError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise TaskError(
            f"{path} does not say how far its training was in the form of Lightning 2 ({lacks}). A"
            " file of Lightning 1 can be converted: python -m"
            f" lightning.pytorch.utilities.upgrade_checkpoint {path.name}. {weights_alone}"
        ) from error
    if begun > finished and done and not last:
        raise TaskError(
            f"{path} was saved within an epoch, after batch {done} of epoch {finished}, and does"
            " not have the position in the data, so that no fit can continue from it exactly. Take"
            f" a file of an epoch's end. {weights_alone}"
        )
    # With manual optimization Lightning counts the steps of all optimizers, and here an update is
    # one call of training_step.
    updates = step if step or not by_hand else done_in_all
    return Position(
        updates,
        finished,
        begun > finished and done > 0,
        judged == finished,
        _base_rate(checkpoint["optimizer_states"]),
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"it has {shown(value)} as a count")
    return value


def _base_rate(states: Sequence[Any]) -> float | None:
    try:
        rates = [lr for state in states for lr in [_leading(state["param_groups"])] if lr]
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    return rates[0] if rates else None


def _leading(groups: Sequence[Mapping[str, Any]]) -> float:
    rates = rates_of(groups)
    return rates[leading_group(rates)]


def load_weights(task: Task, path: Path) -> None:
    """Put the weights of the file into the task's modules, in place, after the task's
    `on_load_checkpoint`.
    """
    weights, extra, _ = _weights(task, read(path), path)
    load_tensors(task.trained_modules, weights, extra)


def _weights(
    task: Task, checkpoint: Mapping[str, Any], path: Path
) -> tuple[dict[str, Tensor], dict[str, Any], CheckpointEdits]:
    """The weights and the extra state of a file, and the changes of the task's hook. Raises
    TaskError where they do not fit.
    """
    whole = {
        name: value for name, value in checkpoint["state_dict"].items() if isinstance(value, Tensor)
    }
    extra = {
        name: value
        for name, value in checkpoint["state_dict"].items()
        if not isinstance(value, Tensor)
    }
    edits = (
        CheckpointEdits()
        if task.hooks is None
        else task.hooks.restoring({**checkpoint, "state_dict": {**whole, **extra}}, {})
    )
    weights = edits.stored(whole)
    extra = {name: value for name, value in extra.items() if name not in edits.removed}
    expected = Expected(task.trained_modules)
    if getattr(getattr(task, "module", None), "strict_loading", True):
        _refuse_other_weights(task.trained_modules, expected, weights, extra, path)
    else:  # strict loading is off: the module loads the weights that it has, as in Lightning
        weights = {name: value for name, value in weights.items() if name in expected.tensors}
        _refuse_other_weights(
            task.trained_modules, expected, {**expected.tensors, **weights}, {}, path
        )
    return weights, extra, edits


def _refuse_other_weights(
    modules: Modules,
    expected: Expected,
    weights: Mapping[str, Tensor],
    extra: Mapping[str, Any],
    path: Path,
) -> None:
    """Raise TaskError naming the first entry that is missing, unexpected or of another shape,
    and what to do.
    """
    known = _extra_names(modules) if extra else set()
    unknown = next((name for name in extra if name not in known), None)
    wrong = expected.mismatch(weights)
    if unknown is not None:
        wrong = (
            f"they have {unknown!r}, which is {shown(extra[unknown])}, neither a weight nor extra"
            " state that the model has"
        )
    if wrong is not None:
        raise TaskError(
            f"the weights in {path} are not those of this bench's model: {wrong}. Remedy:"
            f" {_remedy(expected, known, weights, extra, path)}"
        )


def _extra_names(modules: Modules) -> set[str]:
    """The names of the entries that modules add to a state_dict besides their weights."""
    parts = modules if isinstance(modules, Mapping) else {"": modules}
    return {
        prefix + own_name(name)
        for prefix, module in parts.items()
        for name, value in module.state_dict().items()
        if name.endswith("_extra_state") or not isinstance(value, Tensor)
    }


def _remedy(
    expected: Expected,
    known: Collection[str],
    weights: Mapping[str, Tensor],
    extra: Collection[str],
    path: Path,
) -> str:
    """The remedy, as text with code. known: the names of the model's extra state."""
    opening = (
        f"weights = torch.load({str(path)!r}, weights_only=True)['state_dict'];"
        " bench.model.load_state_dict"
    )
    ending = "; then bench.fit(), which starts from the weights that the model has."
    shapes = {name: value.shape for name, value in expected.tensors.items()}
    begun: dict[str, dict[str, Tensor]] = {}
    for name, value in weights.items():
        for prefix in _prefixes(name):
            begun.setdefault(prefix, {})[name.removeprefix(prefix)] = value
    for prefix, inner in sorted(begun.items(), key=lambda item: len(item[0])):
        fit = all(name.removeprefix(prefix) in known for name in extra if name.startswith(prefix))
        if (
            fit
            and all(value.shape == shapes.get(name) for name, value in inner.items())
            and expected.mismatch(inner) is None
        ):
            names = (
                "{name.removeprefix("
                + repr(prefix)
                + "): value for name, value in weights.items() if name.startswith("
                + repr(prefix)
                + ")}"
            )
            return (
                f"the names that begin with {prefix!r} fit without it (a LightningModule that holds"
                f" the model there): {opening}({names}){ending}"
            )
    for prefix in sorted({prefix for name in shapes for prefix in _prefixes(name)}, key=len):
        if all(prefix + name in known for name in extra) and all(
            value.shape == shapes.get(prefix + name) for name, value in weights.items()
        ):
            outer = {prefix + name: value for name, value in weights.items()}
            if expected.mismatch(outer) is None:
                names = "{" + repr(prefix) + " + name: value for name, value in weights.items()}"
                return f"its names fit with {prefix!r} before them: {opening}({names}){ending}"
    fits = (
        "{name: value for name, value in weights.items() if isinstance(value, torch.Tensor) and"
        " name in own and value.shape == own[name].shape}"
    )
    return (
        "make the model as it was made for that file; or take what fits: own ="
        f" bench.model.state_dict(); {opening}({fits}, strict=False){ending}"
    )


def _prefixes(name: str) -> list[str]:
    """The prefixes of a name, "a." and "a.b." of "a.b.c". At most 50, since a file may have any
    name.
    """
    return [name[: index + 1] for index, sign in enumerate(name) if sign == "."][:50]


def restore(session: Session, path: Path, *, keeps_lr: bool = True) -> None:
    """Restore a freshly opened session from the file: weights, optimizers, schedules, epoch and
    step.

    keeps_lr: optimizers whose state is restored keep the file's rate; else they get that of the
    settings. One message names the parts that do not fit the session. Raises TaskError where the
    weights do not fit; then nothing has changed.
    """
    checkpoint = read(path)
    here = position(path, checkpoint)
    weights, extra, edits = _weights(session.task, checkpoint, path)
    state, lost = session.state, list[str]()
    state.step = state.epoch_step = here.step
    state.epoch, state.epochs_scheduled = here.epoch, here.epoch + here.validation_due
    state.mid_epoch = state.validation_due = here.validation_due
    session.data.begin_epoch(state.epoch)
    hook_state, used = session.hooks.of_lightning(checkpoint)
    session.weights.load(session.task.trained_modules, weights, extra)
    later = session.hooks.weights_restored(edits)
    session.hooks.load_state(hook_state)
    states, rates = _optimizers(session, checkpoint, here, lost, keeps_lr=keeps_lr)
    watching = {
        type(schedule.scheduler).__name__
        for opt in session.optimizers
        for schedule in opt.schedules
        if schedule.monitor
    }
    if watching and not here.judged:
        lost.append(
            f"the metric of epoch {here.epoch - 1}, which {_listed(sorted(watching))} had not seen"
            " when the file was written"
        )
    edits.put_states(states)
    later.put_states(states)
    _restore_optimizers(session, states, rates, keeps_lr=keeps_lr)
    scaler = next((checkpoint[name] for name in _SCALER if name in checkpoint), None)
    if isinstance(scaler, Mapping):
        session.precision.load_state_dict(scaler)
    state.resumed = True
    lost += _entries(checkpoint, used)
    text = (
        f"it continues from {path.name}, a checkpoint of Lightning, after"
        f" {counted(here.epoch + here.validation_due, 'epoch')} and {counted(here.step, 'update')}"
    )
    without = f"; not restored: {'; '.join(lost)}" if lost else ""
    session.notes.append(Message(f"{text}{without}.", "warning" if lost else "info", here.step))


def _restore_optimizers(
    session: Session, states: list[dict[str, Any]], taken: Mapping[int, float], *, keeps_lr: bool
) -> None:
    """Restore the optimizers from these states. taken: the optimizers whose state is the file's,
    with the rates that they had before.
    """
    begun = session.settings.lr
    optimizer_state.restore(
        session,
        states,
        {"weight_decay": None},
        optimizer_state.plan(session.settings, session.total_steps.planned()),
    )
    leads = next((opt for opt in session.optimizers if opt.base_lr), None)
    if not keeps_lr:
        first = leads.base_lr if leads is not None and leads.index in taken else 0.0
        for opt in session.optimizers:
            if opt.index not in taken:
                continue
            if not first:
                opt.set_lr(taken[opt.index])
            else:
                opt.set_lr(begun if opt.base_lr == first else opt.base_lr * (begun / first))
    elif session.optimizers.base_lr != begun:
        has, here = rate(session.optimizers.base_lr, None), rate(begun, None)
        text = (
            f"it continues with the file's own lr={has} (the bench has lr={here}); fit(lr=…)"
            " overrides both."
        )
        session.notes.append(Message(text, "info", session.state.step))
        session.change_settings(lr=session.optimizers.base_lr)


def _optimizers(
    session: Session,
    checkpoint: Mapping[str, Any],
    here: Position,
    lost: list[str],
    *,
    keeps_lr: bool,
) -> tuple[list[dict[str, Any]], dict[int, float]]:
    """The states of the optimizers in the form of the bench's checkpoints; and, by number, the rate
    until now of those whose state is the file's.

    An optimizer whose state does not fit keeps its fresh state, at the bench's rate, and is named
    in `lost`.
    """
    saved, schedules = checkpoint["optimizer_states"], list(checkpoint["lr_schedulers"])
    counts = len(saved) == len(session.optimizers)
    if not counts:
        lost.append(
            f"the states of its {len(saved)} optimizers (here there are {len(session.optimizers)},"
            " which begin anew)"
        )
    fresh = [optimizer_state.state_of(opt, session.settings) for opt in session.optimizers]
    follow = counts and len(schedules) == sum(len(state["own"]) for state in fresh)
    if counts and not follow:
        lost.append(
            f"the states of its {len(schedules)} schedulers (here there are"
            f" {sum(len(state['own']) for state in fresh)}, which begin anew)"
        )
    states, rates = [], dict[int, float]()
    for number, (opt, state) in enumerate(zip(session.optimizers, fresh, strict=True)):
        mine = [schedules.pop(0) for _ in state["own"]] if follow else []
        why = _why_other(opt, saved[number]) if counts else ""
        if not counts or why:
            if why:
                which = (
                    f"optimizer {number}" if session.plan.several_optimizers else "the optimizer"
                )
                schedulers = " and its schedulers" if state["own"] else ""
                lost.append(
                    f"the state of {which} ({why}), which begins anew{schedulers} at"
                    f" lr={rate(opt.base_lr, None)}; fit(lr=…) sets another rate"
                )
            states.append(state)
            continue
        opt.continued = True
        rates[number], lr = opt.base_lr, _leading(saved[number]["param_groups"])
        if opt.base_lr and lr and (keeps_lr or state["own"]):
            opt.set_lr(lr)  # a schedule that begins anew starts from this rate
            state = optimizer_state.state_of(opt, session.settings)
        schedule_states = (
            [_schedule(theirs, ours, lost) for theirs, ours in zip(mine, state["own"], strict=True)]
            if follow
            else state["own"]
        )
        states.append(
            {
                **state,
                "state": dict(saved[number]),
                "base_lr": lr,
                "taken": here.step,
                "own": schedule_states,
                "built_in": None,
                "swa": None,
            }
        )
    return states, rates


def _why_other(opt: OptimizerHandle, saved: Any) -> str:
    """The first difference between an optimizer and a saved state; "": it fits."""
    kind, groups = type(opt.optimizer).__name__, opt.optimizer.param_groups
    theirs = saved.get("param_groups") if isinstance(saved, Mapping) else None
    if not isinstance(theirs, list) or not all(
        isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in theirs
    ):
        return "it is not what an optimizer's state_dict gives"
    if not isinstance(saved.get("state"), Mapping):
        return "it lacks 'state'"
    sizes = [len(group["params"]) for group in theirs]
    own_sizes = [len(group["params"]) for group in groups]
    if sizes != own_sizes:
        return (
            f"its groups have {_listed(sizes)} parameters, and those of the {kind} here have"
            f" {_listed(own_sizes)}"
        )
    for theirs_group, group in zip(theirs, groups, strict=True):
        missing = [
            name
            for name in opt.optimizer.defaults
            if name not in theirs_group and name not in _OF_A_BUILD
        ]
        unknown = [name for name in theirs_group if name not in group and name not in _OF_A_BUILD]
        if missing or unknown:
            parts = [f"lacks {_listed(missing)}"] * bool(missing) + [
                f"has {_listed(unknown)}"
            ] * bool(unknown)
            return f"it {' and '.join(parts)}, other than {kind} here"
        decoupled = theirs_group.get("decoupled_weight_decay"), group.get("decoupled_weight_decay")
        if None not in decoupled and decoupled[0] != decoupled[1]:
            return f"it has decoupled_weight_decay={shown(decoupled[0])}, other than {kind} here"
        for number, parameter in zip(theirs_group["params"], group["params"], strict=True):
            kept = saved["state"].get(number, {})
            for name in _LIKE_WEIGHTS:
                value = kept.get(name) if isinstance(kept, Mapping) else None
                if isinstance(value, Tensor) and value.shape != parameter.shape:
                    return (
                        f"its {name!r} of parameter {number} has shape {tuple(value.shape)}, and"
                        f" the parameter here {tuple(parameter.shape)}"
                    )
    return ""


def _schedule(theirs: Any, ours: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    """The saved state of a scheduler, or its fresh state where the saved one does not fit."""
    public = {name for name in ours["state"] if not name.startswith("_")}
    if (
        isinstance(theirs, Mapping)
        and {name for name in theirs if not str(name).startswith("_")} == public
    ):
        return {**ours, "state": dict(theirs)}
    has = _listed(sorted(map(str, theirs))) if isinstance(theirs, Mapping) else shown(theirs)
    lost.append(
        f"the state of a scheduler (it has {has}, other than {ours['type']} here), which begins"
        " anew"
    )
    return ours


def _entries(checkpoint: Mapping[str, Any], used: Collection[str]) -> list[str]:
    """Descriptions of the entries of the file that no fit uses."""
    names = [
        str(name).partition("{")[0]
        for name in checkpoint.get("callbacks") or ()
        if name not in used
    ]
    # ModelCheckpoint's state is about its own files
    known = [name for name in dict.fromkeys(names) if name != "ModelCheckpoint"]
    unused = [f"the states of callbacks ({_listed(known)})"] if known else []
    others = [
        str(name)
        for name in checkpoint
        if name not in _READ and name not in used and name != "callbacks"
    ]
    return unused + ([f"the entries {_listed(others)}"] if others else [])


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(printable(str(value)) for value in values)


# -- writing


def write(point: Checkpoint, path: Path) -> list[str]:
    """Write a checkpoint of a run as a file of Lightning; returns sentences about what the file
    cannot hold.
    """
    doubts: list[str] = []
    checkpoint: dict[str, Any]
    if point.resumable:
        checkpoint, extra = _whole(read_state(point.path), doubts)
    else:
        extra, checkpoint = (
            {},
            _progress(
                {
                    "step": point.step,
                    "epoch": point.epoch,
                    "epoch_step": 0,
                    "batch_idx": 0,
                    "mid_epoch": False,
                },
                point.step,
                None,
            ),
        )
        doubts.append(
            f"it holds weights alone ({point.why}), and Trainer.fit(ckpt_path=…) refuses such a"
            " file"
        )
    checkpoint = {
        "state_dict": {**read_weights(point.path / "model.safetensors"), **extra},
        **checkpoint,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_by(path, lambda aside: torch.save(checkpoint, str(aside)))
    return doubts


def _whole(state: Mapping[str, Any], doubts: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A checkpoint's state in Lightning's form, without the weights; and the extra state, which
    Lightning stores among the weights.
    """
    optimizers, kept = state["optimizers"], state["moments"]
    steps = sum(optimizer["taken"] for optimizer in optimizers)
    batches = state["checks"].get("begun_with", (None,))[0]
    checkpoint = _progress(state, steps, batches)
    checkpoint |= {
        "callbacks": kept.get("callbacks", {}),
        "optimizer_states": [optimizer["state"] for optimizer in optimizers],
        "lr_schedulers": [
            schedule["state"] for optimizer in optimizers for schedule in optimizer["own"]
        ],
    }
    if state["scaler"]:
        checkpoint["MixedPrecision"] = state["scaler"]
    described = kept.get("lightning", {})
    if described.get("hyper_parameters"):
        checkpoint |= {name: described[name] for name in ("hparams_name", "hyper_parameters")}
    if described.get("not_plain"):
        doubts.append(
            f"hyper_parameters lack {_listed(described['not_plain'])}, which are not plain values:"
            " pass them to load_from_checkpoint"
        )
    checkpoint |= {
        name: kept["data"][number]
        for number, name in enumerate(described.get("data", ()))
        if number in kept.get("data", {})
    }
    checkpoint |= kept.get("module", {})
    for name in kept.get("gone", ()):
        checkpoint.pop(name, None)
    if "raw" in state:
        doubts.append(
            "its weights are the averaged ones, which validation used; a Trainer that continues"
            " from it trains those"
        )
    elif state["average"] is not None:
        doubts.append("its weights are those of training; the average of them is not in it")
    if any(optimizer["built_in"] is not None for optimizer in optimizers):
        doubts.append(
            "lr_schedule and warmup are settings of the bench, which a Trainer does not follow: its"
            " rate stays constant"
        )
    if state["mid_epoch"] and not state["validation_due"]:
        doubts.append(
            "it was saved within an epoch: a Trainer runs as many batches as were left, but from"
            " the loader's beginning"
        )
    return checkpoint, state["extra_state"]


def _progress(state: Mapping[str, Any], steps: int, batches: int | None) -> dict[str, Any]:
    """The progress of the training in the form of Lightning's loops. steps: the steps of all
    optimizers together.
    """
    epoch, inside = state["epoch"], bool(state["mid_epoch"])
    done = state["batch_idx"] if inside else batches or state["step"] - state["epoch_step"]
    total = (epoch if inside else max(0, epoch - 1)) * (batches or 0) + done
    # Lightning saves within an epoch before it counts the batch as completed.
    ready = {"ready": done, "started": done, "processed": done, "completed": done - inside}
    in_all = {"ready": total, "started": total, "processed": total, "completed": total - inside}
    here = {
        "ready": epoch + inside,
        "started": epoch + inside,
        "processed": epoch,
        "completed": epoch,
    }
    now = steps if state["epoch_step"] >= steps else steps - state["epoch_step"]
    step = {
        "total": {"ready": steps, "completed": steps},
        "current": {"ready": now, "completed": now},
    }
    zero = {name: {**counts, "started": counts["ready"]} for name, counts in step.items()}
    nothing = {"ready": 0, "completed": 0}
    unread = {"ready": 0, "started": 0, "processed": 0, "completed": 0}
    loop = {
        "state_dict": {},
        "epoch_loop.state_dict": {"_batches_that_stepped": state["step"] - inside},
        _BATCHES: {
            "total": in_all,
            "current": ready,
            "is_last_batch": not inside or bool(state["validation_due"]),
        },
        "epoch_loop.scheduler_progress": {"total": dict(nothing), "current": dict(nothing)},
        "epoch_loop.automatic_optimization.state_dict": {},
        _STEPS: {"optimizer": {"step": step, "zero_grad": zero}},
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": step,
        "epoch_loop.val_loop.state_dict": {},
        "epoch_loop.val_loop.batch_progress": {
            "total": dict(unread),
            "current": dict(unread),
            "is_last_batch": False,
        },
        _EPOCHS: {"total": here, "current": dict(here)},
    }
    return {
        "epoch": epoch,
        "global_step": steps,
        "pytorch-lightning_version": VERSION,
        _LOOPS: {"fit_loop": loop},
    }
