"""Saves and restores optimizers and their schedules.

A resumed run may have another length or schedule. Then a built-in schedule has the shape of the new
settings, and only its progress comes from the checkpoint. Where no such setting changed, the state
is restored bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from workbench.engine.optim import weight_averaging
from workbench.engine.optim.optimizer_handle import RATES, OptimizerHandle
from workbench.engine.session import Session
from workbench.events import Message
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.optim.optimizer_state import INNER, load_state
from workbench.task.optim.part_optimizers import kind_of
from workbench.task.protocol import Task
from workbench.task.state.serialization import NotPlainError, to_plain
from workbench.techniques import schedules
from workbench.units import counted, rate

_MOMENTA = ("momentum", "betas", "max_momentum", "base_momentum")
"""The options of a parameter group that a one-cycle schedule changes besides the rate."""
_SCALED = {
    "base_lrs", "_last_lr", "max_lrs", "min_lrs", "eta_min", "_get_lr_called_within_step",
    "_is_initial",
}  # fmt: skip
"""The parts of a schedule's state that are rates, or flags of a single call."""


def plan(settings: Settings, updates: int | None) -> dict[str, Any]:
    """The values on which the shape of the built-in schedules depends. updates: of the whole
    run, as planned now.
    """
    length = updates if schedules.needs_length(settings) else None
    options = schedules.options(settings).values()
    return {
        "schedule": (settings.lr_schedule, settings.warmup, length, *options),
        "swa": (settings.swa_lrs, settings.annealing_epochs, settings.annealing_strategy),
        "updates": updates,
    }


def state_of(opt: OptimizerHandle, settings: Settings) -> dict[str, Any]:
    """All state of one optimizer and its schedules, in plain form."""
    kind = kind_of(opt.optimizer)
    parts = _Schedules(settings, opt)
    return {
        "type": kind,
        "shapes": _shapes(opt),
        "names": opt.names(),
        "state": to_plain(_own_state(opt), f"the state of {kind}"),
        "base_lr": float(opt.base_lr),
        "taken": opt.steps,
        "own": [_schedule_state(schedule) for schedule in parts.own],
        "built_in": None if parts.built_in is None else _schedule_state(parts.built_in),
        "swa": None if parts.swa is None else _schedule_state(parts.swa),
    }


def _own_state(opt: OptimizerHandle) -> dict[str, Any]:
    try:
        return opt.weights.optimizer_state(opt.optimizer)
    except Exception as error:
        kind = type(opt.optimizer).__name__
        raise NotPlainError(
            f"{kind}.state_dict() failed with {type(error).__name__}: {error}"
        ) from error


def add_parameters(
    optimizers: Sequence[OptimizerHandle], task: Task, states: Sequence[Mapping[str, Any]]
) -> None:
    """Add what the optimizers of the checkpoint had: the groups that a hook had added, and the
    parameters that are frozen now.

    A frozen parameter has no gradient: its optimizer changes neither the parameter nor its state.
    """
    trained = task.trained_parameters()
    owned = {
        id(p) for opt in optimizers for group in opt.optimizer.param_groups for p in group["params"]
    }
    frozen = {name: p for name, p in trained.items() if not p.requires_grad and id(p) not in owned}
    for opt, state in zip(optimizers, states, strict=False):
        in_groups = {id(p) for group in opt.optimizer.param_groups for p in group["params"]}
        then = state.get("names", ())
        if _by_parameter(opt, state):
            for group, here, names in zip(
                opt.optimizer.param_groups, opt.names(), then, strict=False
            ):
                back = [name for name in names if name in frozen]
                if back and "" not in here:
                    order = [*names, *(name for name in here if name not in names)]
                    group["params"][:] = [
                        trained[name] for name in order if name in here or name in back
                    ]
        for names in then[len(opt.optimizer.param_groups) :]:
            parameters = [
                trained[name]
                for name in names
                if name in trained and id(trained[name]) not in in_groups
            ]
            if len(parameters) == len(names):
                opt.optimizer.add_param_group({"params": parameters})


