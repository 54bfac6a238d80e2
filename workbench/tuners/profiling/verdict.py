"""Says in a sentence what limits the speed of updates, and what helps."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torch.optim import Optimizer

from workbench.engine.session import Session
from workbench.events import OperatorTime
from workbench.tuners.profiling.recording import PYTHON, READ
from workbench.tuners.stages import data_of_stage

BUSY, IDLE = 0.9, 0.5
"""A device is busy that works for this share of the time, and idle below the other one."""


SHORT = 15e-6
"""Operators that take fewer seconds than this on average take no more than what starts them."""


class Setup(NamedTuple):
    """What of a run decides which remedy helps."""

    on_cpu: bool = True
    precision: str = "32-true"
    compiles: bool = False
    workers: int = 0
    """The loader's processes."""
    persistent: bool = False
    """Whether they stay from one epoch to the next."""
    own_batches: bool = False
    """Whether the user's DataLoader makes its batches itself."""
    unfused: str = ""
    """The class of an optimizer that has a fused step and does not use it; "": there is none."""

    @classmethod
    def of(cls, session: Session) -> Setup:
        """The setup of a session."""
        settings, train = session.settings, data_of_stage(session.task, "fit")
        unfused = (type(o.optimizer).__name__ for o in session.optimizers if _unfused(o.optimizer))
        return cls(
            session.device.type == "cpu",
            settings.precision,
            bool(settings.compile or session.task.compiler),
            settings.num_workers,
            settings.persistent_workers,
            train.parts.own_batches is not None,
            next(unfused, ""),
        )


def _unfused(optimizer: Optimizer) -> bool:
    """Whether an optimizer has a fused step that it does not use."""
    has_it = "fused" in inspect.signature(type(optimizer).__init__).parameters
    return has_it and not any(group.get("fused") for group in optimizer.param_groups)


class _Limit(NamedTuple):
    """A part of an update that takes too much time: its share, and the sentence about it."""

    share: float
    text: str


def verdict(
    parts: Mapping[str, float],
    busy: float | None,
    operators: Sequence[OperatorTime],
    kernels: Sequence[OperatorTime],
    setup: Setup,
) -> str:
    """The sentence. parts: seconds by part; busy: the share of the time in which the device works;
    operators and kernels: the slowest first.
    """
    total = sum(parts.values())
    if not total:
        return "The updates took no time that could be measured."
    shares = {name: seconds / total for name, seconds in parts.items()}
    if shares.get("other", 0.0) > 0.5:
        return "On this kind of device an update cannot be timed in parts: look at the trace."
    limits = [*_limits(shares, setup)]
    if busy is not None and busy < IDLE:
        waits = sum(shares.get(name, 0.0) for name in ("data", "first batch", "sync"))
        limits.append(_Limit(1 - busy - waits, _idle(busy, setup)))
    worst = max(limits, key=lambda limit: limit.share, default=None)
    if worst is not None:
        return worst.text
    return _computes(shares, busy, operators, kernels, setup)


def _limits(shares: Mapping[str, float], setup: Setup) -> Iterator[_Limit]:
    """The parts that take more time than they should."""
    compiling = shares.get("compile", 0.0)
    if compiling >= 0.05:
        yield _Limit(
            compiling,
            f"torch.compile compiles again for {compiling:.0%} of the time: batches have new"
            " shapes. drop_last=True, samples padded to one length, or"
            " torch.compile(model, dynamic=True) avoid it.",
        )
    begins = shares.get("first batch", 0.0)
    waiting = shares.get("data", 0.0) + begins
    if waiting >= 0.2:
        yield _Limit(waiting, _waits(waiting, begins, setup))
    optimizer = shares.get("optimizer", 0.0)
    if optimizer >= 0.3:
        remedy = (
            f"{setup.unfused}(…, fused=True) takes less"
            if setup.unfused
            else "larger batches, or accumulate_grad_batches, need fewer steps"
        )
        yield _Limit(optimizer, f"The optimizer takes {optimizer:.0%} of an update: {remedy}.")
    for name, limit, text in _REMEDIES:
        share = shares.get(name, 0.0)
        if share >= limit:
            yield _Limit(share, text.format(share=f"{share:.0%}"))


