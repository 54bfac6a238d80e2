"""The panel: controls above, the live canvas below, and the bench behind both.

Callbacks of the controls only ask the bench, which returns at once; they may come on any thread. What the bench says
back comes through the pump, on its thread. One lock keeps the two from setting a control against each other.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from weakref import WeakValueDictionary

import ipywidgets as widgets

from workbench.events import (
    BenchEvent,
    Changed,
    CurveEnded,
    Message,
    Resumed,
    RunEnded,
    RunStarted,
    SearchEnded,
    SettingsSet,
    Status,
    StatusChanged,
)
from workbench.runs.terse import same, terse
from workbench.settings import Settings, SettingsError
from workbench.ui import still, words
from workbench.ui.asked import Asked
from workbench.ui.calm import aside, reachable, shown, tree
from workbench.ui.form import Form
from workbench.ui.header import Header
from workbench.ui.live import LiveView
from workbench.ui.notice import Notice
from workbench.ui.pump import Pump
from workbench.ui.runbar import Actions, RunBar


class Bench(Protocol):
    """What the panel needs of `workbench.bench.Workbench`."""

    @property
    def settings(self) -> Settings: ...
    @property
    def summary(self) -> Any: ...
    @property
    def job(self) -> Any: ...
    @property
    def jobs(self) -> Iterable[Any]: ...

    def set(self, **changes: Any) -> Any: ...
    def find_lr(self) -> Any: ...
    def find_batch_size(self) -> Any: ...
    def fit(self, start: str = ..., **settings: Any) -> Any: ...
    def export(self, path: str) -> Any: ...
    def subscribe(self, callback: Any) -> Any: ...
    def on_close(self, callback: Any) -> Any: ...


LIVE = {"lr": "lr", "gradient_clip_val": "clip"}
"""What may change in a running fit, and what its button calls it."""
LENGTHS = ("max_epochs", "max_steps", "max_time")
"""With another one of these a fit that came to its end has more to do."""


class Panel(widgets.VBox):  # type: ignore[misc]
    """The bench's face in a notebook. Several displays of one panel show the same state."""

    @classmethod
    def of(cls, bench: Bench) -> Panel:
        """The one open panel of this bench, made when it is first asked for."""
        known = _OPEN.get(id(bench))
        return known if known is not None else cls(bench)

    _closed = True  # until it is made: ipywidgets closes what goes, however far it came

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._lock = threading.RLock()
        self._run_id = ""
        self._kind = ""
        self._status: Status | None = None
        self._in_run: dict[str, Any] = {}
        """What holds in the running fit; empty while none runs."""
        self._replayed: dict[int, BenchEvent] = {}
        """Events drawn in `_catch_up` that may come through the pump too."""
        self._on_their_way: dict[int, BenchEvent] = {}
        """Those of them that may come after `_CAUGHT_UP`: the last few of the jobs that went on."""
        self.notice = Notice()
        self.header = Header(bench.settings, self._edit, self._find_batch_size, self._find_lr)
        self.run = RunBar(Actions(self._fit, self._continue, self._pause, self._stop, self._apply, self._export))
        self.form = Form(bench.settings, self._edit)
        self._refusals: set[str] = set()
        """Settings that were refused as they were typed, and whose notices stand."""
        self.canvas = LiveView(marker=bench.settings.lr, clip=bench.settings.gradient_clip_val or 0.0)
        super().__init__([_title(bench.summary), self.header, self.run, self.form, self.notice, self.canvas])
        self.add_class("wb-panel")
        self.still = still.Still(f"workbench-{self.model_id}")
        shown(self.form, False)
        self.run.settings.observe(lambda change: shown(self.form, change["new"]), "value")
        self.canvas.observe(lambda change: self._edit("lr", change["new"]), "marker")
        self.canvas.observe(lambda change: self._edit("gradient_clip_val", change["new"] or None), "clip")
        self.canvas.asked = Asked(bench, self.notice.error)
        reachable(self)
        self.pump = Pump(self._hear, self.canvas.flush, self.notice.error)
        self.canvas.wake = self.pump.wake
        self._catch_up()
        self._stay = bench.on_close(self.close)
        _OPEN[id(bench)] = self
        self._closed = False

    def close(self) -> None:
        """Stop listening, and take the widgets away. The bench and its jobs go on."""
        if self._closed:
            return
        self._closed = True
        if _OPEN.get(id(self._bench)) is self:
            del _OPEN[id(self._bench)]
        self._stay()
        self._unsubscribe()
        self.pump.drain()
        self.pump.close()
        for widget in list(tree(self))[1:]:
            widget.close()
        super().close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The live panel; beside it, a place for the pictures that stay when the kernel is gone."""
        data, metadata = super()._repr_mimebundle_(**kwargs), {}
        if isinstance(data, tuple):
            data, metadata = data
        data["text/plain"] = f"Tuning Workbench · {_facts(self._bench.summary)}\n{self.still.text()}".strip()
        if still.in_notebook():
            self.still.open()
        elif (png := self.still.png()) is not None:
            data["image/png"] = png
        return data, metadata

    # -- from the person to the bench --------------------------------------------------------------------------

    def _edit(self, name: str, value: Any) -> None:
        """A control was moved: the bench's settings follow, and so do all other controls of the same setting."""
        with self._lock:
            known = same(getattr(self._bench.settings, name), value)
            if known and name not in self.form.refused:
                return
            try:
                if not known:
                    self._bench.set(**{name: terse(value)})
            except SettingsError as error:
                self.notice.drop(_about(name))
                self.notice.error(error, about=_about(name))
                self._refusals.add(name)
                self._show_settings()
                return
            self._show_settings()
            self._put_right(self._refusals - self.form.refused)

    def _find_lr(self) -> None:
        self._ask("Find learning rate", self._bench.find_lr)

    def _find_batch_size(self) -> None:
        self._ask("Find batch size", self._bench.find_batch_size)

    def _fit(self) -> None:
        self._ask("Fit", self._bench.fit)

    def _continue(self) -> None:
        with self._lock:  # the second click of two finds a fit that waits
            more = self._more_to_do()
            if more is not None:
                self._ask("Continue", lambda: self._bench.fit(start="continue", **more))
            self._offer_to_go_on()

    def _pause(self) -> None:
        job = self._job()
        if job is not None:
            self._ask("Pause", job.resume if self._status == "paused" else job.pause)

    def _stop(self) -> None:
        job = self._job()
        if job is not None:
            self._ask("Stop", job.stop)

    def _apply(self) -> None:
        job, changes = self._job(), self._differences()
        if job is not None and changes:
            self._ask("Apply to the run", lambda: job.change(**changes))

    def _job(self) -> Any:
        """The job that the canvas shows while it goes on; else the one that the bench is at, or that waits."""
        going = (job for job in self._bench.jobs if job.id == self._run_id and not job.done())
        return next(going, self._bench.job)

    def _export(self, path: str) -> None:
        def work() -> None:
            self._bench.export(path)
            self.notice.say(f"Written: {path}")

        aside(work, lambda error: self.notice.error(error, "Export"), "export")

    def _ask(self, doing: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - shown to the person who clicked
            self.notice.error(error, doing)

    # -- from the bench to the person --------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Hear what is to come, then draw what has been: an event that comes both ways is drawn once."""
        with self._lock:
            self._unsubscribe = self._bench.subscribe(self.pump.put)
            for job in _last_of_each_kind(self._bench.jobs):
                events = list(job.events)
                for event in events:
                    self._hear(event)
                self._replayed |= {id(event): event for event in events}
                if not job.done():
                    self._on_their_way |= {id(event): event for event in events[-3:]}
            self._show_queued()
            if self._status is not None:
                self.pump.put(_CAUGHT_UP)

    def _hear(self, event: BenchEvent) -> None:
        with self._lock:
            if self._replayed.pop(id(event), None) is not None:
                return
            if event is _CAUGHT_UP:
                self._replayed = {key: e for key, e in self._on_their_way.items() if key in self._replayed}
                self._on_their_way = {}
            elif isinstance(event, StatusChanged) and event.status == "queued":
                self._show_queued()
                self._offer_to_go_on()
            else:
                self._draw(event)

    def _draw(self, event: BenchEvent) -> None:
        self.canvas.draw(event)
        self._react(event)

    def _show_queued(self) -> None:
        """That a job waits, if one still does and none runs. Its start or its end, which takes that away, is to come."""
        waits = any(job.status == "queued" for job in self._bench.jobs)
        if waits and self._status not in ("running", "paused"):
            self._draw(StatusChanged("queued"))

    def _react(self, event: BenchEvent) -> None:
        """What an event means for the controls."""
        match event:
            case RunStarted():
                self._started(event)
            case StatusChanged():
                self._follow(event.status)
            case Changed():
                self._in_run.update({name: value for name, value in event.values.items() if name in LIVE})
                self._offer_change()
            case CurveEnded():
                why = " · ".join(event.notes) or event.ended
                self.header.use_lr.offer(event.suggestion, self._bench.settings.lr, why)
            case SearchEnded():
                self.header.use_batch_size.offer(event.best, self._bench.settings.batch_size, event.ended)
            case Message():
                self.notice.say(event.text, event.level, about=_said_in(self._run_id))
            case Resumed():
                self.notice.drop(_said_in(self._run_id))  # what was said until here was said in another run
            case SettingsSet():
                self._show_settings()
            case RunEnded():
                self._ended(event)
            case _:
                pass  # the canvas has drawn it

    def _started(self, event: RunStarted) -> None:
        self._run_id, self._kind = event.run, event.kind
        if event.kind == "fit":
            self._in_run = {name: event.settings.get(name) for name in LIVE}
        self._follow("running")
        self._offer_change()

    def _ended(self, event: RunEnded) -> None:
        self._in_run = {}
        self._follow(event.status)
        self._offer_change()
        if event.error is not None:
            last = event.error.strip().splitlines()[-1:] or ["no reason was given"]
            self.notice.say(f"{words.job(self._kind)} failed. {last[0]}", "error")
        job = next((job for job in self._bench.jobs if job.id == self._run_id), None)
        if job is not None:
            self.still.remember(list(job.events))
            if self.still.opened:
                aside(self.still.fill, lambda error: self.notice.error(error, "The picture of this job"), "still")
        self._run_id = self._kind = ""  # a job that is stopped before its turn ends without having started
        self._show_queued()

    def _follow(self, status: Status) -> None:
        self._status = status
        self.run.follow(status, self._kind)
        self._offer_to_go_on()

    def _show_settings(self) -> None:
        """All controls to the bench's settings, which alone are true."""
        with self._lock:
            settings = self._bench.settings
            self.header.show(settings)
            marked = set(self.form.refused)
            self.form.show(settings)
            self._put_right(marked - self.form.refused)
            self.canvas.marker = settings.lr
            self.canvas.clip = settings.gradient_clip_val or 0.0
            self._offer_change()
            self._offer_to_go_on()

    def _put_right(self, names: set[str]) -> None:
        """What was said of these settings holds no more."""
        for name in names:
            self.notice.drop(_about(name))
        self._refusals -= names

    def _differences(self) -> dict[str, Any]:
        """The live settings in which the controls and the running fit differ."""
        settings = self._bench.settings
        wanted = {name: getattr(settings, name) for name in self._in_run}
        return {name: value for name, value in wanted.items() if value != self._in_run[name]}

    def _more_to_do(self) -> dict[str, Any] | None:
        """With which settings the last fit can be continued; None where it cannot, or where one waits or runs.

        One that was stopped goes on to its own length. One that came to its end goes on to the length that the
        controls say, if that is another one.
        """
        fits = [job for job in self._bench.jobs if job.kind == "fit"]
        if any(job.status in ("queued", "running", "paused") for job in fits):
            return None
        begun = [job for job in fits if any(isinstance(event, RunStarted) for event in job.events)]
        if not begun or begun[-1].settings.fast_dev_run:
            return None
        if begun[-1].status == "stopped":
            return {}
        now, then = self._bench.settings, begun[-1].settings
        longer = {name: getattr(now, name) for name in LENGTHS if not same(getattr(now, name), getattr(then, name))}
        return longer or None if begun[-1].status == "finished" else None

    def _offer_to_go_on(self) -> None:
        self.run.offer_to_go_on(self._more_to_do() is not None)

    def _offer_change(self) -> None:
        differences = self._differences().items()
        parts = [f"{LIVE[name]} {'off' if value is None else words.rate(value)}" for name, value in differences]
        self.run.offer_change(", ".join(parts))


def _about(name: str) -> str:
    """What a notice about a setting that was refused is filed under."""
    return f"setting {name}"


def _said_in(run: str) -> str:
    """What the messages of a run are filed under."""
    return f"run {run}" if run else ""


# A panel holds its bench, so an id stays one bench's as long as its panel is here.
_OPEN: WeakValueDictionary[int, Panel] = WeakValueDictionary()

_CAUGHT_UP = SettingsSet({})
"""Put behind the events that came while a panel was made."""


def _last_of_each_kind(jobs: Iterable[Any]) -> list[Any]:
    """The jobs whose plots are to be seen, in the order in which they ran; one that has not begun has none."""
    last: dict[str, Any] = {}
    for job in jobs:
        if not any(isinstance(event, RunStarted) for event in job.events):
            continue
        last.pop(job.kind, None)
        last[job.kind] = job
    return list(last.values())


def _facts(summary: Any) -> str:
    trained = "" if summary.trainable == summary.parameters else f" ({words.count(summary.trainable)} trained)"
    size = f"{words.count(summary.parameters)} parameters{trained} · {words.size(summary.bytes)}"
    return f"{summary.name} · {size} · {summary.device}"


def _title(summary: Any) -> widgets.HTML:
    name, _, rest = _facts(summary).partition(" · ")
    text = f"<b>{html.escape(name)}</b> <span>· {html.escape(rest)}</span>"
    return widgets.HTML(text).add_class("wb-title")