def mismatch(
    optimizers: Sequence[OptimizerHandle],
    settings: Settings,
    states: Sequence[Mapping[str, Any]],
    freed: Set[int] = frozenset(),
) -> str | None:
    """Describe the first difference between optimizers and those of a checkpoint; None: they fit.

    freed: the ids of parameters that the run itself had unfrozen by then, without an optimizer for
    them; they are refused.
    """
    if len(states) != len(optimizers):
        return f"it has {counted(len(states), 'optimizer')}, and here there are {len(optimizers)}"
    for opt, state in zip(optimizers, states, strict=True):
        which = f"optimizer {opt.index}" if len(optimizers) > 1 else "the optimizer"
        kind = kind_of(opt.optimizer)
        if kind != state["type"]:
            return f"{which} was {state['type']} and is {kind} here"
        here, saved = _shapes(opt), state["shapes"]
        if len(here) != len(saved):
            return f"{which} had {counted(len(saved), 'parameter group')} and has {len(here)} here"
        if (here != saved or _moved(opt, state)) and not _is_grown(opt, state, freed):
            return f"{which} has other parameters here"
        kinds_saved, theirs = (
            [schedule["type"] for schedule in state["own"]],
            [type(s).__name__ for s in _Schedules(settings, opt).own],
        )
        if kinds_saved != theirs and state["swa"] is None:
            return f"{which} followed {_named(kinds_saved)} and follows {_named(theirs)} here"
    return None


def _moved(opt: OptimizerHandle, state: Mapping[str, Any]) -> bool:
    """Whether a parameter's place in the optimizer is now that of another parameter. A name that
    the model no longer has may just have been changed.
    """
    trained = opt.task.trained_parameters()
    groups = zip(opt.names(), state.get("names", ()), strict=False)
    return any(
        now != then and then in trained
        for here, before in groups
        for now, then in zip(here, before, strict=False)
    )


def _is_grown(
    opt: OptimizerHandle, state: Mapping[str, Any], freed: Set[int] = frozenset()
) -> bool:
    """Whether the optimizer's groups have the parameters that they had in the checkpoint, and
    others that were frozen there.
    """
    here, then = opt.names(), state.get("names", ())
    shapes = [
        dict(zip(names, sizes, strict=True))
        for names, sizes in zip(here, _shapes(opt), strict=True)
    ]
    if (
        not _by_parameter(opt, state)
        or len(here) != len(then)
        or here == then
        or "" in [name for names in (*here, *then) for name in names]
    ):
        return False
    before = {name for names in then for name in names}
    added = [
        p
        for name, p in opt.task.trained_parameters().items()
        if name not in before and p.requires_grad
    ]
    if not freed.isdisjoint(map(id, added)):
        return False
    kept = zip(shapes, then, state["shapes"], strict=True)
    return all(
        group.get(name) == size
        for group, names, sizes in kept
        for name, size in zip(names, sizes, strict=True)
    )


def _by_parameter(opt: OptimizerHandle, state: Mapping[str, Any]) -> bool:
    """Whether each parameter has a state of its own; LBFGS has one for all together."""
    usual_state = (
        type(opt.optimizer).state_dict is Optimizer.state_dict
        and INNER not in state["state"]
        and not opt.needs_closure
    )
    return usual_state and not opt.weights.sharded


def _grown(
    state: Mapping[str, Any],
    fresh: Mapping[str, Any],
    then: Sequence[Sequence[str]],
    here: Sequence[Sequence[str]],
) -> dict[str, Any]:
    """The optimizer's state with its parameters numbered as they are here; new parameters have
    the state of the `fresh` one.
    """
    states: dict[int, Any] = dict(fresh["state"])
    groups, number = [], 0
    for group, before, now in zip(state["param_groups"], then, here, strict=True):
        old = dict(zip(before, group["params"], strict=True))
        numbers = range(number, number + len(now))
        states |= {
            new: state["state"][old[name]]
            for new, name in zip(numbers, now, strict=True)
            if old.get(name) in state["state"]
        }
        groups.append({**group, "params": [*numbers]})
        number += len(now)
    return {**state, "state": states, "param_groups": groups}


