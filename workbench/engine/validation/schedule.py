"""Schedules validations, reports their metrics, and ends the fit when early stopping says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from workbench.commands import Stop
from workbench.engine.control import Control
from workbench.engine.data.common_stream import in_step
from workbench.engine.distributed.process_group import ProcessGroup
from workbench.engine.optim import averaged_model
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.validation.monitors import (
    missing,
    monitors_of,
    refuse_unreported,
    with_averages,
)
from workbench.engine.validation.validate import floats, validate
from workbench.engine.validation.watch import Watch
from workbench.events import Validated
from workbench.events.columns import by_own_names, recorded_name
from workbench.task.data.spec import DataSpec, HeldOut
from workbench.task.errors import TaskError
from workbench.task.modules import kept_buffers, kept_weights
from workbench.task.protocol import Schedule
from workbench.techniques.cadence import Cadence
from workbench.techniques.stopping import EarlyStop, minimums_met


class ValidationListener:
    """What checkpoints need of a validation (engine/checkpoint/manager.py); this class needs
    nothing.
    """

    def take_averaged(self) -> None:
        """Called while the model has the averaged weights, after their validation."""

    def judge(self, metrics: Mapping[str, float]) -> None:
        """Called with all metrics that are known after a validation."""


class ValidationSchedule:
    """The validations of one fit. `ended`: why a metric has ended it, in words; None: it has
    not.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        every = session.settings.check_val_every_n_epoch
        # Without validation data only the ends of epochs count, whatever interval was set.
        often = (
            session.settings
            if session.data.validates
            else session.settings.replace(
                val_check_interval=1.0, check_val_every_n_epoch=every or 1
            )
        )
        self._at_ends_alone = (
            isinstance(often.val_check_interval, float) and often.val_check_interval == 1.0
        )
        """Whether validations are due at the ends of epochs alone."""
        self.cadence = Cadence(often, session.data.updates_in(session.state.epoch))
        self.stops = (
            []
            if session.settings.fast_dev_run
            else [EarlyStop(m) for m in session.settings.early_stopping]
        )
        self.number = 0
        """The number of validations so far."""
        self.checked = -1
        """The update after which the last one ran."""
        self.ended: str | None = None
        self.checkpoints = ValidationListener()
        self.watch: Watch | None = None
        """Calls the functions of `bench.watch`; None: there are none."""
        self._metrics: dict[str, float] | None = None
        """The metrics of the validation at the end of an epoch, until they are judged."""
        schedules = [schedule for opt in session.optimizers for schedule in opt.schedules]
        self._monitors = list(monitors_of(session.settings, schedules))
        refuse_unreported(session.task, session.settings, schedules)
        self.missing: TaskError | None = None
        """A validation found a monitor that nothing reports: the run is to end with this error
        after a checkpoint.
        """
        self._found = False
        """Whether all monitors were looked for at the end of an epoch."""
        self._tried: set[str] = set()
        """The metrics that the sanity check reported; empty: unknown."""
        self._later: frozenset[str] = frozenset()
        """The names that the task logs for whole epochs of training, as known at the latest
        validation.
        """
        self._begun_with: tuple[int | None, int | None] | None = None
        """From a checkpoint: the batches of its epoch, and its updates when the epoch began."""

    def sanity(self, control: Control) -> bool:
        """Run a few validation batches before the first update, to show mistakes early; returns
        whether it was stopped.
        """
        session = self._session
        settings, seen = session.settings, _UntilStop(session.ranks, session.data.sanity(), control)
        metrics: dict[str, float] = {}
        if settings.num_sanity_val_steps and session.data.validates and not settings.fast_dev_run:
            session.state.stage = "sanity"
            session.hooks.sanity_started()
            metrics = validate(session, seen, cut=lambda: seen.stopped)
            session.hooks.sanity_ended()
            session.state.stage = ""
        if metrics or not session.data.validates:
            self._refuse_unreported(metrics)
        return seen.stopped

    def _refuse_unreported(self, metrics: Mapping[str, float]) -> None:
        """Raise an error, before the first epoch, for a monitor that the sanity check did not
        report.
        """
        session = self._session
        if session.ranks.broadcast_object(session.hooks.read_sanity):
            return  # the task may log less in a sanity check than in a validation
        self._tried = with_averages([*metrics, "train_loss"], session.settings)
        for monitor in self._monitors:
            if monitor.name not in self._tried and (
                session.task.hooks is None or monitor.name.startswith("val")
            ):
                # another name may be logged in training
                raise missing(monitor, [*metrics, "train_loss"], session.task)

    def _look_for_monitors(self, there: Sequence[str], *, at_end: bool) -> None:
        """Find a monitor that should have a value by now and has none. The loop raises the error
        after a checkpoint.

        there: the names of all metrics. at_end: an epoch ends here, so what training logs is known.
        """
        for monitor in self._monitors:
            late = (
                self._session.task.hooks is not None
                and not at_end
                and not monitor.name.startswith("val")
            )
            if (
                not late
                and not self._will_be_reported(there, monitor.name)
                and monitor.name not in there
            ):
                self.missing = missing(monitor, there, self._session.task)
                return

    def begin_epoch(self, *, resumed: bool = False) -> None:
        """Count the updates of the epoch anew: their number may have changed."""
        session = self._session
        if not resumed:
            session.meter.epoch_loss.clear()
        batches, updates = self._begun_with or (None, None)
        if resumed and updates is not None and batches == session.data.batches:
            self.cadence.updates_per_epoch = updates
        else:
            self.count_updates()

    def count_updates(self, *, begun: bool = False) -> None:
        """The number of batches in an update has changed; where the epoch has `begun`, its
        validations stay where they were.
        """
        if not begun:
            self.cadence.updates_per_epoch = self._session.data.updates_in(
                self._session.state.epoch
            )

    def due(self, in_epoch: int) -> bool:
        """Whether a validation follows the `in_epoch`-th update of this epoch, if that is not
        its last.
        """
        session = self._session
        # windows without a batch are not updates
        if self._at_ends_alone or in_epoch == 0 or session.state.step == self.checked:
            return False
        return self.cadence.due(session.state.step, session.state.epoch, in_epoch, session.seconds)

    def midway(self, control: Control) -> bool:
        """Validate between two updates of an epoch; returns whether it was stopped."""
        control.recorder.flush(wait=True)
        if self._stopped(control):
            return True
        self.judge(self._session.state.epoch, {})
        return False

    def at_end_of_epoch(self, last: bool, control: Control) -> bool:
        """After an epoch's updates (`last`: the run ends here): validate if it is time; returns
        whether it was stopped.

        The metrics are judged after the task's hooks for the end of the epoch (`judge`).
        """
        session = self._session
        if not self.cadence.due_at_end(
            session.state.step, session.state.epoch + 1, last, session.seconds
        ):
            return False
        return self._stopped(control)

    def judge(self, finished: int, logged: Mapping[str, float]) -> None:
        """Act on the validation that just ran, if there was one: plateaus, early stopping, the best
        weights.

        finished: epochs. logged: what the task logged for the epoch.
        """
        session, metrics = self._session, self._metrics
        if metrics is None and (self._found or not self._tried):
            return
        self._metrics = None
        # values of single updates may differ between ranks
        noted = session.ranks.broadcast_object(floats(session.state.step_logs))
        self._later = session.ranks.broadcast_object(session.hooks.epoch_names)
        train_loss = {} if "train_loss" in self._later else session.meter.epoch_loss.metric()
        known = {**noted, **(metrics or {}), **logged}
        # a value that the task logs wins over ours of the same name
        known |= {name: value for name, value in train_loss.items() if name not in known}
        known, at_end = by_own_names(known), session.state.validation_due
        # of a coming validation: what was tried
        reported = [*known, *(self._tried - known.keys() if metrics is None else ())]
        self._look_for_monitors(reported, at_end=at_end)
        self._found |= at_end
        if metrics is None:
            return
        session.state.metrics.update(
            {name: value for name, value in known.items() if recorded_name(name) == name}
        )
        self._step_plateaus(known)
        self._stop_early(known, finished)
        self.checkpoints.judge(known)

    def state(self) -> dict[str, Any]:
        """The state that a resumed fit needs."""
        stops = [[stop.monitor.model_dump(), stop.state_dict()] for stop in self.stops]
        begun_with = [self._session.data.batches, self.cadence.updates_per_epoch]
        counts = {"number": self.number, "checked": self.checked, "begun_with": begun_with}
        return {**counts, "stops": stops, "cadence": self.cadence.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; a monitor that has changed begins anew."""
        self.number, self.checked = int(state["number"]), int(state["checked"])
        self.cadence.load_state_dict(state["cadence"])
        if state.get("begun_with"):
            batches, updates = state["begun_with"]
            self._begun_with = batches, updates
        for stop, (monitor, saved) in zip(self.stops, state["stops"], strict=False):
            if stop.monitor.model_dump() == monitor:
                stop.load_state_dict(saved)

    def _stopped(self, control: Control) -> bool:
        session = self._session
        metrics = self._validated(control)
        if metrics is None:
            return True
        session.data.checked()
        self.checked = session.state.step
        self.cadence.checked(session.state.step, session.seconds)
        session.state.metrics.update(metrics)
        if metrics:
            shown = tuple(name for name in metrics if name in session.hooks.on_bar)
            control.recorder.emit(
                Validated(session.state.step, session.state.epoch, metrics, shown)
            )
        self._metrics = metrics
        return False

    def validate_now(self, control: Control) -> bool:
        """Run a validation that the user asked for (`job.validate()`) between two updates; returns
        whether it was stopped.

        Its metrics are reported, and the run continues as if it had not run: early stopping, best
        checkpoints and plateaus do not count it, scheduled validations do not move, and random
        numbers, buffers, modes, the position in the data and the run's clock are restored.
        Validation hooks of a Lightning-like object run, since its metrics need them, except for
        on_validation_model_zero_grad. What it logs there is reported, but
        `trainer.callback_metrics` and `trainer.should_stop` do not change. Attributes that such
        hooks set on the object stay.
        """
        session = self._session
        wanted, modules = session.hooks.stop_requested, session.task.modules
        with kept_buffers(modules), kept_weights(modules), session.hooks.discarding_logs():
            metrics = self._scores(session.data.val_once, control, ValidationListener(), aside=True)
            shown = tuple(name for name in metrics or () if name in session.hooks.on_bar)
        if session.hooks.stop_requested and not wanted:
            session.hooks.clear_stop()
        if metrics is None:
            return True
        if metrics:
            control.recorder.add(
                Validated(session.state.step, session.state.epoch, metrics, shown, asked=True)
            )
        return False

    def _validated(self, control: Control) -> dict[str, float] | None:
        """The metrics of a validation; None: it was stopped and has none."""
        session = self._session
        if not session.data.validates:
            return {}
        session.hooks.validation_begins()
        return self._scores(session.data.val, control, self.checkpoints)

    def _scores(
        self,
        sets: Callable[[], Iterable[HeldOut]],
        control: Control,
        checkpoints: ValidationListener,
        *,
        aside: bool = False,
    ) -> dict[str, float] | None:
        """The metrics of the raw weights and of the averaged ones, for which `checkpoints` is
        called; None: it was
        stopped. aside: as for `validate`.
        """
        session = self._session
        seen = _UntilStop(session.ranks, sets(), control)
        metrics = validate(session, seen, aside=aside, cut=lambda: seen.stopped, watch=self.watch)
        for event in () if self.watch is None else self.watch.take():
            control.recorder.add(event)
        if not seen.stopped and session.average is not None and session.average.count:
            with averaged_model.in_place(session):
                again = seen = _UntilStop(session.ranks, sets(), control)
                smooth = validate(session, again, aside=True, cut=lambda: again.stopped)
                if not seen.stopped:
                    checkpoints.take_averaged()
            metrics |= {f"{name}_averaged": value for name, value in smooth.items()}
        return None if seen.stopped else metrics

    def _step_plateaus(self, metrics: Mapping[str, float]) -> None:
        """Step the schedules that watch a metric, after a validation that reported it."""
        self.number += 1
        for opt in self._session.optimizers:
            for plateau, schedule in _plateaus(opt):
                name = schedule.monitor or "val_loss"
                if self.number % schedule.frequency == 0 and name in metrics:
                    value = metrics[name]
                    self._session.hooks.step_schedule(plateau, value, partial(plateau.step, value))

    def _will_be_reported(self, metrics: Collection[str], name: str) -> bool:
        """Whether a metric will have its first value later: after the first average, the first
        recorded loss, or the end of the epoch for which the task logs it.
        """
        if name in metrics:
            return False
        average = self._session.average
        averaged_later = average is not None and not average.count and name.endswith("_averaged")
        return name == "train_loss" or recorded_name(name) in self._later or averaged_later

    def _stop_early(self, metrics: Mapping[str, float], finished: int) -> None:
        """Early stopping: every monitor gets every validation; the first verdict counts once the
        minimums are met.
        """
        asked = [stop for stop in self.stops if stop.monitor.monitor in metrics]
        verdicts = [why for why in [stop.check(metrics) for stop in asked] if why is not None]
        if verdicts and minimums_met(self._session.settings, self._session.state.step, finished):
            self.ended = verdicts[0]


def _plateaus(opt: OptimizerHandle) -> list[tuple[ReduceLROnPlateau, Schedule]]:
    """The schedules that watch a metric, except for those that the task steps itself."""
    pairs = [(s.scheduler, s) for s in opt.schedules if s.interval != "manual"]
    return [
        (plateau, schedule) for plateau, schedule in pairs if isinstance(plateau, ReduceLROnPlateau)
    ]


class _UntilStop:
    """The sets of a validation, whose batches come until a Stop arrives; other commands wait for
    the next update.
    """

    def __init__(self, ranks: ProcessGroup, sets: Iterable[HeldOut], control: Control) -> None:
        self._ranks, self._sets, self._control = ranks, sets, control
        self.stopped = False

    def __iter__(self) -> Iterator[HeldOut]:
        return ((spec, self._until_stop(spec, batches)) for spec, batches in self._sets)

    def _until_stop(self, spec: DataSpec, batches: Iterable[Any]) -> Iterator[Any]:
        cut, inbox = False, self._control.inbox

        def stops() -> bool:
            nonlocal cut
            cut = bool(inbox) and inbox.has(Stop)
            return cut

        yield from in_step(self._ranks, spec, batches, stops)
        if cut:
            self.stopped = self._control.apply(stopping=True)
