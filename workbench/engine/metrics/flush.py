"""Emits the meter's rows as events, and ends the run for values that are not finite."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from workbench.engine import nonfinite
from workbench.engine.session import Session
from workbench.engine.spikes import describe
from workbench.events import Emit, Event, Message, StepsDone
from workbench.instruments.finite import NonFiniteError, headline, origin_sentence

Bools = npt.NDArray[np.bool_]


class Recorder:
    """Emits what a session has measured, and messages at their place in between."""

    def __init__(self, session: Session, emit: Emit) -> None:
        self._session, self.emit = session, emit

    def flush(self, wait: bool = False) -> None:
        """Emit the rows that have arrived; `wait`: all of them. Raises `NonFiniteError` for values
        that are only seen here.
        """
        session = self._session
        meter, timer = session.meter, session.timer
        meter.on_bar = session.hooks.on_bar
        events = meter.flush(session.state.epoch, wait)
        with timer.timed("logging"):
            for event in events:
                self.emit(event)
                meter.epoch_loss.add(event)
            self._report_spikes(events)
        for event in events:
            self._check_arrived(event)
        if timer.due():
            self.time()
        if not session.plan.on_cpu and events:
            session.replay.forget(int(events[-1].steps[-1]))

    def time(self) -> None:
        """Emit where the time went since this was last emitted."""
        spent = self._session.timer.take(self._session.state.step)
        if spent is not None:
            self.emit(spent)

    def notes(self) -> None:
        """Emit the session's notes at their place in the record."""
        notes = self._session.notes[:]
        self._session.notes.clear()  # in place: others add to it, too
        for note in notes:
            self.add(note)

    def add(self, event: Event) -> None:
        """Emit an event at its place in the record: after the updates before it."""
        self.flush(wait=True)
        self.emit(event)

    def warn(self, text: str) -> None:
        """Emit a warning at its place in the record."""
        self.add(Message(text, "warning", self._session.state.step))

    def after_error(self) -> None:
        """Before an error ends the run: record what led to it, if the device still answers."""
        with contextlib.suppress(RuntimeError):
            events = self._session.meter.flush(self._session.state.epoch, wait=True)
            for event in events:
                self.emit(event)
            self._report_spikes(events)

    def _report_spikes(self, events: Sequence[StepsDone]) -> None:
        """Emit the spikes in these events, and a message for each of the first ones."""
        spikes = self._session.spikes
        if spikes is None:
            return
        before = spikes.reported
        for number, spike in enumerate(spikes.arrived(events), before + 1):
            self.emit(spike)
            if number <= nonfinite.TOLD:
                self.emit(Message(describe(spike), "warning", spike.step))

    def _check_arrived(self, event: StepsDone) -> None:
        """On a device, a loss or gradient that is not finite is seen when its flush arrives."""
        session = self._session
        guarded = all(nonfinite.can_guard(opt) for opt in session.optimizers)
        bad = np.flatnonzero(self._wrong(event, guarded))
        if not bad.size:
            return
        skips = guarded and session.plan.skips_nonfinite
        left_out_before = session.state.left_out
        session.state.left_out += len(bad) if skips else 0
        if skips and left_out_before >= nonfinite.TOLD:
            return
        step, loss = int(event.steps[bad[0]]), event.array("loss")[bad[0]]
        began = nonfinite.locate_on_device(session, step)
        text = headline(step, float(loss), began, self._first_bad_layer(event, int(bad[0])))
        if skips:
            session.notes.append(
                Message(
                    f"{text}. This update was skipped.{origin_sentence(began)}", "warning", step
                )
            )
            return
        raise NonFiniteError(
            f"{text}: lower the learning rate, clip, or look for bad inputs. The run ended at the"
            " next flush; "
            + (
                "such updates were not taken."
                if guarded
                else "the weights after that update are not usable."
            )
            + origin_sentence(began)
        )

    def _first_bad_layer(self, event: StepsDone, row: int) -> str | None:
        """The first layer whose gradient's norm is not finite; None: it was not measured, or all of
        them are not.

        A bad loss makes every gradient bad, so the first layer says nothing then; sums of high
        powers may overflow without a fault.
        """
        if self._session.meter.norm_order not in nonfinite.EXACT:
            return None
        norms = event.array("layer_norms")
        measured = ~np.isnan(norms).all(axis=0)  # a layer without a gradient has NaN too
        bad = ~np.isfinite(norms[row]) & measured
        known = np.isfinite(event.array("loss")[row]) or not bad[measured].all()
        return list(self._session.parameters)[int(bad.argmax())] if bad.any() and known else None

    def _wrong(self, event: StepsDone, guarded: bool) -> Bools:
        """Mask of updates with unreported non-finite values."""
        session = self._session
        wrong: Bools = ~np.isfinite(event.array("loss"))
        if (
            not session.plan.on_cpu
            and session.meter.norm_order is not None
            and session.precision.scaler is None
        ):
            for suffix in (
                [f".{opt.index}" for opt in session.optimizers]
                if session.plan.several_optimizers
                else [""]
            ):
                norms, stepped = (
                    event.array(f"grad_norm{suffix}"),
                    np.isfinite(event.array(f"loss{suffix}")),
                )
                # such an update may have a loss and no step
                if session.task.manual and not session.plan.several_optimizers:
                    stepped &= ~np.isnan(event.array("layer_norms")).all(axis=1)
                exact = guarded and session.meter.norm_order in nonfinite.EXACT
                wrong |= stepped & (~np.isfinite(norms) if exact else np.isnan(norms))
        if "skipped" in event.columns and session.plan.skips_nonfinite:
            wrong &= event.array("skipped") == 0
        return wrong