def restore(
    session: Session,
    states: Sequence[Mapping[str, Any]],
    then: Mapping[str, Any],
    before: Mapping[str, Any],
) -> None:
    """Restore the session's optimizers from these states. then: the checkpoint's settings;
    before: its `plan`.
    """
    now = plan(session.settings, session.total_steps.planned())
    before = {"updates": now["updates"], **before}  # checkpoints of earlier releases do not have it
    same = {name: now[name] == before[name] for name in now}
    for opt, state in zip(session.optimizers, states, strict=True):
        fresh = [
            {name: value for name, value in group.items() if name != "params"}
            for group in opt.optimizer.param_groups
        ]
        made_at, opt.base_lr, opt.steps = opt.base_lr, state["base_lr"], state["taken"]
        if state["swa"] is not None and weight_averaging.rates_begun(
            session.settings, session.state
        ):
            weight_averaging.begin_rates(session.settings, opt)
        swa_lrs = [group.get("swa_lr") for group in opt.optimizer.param_groups]
        saved = state["state"]
        if _is_grown(opt, state):
            saved = _grown(saved, opt.optimizer.state_dict(), state["names"], opt.names())
            opt.grown = True
        _load(opt, opt.weights.own_optimizer_state(opt.optimizer, saved))
        # the setting does not apply to a group that a hook added
        for number, group in list(enumerate(opt.optimizer.param_groups))[opt.made_groups :]:
            base = group.get("initial_lr", group["lr"])
            fresh[number] = {
                **{name: value for name, value in group.items() if name != "params"},
                "lr": base,
                "initial_lr": base,
            }
        opt.optimizer._opt_called = opt.steps > 0  # type: ignore[attr-defined]  # or a scheduler would warn that it steps before the optimizer
        if session.settings.weight_decay != then["weight_decay"]:
            _reset_groups(opt.optimizer, fresh, ("weight_decay",))
        parts, old_rate = _Schedules(session.settings, opt), opt.lr
        other_length = before.get("updates") if not same["updates"] else None
        if parts.swa is not None:
            parts.swa.load_state_dict(state["swa"]["state"])
            if not same["swa"]:
                _redefine(session.settings, opt, parts.swa, swa_lrs)
        elif other_length and _make_again(opt, parts, state, fresh, made_at):
            kinds = _named(type(schedule).__name__ for schedule in parts.own)
            _note_other_length(session, opt, kinds, other_length, old_rate)
        elif not _resume_schedules(
            session,
            state,
            parts,
            same=same["schedule"],
            raised=bool(made_at) and not state["base_lr"],
        ):
            _reset_groups(opt.optimizer, fresh, RATES)
            if any("max_momentum" in group for group in (*fresh, *opt.optimizer.param_groups)):
                _reset_groups(opt.optimizer, fresh, _MOMENTA)
            opt.base_lr = made_at
            if parts.built_in is not None:
                schedules.fast_forward(parts.built_in, opt.steps)
                if other_length and state["built_in"] is not None:
                    schedule = f"lr_schedule={session.settings.lr_schedule!r}"
                    _note_other_length(session, opt, schedule, other_length, old_rate)


def _make_again(
    opt: OptimizerHandle, parts: _Schedules, state: Mapping[str, Any],
    fresh: Sequence[Mapping[str, Any]], made_at: float,
) -> bool:  # fmt: skip
    """Let the user's own schedules, which were made for the new length, go to where they were.

    Their state would bring back the old length, beyond which they rise again, stay at their end or
    fail. False: they do not depend on the length, and nothing has changed.
    """
    steady = all(isinstance(schedule, LRScheduler) for schedule in parts.own)
    watches = any(isinstance(schedule, ReduceLROnPlateau) for schedule in parts.own)
    if not parts.own or not steady or watches or not made_at:
        return False
    if parts.built_in is not None or state["swa"] is not None:
        return False
    names = (*RATES, *_MOMENTA)
    groups = [
        {name: group[name] for name in names if name in group}
        for group in opt.optimizer.param_groups
    ]
    before, old_base = opt.lr, opt.base_lr
    _reset_groups(opt.optimizer, fresh, names)
    for scheduler, stored in zip(parts.own, state["own"], strict=True):
        for _ in range(stored["state"].get("last_epoch", 0)):
            scheduler.step()
    share, old_share = opt.lr / made_at, before / old_base if old_base else 0.0
    alike = all(
        _is_alike(_schedule_state(scheduler)["state"], stored["state"])
        for scheduler, stored in zip(parts.own, state["own"], strict=True)
    )
    if alike and math.isclose(share, old_share, rel_tol=1e-6, abs_tol=1e-9):
        _reset_groups(opt.optimizer, groups, names)
        return False
    opt.base_lr = made_at
    return True


