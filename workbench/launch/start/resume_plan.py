"""Plans a fit that continues from a checkpoint: its settings, and what it records of the run
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from workbench.engine.checkpoint.files import peek
from workbench.engine.checkpoint.lightning_file import Position, position, read
from workbench.engine.optim import total_steps
from workbench.events import ENDED_EARLY, Changed, Event, Message, Resumed, RunStarted
from workbench.launch.code_line import argument
from workbench.runs.checkpoints import Checkpoint
from workbench.runs.folder import inherited
from workbench.runs.printable import printable
from workbench.runs.read import read_header
from workbench.settings import (
    LOCAL,
    Settings,
    SettingsError,
    metadata_of,
    recorded_settings,
    setting_text,
)
from workbench.techniques import limits
from workbench.techniques.stopping import reached
from workbench.values import first_names

FIXED = (
    "seed",
    "shuffle",
    "drop_last",
    "streams",
    "reload_dataloaders_every_n_epochs",
    "overfit_batches",
    "fast_dev_run",
    "truncated_bptt_steps",
    "tbptt_time_dim",
)
"""Settings that fix the sample order: a resumed run keeps them."""

LENGTHS = ("max_epochs", "min_epochs", "max_steps", "min_steps", "max_time")

ASIDE = (
    "pin_memory",
    "prefetch_factor",
    "limit_test_batches",
    "limit_predict_batches",
    "num_sanity_val_steps",
    "track_grad_norm",
    "log_every_n_steps",
    "layer_history_mb",
    "detect_anomaly",
    "checkpoint_every",
    "monitor",
    "monitor_mode",
    *LOCAL,
)
"""Settings that do not change the arithmetic; the record shows their new values for the whole
run.
"""


class ResumeHistory(NamedTuple):
    """The part of a resumed run's record that is about the time before."""

    settings: dict[str, Any] | None
    """The settings to record: those with which the run began, with the present length and the
    present settings that do not
    change the arithmetic. None: those with which it continues.
    """
    events: list[Event]
    layers: tuple[str, ...] | None = None
    """The layers of these events; None: unknown, or no layers."""

    def before(self, started: RunStarted) -> list[Event]:
        """The events for the record of this fit, in which other layers may be frozen than
        before.
        """
        if self.layers is None or self.layers == started.layers:
            return self.events
        added = tuple(name for name in started.layers if name not in self.layers)
        gone = tuple(name for name in self.layers if name not in started.layers)
        last = next(event for event in reversed(self.events) if isinstance(event, Resumed))
        events = (
            replace(last, unfrozen=added, frozen=gone) if event is last else event
            for event in self.events
        )
        return [
            *(inherited.with_layers(event, self.layers, started.layers) for event in events),
            *_other_layers(last.step, added, gone),
        ]


def _other_layers(step: int, added: Sequence[str], gone: Sequence[str]) -> Iterator[Message]:
    if gone:
        yield Message(
            f"{first_names(gone, 3)} will not train from here on: now frozen. The optimizer keeps"
            " their state.",
            "info",
            step,
        )
    if added:
        text = (
            f"{first_names(added, 3)} will train from here on: they were frozen. If you forgot to"
            " freeze them, stop, and make the bench as for that run."
        )
        yield Message(text, "warning", step)


