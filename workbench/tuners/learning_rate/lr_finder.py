"""Finds a learning rate: sweeps rates over real updates, one point per update, and restores the
session.

Source: Smith, "Cyclical Learning Rates for Training Neural Networks" (2017). How to read the curve:
left of its fall the rate is too small to have an effect, at the right edge the loss explodes; the
suggestion is well below the edge. `lr_suggest` has the rules, `curve` the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import torch
from torch.optim import Optimizer

from workbench.commands import Inbox, Stop
from workbench.engine.metrics.meter import PERIOD
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.optim.schedule_free import has_modes
from workbench.engine.session import Session
from workbench.engine.snapshot import scratch
from workbench.engine.step import train_step
from workbench.events import CurveEnded, CurvePoint, Emit
from workbench.instruments.finite import NonFiniteError
from workbench.settings import SettingsError
from workbench.task import rng
from workbench.task.errors import TaskError
from workbench.task.optim.part_optimizers import PartOptimizers
from workbench.techniques.schedules import WITHOUT_LENGTH
from workbench.tuners import stretch
from workbench.tuners.learning_rate import lr_race, sweep
from workbench.tuners.learning_rate.curve import LRCurve as LRCurve
from workbench.tuners.learning_rate.dead_units import DeadUnits
from workbench.tuners.learning_rate.lr_suggest import (
    Landmarks,
    Raced,
    divergence,
    level_of,
    recommended,
    suggest_all,
)
from workbench.tuners.trial_batches import cycled_windows
from workbench.units import rate
from workbench.values import shown

PATIENCE = 1000
"""After this many windows without a loss of the swept optimizer, the sweep raises an error."""

_SET_BY_CODE = (
    "Your own code sets the learning rate of a run, and the search trained at its own rates"
    " instead. So lr changes a fit only where your code uses it."
)


@dataclasses.dataclass(frozen=True)
class LRRequest:
    """The arguments of a sweep. early_stop_threshold: None never ends the sweep early."""

    min_lr: float = 1e-5
    max_lr: float = 10.0
    num_training: int = 100
    mode: str = "exponential"
    early_stop_threshold: float | None = 4.0
    optimizer: int = 0
    """The index of the optimizer whose rate is swept; the others keep theirs."""
    group: int | str | None = None
    """The index of its parameter group whose rate is swept, or a name: all groups of this rule,
    which keep their ratios. The others keep their rates. None: all groups, in proportion.
    """
    race: bool = False
    """Whether rates around the suggestion then train for a while, and their losses decide
    (`lr_race`).
    """
    race_updates: int = 300
    """Updates of the race in all, without those of the present rate and of a lower one, which have
    a fourth of that each where they train.
    """

    def __post_init__(self) -> None:
        if (
            isinstance(self.optimizer, bool)
            or not isinstance(self.optimizer, int)
            or self.optimizer < 0
        ):
            raise SettingsError(
                f"optimizer={shown(self.optimizer)}: the number of an optimizer is needed, counted"
                " from 0."
            )
        is_number = type(self.group) is int and self.group >= 0
        if self.group is not None and not isinstance(self.group, str) and not is_number:
            raise SettingsError(
                f"group={shown(self.group)}: give the name of parameter groups, or the number of"
                " one, counted from 0; None sweeps all."
            )
        sweep.rates(self.min_lr, self.max_lr, self.num_training, self.mode)
        sweep.StopRule(self.early_stop_threshold)
        if not isinstance(self.race, bool):
            raise SettingsError(f"race={shown(self.race)}: give True or False.")
        stretch.check("race_updates", self.race_updates, lr_race.CANDIDATES, 300)

    @property
    def updates(self) -> int:
        """The planned number of updates, with those of the race."""
        return self.num_training + (self.race_updates if self.race else 0)


def run(session: Session, request: LRRequest, emit: Emit, inbox: Inbox) -> CurveEnded:
    """Sweep the session's learning rate; the session is restored, also after an error.

    A Stop ends the sweep, and stays in the inbox; other commands wait there too. Several ranks
    sweep together and end together.
    """
    opt = _chosen(session.optimizers, request)
    swept = None if request.group is None else _groups(opt.optimizer, request.group)
    schedule = stretch.schedule_of(session.settings, opt)
    if schedule in WITHOUT_LENGTH and has_modes(opt.optimizer):
        schedule = "schedule_free"
    if request.race:
        stretch.refuse(session.task, session.settings, "race=True")
    with scratch(session):
        if schedule == "one_cycle":
            _undo_momentum(opt.optimizer)
        beta, adaptive = _momentum(opt.optimizer), is_adaptive(opt.optimizer)
        with DeadUnits(session.parameters, session.ranks, opt) as units:
            points, ended = _sweep(session, opt, request, swept, units, emit, inbox)
    lrs, losses, count = [p.lr for p in points], [p.loss for p in points], request.num_training
    landmarks = Landmarks(
        lrs,
        losses,
        beta=beta,
        adaptive=adaptive,
        schedule=schedule,
        num_training=count,
        died=units.died(),
    )
    end = _conclude(points, ended, landmarks)
    if request.race and landmarks.estimate is not None and not inbox.has(Stop):
        level = session.ranks.broadcast_object(level_of(losses, count))
        assert level is not None  # there is an estimate
        updates = request.race_updates
        outcome = lr_race.race(
            session, opt, landmarks.estimate, level, updates, schedule, swept, emit, inbox
        )
        raced = outcome.suggestion
        if outcome.loss is not None and raced.lr is not None:
            end = _conclude(points, ended, landmarks, Raced(raced.lr, outcome.loss))
        ended = sweep.STOPPED if inbox.has(Stop) else end.ended
        against = (outcome.doubt,) if outcome.doubt else ()
        end = dataclasses.replace(
            end,
            ended=ended,
            suggestions=(raced, *end.suggestions),
            suggestion=end.suggestion if raced.lr is None else raced.lr,
            notes=(*against, *end.notes),
            doubts=(*against, *end.doubts),
        )
    size = _typical_weight(opt.optimizer, swept)
    if size is not None and end.suggestion is not None and end.suggestion > size:
        too_large = _beyond_weights(end.suggestion, size)
        end = dataclasses.replace(
            end, notes=(too_large, *end.notes), doubts=(too_large, *end.doubts)
        )
    if opt.rate_set_by_code:
        end = dataclasses.replace(end, notes=(*end.notes, _SET_BY_CODE))
    if swept is not None:
        end = dataclasses.replace(end, notes=(*end.notes, _of_groups(opt.optimizer, swept)))
    if session.plan.several_optimizers:
        end = dataclasses.replace(end, notes=(*end.notes, _whose(opt.index)))
    end = session.ranks.broadcast_object(end)
    emit(end)
    return end


def _chosen(optimizers: Sequence[OptimizerHandle], request: LRRequest) -> OptimizerHandle:
    count = len(optimizers)
    if request.optimizer >= count:
        count_in_words = (
            "is one optimizer, 0" if count == 1 else f"are {count} optimizers, 0 to {count - 1}"
        )
        raise TaskError(f"find_lr(optimizer={request.optimizer}): there {count_in_words}.")
    return optimizers[request.optimizer]


def _groups(optimizer: Optimizer, group: int | str) -> tuple[int, ...]:
    """The numbers of the parameter groups that the user means."""
    names = [str(group.get("name", "")) for group in optimizer.param_groups]
    if isinstance(group, str):
        numbers = [n for n, name in enumerate(names) if group in (name, *name.split(", "))]
        if not numbers:
            rules = dict.fromkeys(rule for name in names for rule in name.split(", ") if rule)
            near = difflib.get_close_matches(group, rules, n=1, cutoff=0.6)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            known = ", ".join(map(repr, rules)) or "none with a name"
            raise TaskError(
                f"find_lr(group={shown(group)}): there is no parameter group of this name, but"
                f" {known}.{hint}"
            )
        return tuple(numbers)
    if group >= len(names):
        count_in_words = (
            "is one parameter group, 0"
            if len(names) == 1
            else f"are {len(names)} parameter groups, 0 to {len(names) - 1}"
        )
        raise TaskError(f"find_lr(group={group}): there {count_in_words}.")
    if not optimizer.param_groups[group]["params"]:
        raise TaskError(
            f"find_lr(group={group}): this parameter group has no parameters; the rules of groups="
            " scale the rates of all. Give the name of a rule."
        )
    return (group,)


def _sweep(
    session: Session,
    opt: OptimizerHandle,
    request: LRRequest,
    swept: Sequence[int] | None,
    units: DeadUnits,
    emit: Emit,
    inbox: Inbox,
) -> tuple[list[CurvePoint], str]:
    windows = cycled_windows(
        session.task,
        session.data.settings,
        epoch=session.state.epoch,
        in_step=session.parallel.rounds,
    )
    with contextlib.closing(windows) as feed:
        return _points(session, opt, request, swept, units, feed, emit, inbox)


def _points(
    session: Session,
    opt: OptimizerHandle,
    request: LRRequest,
    swept: Sequence[int] | None,
    units: DeadUnits,
    feed: Iterator[Sequence[object]],
    emit: Emit,
    inbox: Inbox,
) -> tuple[list[CurvePoint], str]:
    smoother, rule = sweep.Smoother(), sweep.StopRule(request.early_stop_threshold)
    for other in session.optimizers:
        other.hold_lrs()
    set_lr = stretch.multiplier(opt, swept)
    session.train_mode()
    points: list[CurvePoint] = []
    with _several_at_once(points, emit) as emit_due:
        for index, lr in enumerate(
            sweep.rates(request.min_lr, request.max_lr, request.num_training, request.mode)
        ):
            if inbox and inbox.has(Stop):
                return points, sweep.STOPPED
            set_lr(float(lr))
            units.point = index
            rng.yield_lock()
            loss, broken = _loss_of_update(session, opt, feed)
            smoothed = smoother.update(loss) if math.isfinite(loss) else loss
            points.append(CurvePoint(index, float(lr), loss, smoothed))
            emit_due()
            ended = session.ranks.broadcast_object(rule.check(loss, smoothed) or broken)
            if ended is not None:
                return points, ended
    return points, sweep.ALL_DONE


@contextlib.contextmanager
def _several_at_once(points: Sequence[CurvePoint], emit: Emit) -> Iterator[Callable[[], None]]:
    """Context manager with a function that emits the new points, about ten times a second; the
    rest are emitted at the end. An event wakes other threads, which costs as much as a small
    update.
    """
    emitted, due = 0, perf_counter() + PERIOD

    def emit_new() -> None:
        nonlocal emitted, due
        for point in points[emitted:]:
            emit(point)
        emitted, due = len(points), perf_counter() + PERIOD

    def emit_due() -> None:
        if perf_counter() >= due:
            emit_new()

    try:
        yield emit_due
    finally:
        emit_new()


def _loss_of_update(
    session: Session, opt: OptimizerHandle, feed: Iterator[Sequence[object]]
) -> tuple[float, str | None]:
    """Take updates until one in which `opt` stepped; returns its loss, and why there can be no
    further update (None: there can).
    """
    try:
        for window in itertools.islice(feed, PATIENCE):
            its_turn = any(other is opt for other in session.optimizers.turn(session.state.step))
            loss = train_step(session, window)
            if loss is not None and its_turn:
                return float(session.state.losses.get(opt.index, loss)), None
        raise TaskError(
            f"{PATIENCE} windows of batches gave no loss for optimizer {opt.index}: every step left"
            " them out."
        )
    except NonFiniteError as error:
        if error.of_batch:
            raise
        return error.loss, "gradient not finite"


def _conclude(
    points: Sequence[CurvePoint], ended: str, landmarks: Landmarks, raced: Raced | None = None
) -> CurveEnded:
    suggestions = suggest_all(landmarks, [p.smoothed for p in points])
    edge = divergence(landmarks.lrs, [p.loss for p in points], num_training=landmarks.num_training)
    return CurveEnded(
        ended,
        suggestions,
        recommended(suggestions),
        landmarks.notes(raced),
        landmarks.doubts(raced),
        edge,
    )


def _momentum(optimizer: Optimizer) -> float:
    group = optimizer.param_groups[0]
    return float(group["betas"][0]) if "betas" in group else float(group.get("momentum") or 0.0)


def is_adaptive(optimizer: Optimizer) -> bool:
    """Whether the size of its steps hardly depends on that of the gradients."""
    if isinstance(optimizer, PartOptimizers):
        return all(map(is_adaptive, optimizer.parts.values()))
    kinds = torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Rprop
    return "betas" in optimizer.param_groups[0] or isinstance(optimizer, kinds)


def _typical_weight(optimizer: Optimizer, only: Sequence[int] | None) -> float | None:
    """The root mean square of the weights in the typical matrix or kernel, of some groups or of
    all.

    None if the rate does not tell the size of a step: only Adam and similar optimizers change each
    weight by about the rate, and those that estimate their own rate (Prodigy's "d") multiply it.
    """
    groups = [
        group
        for number, group in enumerate(optimizer.param_groups)
        if only is None or number in only
    ]
    if "betas" not in groups[0] or "d" in groups[0]:
        return None
    weights = [
        p.detach() for group in groups for p in group["params"] if p.dim() > 1 and p.numel() > 0
    ]
    sizes = (
        [
            float(norm) / math.sqrt(p.numel())
            for p, norm in zip(weights, torch._foreach_norm(weights), strict=True)
        ]
        if weights
        else []
    )
    # matrices that begin at 0 (LoRA's, a last layer's) have no size yet
    begun = [size for size in sizes if size]
    return statistics.median(begun) if begun else None


def _beyond_weights(lr: float, size: float) -> str:
    return (
        f"At this rate an update changes a weight by about {rate(lr, 2)}, and the weights"
        f" themselves are about {rate(size, 2)}. Only targets or inputs that are large numbers need"
        " that. So scale them to a mean of 0 and a standard deviation of 1, then search again."
    )


def _undo_momentum(optimizer: Optimizer) -> None:
    """Restore the optimizer's own momentum for the sweep, which a one-cycle schedule may have
    changed.
    """
    for group in optimizer.param_groups:
        for name in ("momentum", "betas"):
            if name in group and name in optimizer.defaults:
                group[name] = optimizer.defaults[name]


def _of_groups(optimizer: Optimizer, numbers: Sequence[int]) -> str:
    """A note on the rates of the curve, if some groups were swept."""
    name = optimizer.param_groups[numbers[0]].get("name")
    called = f" ({name!s:.60})" if name else ""
    several = f", with groups {', '.join(map(str, numbers[1:]))} in proportion" * bool(numbers[1:])
    return (
        f"These are the rates of parameter group {numbers[0]}{called} alone{several}. The others"
        " kept theirs. The setting lr moves all groups in proportion. So if rules make your groups,"
        " the group's lr_scale is this rate divided by the setting lr. Otherwise give the group"
        " this rate where you make the optimizer."
    )


def _whose(index: int) -> str:
    """A note, for several optimizers, on the rates of the curve and on the setting."""
    return (
        f"These are the rates of optimizer {index} alone, in its first group whose rate is not 0."
        " The others kept theirs. The setting lr is the rate of the first optimizer, and moves all"
        " in proportion."
    )
