"""Events of searches: of a learning rate, a batch size, loader workers, a precision, a clip
value, a weight decay; and of a profile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

End = TypeVar("End")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One update of the LR finder: the rate, the raw loss at it and the smoothed one."""

    index: int
    lr: float
    loss: float
    smoothed: float


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A learning rate that a rule proposes. `index` is the nearest point of the curve; None if
    it proposes no rate.
    """

    name: str
    lr: float | None
    index: int | None
    why: str


@dataclass(frozen=True, slots=True)
class RaceTrial:
    """One learning rate of a race has trained for `updates` updates. `loss`: the mean of
    held-out batches; inf: it diverged.
    """

    lr: float
    updates: int
    loss: float


@dataclass(frozen=True, slots=True)
class CurveEnded:
    """The sweep ended: the reason, what each rule proposes, and the recommended rate (None: none
    can be trusted).
    """

    ended: str
    suggestions: tuple[Suggestion, ...]
    suggestion: float | None
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """The notes that speak against the recommendation, or say why no rate is recommended."""
    diverged: float | None = None
    """The first rate whose loss diverged or was not finite; None: no such rate was seen."""

    @property
    def why(self) -> str:
        """Why the recommended rate is recommended; how the sweep ended where none is."""
        return next((s.why for s in self.suggestions if s.lr == self.suggestion), self.ended)


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """The trial of a batch size begins; its Trial follows, unless the search ends here."""

    size: int
    accumulate_grad_batches: int | None = None
    """How many batches of that size make the effective batch, where it is kept."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One batch size that was tried. `seconds` is for a typical update; bytes are the peak above
    idle.

    Where several `ranks` tried it together, `size` and `peak_bytes` (the largest) are per rank, and
    samples/s are of all.
    """

    size: int
    ok: bool
    seconds: float | None = None
    samples_per_second: float | None = None
    peak_bytes: int | None = None
    error: str | None = None
    ranks: int = 1
    accumulate_grad_batches: int | None = None
    """How many batches of that size make the effective batch, where it was kept."""
    limit_bytes: int | None = None
    """How many bytes were available, on the same scale as the peak; None: unknown."""
    uncertainty: float | None = None
    """The typical time is known within this share of itself (95%); None: too few updates were
    timed.
    """
    updates_per_epoch: int | None = None
    """How many updates an epoch has with batches of this size; None: the data has no length, or
    no updates are taken.
    """
    refused: int | None = None
    """Of how many samples the batch was with which the model failed, though memory sufficed:
    `size`, or an epoch's last batch. None: it failed with none.
    """

    @property
    def fits(self) -> bool:
        """Whether memory sufficed, also where the model refused the size for another reason."""
        return self.ok or self.refused is not None


@dataclass(frozen=True, slots=True)
class SearchEnded:
    """The batch-size search ended: the recommended size and the largest one, both of which were
    tried and passed.

    `accumulate_grad_batches`: how many batches of the recommended size make the effective batch,
    where it was kept.
    `fastest`: the smallest size nearly as fast as the fastest. `reason`: why the recommended size
    is recommended.
    `noise_scale`: the gradient noise scale in samples at the weights that the model had, None where
    it is not known; `noise_reason` says what it means, or why it is not known ("": nothing measured
    it).
    """

    best: int | None
    largest: int | None
    ended: str
    accumulate_grad_batches: int | None = None
    fastest: int | None = None
    reason: str = ""
    noise_scale: float | None = None
    noise_uncertainty: float | None = None
    """The noise scale is known within this share of itself (95%)."""
    noise_reason: str = ""


@dataclass(frozen=True, slots=True)
class SpeedTrial:
    """A trial of values of settings ended: how fast updates are with them, or why they failed.

    `uncertainty`: half the width of the speed's 95% interval, as a share of it. `waiting`: the
    share of the time in which
    training waited for batches. `loss`: the mean of the last losses. `peak_bytes`: the peak memory
    of a CUDA device; None on a CPU, where a process keeps the memory that earlier trials have
    freed.
    """

    values: dict[str, Any]
    updates_per_second: float | None
    uncertainty: float | None = None
    waiting: float | None = None
    loss: float | None = None
    error: str | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SpeedSearchEnded:
    """The search for faster settings ended: the values to set, and why."""

    best: dict[str, Any]
    reason: str
    ended: str


@dataclass(frozen=True, slots=True)
class ClipSearchEnded:
    """The search for a clip value ended. `best`: the settings it recommends; empty: no clipping is
    needed.

    `suggestion`: the value that a tenth of the norms exceed. `norms`: for each optimizer, the
    gradient norms of its updates.
    """

    best: dict[str, Any]
    suggestion: float | None
    norms: tuple[tuple[float, ...], ...]
    reason: str
    ended: str


@dataclass(frozen=True, slots=True)
class DecayTrial:
    """A weight decay has trained for `updates` updates. `loss`: the mean of held-out batches;
    inf: it diverged.
    """

    weight_decay: float
    updates: int
    loss: float


@dataclass(frozen=True, slots=True)
class DecaySearchEnded:
    """The search for a weight decay ended. `best`: the settings it recommends; empty: the present
    value stays.

    `suggestion`: the weight decay itself; None: nothing is clearly better than the present value.
    """

    best: dict[str, Any]
    suggestion: float | None
    reason: str
    ended: str


@dataclass(frozen=True, slots=True)
class RecipeTrial:
    """A recipe has trained for as many samples as `updates` updates with batches of the present
    size have. `values`: its settings; empty: the present ones.
    `loss`: the mean of held-out batches; inf: it diverged.
    """

    values: dict[str, Any]
    updates: int
    loss: float


@dataclass(frozen=True, slots=True)
class RecipeSearchEnded:
    """The race of recipes ended. `best`: the settings it recommends; empty: the present ones stay.

    `doubt`: what speaks against the answer; "": nothing known.
    """

    best: dict[str, Any]
    reason: str
    doubt: str
    ended: str


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The time of an operator of torch, or of a kernel of a device, in an update, on average.

    `calls`: how often it runs. `seconds`: of an operator on the CPU, without those that it calls;
    of a kernel on its device.
    """

    name: str
    calls: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ProfileEnded:
    """A profile ended: what limits the speed of the updates, in a sentence, and what was measured.

    `parts`: the seconds of an update by part, as in `TimeSpent`. `operators` and `kernels`: those
    that take the most time, the slowest first. `memory`: pairs of seconds and bytes in use.
    """

    verdict: str
    ended: str
    updates: int = 0
    """How many updates the trace has."""
    updates_per_second: float | None = None
    samples_per_second: float | None = None
    """Of all ranks together; None: a batch does not say how many samples it has."""
    tokens_per_second: float | None = None
    """The same for the weights that training_step reports; None: it reports none."""
    compile_seconds: float = 0.0
    """What torch.compile took before the updates that were measured."""
    parts: dict[str, float] = field(default_factory=dict)
    busy: float | None = None
    """The share of the time in which the device works; None: it is the CPU."""
    operators: tuple[OperatorTime, ...] = ()
    kernels: tuple[OperatorTime, ...] = ()
    memory: tuple[tuple[float, float], ...] = ()
    flops: float | None = None
    """The floating-point operations of matrix products and convolutions in an update of rank 0."""
    mfu: float | None = None
    """These operations in a second, as a share of what the device can do."""
    mfu_reason: str = ""
    """Why `flops` or `mfu` is not known; "": they are."""


@dataclass(frozen=True, slots=True)
class TuneTrial:
    """A stretch of a `tune` job ended: the loss on held-out samples after so many updates with
    `values` in place of present settings. Empty: with the present ones.
    """

    values: dict[str, Any]
    updates: int
    loss: float


@dataclass(frozen=True, slots=True)
class TuneStep:
    """A search of a `tune` job ended: the settings that it recommends, and why. Empty: the
    settings stay.

    The last one, "check", has those of the whole plan; without what changes the training if that
    is not better than the present settings.
    """

    search: str
    values: dict[str, Any]
    reason: str

    @property
    def is_check(self) -> bool:
        """Whether it compares the whole plan with the present settings."""
        return self.search == "check"


def last_of(events: Iterable[Any], default: End) -> End:
    """Return the last of these events that has the class of `default`, or else `default`."""
    last = default
    for event in events:
        if isinstance(event, type(default)):
            last = event
    return last