@dataclass(frozen=True)
class ResumePlan:
    """A checkpoint from which a fit continues, and its settings."""

    run: str
    folder: Path
    point: Checkpoint
    checked: int
    """The update after which its last validation ran."""
    settings: Settings
    edited: dict[str, Any]
    note: Message | None
    events: Callable[[], Sequence[Event]]
    """Reads the record of its run."""
    keeps_lr: bool = False
    """Whether optimizers keep the learning rate of a file of Lightning; for a checkpoint of a
    run the settings have it.
    """

    @property
    def begun(self) -> Settings:
        """The settings with which the fit is prepared."""
        return self.settings

    @property
    def path(self) -> Path:
        """The checkpoint's directory."""
        return self.point.path

    @property
    def inherited(self) -> tuple[Path, Checkpoint]:
        """The folder of the run that is continued, and the checkpoint; the fit gets copies of
        the checkpoints up to that one.
        """
        return self.folder, self.point

    def past(self) -> dict[str, Any]:
        """The part of the checkpoint's state on which the length of the fit depends."""
        return peek(self.point.path, *total_steps.NAMES)

    def history(self) -> ResumeHistory:
        """The record of the run up to the checkpoint, and the events that mark where this fit
        continues.
        """
        events, step = [*self.events()], self.point.step
        before = [*inherited.record_until(events, self.point, self.checked)]
        lacks = inherited.missing(before, step)
        before.append(Resumed(step, self.run, self.point.name, self.edited))
        if self.live:
            before.append(Changed(step, self.live))
        if self.note is not None:
            before.append(self.note)
        if lacks is not None:
            text = (
                f"the record of {self.run} lacks updates {lacks} to {step - 1}, and so does this"
                " one; the training is exact."
            )
            before.append(Message(text, "warning", step))
        started = next((event for event in events if isinstance(event, RunStarted)), None)
        return ResumeHistory(
            _first(self.folder, events, self.settings),
            before,
            None if started is None else started.layers,
        )

    def other_data(self, label: str) -> list[Message]:
        """The message that the run had training data of another kind or size. label: of the data
        that the fit continues with.
        """
        try:
            task = read_header(self.folder)["task"]
        except (OSError, ValueError, KeyError):
            return []
        before = task.get("data") if isinstance(task, dict) else None
        if not label or not isinstance(before, str) or before in ("", label):
            return []
        text = (
            f"the training data of {self.run} was {printable(before)}, and it is {label} now. If"
            " you did not mean that, stop, and give the bench the data of that run."
        )
        return [Message(text, "warning", self.point.step)]

    @property
    def live(self) -> dict[str, Any]:
        """The edited settings that `job.change` could have changed too."""
        # {epoch: batches} is a schedule
        numbers = {
            name: value for name, value in self.edited.items() if not isinstance(value, dict)
        }
        return {
            name: value
            for name, value in numbers.items()
            if metadata_of(name).live or name == "batch_size"
        }


@dataclass(frozen=True)
class LightningPlan:
    """A checkpoint that Lightning's Trainer wrote, from which a fit continues with the bench's
    settings.
    """

    path: Path
    position: Position
    begun: Settings
    """The bench's settings, and those given to `fit`."""
    keeps_lr: bool
    """Whether optimizers keep the learning rate of the file: True unless `fit` was given one."""
    inherited: None = None

    @property
    def settings(self) -> Settings:
        """The settings of the fit, with the file's learning rate. An optimizer whose state is
        not in the file begins with the bench's rate.
        """
        return (
            self.begun
            if not self.keeps_lr or self.position.lr is None
            else self.begun.replace(lr=self.position.lr)
        )

    def past(self) -> dict[str, Any]:
        """The state on which the length of the fit depends."""
        return self.position.past

    def history(self) -> ResumeHistory:
        """The event that marks where the fit continues; the file has no record of the time
        before.
        """
        return ResumeHistory(None, [Resumed(self.position.step, self.path.name, self.path.name)])


