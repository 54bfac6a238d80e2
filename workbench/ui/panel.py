"""Defines the panel of a bench: its controls and its plots, which one anywidget shows.

What the user does in the front end calls methods of the bench, which return at once; it may come on
any thread. The bench's events come through the dispatcher, on its thread. One lock keeps the two
from setting a control at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

from workbench.events import (
    REPEATS,
    BenchEvent,
    Called,
    Changed,
    Deleted,
    Event,
    Message,
    Resumed,
    RunEnded,
    RunStarted,
    SettingsSet,
    Status,
    StatusChanged,
    Studied,
)
from workbench.launch.code_line import of_folder
from workbench.runs import health
from workbench.runs.record.event_log import RecordGone, newest, now
from workbench.runs.record.sequence import stream
from workbench.runs.record.stream import joined
from workbench.settings import Settings, reason
from workbench.settings.setting_text import same, setting_text
from workbench.ui import format, static_output, texts
from workbench.ui.bench import Bench
from workbench.ui.canvas.requests import CanvasRequests
from workbench.ui.canvas.searches.sweeps import EARLIER
from workbench.ui.canvas.transport.messages import cut
from workbench.ui.canvas.widget import LiveView
from workbench.ui.controls import next_actions
from workbench.ui.controls.board import Board
from workbench.ui.controls.export import ExportForm
from workbench.ui.controls.finders import Finders
from workbench.ui.controls.form import drawn_schedule, form
from workbench.ui.controls.header import FinderCalls, Header
from workbench.ui.controls.notice import CLICKED, Level, Notice
from workbench.ui.controls.run_buttons import Actions, RunButtons
from workbench.ui.controls.run_history import RunHistory
from workbench.ui.controls.setting_control import SettingControls
from workbench.ui.controls.studies import Studies
from workbench.ui.controls.timeline import Timeline
from workbench.ui.controls.widget_utils import aside, heard_whole, reachable
from workbench.ui.dispatcher import Dispatcher
from workbench.ui.panel_base import PanelBase


class Panel(PanelBase):
    """The bench's panel in a notebook. Several displays of one panel show the same state."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._bench = bench
        self._lock = threading.RLock()
        self._run_id = ""
        self._kind = ""
        self._status: Status | None = None
        self._rate_text = ""
        """What was last said about a rate that was found for other settings."""
        self._in_run: dict[str, Any] = {}
        """The settings of the running fit; empty while none runs."""
        self._replayed: dict[int, BenchEvent] = {}
        """The events that `_catch_up` has drawn and that may also come through the dispatcher."""
        self._on_their_way: dict[int, BenchEvent] = {}
        """Those of `_replayed` that may follow `_CAUGHT_UP`: the last events of running jobs."""
        self.canvas = LiveView(
            marker=bench.settings.lr, clip=bench.settings.gradient_clip_val or 0.0
        )
        self.canvas.wake = lambda: None  # a view asks for all when it opens
        put = self.canvas.put
        self.notice = Notice(put)
        self.controls = SettingControls(bench.settings, self._edit, self._offer_jobs, put)
        self.board = Board(put, self.controls, self.notice, self._lock)
        self._finders = Finders(bench, self._begin)
        self.header = Header(
            self.board,
            put,
            self.controls,
            FinderCalls(
                self._finders.find_batch_size,
                self._finders.find_lr,
                self._finders.find_clip_val,
                self.canvas.look_at,
            ),
            bench.summary.optimizers,
        )
        self.canvas.search_in(bench.root)
        self.export_form = ExportForm(bench, lambda: self.run, put, self.notice)
        self.run = RunButtons(
            self.board,
            Actions(
                self._fit,
                self._continue,
                self._pause,
                self._stop,
                self._apply,
                self._validate,
                self._checkpoint,
                self.export_form.show,
                self._tune,
                self._profile,
            ),
        )
        self._searches = {
            "find_batch_size": [self.header.find_batch_size],
            "find_clip_val": [self.header.find_clip],
            "find_lr": [self.header.find_lr, self.header.race],
            "tune": [self.run.tune],
            "profile": [self.run.profile],
            **{kind: [find] for kind, find in self._finders.of_settings(self.board).items()},
        }
        """The buttons that start a job of each kind."""
        put("title", list(_facts(bench.summary)))
        put("form", form(self.controls))
        put("schedule", drawn_schedule(bench.settings, bench.summary.own_schedule))
        self.canvas.draw(SettingsSet(bench.settings.model_dump()))
        self.static_output = static_output.StaticOutput(f"workbench-{self.canvas.model_id}")
        self._cells = static_output.CellEnds(self._cell_ends)
        self._over: set[int] = set()
        """Jobs that had ended when the last cell ended."""
        self.canvas.observe(lambda change: self._move("lr", change["new"]), "marker")
        self.canvas.observe(
            lambda change: self._move("gradient_clip_val", change["new"] or None), "clip"
        )
        self.history = RunHistory(
            bench, self.canvas, lambda: _to_be_seen(bench.jobs), self.notice.error, self._offer_runs
        )
        self.studies = Studies(bench, self.canvas, self.notice, lambda: self.timeline.show())
        self.timeline = Timeline(bench, put, self.studies.chips, self.notice.error)
        self._requests = CanvasRequests(
            bench,
            self.notice.error,
            self.export_form,
            self.history.refresh,
            lambda event: self.dispatcher.put(event),
            self._continue_run,
            self._rerun,
            self.history.deletions,
            self.canvas.answer,
            self.timeline.settings_of,
            self.header.choose,
            self.history.see,
        )
        self.canvas.on_request = self._asked
        self.canvas.on_open, self.canvas.on_look = self.history.look, self.history.catch_up
        reachable(self.canvas)
        heard_whole(self.canvas, self._lock)
        self.controls.send()
        self.header.show(bench.settings)
        self._offer_jobs()
        self.dispatcher = Dispatcher(self._hear, self.canvas.flush, self.notice.error)
        self.canvas.wake = self.dispatcher.wake
        # a browser may make its view as soon as the canvas exists, on another thread
        if self.canvas.opened:
            self.history.look()
            self.canvas.wake()
        self._catch_up()
        self._offer_rates(bench.settings)
        self._stay = bench.on_close(self.close)
        self._opened()

    def _end(self) -> None:
        self._stay()
        self._cells.close()
        self._unsubscribe()
        self.history.close()
        self.studies.close()
        if self.dispatcher.drain(static_output.PATIENCE):
            self.static_output.settled()
        self.dispatcher.close()

    def _unreachable(self) -> list[Any]:
        return [job for job in self._bench.jobs if not job.done()]

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The live panel, and outputs for the pictures that stay after the kernel has ended."""
        title = texts.panel_title(" · ".join(_facts(self._bench.summary)))
        data, metadata = self._bundle(f"{title}\n{self.static_output.text()}".strip(), **kwargs)
        if not static_output.in_notebook() and (png := self.static_output.png()) is not None:
            data["image/png"] = png
        return data, metadata

    def _asked(self, message: Mapping[str, Any]) -> None:
        """Carry out what the user did in the front end."""
        try:
            heard = (
                self._hear_controls(message)
                or self.studies.hear(message)
                or self.timeline.hear(message)
            )
        except Exception as error:  # noqa: BLE001 - shown to the person who clicked
            self.notice.error(error, texts.ACTIONS["canvas"])
            return
        if not heard:
            self._requests(message)

    # -- from the user to the bench ----------------------------------------------------------------

    def _edit(self, name: str, value: Any) -> str:
        """Set a setting, and show it in all of its controls. Returns why it was refused; "": it
        was accepted.
        """
        with self._lock:
            if same(getattr(self._bench.settings, name), value):
                return ""
            parsed = setting_text(value)
            try:
                self._bench.set(**{name: parsed})
            except Exception as error:  # noqa: BLE001 - shown where the value was entered
                return reason(name, parsed, error)
            self._show_settings()
            return ""

    def _move(self, name: str, value: Any) -> None:
        """Set a setting by its slider or by its line in the canvas, which move back if the value
        is refused.
        """
        why = self._edit(name, value)
        if why:
            self.notice.say(texts.failed(name, why), "error")
            self._show_settings()

    def _begin(self, doing: str, kind: str, call: Callable[[], object], of: str = "") -> None:
        """Start a job for a click: one of a kind at a time, and none while a box has an invalid
        value.

        of: the setting for which the job searches a value; its box need not be valid.
        """
        with self._lock:  # the second of two clicks finds a job that waits
            wrong = [name for name in self.controls.refused if name != of]
            if wrong:
                self.notice.drop(_WRONG)
                self.notice.say(texts.correct_first(doing, wrong), "error", about=_WRONG)
            elif not self._state_of(kind):
                self.notice.attempt(doing, call)
            self._offer_jobs()

    def _state_of(self, kind: str) -> str:
        """The status of a job of this kind that waits or runs; "": no such job."""
        return next(
            (
                job.status
                for job in self._bench.jobs
                if job.kind == kind and job.status in next_actions.GOING
            ),
            "",
        )

    def _fit(self) -> None:
        self._begin(texts.ACTIONS["train"], "fit", self._bench.fit)

    def _tune(self) -> None:
        self._begin(texts.ACTIONS["tune"], "tune", self._bench.tune)

    def _profile(self) -> None:
        self._begin(texts.ACTIONS["profile"], "profile", self._bench.profile)

    def _continue(self) -> None:
        with self._lock:
            more = next_actions.more_to_do(self._bench.jobs, self._bench.settings)
            if more is not None:
                self._begin(
                    texts.ACTIONS["continue"],
                    "fit",
                    lambda: self._bench.fit(start="continue", **more),
                )

    def _continue_run(self, run: str) -> None:
        """Continue a recorded run."""
        with self._lock:
            known = next((brief for brief in self.history.runs if brief.id == run), None)
            more = {} if known is None else next_actions.lengths(known, self._bench.settings)
            self._begin(
                texts.ACTIONS["continue"], "fit", lambda: self._bench.fit(start=run, **more)
            )

    def _rerun(self, run: str) -> None:
        """Repeat a recorded run from what it kept, and say at the end whether it is equal."""
        # Imported here, because no part of a panel needs the engine until then.
        from workbench.bench.rerun import submit
        from workbench.launch.job_folder import recorded

        about = f"rerun {run}"

        def work() -> None:
            folder = recorded(run, self._bench.root)
            self.dispatcher.put(Called(of_folder("rerun", folder)))
            job = submit(folder, False, lambda text: self.notice.say(text, "warning"))
            self.notice.say(texts.repeating(run, job.id), about=about)
            self.history.refresh()
            try:
                again = job.result()
            finally:
                self.notice.drop(about)
                self.history.refresh()
            level: Level = "info" if again.repeats.startswith(REPEATS) else "warning"
            self.notice.say(texts.repeated(again.id, again.repeats), level)

        def failed(error: Exception) -> None:
            self.notice.error(error, texts.ACTIONS["rerun"])

        aside(work, failed, "rerun")

    def _pause(self) -> None:
        job = self._job()
        if job is not None:
            self.notice.attempt(
                texts.ACTIONS["pause"], job.resume if self._status == "paused" else job.pause
            )

    def _stop(self) -> None:
        job = self._job()
        if job is not None:

            def stop() -> None:
                job.stop()
                with self._lock:  # its end may have been heard by now
                    self.run.stopping()

            self.notice.attempt(texts.ACTIONS["stop"], stop)

    def _apply(self) -> None:
        job, changes = self._job(), next_actions.differences(self._bench.settings, self._in_run)
        if job is not None and changes:
            self.notice.attempt(texts.APPLY, lambda: job.change(**changes))

    def _validate(self) -> None:
        job = self._job()
        if job is not None:
            self.notice.attempt(texts.VALIDATE, job.validate)

    def _checkpoint(self) -> None:
        job = self._job()
        if job is not None:
            self.notice.attempt(texts.CHECKPOINT, job.checkpoint)

    def _job(self) -> Any:
        """The running job that the canvas shows; else the first one that has not ended, which
        runs or is next.
        """
        going = [job for job in self._bench.jobs if not job.done()]
        return next(
            (job for job in going if job.id == self._run_id), going[0] if going else self._bench.job
        )

    # -- from the bench to the user ----------------------------------------------------------------

    def _catch_up(self) -> None:
        """Listen to new events, then draw the past ones; an event that comes both ways is drawn
        once.
        """
        with self._lock:
            self._unsubscribe = self._bench.subscribe(self.dispatcher.put)
            # at once: later events come through the listener
            seen = [(job, now(job.events)) for job in _to_be_seen(self._bench.jobs)]
            for job, events in seen:
                held = newest(events)
                for event in chain(self._older(events, len(held)), held):
                    try:
                        self._hear(event)
                    except Exception as error:  # noqa: BLE001 - shown; the others are drawn
                        self.notice.error(error)
                self._replayed |= {id(event): event for event in held}
                if not job.done():
                    self._on_their_way |= {id(event): event for event in held[-3:]}
            self._show_queued()
            self.studies.opened()
            if self._status is not None:
                self.dispatcher.put(_CAUGHT_UP)

    def _older(self, events: Sequence[Event], held: int) -> Iterator[Event]:
        """All events but the newest, as far as the record still exists."""
        try:
            yield from joined(islice(stream(events), len(events) - held))
        except RecordGone as error:
            self.notice.error(error)

    def _hear(self, event: BenchEvent) -> None:
        with self._lock:
            if self._replayed.pop(id(event), None) is not None:
                return
            if event is _CAUGHT_UP:
                self._replayed = {
                    key: e for key, e in self._on_their_way.items() if key in self._replayed
                }
                self._on_their_way = {}
            elif isinstance(event, StatusChanged) and event.status in ("queued", "stopped"):
                # the bench's own
                self._show_queued()
                self._offer_jobs()
            else:
                self._draw(event)

    def _draw(self, event: BenchEvent) -> None:
        self.history.on_event(event)
        try:
            if self.history.lets_through(event):
                self.canvas.draw(event)
        finally:
            self._react(event)

    def _show_queued(self) -> None:
        """Show that a job waits, if one waits and none runs. Its start or its end replaces that
        state.
        """
        queued = [job for job in self._bench.jobs if job.status == "queued"]
        if queued and self._status not in ("running", "paused"):
            self._draw(StatusChanged("queued", why=queued[0].waits_for))

    def _react(self, event: BenchEvent) -> None:
        """Update the controls for an event."""
        match event:
            case RunStarted():
                self._started(event)
            case StatusChanged():
                self._follow(event.status)
            case Changed():
                self._in_run.update(
                    {
                        name: value
                        for name, value in event.values.items()
                        if name in next_actions.LIVE
                    }
                )
                self._offer_change()
                self.timeline.show()
            case Message():
                if not health.replaces_message(event):
                    self.notice.say(event.text, event.level, about=_said_in(self._run_id))
            case Resumed():
                # the messages until here are of another run
                self.notice.drop(_said_in(self._run_id))
            case SettingsSet():
                self._show_settings()
            case RunEnded():
                self._ended(event)
            case Deleted():
                self._offer_jobs()
            case Studied():
                self.studies.begun()
            case _:
                pass  # the canvas has drawn it

    def _started(self, event: RunStarted) -> None:
        self._run_id, self._kind = event.run, event.kind
        self.notice.drop(CLICKED)
        if event.kind == "find_lr":
            self.header.choose(int(event.request.get("optimizer", 0)))
        if event.kind == "fit":
            self._in_run = {name: event.settings.get(name) for name in next_actions.LIVE}
        self._follow("running")
        self._offer_change()

    def _ended(self, event: RunEnded) -> None:
        self._in_run = {}
        self._follow(event.status)
        self._offer_change()
        jobs = [job for job in self._bench.jobs if job.id == self._run_id]
        # the last one: several jobs may have the same id, if a run was deleted
        job = jobs[-1] if jobs else None
        if job is not None:
            self.static_output.over(
                job.events, lambda error: self.notice.error(error, texts.ACTIONS["picture"])
            )
        self.export_form.ended(job)
        self._run_id = self._kind = ""  # a job that is stopped before its turn ends without a start
        self._show_queued()

    def _cell_ends(self) -> None:
        """Put the pictures of the jobs that have ended in a cell into the notebook, before the
        cell ends.
        """
        over = {id(job) for job in self._bench.jobs if job.done()}
        if not over - self._over or (
            self.dispatcher.drain(static_output.PATIENCE) and self.static_output.settled()
        ):
            self._over = over

    def _follow(self, status: Status) -> None:
        self._status = status
        self.run.follow(status, self._kind)
        self._offer_jobs()

    def _show_settings(self) -> None:
        """Set all controls to the bench's settings."""
        with self._lock:
            settings = self._bench.settings
            self.controls.show(settings)
            drawn = drawn_schedule(settings, self._bench.summary.own_schedule)
            self.canvas.put("schedule", drawn)
            self.header.show(settings)
            self.canvas.marker = settings.lr
            self.canvas.clip = settings.gradient_clip_val or 0.0
            self._offer_change()
            self._offer_rates(settings)
            self._offer_jobs()

    def _offer_rates(self, settings: Settings) -> None:
        """Say that the rate was found for another batch size or optimizer, once for each change,
        and offer others.
        """
        change = self._bench._rate_change(settings)
        text = "" if change is None else change.text
        if text == self._rate_text:
            return
        self._rate_text = text
        self.notice.drop(_RATE)
        if change is None:
            return
        actions: dict[str, Callable[[], object]] = {
            texts.use_rate(format.rate(lr), rule): partial(self._bench.set, lr=lr)
            for rule, lr in change.rates.items()
        }
        actions[texts.FIND_AGAIN] = partial(self._finders.find_lr, 0, False)
        self.notice.say(text, "warning", _RATE, actions)

    def _offer_jobs(self) -> None:
        """Show which jobs can be started now, and which wait."""
        wrong = self.controls.refused
        if not wrong:
            self.notice.drop(_WRONG)
        self.run.offer_to_train(self._state_of("fit"), wrong)
        self.run.offer_to_continue(
            next_actions.more_to_do(self._bench.jobs, self._bench.settings) is not None
        )
        for kind, buttons in self._searches.items():
            for button in buttons:
                button.set(off=bool(self._state_of(kind)))
        self._offer_runs()
        self.timeline.show()
        first = self._job()
        waiting = [job for job in self._bench.jobs if job.status == "queued" and job is not first]
        self.canvas.put(
            "queue",
            [
                {
                    "job": cut(job.id, 80),
                    "words": format.job(job.kind),
                    "why": cut(job.waits_for, 200),
                }
                for job in waiting
            ],
        )

    def _offer_runs(self) -> None:
        """Show which recorded runs can be continued now."""
        with self._lock:
            settings, parameters = self._bench.settings, self._bench.summary.parameters
            busy = texts.BUSY if self._state_of("fit") else ""
            runs = self.history.page
            why = {
                brief.id: (
                    busy or next_actions.why_not_continued(brief, resumable, settings, parameters)
                )
                for brief, resumable in runs
            }
            self.canvas.put("ended", {run: cut(text, 200) for run, text in why.items() if text})

    def _offer_change(self) -> None:
        self.run.offer_change(
            next_actions.in_words(next_actions.differences(self._bench.settings, self._in_run))
        )


