"""Shows a job of another process (`wb.attach`) in a notebook, with the buttons that work for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Unpack

from workbench.events import Changed, Event, Message, RunEnded, RunStarted, Status, StatusChanged
from workbench.runs import health
from workbench.runs.record.event_log import since
from workbench.settings import Settings, SettingsError, reason
from workbench.settings.kwargs import LiveKwargs
from workbench.ui import format, static_output, texts
from workbench.ui.canvas.transport.messages import cut
from workbench.ui.canvas.widget import LiveView
from workbench.ui.controls import next_actions
from workbench.ui.controls.board import Board
from workbench.ui.controls.notice import Notice
from workbench.ui.controls.setting_control import SettingControls
from workbench.ui.controls.widget_utils import aside, heard_whole, reachable
from workbench.ui.dispatcher import INTERVAL, Dispatcher
from workbench.ui.panel_base import PanelBase

_AT_ONCE = 200
_CHANGED = ("lr", "gradient_clip_val")
"""The settings that can be changed here while it runs; `job.change` accepts the others."""


class AttachedJob(Protocol):
    """The members of the job of `wb.attach` that its panel uses."""

    id: str
    kind: str

    @property
    def events(self) -> Sequence[Event]: ...
    @property
    def status(self) -> Status: ...
    @property
    def settings(self) -> Any: ...
    @property
    def recorded_in(self) -> Path: ...
    def done(self) -> bool: ...
    def stop(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def validate(self) -> None: ...
    def histograms(self, layers: Sequence[str] = ...) -> None: ...
    def checkpoint(self) -> None: ...
    def change(self, **values: Unpack[LiveKwargs]) -> None: ...
    def on_request(self, callback: Callable[[str], None]) -> None: ...


class AttachedPanel(PanelBase):
    """The canvas of one job, and its buttons. Several displays of one job show the same view."""

    def __init__(self, job: AttachedJob) -> None:
        super().__init__(job)
        self._job = job
        self._in_run: dict[str, Any] = {}
        self._lock = threading.RLock()
        """Serializes updates of the buttons, since the user's edits and the job's events come on
        two threads.
        """
        self.canvas = LiveView()
        self.canvas.wake = lambda: None  # a view asks for all when it opens
        put = self.canvas.put
        self.notice = Notice(put)
        self.boxes = SettingControls(job.settings, _refusal, lambda: None, put, names=_CHANGED)
        self.board = Board(put, self.boxes, self.notice, self._lock)
        self.pause = self.board.button("pause", texts.PAUSE, texts.PAUSE_TOOLTIP, self._pause)
        self.stop = self.board.button("stop", texts.STOP, texts.STOP_TOOLTIP, self._stop)
        self.validate = self.board.button(
            "validate",
            texts.VALIDATE,
            texts.VALIDATE_TOOLTIP,
            lambda: self.notice.attempt(texts.VALIDATE, job.validate),
        )
        self.checkpoint = self.board.button(
            "checkpoint",
            texts.CHECKPOINT,
            texts.CHECKPOINT_TOOLTIP,
            lambda: self.notice.attempt(texts.CHECKPOINT, job.checkpoint),
        )
        self.apply = self.board.button("apply", texts.APPLY, texts.APPLY_TOOLTIP, self._apply)
        put("title", [job.id, texts.job_by_another_process(format.job(job.kind))])
        self.static_output = static_output.StaticOutput(f"workbench-{self.canvas.model_id}")
        self._cells = static_output.CellEnds(self._cell_ends)
        self._handed_on = threading.Event()
        reachable(self.canvas)
        heard_whole(self.canvas, self._lock)
        put("followed", True)
        self.canvas.samples_in(job.recorded_in)
        job.on_request(lambda code: self.canvas.put("code", cut(code, 2000)))
        self.canvas.on_request = self._asked
        self.canvas.observe(lambda change: self._dragged("lr", change["new"]), "marker")
        self.canvas.observe(
            lambda change: self._dragged("gradient_clip_val", change["new"]), "clip"
        )
        self.dispatcher = Dispatcher(self._hear, self.canvas.flush, self.notice.error)  # type: ignore[arg-type]
        self._follow()
        self.canvas.wake = self.dispatcher.wake
        if self.canvas.opened:
            self.canvas.wake()
        self._opened()
        aside(self._listen, self.notice.error, "following")

    def _end(self) -> None:
        self._cells.close()
        self._job.on_request(lambda code: None)
        self.dispatcher.close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return self._bundle(repr(self._job), **kwargs)

    def _listen(self) -> None:
        """Pass on the job's events, from the first one on, until it ends or the panel is closed."""
        try:
            self._hand_on()
        finally:
            self._handed_on.set()

    def _hand_on(self) -> None:
        seen = 0
        while True:
            over = self._job.done()
            for event in since(self._job.events, seen):
                if self._closed:
                    return
                self.dispatcher.put(event)
                seen += 1
                if seen % _AT_ONCE == 0:  # of a long record no more waits than is drawn at once
                    self.dispatcher.drain()
            if over or self._closed:
                return
            time.sleep(INTERVAL)

    def _cell_ends(self) -> None:
        """Put the picture of a job that has ended in a cell into the notebook, before the cell
        ends.
        """
        if (
            self._job.done()
            and self._handed_on.wait(static_output.PATIENCE)
            and self.dispatcher.drain(static_output.PATIENCE)
            and self.static_output.settled()
        ):
            self._cells.close()

    def _hear(self, event: Event) -> None:
        try:
            self.canvas.draw(event)
        finally:
            self._react(event)

    def _react(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._take({name: event.settings.get(name) for name in _CHANGED}, begins=True)
            case Changed():
                self._take(
                    {name: value for name, value in event.values.items() if name in _CHANGED}
                )
            case Message():
                if not health.replaces_message(event):
                    self.notice.say(event.text, event.level)
            case RunEnded():
                self._ended(event)
            case StatusChanged():
                pass  # the buttons follow below
        self._follow(event.status if isinstance(event, StatusChanged | RunEnded) else None)

    def _take(self, values: Mapping[str, Any], begins: bool = False) -> None:
        """Show settings that now hold in the run. Other edits in the boxes stay, until Apply."""
        with self._lock:
            before, self._in_run = self._in_run, {**self._in_run, **values}
            for name, value in values.items():
                if begins or self.boxes[name].read() == before.get(name):
                    self.boxes.write(name, value)
            self._edited()

    def _ended(self, event: RunEnded) -> None:
        self.static_output.over(
            self._job.events, lambda error: self.notice.error(error, texts.ACTIONS["picture"])
        )

    def _follow(self, status: Status | None = None) -> None:
        """Enable the buttons that have an effect now."""
        status = self._job.status if status is None else status
        live = status in ("running", "paused", "queued")
        self.stop.set(disabled=not live)
        if not live:
            self.stop.set(text=texts.STOP, tooltip=texts.STOP_TOOLTIP)
        for control in (self.pause, self.validate, self.checkpoint):
            control.set(disabled=not (live and self._job.kind == "fit"))
        self.pause.set(text=texts.RESUME if status == "paused" else texts.PAUSE)
        self._paused = status == "paused"
        self._edited()

    def _edited(self) -> None:
        """Move the lines in the canvas to the values in the boxes; lines can be dragged while
        their settings can be changed.
        """
        with self._lock:
            values = {
                name: 0.0
                if self.pause.disabled or self.boxes[name].why
                else self.boxes[name].read() or 0.0
                for name in _CHANGED
            }
            self.canvas.marker, self.canvas.clip = values["lr"], values["gradient_clip_val"]
            self.canvas.put("frozen", self.pause.disabled)
            self.boxes.send()
            self._offer_change()

    def _dragged(self, name: str, value: float) -> None:
        """Put the value of a dragged line into its box, where it waits for Apply. 0: there is no
        line.
        """
        with self._lock:
            if value > 0 and not self.pause.disabled:
                self._write(name, value)

    def _write(self, name: str, value: Any) -> None:
        """Show a value in a box, where it waits for Apply."""
        self.boxes.write(name, value)
        self._edited()

    def _offer_change(self) -> None:
        with self._lock:
            wanted = self._wanted() if not self.pause.disabled else {}
            words = texts.apply(next_actions.in_words(wanted)) if wanted else None
            self.apply.set(visible=bool(wanted), text=words)

    def _wanted(self) -> dict[str, Any]:
        read = {name: self.boxes[name].read() for name in self._in_run if not self.boxes[name].why}
        return {name: value for name, value in read.items() if value != self._in_run[name]}

    def _pause(self) -> None:
        self.notice.attempt(
            texts.ACTIONS["pause"], self._job.resume if self._paused else self._job.pause
        )

    def _stop(self) -> None:
        def stop() -> None:
            self._job.stop()
            again = self.stop.text != texts.STOP
            self.stop.set(
                text=texts.STOPPING_NOW if again else texts.STOPPING,
                tooltip=texts.STOPPING_TOOLTIP,
            )

        self.notice.attempt(texts.ACTIONS["stop"], stop)

    def _apply(self) -> None:
        wanted = self._wanted()
        if wanted:
            self.notice.attempt(texts.APPLY, lambda: self._job.change(**wanted))

    def _asked(self, message: Mapping[str, Any]) -> None:
        """Carry out what the user did in the front end."""
        if self._hear_controls(message):
            self._edited()
        else:
            self.notice.attempt(texts.ACTIONS["canvas"], lambda: self._request(message))

    def _request(self, message: Mapping[str, Any]) -> None:
        """Carry out a request from the canvas; a clip value waits in its box for Apply."""
        match message:
            case {"what": "use_clip"} if self.pause.disabled:
                raise ValueError(texts.not_training(self._job.id))
            case {"what": "use_clip", "value": float(clip) | int(clip)}:
                with self._lock:
                    self._write("gradient_clip_val", clip)
            case {"what": "measure_ratios", "on": bool(on)}:
                self._job.change(track_update_ratio=on)
            case {"what": "histograms", "layers": list(layers)}:
                self._job.histograms([*map(str, layers)])
            case _:
                raise ValueError(texts.not_of_attached(dict(message)))


def _refusal(name: str, value: Any) -> str:
    """Why a value is not valid; "": it is."""
    try:
        Settings.make(**{name: value})
    except SettingsError as error:
        return reason(name, value, error)
    return ""