@dataclass(frozen=True)
class ResumeSettings:
    """Makes the settings of a resumed fit from `start` as the user wrote it, the bench's
    settings, and those given to `fit`.
    """

    start: str
    bench: Settings
    given: Mapping[str, Any]

    def plan_from(
        self,
        id: str,
        folder: Path,
        point: Checkpoint,
        events: Callable[[], Sequence[Event]],
        since: Mapping[str, Any],
        asked: Settings | None = None,
    ) -> ResumePlan:
        """The plan of the fit that continues from this checkpoint.

        since: what `bench.set` has changed since the run was started. asked: the settings with
        which this bench itself started the run; None: it comes from elsewhere.
        """
        state = peek(point.path, "settings", "seconds", "validation_due", "checks")
        recorded = recorded_settings(state["settings"])
        edits = {**since, **self.given}
        settings = recorded.replace(**{**self.local(asked), **edits})
        edited = {
            name: value
            for name, value in settings.model_dump().items()
            if not _same(name, settings, recorded)
        }
        self.refuse_fixed(id, recorded, settings)
        self._refuse_finished(id, point, state, settings, edited, events)
        checked = state["checks"]["checked"]
        return ResumePlan(
            id,
            folder,
            point,
            checked,
            settings,
            edited,
            self._differing(recorded, settings, edits),
            events,
        )

    def plan_from_file(self, path: Path) -> LightningPlan:
        """The plan of the fit that continues from a checkpoint of Lightning: it has the bench's
        settings and the file's rate.
        """
        position_of = position(path, read(path, peek=True))
        begun = self.bench.replace(**self.given)
        why = (
            None
            if position_of.validation_due
            else reached(begun, position_of.step, position_of.epoch, 0.0)
        )
        if why is not None:
            name = why.partition("=")[0]
            raise SettingsError(
                f"start={self.start!r}: nothing is left to do at update {position_of.step}, after"
                f" {position_of.epoch} epochs ({why}). Lengths count from the beginning of the"
                f" training, as in Trainer.fit(ckpt_path=…): give fit() a larger {name}; or train"
                f" on from its weights alone with bench.load({self.start!r}), then bench.fit()."
            )
        return LightningPlan(path, position_of, begun, "lr" not in self.given)

    def local(self, asked: Settings | None = None) -> dict[str, Any]:
        """The settings of where it runs, and keep_runs: those with which this bench started the
        run, or else the bench's present ones.

        They never come from a checkpoint: whoever wrote it would choose the command that is run
        here, and the runs that are deleted.
        """
        source = self.bench if asked is None else asked
        return {
            **{name: getattr(source, name) for name in LOCAL},
            "keep_runs": self.bench.keep_runs,
        }

    def refuse_fixed(self, id: str, own: Settings, settings: Settings) -> None:
        """Raise SettingsError for a change of a setting that fixes the sample order."""
        for name in FIXED:
            if not _same(name, settings, own):
                was, now = getattr(own, name), getattr(settings, name)
                where = "" if name in self.given else f" (bench.set({name}={was!r}) puts it back)"
                raise SettingsError(
                    f"{name}={now!r}: a continued run keeps the settings that fix the sample order,"
                    f" and {id} has {name}={was!r}{where}. To train on from its weights alone:"
                    f" bench.load({id!r}), then bench.fit()."
                )

    def _refuse_finished(
        self,
        id: str,
        point: Checkpoint,
        state: Mapping[str, Any],
        settings: Settings,
        edited: Mapping[str, Any],
        events: Callable[[], Sequence[Event]],
    ) -> None:
        """Raise SettingsError where the run has reached its length or was stopped early, and
        would take no update.
        """
        if state["validation_due"]:  # the validation at the end of an epoch is due
            return
        why = reached(settings, point.step, point.epoch, state["seconds"])
        if why is not None:
            name = why.partition("=")[0]
            here = getattr(self.bench, name)
            as_here = settings.replace(**{name: here})
            enough = (
                here is not None
                and reached(as_here, point.step, point.epoch, state["seconds"]) is None
            )
            more = f"{name}={here!r}, as the bench has it" if enough else f"a larger {name}"
            raise SettingsError(
                f"start={self.start!r}: nothing is left to do for {id} at update {point.step}:"
                f" {why}. Lengths count from the beginning of the whole run: give fit() {more}; or"
                f" train on from its weights alone with bench.load({id!r}), then bench.fit()."
            )
        watched = (
            point.end
            and settings.early_stopping
            and not {"early_stopping", "min_epochs", "min_steps"} & set(edited)
        )
        ended = _ended_early(events(), point.step) if watched else ""
        if ended:
            raise SettingsError(
                f"start={self.start!r}: {printable(ended.removesuffix('.'))}, and would again: give"
                " fit() another early_stopping, or early_stopping=() to continue without it."
            )

    def _differing(
        self, own: Settings, settings: Settings, edits: Mapping[str, Any]
    ) -> Message | None:
        bench = limits.effective_settings(self.bench)  # as the recorded ones are
        free = [name for name in Settings.model_fields if name not in edits]
        kept = [name for name in free if not _same(name, settings, bench)]
        local = [name for name in free if name in LOCAL and not _same(name, settings, own)]
        notes = []
        if kept:
            notes.append(
                f"it continues with the run's own {_values(kept, settings)} (the bench has"
                f" {_values(kept, bench)})"
            )
        if local:
            notes.append(
                f"it runs with the bench's {_values(local, settings)} (the run had"
                f" {_values(local, own)})"
            )
        return Message(f"{'; '.join(notes)}; arguments of fit() override both.") if notes else None


def _first(folder: Path, events: Sequence[Event], settings: Settings) -> dict[str, Any]:
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    try:
        recorded = read_header(folder)["settings"] if started is None else started.settings
    except (OSError, ValueError, KeyError):
        recorded = settings.model_dump()
    now = {name: getattr(settings, name) for name in (*LENGTHS, *ASIDE)}
    return recorded_settings(recorded).replace(**now).model_dump()


def _values(names: Sequence[str], of: Settings) -> str:
    return ", ".join(argument(name, setting_text.setting_text(getattr(of, name))) for name in names)


def _same(name: str, one: Settings, other: Settings) -> bool:
    return setting_text.same(getattr(one, name), getattr(other, name))


def _ended_early(events: Sequence[Event], step: int) -> str:
    """The record's message that early stopping ended the run at this update.

    The run also keeps the checkpoint that it was resumed from, which may be the end of another run.
    """
    texts = [
        e.text
        for e in events
        if isinstance(e, Message) and e.text.startswith(ENDED_EARLY) and e.step == step
    ]
    return texts[-1] if texts and "trainer.should_stop" not in texts[-1] else ""