_RATE = "rate"
"""The key of the notice that the rate was found for another batch size or optimizer."""
_WRONG = "invalid"
"""The key of the notice that a job was not started."""


def _said_in(run: str) -> str:
    """The key of a run's messages."""
    return f"run {run}" if run else ""


_CAUGHT_UP = SettingsSet({})
"""The marker that a new panel puts into its own queue after it has drawn the events so far.

The queue is read in order. An event that came before the marker has then been read, and cannot come
a second time: the panel forgets it. The last events of a running job may be queued after the
marker; these are in `_on_their_way`.
"""


def _to_be_seen(jobs: Iterable[Any]) -> list[Any]:
    """The jobs whose plots are shown, in the order in which they ran; without those that have not
    begun.

    They are the last job of each kind; for sweeps and each optimizer, as many as are drawn
    together. The last job of all is included if it failed before it began, for its error.
    """
    jobs = list(jobs)
    seen: dict[tuple[str, int], list[Any]] = {}
    for job in jobs:
        begun = next((event for event in job.events if isinstance(event, RunStarted)), None)
        if begun is not None:
            same_plot = seen.setdefault((job.kind, begun.request.get("optimizer", 0)), [])
            same_plot[:] = [*same_plot[-EARLIER:], job] if job.kind == "find_lr" else [job]
    chosen = {id(job) for plot in seen.values() for job in plot}
    chosen |= {
        id(job)
        for job in jobs[-1:]
        if any(
            isinstance(event, RunEnded) and event.error is not None for event in newest(job.events)
        )
    }
    return [job for job in jobs if id(job) in chosen]


def _facts(summary: Any) -> tuple[str, str]:
    """The name of the model, and its size and device."""
    trained = (
        ""
        if summary.trainable == summary.parameters
        else texts.trained(format.count(summary.trainable))
    )
    size = texts.parameters(format.count(summary.parameters), trained, format.size(summary.bytes))
    return summary.name, f"{size} · {summary.device}"
