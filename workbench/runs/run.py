"""Defines `Run`: the result of a fit, from its events or from its folder."""

from __future__ import annotations

import contextlib
import html
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from workbench.events import (
    DOES_NOT_REPEAT,
    ENDED_EARLY,
    REPEATS,
    Changed,
    Event,
    LayersMeasured,
    Message,
    Resumed,
    RunStarted,
    Spiked,
    Status,
    StepsDone,
    TimeSpent,
    to_line,
)
from workbench.plots.chart import Chart
from workbench.plots.training import time_spent
from workbench.runs import chart_data, read
from workbench.runs.checkpoints import Checkpoint, find, list_checkpoints
from workbench.runs.folder import pack as packing
from workbench.runs.folder.annotations import Annotations, annotate, read_annotations
from workbench.runs.folder.pack import Which
from workbench.runs.health import Finding, examine, in_doubt
from workbench.runs.health.search_results import Answer, SearchResults
from workbench.runs.printable import printable
from workbench.runs.record.event_log import Recorded, RecordGone, now
from workbench.runs.record.series import Series, joined, write_csv
from workbench.runs.run_record import RunRecord
from workbench.runs.samples import Sample, kept
from workbench.runs.tables.render import data_frame, text_table
from workbench.runs.tables.spikes import Spikes
from workbench.settings import Settings, SettingsError, recorded_settings, setting_text
from workbench.settings.spellings import with_hints
from workbench.units import RATES, duration, number, rate
from workbench.values import value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from workbench.plots.drawing.interactive import Interactive
    from workbench.plots.drawing.picture import Picture