_REMEDIES = (
    (
        "sync",
        0.3,
        "Rank 0 waits for the other ranks for {share} of an update: larger batches, or"
        " accumulate_grad_batches, synchronise less often.",
    ),
    (
        "hooks",
        0.2,
        "Hooks and callbacks take {share} of an update: look for what they compute, print or read"
        " back from the device.",
    ),
    (
        "transfer",
        0.2,
        "Moving batches to the device takes {share} of an update: pin_memory=True, or data that is"
        " on the device already.",
    ),
    (
        "workbench",
        0.25,
        "Gradient norms and checks take {share} of an update: log_every_n_steps=10 measures less"
        " often, and track_grad_norm=None not at all.",
    ),
)
"""Parts, the shares from which on they are too large, and the sentences about them."""


def _waits(waiting: float, begins: float, setup: Setup) -> str:
    text = f"{waiting:.0%} of an update is waiting for data"
    if begins >= waiting / 2 and setup.workers and not setup.persistent:
        return (
            f"{text}, most of it for the first batch of an epoch, since its workers start anew:"
            " persistent_workers=True."
        )
    if setup.own_batches:
        return f"{text}: give your DataLoader more num_workers."
    return (
        f"{text}: raise num_workers (now {setup.workers}); bench.find_num_workers() tries how many."
    )


def _idle(busy: float, setup: Setup) -> str:
    compiling = "" if setup.compiles else ", and compile=True starts fewer"
    return (
        f"The device is busy {busy:.0%} of the time, and waits for the Python that starts its"
        f" kernels: a larger batch_size makes them longer{compiling}."
    )


def _computes(
    shares: Mapping[str, float],
    busy: float | None,
    operators: Sequence[OperatorTime],
    kernels: Sequence[OperatorTime],
    setup: Setup,
) -> str:
    """The sentence where the model takes the time, and nothing else."""
    if busy is not None:
        faster = (
            " precision='bf16-mixed' may need half the time (bench.find_precision())."
            if busy >= BUSY and setup.precision == "32-true"
            else ""
        )
        bound = "compute bound" if busy >= BUSY else "mostly compute bound"
        of_kernels = sum(kernel.seconds for kernel in kernels)
        kernel = kernels[0] if of_kernels else None
        where = (
            f", {kernel.seconds / of_kernels:.0%} of it in {_short(kernel.name)}"
            if kernel is not None
            else ""
        )
        return f"The device is busy {busy:.0%} of the time{where}: {bound}.{faster}"
    model = shares.get("forward", 0.0) + shares.get("backward", 0.0)
    text = f"Forward and backward take {model:.0%} of an update"
    computing = [o for o in operators if o.name not in (PYTHON, READ)]
    calls, seconds = sum(o.calls for o in computing), sum(o.seconds for o in computing)
    if not calls:
        return f"{text}: compute bound."
    if seconds / calls < SHORT:
        return (
            f"{text}, in {calls:.0f} operators of {1e6 * seconds / calls:.0f} µs on average, which"
            " is hardly more than it takes to start one: a larger batch_size gives each more to do."
        )
    longest = computing[0]
    share = f"{longest.seconds / seconds:.0%} of the time in operators"
    if longest.name.startswith(_COLLECTIVES):
        return (
            f"{text}, and {longest.name} {share}: rank 0 exchanges gradients with the other ranks,"
            " or waits for them. Larger batches, or accumulate_grad_batches, exchange them less"
            " often."
        )
    return f"{text}, and {longest.name} {share}: compute bound."


_COLLECTIVES = ("c10d::", "gloo:", "nccl:")
"""How the names of operators begin that exchange tensors with other ranks."""


def _short(name: str) -> str:
    """A kernel's name without its arguments, of 60 characters at most."""
    plain = name.removeprefix("void ").partition("<")[0].partition("(")[0]
    return plain if len(plain) <= 60 else f"{plain[:59]}…"
