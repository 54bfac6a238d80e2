"""When a fit looks at its validation data, what it reports, and whether a metric ends it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from torch.optim.lr_scheduler import ReduceLROnPlateau

from workbench.commands import Inbox, Stop
from workbench.engine.checkpoint.weights import kept_buffers
from workbench.engine.control import apply_commands
from workbench.engine.metrics.flush import emit_message, flush
from workbench.engine.optim import weight_averaging
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.validation.monitors import missing, monitors_of, refuse_unreported, with_averages
from workbench.engine.validation.validate import floats, validate
from workbench.events import Emit, Validated
from workbench.task.lightning.logging.aggregate import by_own_names, recorded
from workbench.task.protocol import Schedule, TaskError
from workbench.techniques.cadence import Cadence
from workbench.techniques.stopping import EarlyStop, minimums_met


class ValidationListener(Protocol):
    """What checkpoints want of the checks (engine/checkpoint/manager.py)."""

    def take_averaged(self) -> None:
        """The model has the averaged weights, which have just been validated."""

    def judge(self, metrics: Mapping[str, float]) -> None:
        """All metrics that are known behind a check."""


class ValidationSchedule:
    """The checks of one fit. `ended`: why a metric has ended it, in words; None: it goes on."""

    def __init__(self, session: Session) -> None:
        self._session = session
        every = session.settings.check_val_every_n_epoch
        # With nothing to validate only the ends of epochs count, whatever interval was asked for.
        often = session.settings if session.data.validates else session.settings.replace(val_check_interval=1.0, check_val_every_n_epoch=every or 1)
        self._at_ends_alone = isinstance(often.val_check_interval, float) and often.val_check_interval == 1.0
        self.cadence = Cadence(often, session.data.updates_in(session.epoch))
        self.stops = (
            [] if session.settings.fast_dev_run else [EarlyStop(m) for m in session.settings.early_stopping]
        )
        self.number = 0
        """Checks made."""
        self.checked = -1
        """The update behind which the last one was."""
        self.ended: str | None = None
        self.keeper: ValidationListener | None = None
        self._metrics: dict[str, float] | None = None
        """Of the check at the end of an epoch, until it is judged."""
        schedules = [schedule for opt in session.optimizers for schedule in opt.schedules]
        self._monitors = list(monitors_of(session.settings, schedules))
        refuse_unreported(session.task, session.settings, schedules)
        self.missing: TaskError | None = None
        """A monitor that nothing reports was found at a check: the run is to end with this error, when all is saved."""
        self._found = False
        """Whether all monitors have been looked for at the end of an epoch."""
        self._tried: set[str] = set()
        """The metrics that the sanity check says there will be; empty: it says nothing."""
        self._later: frozenset[str] = frozenset()
        """The names of values that the task logs for whole epochs of training, as known at the latest check."""
        self._begun_with: tuple[int | None, int | None] | None = None
        """Of a checkpoint: the batches of its epoch, and the updates of it as it began."""

    def sanity(self, emit: Emit, inbox: Inbox) -> bool:
        """A few validation batches before the first update, so that a mistake there shows now; whether it was stopped."""
        session = self._session
        settings, seen = session.settings, _Watch(session, session.data.sanity(), emit, inbox)
        metrics: dict[str, float] = {}
        if settings.num_sanity_val_steps and session.data.validates and not settings.fast_dev_run:
            session.stage = "sanity"
            metrics = validate(session, seen, cut=lambda: seen.stopped)
            session.stage = ""
        if metrics or not session.data.validates:
            self._refuse_unreported(metrics)
        return seen.stopped

    def _refuse_unreported(self, metrics: Mapping[str, float]) -> None:
        """Refuse a monitor that nothing reports, by what the sanity check reported, before the first epoch is spent on it."""
        session = self._session
        if session.ranks.agree(session.moments.tells_sanity):
            return  # what the task logs there may be less than in a check
        self._tried = with_averages([*metrics, "train_loss"], session.settings)
        for monitor in self._monitors:
            if monitor.name not in self._tried and (session.task.moments is None or monitor.name.startswith("val")):
                raise missing(monitor, [*metrics, "train_loss"])  # another name may be logged in training

    def _look_for_monitors(self, there: Sequence[str], *, at_end: bool) -> None:
        """Find a monitor that should have a value by now and has none. The loop raises it, when all is saved.

        there: the names of all metrics. at_end: an epoch ends here; what training logs is there.
        """
        for monitor in self._monitors:
            late = self._session.task.moments is not None and not at_end and not monitor.name.startswith("val")
            if not late and not self._to_come(there, monitor.name) and monitor.name not in there:
                self.missing = missing(monitor, there)
                return

    def begin_epoch(self, *, resumed: bool = False) -> None:
        """The number of updates in an epoch may be another one now."""
        session = self._session
        if not resumed:
            session.epoch_loss.clear()
        batches, updates = self._begun_with or (None, None)
        if resumed and updates is not None and batches == session.data.batches:
            self.cadence.updates_per_epoch = updates
        else:
            self.count_updates()

    def count_updates(self, *, begun: bool = False) -> None:
        """How many batches make an update has changed; where the epoch has `begun`, its checks stay where they were to come."""
        if not begun:
            self.cadence.updates_per_epoch = self._session.data.updates_in(self._session.epoch)

    def due(self, in_epoch: int) -> bool:
        """Whether a check comes behind the `in_epoch`-th update of this epoch, if that is not its last."""
        session = self._session
        if self._at_ends_alone or in_epoch == 0 or session.step == self.checked:  # windows of which nothing was left are no updates
            return False
        return self.cadence.due(session.step, session.epoch, in_epoch, session.seconds)

    def midway(self, emit: Emit, inbox: Inbox) -> bool:
        """A check between two updates of an epoch; whether it was stopped."""
        flush(self._session, emit, wait=True)
        if self._stopped(emit, inbox):
            return True
        self.judge(self._session.epoch, {})
        return False

    def at_end_of_epoch(self, last: bool, emit: Emit, inbox: Inbox) -> bool:
        """Behind an epoch's updates (`last`: the run ends here): check if it is time; whether it was stopped.

        What it found is judged when the task has had its say about the epoch (`judge`).
        """
        session = self._session
        if not self.cadence.due_at_end(session.step, session.epoch + 1, last, session.seconds):
            return False
        return self._stopped(emit, inbox)

    def judge(self, finished: int, logged: Mapping[str, float]) -> None:
        """What follows from the check that was just made, if there was one: plateaus, early stopping, the best weights.

        finished: epochs. logged: what the task logged of the epoch.
        """
        session, metrics = self._session, self._metrics
        if metrics is None and (self._found or not self._tried):
            return
        self._metrics = None
        noted = session.ranks.agree(floats(session.noted))  # of single updates, each rank may have its own
        self._later = session.ranks.agree(session.moments.epoch_names)
        own = {} if "train_loss" in self._later else session.epoch_loss.metric()
        known = {**noted, **(metrics or {}), **logged}
        known |= {name: value for name, value in own.items() if name not in known}  # what the task logs under a name wins
        known, at_end = by_own_names(known), session.checking
        there = [*known, *(self._tried - known.keys() if metrics is None else ())]  # of a check that is to come, what was tried
        self._look_for_monitors(there, at_end=at_end)
        self._found |= at_end
        if metrics is None:
            return
        session.metrics.update({name: value for name, value in known.items() if recorded(name) == name})
        self._step_plateaus(known)
        self._stop_early(known, finished)
        if self.keeper is not None:
            self.keeper.judge(known)

    def state(self) -> dict[str, Any]:
        """What a resumed fit needs of them."""
        stops = [[stop.monitor.model_dump(), stop.state_dict()] for stop in self.stops]
        begun_with = [self._session.data.batches, self.cadence.updates_per_epoch]
        own = {"number": self.number, "checked": self.checked, "begun_with": begun_with}
        return {**own, "stops": stops, "cadence": self.cadence.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; a monitor that is another one now begins anew."""
        self.number, self.checked = state["number"], state["checked"]
        self.cadence.load_state_dict(state["cadence"])
        self._begun_with = tuple(state.get("begun_with", ())) or None
        for stop, (monitor, own) in zip(self.stops, state["stops"], strict=False):
            if stop.monitor.model_dump() == monitor:
                stop.load_state_dict(own)

    def _stopped(self, emit: Emit, inbox: Inbox) -> bool:
        session = self._session
        metrics = self._validated(emit, inbox)
        if metrics is None:
            return True
        session.data.checked()
        self.checked = session.step
        self.cadence.checked(session.step, session.seconds)
        session.metrics.update(metrics)
        if metrics:
            shown = tuple(name for name in metrics if name in session.moments.on_bar)
            emit(Validated(session.step, session.epoch, metrics, shown))
        self._metrics = metrics
        return False

    def look(self, emit: Emit, inbox: Inbox) -> bool:
        """A check that a person asked for (`job.validate()`), between two updates; whether it was stopped.

        It is told and looked at, and the run goes on as if it had not been: no early stopping, no best checkpoint, no
        plateau hears of it, the checks that come anyway come when they would have, and random numbers, buffers, modes,
        the place in the data and the run's clock are those of before. A Lightning-like object's hooks of a validation
        run, since its metrics need them, but for on_validation_model_zero_grad; what it logs in them is told, and
        neither `trainer.callback_metrics` nor `trainer.should_stop` knows of it. What such hooks keep in attributes of
        the object's own stays there.
        """
        session = self._session
        wanted = session.moments.wants_end
        with kept_buffers(session.task.modules), session.moments.unheard():
            metrics = self._scores(session.data.look, emit, inbox, None, aside=True)
            shown = tuple(name for name in metrics or () if name in session.moments.on_bar)
        if session.moments.wants_end and not wanted:
            session.moments.goes_on()
        if metrics is None:
            return True
        if metrics:
            emit_message(session, emit, Validated(session.step, session.epoch, metrics, shown, asked=True))
        return False

    def _validated(self, emit: Emit, inbox: Inbox) -> dict[str, float] | None:
        """What a check comes to; None: it was stopped, and then it says nothing."""
        session = self._session
        if not session.data.validates:
            return {}
        session.moments.validation_begins()
        return self._scores(session.data.val, emit, inbox, self.keeper)

    def _scores(
        self, batches: Callable[[], Iterable[Any]], emit: Emit, inbox: Inbox, keeper: ValidationListener | None, *, aside: bool = False
    ) -> dict[str, float] | None:
        """Raw metrics, and those of the averaged weights, which `keeper` hears of; None: it was stopped. aside: as for `validate`."""
        session = self._session
        seen = _Watch(session, batches(), emit, inbox)
        metrics = validate(session, seen, aside=aside, cut=lambda: seen.stopped)
        if not seen.stopped and session.average is not None and session.average.count:
            with weight_averaging.in_place(session):
                again = seen = _Watch(session, batches(), emit, inbox)
                smooth = validate(session, again, aside=True, cut=lambda: again.stopped)
                if keeper is not None and not seen.stopped:
                    keeper.take_averaged()
            metrics |= {f"{name}_averaged": value for name, value in smooth.items()}
        return None if seen.stopped else metrics

    def _step_plateaus(self, metrics: Mapping[str, float]) -> None:
        """Schedules that watch a metric, after a check that reported it."""
        self.number += 1
        for opt in self._session.optimizers:
            for plateau, schedule in _plateaus(opt):
                name = schedule.monitor or "val_loss"
                if self.number % schedule.frequency == 0 and name in metrics:
                    value = metrics[name]
                    self._session.moments.step_schedule(plateau, value, partial(plateau.step, value))

    def _to_come(self, metrics: Collection[str], name: str) -> bool:
        """Whether a metric has no value yet that it will have: before the first average, the first recorded loss, or the end
        of the epoch that the task logs it for."""
        if name in metrics:
            return False
        average = self._session.average
        averaged_later = average is not None and not average.count and name.endswith("_averaged")
        return name == "train_loss" or recorded(name) in self._later or averaged_later

    def _stop_early(self, metrics: Mapping[str, float], finished: int) -> None:
        """Early stopping: each monitor hears of every check; the first verdict counts, once the minimums are met."""
        asked = [stop for stop in self.stops if stop.monitor.monitor in metrics]
        verdicts = [why for why in [stop.check(metrics) for stop in asked] if why is not None]
        if verdicts and minimums_met(self._session.settings, self._session.step, finished):
            self.ended = verdicts[0]


def _plateaus(opt: OptimizerHandle) -> list[tuple[ReduceLROnPlateau, Schedule]]:
    """The schedules that watch a metric, but for those that the task steps by itself."""
    there = [(s.scheduler, s) for s in opt.schedules if s.interval != "manual"]
    return [(plateau, schedule) for plateau, schedule in there if isinstance(plateau, ReduceLROnPlateau)]


class _Watch:
    """Batches, until a Stop arrives; anything else waits for the next update."""

    def __init__(self, session: Session, batches: Iterable[Any], emit: Emit, inbox: Inbox) -> None:
        self._session, self._batches, self._emit, self._inbox = session, batches, emit, inbox
        self.stopped = False

    def __iter__(self) -> Iterator[Any]:
        cut = False

        def stops() -> bool:
            nonlocal cut
            cut = bool(self._inbox) and self._inbox.has(Stop)
            return cut

        yield from self._session.ranks.rounds(self._batches, stops)
        if cut:
            self.stopped = apply_commands(self._session, self._emit, self._inbox)