@with_hints("run")
@dataclass(frozen=True, eq=False, repr=False)
class Run(RunRecord):
    """One run, at the moment when this object was made. Two runs are equal if all their events are.

    The end of the record is read when this object is made, and the rest when needed: `events` is a
    sequence that reads the record. It raises FileNotFoundError if the run was deleted meanwhile.

    Attributes:
        id: the name of its folder: "0012-fit".
        kind: "fit", "find_lr", "find_batch_size", "find_num_workers", "find_precision",
            "find_clip_val", "find_weight_decay", "find_recipe", "tune", "profile", "validate",
            "test" or "predict".
        status: "queued", "running", "paused", "finished", "stopped" or "failed".
        step: the number of updates taken.
        seconds: how long it ran, without pauses.
        error: why it failed; None: it did not fail.
        events: its events, in order.
        folder: the folder of its record; None: it has none.
        unseen: whether it only counts as running: its record has no end, and its process cannot be
            seen from here.
    """

    id: str
    kind: str
    status: Status
    step: int
    seconds: float
    error: str | None
    events: Sequence[Event]
    folder: Path | None = None
    unseen: bool = False
    _model: Callable[[], Any] | None = None
    """Returns the model of the bench that made the run; None once the model is gone."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Read the run in a run folder; FileNotFoundError: it is not one. A run whose process
        died before its end has failed.
        """
        folder = Path(folder).expanduser().resolve()  # the folder has the id, and not a link or "."
        try:
            return cls.from_summary(read.summary(folder))
        except (OSError, ValueError) as error:
            raise FileNotFoundError(f"{folder} is not a run folder: {error}") from None

    @classmethod
    def from_summary(cls, summary: read.RunSummary, model: Callable[[], Any] | None = None) -> Self:
        """Make the run of a summary (`read.list_runs`). Raises OSError or ValueError if it was
        deleted meanwhile.
        """
        events = Recorded(summary.path, summary.over)
        return cls(
            summary.id,
            summary.kind,
            summary.status,
            summary.step,
            summary.seconds,
            summary.error,
            events,
            summary.path,
            summary.unseen,
            model,
        )

    @classmethod
    def from_events(
        cls,
        events: Iterable[Event],
        folder: Path | None = None,
        model: Callable[[], Any] | None = None,
    ) -> Self:
        """Make the run of these events; `folder`: the folder of its record, if it has one."""
        events, header = now(events), None
        if folder is not None:
            with contextlib.suppress(OSError, ValueError):
                header = read.read_header(folder)
        start = _start(islice(events, _BEFORE))
        id = start.run if start else ""
        if folder is not None:
            id = folder.name
        kind = start.kind if start else str((header or {}).get("kind", ""))
        state = read.state(events, header, folder)
        return cls(
            id,
            kind,
            state.status,
            state.step,
            state.seconds,
            state.error,
            events,
            folder,
            state.unseen,
            model,
        )

    @property
    def settings(self) -> Settings:
        """The settings with which the run began (`changes` has later changes). Unknown ones of a
        newer version are left out.
        """
        return recorded_settings(self._recorded)

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric: "loss" of a training update, the values that the model
        logged, then the validation metrics.
        """
        return dict(self._metrics)

    @property
    def history(self) -> Series:
        """One row per recorded update, each array of shape (rows,), read-only.

        "step" and "epoch" are int64, all others float32 (float64 if measured in float64), NaN: no
        value. "loss" and "lr" always exist; the
        others only if they were recorded: "grad_norm" (total, before clipping), "grad_norm_clipped"
        (after), "skipped" (1: the update was left out); with several optimizers "loss.0", "lr.0",
        "grad_norm.0", "grad_norm_clipped.0", "loss.1", …; the values that the model logged for
        single updates, by name; "grad_norm/<layer>" (before clipping); "update_ratio/<layer>" (the
        norm of an update of the layer's weights, relative to the norm of the weights). All rows of
        a flush have the same epoch. For a long run the columns by layer of older updates may have
        been thinned (`layer_history_mb`); removed values are NaN.
        """
        return dict(self._whole)

    @property
    def validation(self) -> Series:
        """One row per validation: "step" "epoch" "val_loss" … (see `series.validation`),
        read-only.
        """
        return dict(self._validation)

    @property
    def logged(self) -> Series:
        """One row per epoch for which the model logged values in training: "step", "epoch" and the
        logged names, read-only.

        Values that it logged for single updates are in `history`.
        """
        return dict(self._logged)

    @property
    def resumes(self) -> tuple[Resumed, ...]:
        """The events at which this run continues a checkpoint of another one, the latest last:
        `.run`, `.checkpoint`, `.values`.

        Earlier rows of `events`, `history` and so on come from the other run's record.
        """
        return tuple(e for e in self.outline if isinstance(e, Resumed))

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What the functions of `bench.watch` returned at its validations, oldest first. A notebook
        shows `run.samples[-1]`; `.images` and `.texts` have its parts by their labels.

        A run keeps 64 MB of them; beyond that every second validation is removed.
        """
        return kept(self.outline, self.folder)

    @property
    def histograms(self) -> tuple[LayersMeasured, ...]:
        """What `job.histograms()` has measured, oldest first: of each of the `.layers` its weights
        and activations, and the shares that are dead and saturated.
        """
        return tuple(e for e in self.outline if isinstance(e, LayersMeasured))

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The present checkpoints from which a fit can continue, oldest first:
        `bench.fit(start=f"{run.id}@{step}")`.
        """
        return [] if self.folder is None else list_checkpoints(self.folder)

    def to_lightning(self, path: str | Path, which: str | int = "last") -> Path:
        """Write a checkpoint as Lightning 2 writes it: `Module.load_from_checkpoint(path)` and
        `Trainer.fit(module, ckpt_path=path)` read it.

        It has weights, optimizers, schedulers, epoch, step and the module's saved hyperparameters.
        If weights were averaged, its weights are those that validation used. A warning names what
        the file cannot hold.
        which: "last", "best", or the checkpoint after this many updates.
        """
        from workbench.engine.checkpoint import lightning_file

        path = Path(path).expanduser()
        if path.is_dir():
            raise IsADirectoryError(
                f"to_lightning(path={str(path)!r}): it is a folder. Give the path of a file,"
                f" {str(path / 'last.ckpt')!r} say."
            )
        for doubt in lightning_file.write(self._checkpoint(which), path):
            warnings.warn(f"{path}: {doubt}.", stacklevel=2)
        return path

    def save_pretrained(self, folder: str | Path, which: str | int = "last") -> Path:
        """Write the bench's model with the weights of this run into a folder, by the model's own
        `save_pretrained` (Hugging Face).

        The model itself does not change. If weights were averaged, they are those that validation
        used.
        which: "last", "best", or the checkpoint after this many updates.
        """
        from workbench.engine.checkpoint import pretrained

        folder = Path(folder).expanduser()
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(
                f"save_pretrained(folder={str(folder)!r}): it is a file. Give the path of a folder,"
                " which is made if it is not there."
            )
        model = None if self._model is None else self._model()
        pretrained.save(model, self.id, self._checkpoint(which), folder)
        return folder

    def pack(self, path: str | Path, checkpoints: Which = "all", *, start: bool = False) -> Path:
        """Write this run into one file, which `Run.unpack` puts among other runs, on another
        machine too: `run.pack("0012-fit.tar")`.

        It replaces a file of this name. It has the record, your name, notes and tags, and the
        weights that the fit began with; not what a launched run has printed.
        checkpoints: "all", "last", "best" or "none", which leaves out all weights. start: with
        what `wb.rerun` needs, your code and data in memory. Look at it before you share it.

        Raises RuntimeError while the run trains, FileNotFoundError where it has no such checkpoint,
        kept no start, or has no record.
        """
        path = Path(path).expanduser()
        if self.folder is None or not self.folder.is_dir():
            raise FileNotFoundError(
                f"run {self.id!r} has no record to pack: it was a dry run, or it is deleted."
            )
        packing.pack(self.folder, path, checkpoints, start)
        return path

    @classmethod
    def unpack(cls, file: str | Path, root: str | Path = ".workbench") -> Self:
        """Put a packed run among the runs of a root, and open it. It keeps its id; where the
        numbers of the root have got that far, it gets the next one.

        The file may come from somebody else: it is read as data, and nothing outside of the run's
        own folder is written. Raises ValueError where it is no packed run.
        """
        folder, _ = packing.unpack(Path(file).expanduser(), Path(root).expanduser().absolute())
        return cls.open(folder)

    def _checkpoint(self, which: str | int) -> Checkpoint:
        if self.folder is None or not self.folder.is_dir():
            raise FileNotFoundError(
                f"run {self.id!r} has no checkpoints: it was a dry run, or it is deleted."
            )
        return find(self.folder, which)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_model": None}  # its weights are not part of the record

    @property
    def name(self) -> str:
        """The name that the user gave to it; "": no name. `annotate` changes it."""
        return self._annotations.name

    @property
    def notes(self) -> str:
        """The user's notes. `annotate` changes them."""
        return self._annotations.notes

    @property
    def tags(self) -> tuple[str, ...]:
        """Its present tags. `annotate` changes them."""
        return self._annotations.tags

    @property
    def pinned(self) -> bool:
        """Whether it is pinned: `keep_runs` does not delete it. `annotate` changes that."""
        return self._annotations.pinned

    @property
    def _annotations(self) -> Annotations:
        return Annotations() if self.folder is None else read_annotations(self.folder)

    def annotate(
        self,
        *,
        name: str | None = None,
        notes: str | None = None,
        tags: Iterable[str] | None = None,
        pinned: bool | None = None,
    ) -> None:
        """Store a name, notes, tags or a pin in its folder: `run.annotate(name="baseline",
        tags=["sgd"], pinned=True)`.

        None leaves a value unchanged; "" and [] remove it. `bench.annotate` also updates the panel
        at once.
        """
        if self.folder is None or not self.folder.is_dir():
            raise FileNotFoundError(
                f"run {self.id!r} has no record to annotate: it was a dry run, or it is deleted."
            )
        annotate(self.folder, name, notes, tags, pinned)

    @property
    def changes(self) -> tuple[Changed, ...]:
        """The live changes, in order; each holds from update `step` on."""
        return tuple(e for e in self.outline if isinstance(e, Changed))

    @property
    def ended_early(self) -> str:
        """Why early stopping, or the module, ended this fit before its length; "": neither did."""
        return self._last_text(ENDED_EARLY).removeprefix(f"{ENDED_EARLY}: ").rstrip(".")

    @property
    def build(self) -> dict[str, Any]:
        """The values with which a function made its model (`wb.Workbench(build, …)`), by the names
        of the function's parameters; empty where the bench was given a model.
        """
        return {} if self.folder is None else read.build_values(read.read_header(self.folder))

    @property
    def study(self) -> read.TrialPlace | None:
        """The study, the trial, the seed and the rung whose run it is; None: it is in no study."""
        return None if self.folder is None else read.trial_place(read.read_header(self.folder))

    @property
    def repeats(self) -> str:
        """Whether this fit has the numbers of the one that it repeats (`wb.rerun`): "repeats
        0004-fit: 240 of 240 losses equal", or the first update that differs; "": it repeats none.
        """
        return self._last_text(REPEATS, DOES_NOT_REPEAT).rstrip(".")

    def _last_text(self, *beginnings: str) -> str:
        """The last message of this run, and not of one that it continues, that begins so; "":
        there is none.
        """
        resumed = max((n for n, e in enumerate(self.outline) if isinstance(e, Resumed)), default=0)
        texts = [
            e.text
            for e in self.outline[resumed:]
            if isinstance(e, Message) and e.text.startswith(beginnings)
        ]
        return texts[-1] if texts else ""

    @property
    def epochs(self) -> int:
        """Epochs begun."""
        last = next((e for e in reversed(self.outline) if isinstance(e, StepsDone)), None)
        return last.epoch + 1 if last else 0

    @property
    def spikes(self) -> Spikes:
        """The updates whose loss or gradient norm was far above those before: a sequence of
        `events.Spiked`, which a cell shows as a table.
        """
        return Spikes(e for e in self.outline if isinstance(e, Spiked))

    @property
    def skipped(self) -> int:
        """How many of the recorded updates were left out: not finite, too large for 16 bits, or
        spikes (`on_spike`).
        """
        return int((self._history.get("skipped", np.empty(0)) > 0).sum())

    @property
    def clip_share(self) -> float | None:
        """The share of clipped updates among the recorded updates with clipping on; None: it was
        never on, or the share is unknown.

        It is known if the norms before clipping are 2-norms (`track_grad_norm`), as those after
        clipping always are.
        """
        return self._data.clipped().share

    @property
    def clip_shares(self) -> tuple[float | None, ...]:
        """`clip_share` for each optimizer, by its own updates and its own norm."""
        return tuple(clipping.share for clipping in self._data.clipped_by_optimizer().values())

    def clip_share_at(self, clip_val: float) -> float | None:
        """The share of the recorded updates that this clip value would have clipped, from 0 to 1;
        None: unknown.

        It uses the measured norms; with this clip value the run itself would have been different.
        """
        return self._data.clip_share_at(clip_val)

    @property
    def clip_suggestion(self) -> float | None:
        """A clip value from all recorded norms: nine of ten do not exceed it.

        The reasons are in `plots.clip_statistics.suggest_clip`.

        None if fewer than 20 are known, or if the recorded norm (`track_grad_norm`) is not the
        2-norm, which is clipped.
        """
        return self._data.suggested_clip()

    @property
    def time_spent(self) -> dict[str, float]:
        """The seconds that each part of a fit took, the largest first ("data" is waiting for
        batches, "first batch" the same at the beginning of an epoch; see `events.TimeSpent`). Empty
        if that was not measured.
        """
        return time_spent.total(e.parts for e in self.outline if isinstance(e, TimeSpent))

    @property
    def answer(self) -> str:
        """What a search found: "lr=0.069", "batch_size=64 (largest 256)". "": it is no search,
        or has not ended.
        """
        collected = Answer()
        for event in self.outline:
            collected.add(event)
        return "" if self.kind == "fit" else collected.text

    @cached_property
    def health(self) -> tuple[Finding, ...]:
        """Problems of the run and what slowed it down, each with advice, the most severe first;
        empty: nothing was found.
        """
        return SearchResults(self.folder).with_results(examine(self.events))

    def figure(self, what: str | None = None) -> Interactive:
        """The run as an interactive plotly figure: all of it, or only `what`.
        `.save("run.html")` or `.save("run.png")` writes it.
        """
        from workbench.plots.drawing import plotly

        return plotly.figure(self.charts(what))

    def plot(self, what: str | Axes | None = None, ax: Axes | None = None) -> Picture | Axes:
        """The run as a matplotlib figure: all of it, or only `what`. `.save("run.png")` writes it.

        what: "loss", "lr", "grad_norm", "clip", "update_ratio", "gradient_noise_scale", "time", or
        the name of a metric or of a value that the model logged. With `ax`, only the first chart
        (of all: the loss) is drawn there, and `ax` is returned.
        """
        from workbench.plots.drawing import matplotlib

        if what is not None and not isinstance(what, str):
            return self.plot(ax=what)
        charts = self.charts(what)
        return matplotlib.figure(charts) if ax is None else matplotlib.draw(charts[0], ax)

    def charts(self, what: str | None = None) -> list[Chart]:
        """The charts of `figure` and `plot` as data: loss and gradient norms, or for a search its
        result.

        `what`: "loss", "lr" (the schedule), "grad_norm", "clip" (norms before and after, and the
        share clipped), "update_ratio" (the relative size of each layer's updates, with
        `track_update_ratio=True`), "gradient_noise_scale" (with `track_noise_scale`), "time"
        (seconds of each part), or the name of a validation metric or of a logged value
        ("train_acc").
        """
        # a fit may search within itself
        searched = [] if self.kind == "fit" else chart_data.search_charts(self.outline)
        data = self._data
        if what is None:
            return searched or data.whole()
        plots: dict[str, Callable[[], list[Chart]]] = {}
        if not searched:
            plots = {
                "loss": data.loss,
                "lr": data.lr,
                "grad_norm": data.grad_norm,
                "clip": data.clipping,
                "update_ratio": data.update_ratio,
                "time": lambda: [time_spent.time_spent(self.time_spent)] if self.time_spent else [],
                "gradient_noise_scale": data.noise_scale,
            }
        charts = plots[what]() if what in plots else data.named(what)
        if not charts:
            known = ", ".join(
                map(
                    repr,
                    dict.fromkeys(
                        [*(name for name, make in plots.items() if make()), *data.names()]
                    ),
                )
            )
            known = known or "one, which plot() draws"
            reasons = {
                "time": "; the time of its parts was not measured",
                "update_ratio": "; no update ratios were measured (track_update_ratio=True)",
                "gradient_noise_scale": (
                    "; it takes track_noise_scale=True, several batches an update"
                    " (accumulate_grad_batches=2, or devices=2), and 50 updates before the first"
                    " value"
                ),
            }
            why = (
                reasons.get(what, "; no gradient norms were recorded (track_grad_norm)")
                if what in plots
                else ""
            )
            raise ValueError(f"run {self.id} has no plot {what!r}{why}. It has: {known}")
        return charts

    def to_csv(self, file: str | Path | IO[str]) -> None:
        """Write the history as CSV, one row per update. Values of a validation or an epoch after n
        updates are in the row of update n - 1, the last one before, which is of the same epoch
        ("step" counts from 0).

        If that update was not recorded, they have their own row. An empty cell means no value. A
        name that was logged for updates, epochs and validations has three columns: `acc`, `acc
        (epoch)` and `acc (validation)`.
        """
        if isinstance(file, str | Path):
            with Path(file).expanduser().open("w", newline="", encoding="utf-8") as opened:
                self.to_csv(opened)
            return
        write_csv(file, self._whole, self._logged, self._validation)

    def to_pandas(self) -> DataFrame:
        """Return the table of `to_csv` as a pandas data frame; NaN: no value.

        A validation is in the row of the update before it: `df.groupby("epoch")["val_loss"].last()`
        has the last one of each epoch.
        """
        return data_frame(joined(self._whole, self._logged, self._validation))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        # Compared by their lines, since a NaN is not equal to itself.
        return (self.id, self.status, self.error) == (other.id, other.status, other.error) and (
            [*map(to_line, self.events)] == [*map(to_line, other.events)]
        )

    def __hash__(self) -> int:
        return hash((self.id, self.step, self.seconds))

    def __repr__(self) -> str:
        facts = " · ".join(_fact(name, value) for name, value in self._facts())
        return printable(f"<Run {self.id}: {facts}>")

    def __str__(self) -> str:
        """A small table: the status, then a line for each fact."""
        (_, status), *facts = self._facts()
        return text_table(
            [[f"Run {self.id}", status], *([f"  {key}", text] for key, text in facts)]
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name or 'status')}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self._facts()
        )
        return f"<table><caption>Run {html.escape(self.id)}</caption>{rows}</table>"

    def _facts(self) -> list[tuple[str, str]]:
        facts = [("", f"{self.kind} {self._shown_status}".strip())]
        facts += [("updates", str(self.step))] if self.step or self.kind == "fit" else []
        facts += [("name", self.name)] if self.name else []
        try:
            return facts + self._recorded_facts()
        except RecordGone:
            return [*facts, ("time", duration(self.seconds)), ("record", "deleted")]

    @property
    def _shown_status(self) -> str:
        """The status, and a word where health puts the result in doubt: "finished, diverged"."""
        finding = None
        with contextlib.suppress(RecordGone):
            finding = in_doubt(self.health)
        return read.shown_status(
            self.status, self.unseen, "" if finding is None else finding.trouble
        )

    def _recorded_facts(self) -> list[tuple[str, str]]:
        facts = [("found", self.answer)] if self.answer else []
        facts += [("ended early:", self.ended_early)] if self.ended_early else []
        facts += [("", self.repeats)] if self.repeats else []
        if self.epochs:
            facts.append(("epochs", str(self.epochs)))
        known = self._metrics  # a value that is also there as `…_epoch` is written once
        facts += [
            (name, number(value)) for name, value in known.items() if f"{name}_epoch" not in known
        ]
        facts.append(("time", duration(self.seconds)))
        if self._ranks is not None:
            facts.append(("on", self._ranks))
        if self.clip_share is not None:
            facts.append(("clipped", f"{self.clip_share:.0%}"))
        if self.clip_suggestion is not None:
            facts.append(("suggested clip", rate(self.clip_suggestion)))
        if self.skipped:
            facts.append(("skipped", str(self.skipped)))
        if self.resumes:
            facts.append(
                ("resumed from", f"{self.resumes[-1].run} at update {self.resumes[-1].step}")
            )
        facts += [(name, value_text(value)) for name, value in self.build.items()]
        facts += self._setting_facts()
        if self.changes:
            facts.append(("live changes", str(len(self.changes))))
        facts += [("health", str(finding)) for finding in self.health]
        if self.error:
            line = self.error.strip().splitlines()[-1][:200] if self.error.strip() else "unknown"
            facts += [("error", line)] * all(line not in finding.text for finding in self.health)
        return facts

    def _setting_facts(self) -> list[tuple[str, str]]:
        """The key settings, and those that were changed while it trained, or where it continues
        another run: "lr  3e-3 → 1e-4 at update 120".
        """
        texts = {name: _text(name, value) for name, value in self._key_settings().items()}
        changes = [event for event in self.outline if isinstance(event, Changed | Resumed)]
        for event in changes:
            for name, value in event.values.items():
                if name in Settings.model_fields and name not in chart_data.UNMARKED:
                    text = texts.get(name) or _text(name, getattr(self.settings, name))
                    start = text.partition(" → ")[0]
                    if _text(name, value) != start or " → " in text:
                        texts[name] = f"{start} → {_text(name, value)} at update {event.step}"
        return [*texts.items()]

    def _key_settings(self) -> dict[str, Any]:
        """Learning rate, batch size, and all other settings that differ from their defaults."""
        known = {k: v for k, v in self._recorded.items() if k in Settings.model_fields}
        # settings from a record have lists in place of tuples
        with contextlib.suppress(SettingsError):
            settings = self.settings
            known = {k: getattr(settings, k) for k in known}
        always = ("lr", "batch_size")
        return {k: v for k, v in known.items() if k in always or not setting_text.is_default(k, v)}


def _start(events: Iterable[Event]) -> RunStarted | None:
    return next((event for event in events if isinstance(event, RunStarted)), None)


_BEFORE = 100
"""How many events are searched for RunStarted; only messages may precede it."""
_COUNTS = ("updates", "epochs", "live changes")


def _fact(name: str, value: str) -> str:
    """A fact in words: "1 update", "3 epochs", "loss 0.2"; a value without a name alone."""
    if name in _COUNTS:
        return f"1 {name[:-1]}" if value == "1" else f"{value} {name}"
    return f"{name} {value}" if name else value


def _text(name: str, value: Any) -> str:
    if isinstance(value, float) and value != 1.0:
        return rate(value, 6) if name in RATES else f"{value:g}"
    return setting_text.typed(name, value)