def _is_alike(one: Any, other: Any) -> bool:
    """Whether two states of a schedule are equal, but for rates, which a change of `lr` scales."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        names = one.keys() - _SCALED
        same_names = names == other.keys() - _SCALED
        return same_names and all(_is_alike(one[name], other[name]) for name in names)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _note_other_length(
    session: Session, opt: OptimizerHandle, what: str, updates: int, old_rate: float
) -> None:
    """Say that a schedule was made for another number of updates, and which rate comes next."""
    scale = session.settings.lr / opt.base_lr if opt.base_lr else 1.0  # `lr` is applied afterwards
    new_rate, now = opt.lr * scale, session.total_steps.planned()
    if now is None or math.isclose(new_rate, old_rate, rel_tol=1e-3):
        return
    text = (
        f"{what} was made for {updates} updates, and is made again for the {now} of the run now: at"
        f" update {session.state.step} the learning rate is {rate(new_rate)}, where it would have"
        f" been {rate(old_rate)}."
    )
    session.notes.append(Message(text, "warning", session.state.step))


def _resume_schedules(
    session: Session, state: Mapping[str, Any], parts: _Schedules, *, same: bool, raised: bool
) -> bool:
    """Load the schedules' states; False: the schedule is another one, so the checkpoint's rates do
    not apply.

    raised: the rate was 0 and is not any more, so that no new rate follows from the checkpoint's.
    """
    if raised:
        if parts.own:
            kinds = _named(type(scheduler).__name__ for scheduler in parts.own)
            raise TaskError(
                f"lr={rate(session.settings.lr)}: the run was at lr=0, and {kinds} cannot be raised"
                " from 0: begin a new fit."
            )
        return False
    for scheduler, stored in zip(parts.own, state["own"], strict=False):
        scheduler.load_state_dict(stored["state"])
    if state["swa"] is not None:
        if parts.own:
            kinds = _named(type(scheduler).__name__ for scheduler in parts.own)
            session.notes.append(
                Message(
                    f"SWA's own schedule is off now: {kinds} begins anew.",
                    "warning",
                    session.state.step,
                )
            )
        return False
    if parts.built_in is None or state["built_in"] is None:
        return parts.built_in is state["built_in"] is None
    if same:
        parts.built_in.load_state_dict(state["built_in"]["state"])
    return same


def _redefine(
    settings: Settings,
    opt: OptimizerHandle,
    schedule: weight_averaging.OwnSWALR,
    swa_lrs: Sequence[Any],
) -> None:
    """Change SWA's schedule to another rate or shape."""
    schedule.anneal_epochs = settings.annealing_epochs
    schedule._set_anneal_func(settings.annealing_strategy)
    for group, swa_lr in zip(opt.optimizer.param_groups, swa_lrs, strict=True):
        group["swa_lr"] = swa_lr


class _Schedules:
    """The schedules of an optimizer: the user's own, the built-in one, SWA's."""

    def __init__(self, settings: Settings, opt: OptimizerHandle) -> None:
        schedulers: list[Any] = [schedule.scheduler for schedule in opt.schedules]
        self.swa = schedulers.pop() if weight_averaging.in_swa(opt) else None
        self.built_in = (
            schedulers.pop()
            if schedulers and schedules.is_built_in(schedulers[-1], settings)
            else None
        )
        self.own = schedulers


def _schedule_state(scheduler: Any) -> dict[str, Any]:
    kind = type(scheduler).__name__
    if not hasattr(scheduler, "state_dict"):
        raise NotPlainError(f"the scheduler {kind} has no state_dict()")
    # Functions are left out: the scheduler that loads the state has its own.
    return {
        "type": kind,
        "state": to_plain(scheduler.state_dict(), f"the state of {kind}", functions=False),
    }


def _load(opt: OptimizerHandle, state: dict[str, Any]) -> None:
    """Load a state that the optimizer's `state_dict` returned. Raises TaskError where its
    `load_state_dict` raised an error.
    """
    try:
        load_state(opt.optimizer, state)
    except Exception as error:
        if type(opt.optimizer).load_state_dict is Optimizer.load_state_dict:
            raise
        kind = type(opt.optimizer).__name__
        raise TaskError(
            f"{kind}.load_state_dict did not load what {kind}.state_dict returned"
            f" ({type(error).__name__}: {error}), so no fit can resume with this optimizer:"
            " bench.load(run) takes the weights alone, then bench.fit()."
        ) from error


def _reset_groups(
    optimizer: Optimizer, fresh: Iterable[Mapping[str, Any]], names: Iterable[str]
) -> None:
    for group, values in zip(optimizer.param_groups, fresh, strict=True):
        for name in names:
            if name in values:
                group[name] = values[name]
            else:
                group.pop(name, None)


def _shapes(opt: OptimizerHandle) -> list[list[tuple[int, ...]]]:
    return [
        [tuple(parameter.shape) for parameter in group["params"]]
        for group in opt.optimizer.param_groups
    ]


def _named(kinds: Iterable[str]) -> str:
    return " and ".join(kinds) or "no scheduler"
