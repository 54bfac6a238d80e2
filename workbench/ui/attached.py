"""Shows a job of another process (`wb.attach`) in a notebook, with the buttons that work for it."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Unpack

import ipywidgets as widgets

from workbench.events import Changed, Event, Message, RunEnded, RunStarted, Status, StatusChanged
from workbench.runs import health
from workbench.runs.record.event_log import since
from workbench.settings import Settings, SettingsError, reason
from workbench.settings.kwargs import LiveKwargs
from workbench.ui import format, static_output, texts
from workbench.ui.canvas.transport.messages import cut
from workbench.ui.canvas.widget import LiveView
from workbench.ui.controls import next_actions, setting_control
from workbench.ui.controls.notice import Notice
from workbench.ui.controls.run_buttons import button
from workbench.ui.controls.widget_utils import aside, heard_whole, reachable, shown
from workbench.ui.dispatcher import INTERVAL, Dispatcher
from workbench.ui.embedded import PanelBox

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
    def done(self) -> bool: ...
    def stop(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def validate(self) -> None: ...
    def checkpoint(self) -> None: ...
    def change(self, **values: Unpack[LiveKwargs]) -> None: ...
    def on_request(self, callback: Callable[[str], None]) -> None: ...


class AttachedPanel(PanelBox):
    """The canvas of one job, and its buttons. Several displays of one job show the same view."""

    def __init__(self, job: AttachedJob) -> None:
        self._job = job
        self._in_run: dict[str, Any] = {}
        self._lock = threading.RLock()
        """Serializes updates of the buttons, since the user's edits and the job's events come on
        two threads.
        """
        self.pause = button(texts.PAUSE, texts.PAUSE_TOOLTIP, self._pause)
        self.stop = button(
            texts.STOP,
            texts.STOP_TOOLTIP,
            lambda: self.notice.attempt(texts.ACTIONS["stop"], job.stop),
        )
        self.validate = button(
            texts.VALIDATE,
            texts.VALIDATE_TOOLTIP,
            lambda: self.notice.attempt(texts.VALIDATE, job.validate),
        )
        self.checkpoint = button(
            texts.CHECKPOINT,
            texts.CHECKPOINT_TOOLTIP,
            lambda: self.notice.attempt(texts.CHECKPOINT, job.checkpoint),
        )
        self.boxes = {
            name: setting_control.make(name, getattr(job.settings, name)) for name in _CHANGED
        }
        self.apply = button(texts.APPLY, texts.APPLY_TOOLTIP, self._apply).add_class("wb-apply")
        self.notice, self.canvas = Notice(), LiveView()
        self._of_a_fit = [
            self.pause,
            self.validate,
            self.checkpoint,
            *(box.widget for box in self.boxes.values()),
        ]
        bar = widgets.Box(
            [
                self.pause,
                self.stop,
                self.validate,
                self.checkpoint,
                *(box.widget for box in self.boxes.values()),
                self.apply,
            ]
        )
        super().__init__([_title(job), bar.add_class("wb-run"), self.notice, self.canvas])
        self.add_class("wb-panel")
        for name, box in self.boxes.items():
            box.widget.description = texts.LIVE[name]
            box.widget.layout.width, box.widget.style.description_width = "130px", "auto"
            box.stands_in(bar)
            box.widget.observe(lambda _: self._edited(), "value")
        self.static_output = static_output.StaticOutput(f"workbench-{self.model_id}")
        self._cells = static_output.CellEnds(self._cell_ends)
        self._handed_on = threading.Event()
        reachable(self)
        heard_whole(self, self._lock)
        self.canvas.put("followed", True)
        job.on_request(lambda code: self.canvas.put("code", cut(code, 2000)))
        self.canvas.on_request = lambda message: self.notice.attempt(
            texts.ACTIONS["canvas"], lambda: self._asked(message)
        )
        self.canvas.observe(lambda change: self._dragged("lr", change["new"]), "marker")
        self.canvas.observe(
            lambda change: self._dragged("gradient_clip_val", change["new"]), "clip"
        )
        self.dispatcher = Dispatcher(self._hear, self.canvas.flush, self.notice.error)  # type: ignore[arg-type]
        self.canvas.wake = self.dispatcher.wake
        self._follow()
        self._opened(job)
        aside(self._listen, self.notice.error, "following")

    def _end(self) -> None:
        self._cells.close()
        self._job.on_request(lambda code: None)
        self.dispatcher.close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        data, metadata = super()._repr_mimebundle_(**kwargs), {}
        if isinstance(data, tuple):
            data, metadata = data
        data["text/plain"] = repr(self._job)
        if static_output.in_notebook():
            self.static_output.open()
            self._cells.watch()
        return data, metadata

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
                    self.boxes[name].write(value)

    def _ended(self, event: RunEnded) -> None:
        self.static_output.over(
            self._job.events, lambda error: self.notice.error(error, texts.ACTIONS["picture"])
        )

    def _follow(self, status: Status | None = None) -> None:
        """Enable the buttons that have an effect now."""
        status = self._job.status if status is None else status
        live = status in ("running", "paused", "queued")
        self.stop.disabled = not live
        for control in self._of_a_fit:
            control.disabled = not (live and self._job.kind == "fit")
        self.pause.description = texts.RESUME if status == "paused" else texts.PAUSE
        self._paused = status == "paused"
        self._edited()

    def _edited(self) -> None:
        """Move the lines in the canvas to the values in the boxes; lines can be dragged while
        their settings can be changed.
        """
        with self._lock:
            for name, box in self.boxes.items():
                box.mark(_refusal(name, box.read()))
            values = {
                name: 0.0 if self.pause.disabled or box.why else box.read() or 0.0
                for name, box in self.boxes.items()
            }
            self.canvas.marker, self.canvas.clip = values["lr"], values["gradient_clip_val"]
            self._offer_change()

    def _dragged(self, name: str, value: float) -> None:
        """Put the value of a dragged line into its box, where it waits for Apply. 0: there is no
        line.
        """
        if value > 0 and not self.pause.disabled:
            self.boxes[name].write(value)

    def _offer_change(self) -> None:
        with self._lock:
            wanted = self._wanted() if not self.pause.disabled else {}
            shown(self.apply, bool(wanted))
            if wanted:
                self.apply.description = texts.apply(next_actions.in_words(wanted))

    def _wanted(self) -> dict[str, Any]:
        read = {name: self.boxes[name].read() for name in self._in_run if not self.boxes[name].why}
        return {name: value for name, value in read.items() if value != self._in_run[name]}

    def _pause(self) -> None:
        self.notice.attempt(
            texts.ACTIONS["pause"], self._job.resume if self._paused else self._job.pause
        )

    def _apply(self) -> None:
        wanted = self._wanted()
        if wanted:
            self.notice.attempt(texts.APPLY, lambda: self._job.change(**wanted))

    def _asked(self, message: Mapping[str, Any]) -> None:
        """Carry out a request from the canvas; a clip value waits in its box for Apply."""
        match message:
            case {"what": "use_clip"} if self.pause.disabled:
                raise ValueError(texts.not_training(self._job.id))
            case {"what": "use_clip", "value": float(clip) | int(clip)}:
                self.boxes["gradient_clip_val"].write(clip)
            case {"what": "measure_ratios", "on": bool(on)}:
                self._job.change(track_update_ratio=on)
            case _:
                raise ValueError(texts.not_of_attached(dict(message)))


def _refusal(name: str, value: Any) -> str:
    """Why a value is not valid; "": it is."""
    try:
        Settings.make(**{name: value})
    except SettingsError as error:
        return reason(name, value, error)
    return ""


def _title(job: AttachedJob) -> widgets.HTML:
    said = (
        f"<b>{html.escape(job.id)}</b> <span>·"
        f" {html.escape(texts.job_by_another_process(format.job(job.kind)))}</span>"
    )
    return widgets.HTML(said).add_class("wb-title")
