"""When a fit looks at its validation data, what it reports, and whether a metric ends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from workbench.commands import Inbox, Stop
from workbench.engine import averaged
from workbench.engine.optimizing import Optimizing
from workbench.engine.orders import obey
from workbench.engine.record import flush
from workbench.engine.session import Session
from workbench.engine.validate import validate
from workbench.events import Emit, Validated
from workbench.task.protocol import Schedule, TaskError
from workbench.techniques.cadence import Cadence
from workbench.techniques.stopping import EarlyStop, minimums_met

_WHO = "the scheduler's monitor"


class Checks:
    """The checks of one fit. `ended`: why a metric has ended it, in words; None: it goes on."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # With nothing to validate only the ends of epochs count, whatever interval was asked for.
        often = session.settings if session.data.validates else session.settings.replace(val_check_interval=1.0)
        self._at_ends_alone = isinstance(often.val_check_interval, float) and often.val_check_interval == 1.0
        self._cadence = Cadence(often, session.data.updates_in(0))
        self._stops = (
            [] if session.settings.fast_dev_run else [EarlyStop(m) for m in session.settings.early_stopping]
        )
        self._number = 0
        self._checked = -1
        self.ended: str | None = None

    def sanity(self, emit: Emit, inbox: Inbox) -> bool:
        """A few validation batches before the first update, so that a mistake there shows now; whether it was stopped."""
        session = self._session
        seen = _Watch(session, session.data.sanity(), emit, inbox)
        metrics = validate(session, seen)
        if metrics or not session.data.validates:
            self._refuse_unknown({**metrics, "train_loss": 0.0})
        return seen.stopped

    def _refuse_unknown(self, metrics: Mapping[str, float]) -> None:
        """A monitor that nothing reports: said before the first epoch is spent, not after it."""
        known = dict(metrics)
        if self._session.average is not None:
            known |= {f"{name}_averaged": value for name, value in metrics.items() if name != "train_loss"}
        watched = [("early_stopping: the monitor", stop.monitor) for stop in self._session.settings.early_stopping]
        for opt in self._session.optimizers:
            watched += [(_WHO, schedule.monitor or "val_loss") for _, schedule in _plateaus(opt)]
        for who, name in watched if not self._session.settings.fast_dev_run else ():
            _metric(known, name, who)

    def begin_epoch(self) -> None:
        """The number of updates in an epoch may be another one now."""
        session = self._session
        self._cadence.updates_per_epoch = session.data.updates_in(session.epoch)
        session.epoch_loss.clear()

    def midway(self, in_epoch: int, emit: Emit, inbox: Inbox) -> bool:
        """Between two updates of an epoch: check if it is time; whether it was stopped."""
        session = self._session
        if self._at_ends_alone or in_epoch == 0 or session.step == self._checked:  # windows of which nothing was left are no updates
            return False
        if not self._cadence.due(session.step, session.epoch, in_epoch, session.meter.seconds):
            return False
        flush(session, emit, wait=True)
        return self._check(session.epoch, emit, inbox)

    def at_end_of_epoch(self, last: bool, emit: Emit, inbox: Inbox) -> bool:
        """After an epoch (`last`: the run ends here): check if it is time; whether it was stopped."""
        session = self._session
        if not self._cadence.due_at_end(session.step, session.epoch, last, session.meter.seconds):
            return False
        return self._check(session.epoch - 1, emit, inbox)

    def _check(self, epoch: int, emit: Emit, inbox: Inbox) -> bool:
        session = self._session
        metrics = self._metrics(emit, inbox)
        if metrics is None:
            return True
        self._checked = session.step
        self._cadence.checked(session.step, session.meter.seconds)
        if metrics:
            emit(Validated(session.step, epoch, metrics))
        known = {**metrics, **session.epoch_loss.metric()}
        self._step_plateaus(known)
        self._judge(known)
        return False

    def _metrics(self, emit: Emit, inbox: Inbox) -> dict[str, float] | None:
        """Raw metrics, and those of the averaged weights; None: it was stopped, and then it says nothing."""
        session = self._session
        if not session.data.validates:
            return {}
        seen = _Watch(session, session.data.val(), emit, inbox)
        metrics = validate(session, seen)
        if not seen.stopped and session.average is not None and session.average.count:
            with averaged.in_place(session):
                seen = _Watch(session, session.data.val(), emit, inbox)
                smooth = validate(session, seen)
            metrics |= {f"{name}_averaged": value for name, value in smooth.items()}
        return None if seen.stopped else metrics

    def _step_plateaus(self, metrics: Mapping[str, float]) -> None:
        """Schedules that watch a metric, after a check that reported it."""
        self._number += 1
        for opt in self._session.optimizers:
            for plateau, schedule in _plateaus(opt):
                name = schedule.monitor or "val_loss"
                if self._number % schedule.frequency == 0 and not self._to_come(metrics, name):
                    plateau.step(_metric(metrics, name, _WHO))

    def _to_come(self, metrics: Mapping[str, float], name: str) -> bool:
        """Whether a metric has no value yet that it will have: before the first average, or the first recorded loss."""
        if name in metrics:
            return False
        average = self._session.average
        return name == "train_loss" or (average is not None and not average.count and name.endswith("_averaged"))

    def _judge(self, metrics: Mapping[str, float]) -> None:
        """Early stopping: each monitor hears of every check; the first verdict counts, once the minimums are met."""
        asked = [stop for stop in self._stops if not self._to_come(metrics, stop.monitor.monitor)]
        verdicts = [why for why in [stop.check(metrics) for stop in asked] if why is not None]
        if verdicts and minimums_met(self._session.settings, self._session.step, self._session.epoch):
            self.ended = verdicts[0]


def _plateaus(opt: Optimizing) -> list[tuple[ReduceLROnPlateau, Schedule]]:
    """The schedules that watch a metric, but for those that the task steps by itself."""
    there = [(s.scheduler, s) for s in opt.schedules if s.interval != "manual"]
    return [(plateau, schedule) for plateau, schedule in there if isinstance(plateau, ReduceLROnPlateau)]


def _metric(metrics: Mapping[str, float], name: str, who: str) -> float:
    if name not in metrics:
        raise TaskError(
            f"{who} is {name!r}, and there is no such metric; there are: {', '.join(metrics) or 'none'}."
        )
    return metrics[name]


class _Watch:
    """Batches, until a Stop arrives; anything else waits for the next update."""

    def __init__(self, session: Session, batches: Iterable[Any], emit: Emit, inbox: Inbox) -> None:
        self._session, self._batches, self._emit, self._inbox = session, batches, emit, inbox
        self.stopped = False

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            if self._inbox and self._inbox.has(Stop):
                self.stopped = obey(self._session, self._emit, self._inbox)
                return
            yield batch
