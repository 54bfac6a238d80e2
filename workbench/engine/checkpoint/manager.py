"""Decides when a fit writes checkpoints and which of them it keeps: regular ones, the best by a
metric, the last.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from workbench.engine.checkpoint import files, per_rank
from workbench.engine.checkpoint.fit_state import ResumePoint, state_of
from workbench.engine.checkpoint.rank_writer import RankWriter
from workbench.engine.checkpoint.shards import TensorFile, set_aside
from workbench.engine.loop import Checkpointing
from workbench.engine.metrics.flush import Recorder
from workbench.engine.session import Session
from workbench.engine.validation.schedule import ValidationSchedule
from workbench.events import Emit, Message, Saved
from workbench.metric_mode import AVERAGED, Mode
from workbench.runs import checkpoints
from workbench.runs.checkpoints import (
    Checkpoint,
    best_values,
    list_checkpoints,
    mode_of,
    name_of,
    obsolete,
    ranked_by,
)
from workbench.task.device.dtensor import in_shards
from workbench.task.errors import TaskError
from workbench.task.state.of_task import held_state
from workbench.task.state.serialization import NotPlainError, to_plain
from workbench.units import number
from workbench.values import seconds as in_seconds

_AFTER = 10.0
"""Seconds that a fit which ends waits at most for a checkpoint that is being written."""
AUTOMATIC = 600.0
"""Seconds between checkpoints at ends of epochs, unless a setting says otherwise."""


class CheckpointManager(Checkpointing):
    """Writes the checkpoints of one fit to `folder`, a directory of its run.

    An error in writing becomes a message, and the fit continues. All ranks take part, since each
    has state of its own, and decide alike; rank 0 writes. Of sharded weights each rank writes its
    part, while the fit continues (`RankWriter`).
    """

    _writer: RankWriter | None = None
    """What writes a checkpoint of sharded weights while the fit continues."""
    _written: Saved | None = None
    """The event of that checkpoint."""

    def __init__(
        self,
        session: Session,
        validation: ValidationSchedule,
        folder: Path,
        emit: Emit,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """settle: waits until all emitted events are in the record; no checkpoint may be ahead
        of it.
        """
        settings, every = session.settings, session.settings.checkpoint_every
        self._session, self._validation, self._folder, self._emit = (
            session,
            validation,
            folder,
            emit,
        )
        self._recorder, self._settle = Recorder(session, emit), settle
        self._updates = every if isinstance(every, int) else None
        self._time = in_seconds(every) if isinstance(every, str) else None
        self._top_k = settings.save_top_k
        self._monitor = settings.monitor or "val_loss"
        self._mode: Mode = mode_of(self._monitor, settings.monitor_mode) if self._top_k else "min"
        self._of_average = session.settings.weight_averaging is not None and self._monitor.endswith(
            AVERAGED
        )
        self._extras = held_state(session.task, session.state.moved)
        self._step, self._seconds = session.state.step, session.seconds
        """When the last one was written."""
        self._marked: tuple[tuple[int, ...], ResumePoint] | None = None
        self._judged: tuple[int, float] | None = None
        """The update after which the monitor had a value, and that value."""
        self._pending = False
        """Whether that value is among the best and its checkpoint is not written yet."""
        self._averaged: dict[str, Tensor] | None = None
        """The averaged weights that the value belongs to."""
        self._left: tuple[int, dict[str, Any] | None, str | None] | None = None
        """For a run whose length ended within an epoch: the update, and all state at that point,
        or why it cannot be stored.
        """
        self._restored = False
        """Whether the model got the best weights at the end."""
        self._said: set[object] = set()

    # -- at intervals

    def due(self) -> bool:
        """Whether a checkpoint is due; called between two updates."""
        if self._writer is not None and self._writer.is_done:
            self._take_written()
        if self._updates is not None:
            return (
                self._session.state.step % self._updates == 0
                and self._session.state.step != self._step
            )
        return self._time is not None and self._session.seconds - self._seconds >= self._time

    def save(self) -> None:
        """Write a checkpoint; called after an update, before a batch of the next is read."""
        self._save(ResumePoint.here(self._session))

    def save_requested(self) -> bool:
        """Write a checkpoint that the user requested; it is kept as long as the run, and replaces
        no other.

        If a checkpoint of this update exists already, it is kept instead.
        """
        self._finish_writing()
        same_step = [
            checkpoint
            for checkpoint in list_checkpoints(self._folder.parent)
            if checkpoint.step == self._session.state.step
        ]
        name = self._session.ranks.broadcast_object(same_step[-1].name if same_step else None)
        if name is None:
            self._save(ResumePoint.here(self._session), asked=True)
        elif self._session.ranks.first:
            try:
                checkpoints.keep(same_step[-1])
            except OSError as error:
                self._say(
                    "keep",
                    f"checkpoint {name} was there already, but could not be marked to stay"
                    f" ({error}).",
                )
            else:
                self._emit(
                    Message(
                        f"checkpoint {name} was there already, and stays.",
                        "info",
                        self._session.state.step,
                    )
                )
        return True

    def after_epoch(self) -> None:
        """Write a checkpoint between two epochs, if one is due or the validation was among the
        best.
        """
        asked = self._updates is not None or self._time is not None
        waited = self._session.seconds - self._seconds
        if self._pending or (self.due() if asked else waited >= AUTOMATIC):
            self._save(ResumePoint.here(self._session))

    # -- the best

    def mark(self) -> None:
        """Store the present resume point, before the batches of the next update are read and a
        validation runs.
        """
        self._marked = self._place(), ResumePoint.here(self._session)

    def take_averaged(self) -> None:
        """Copy the model's weights, which are the averaged ones that have just been validated."""
        if self._top_k and self._of_average:
            trained = self._session.weights.trained()
            self._averaged = {name: _copy(tensor) for name, tensor in trained.items()}

    def judge(self, metrics: Mapping[str, float]) -> None:
        """Compare the monitor's value after a validation with those of the best checkpoints."""
        self._finish_writing()  # it may be one of those
        value = self._session.ranks.broadcast_object(metrics.get(self._monitor))
        self._judged, self._pending = None, False
        one_of = next((name for name in metrics if name.startswith("val_loss/")), None)
        if (
            value is None
            and one_of is not None
            and self._top_k
            and self._session.settings.monitor is None
        ):
            self._say(
                "sets",
                "no checkpoint is the best: several sets are validated, and none gives val_loss."
                f" monitor={one_of!r} chooses by one.",
            )
        if value is None or not math.isfinite(value) or not self._top_k:
            self._averaged = None
            return
        self._judged = self._session.state.step, value
        self._pending = self._session.ranks.broadcast_object(
            self._session.ranks.first and self._among_best(value)
        )
        if not self._pending:
            self._averaged = None

    def save_best(self) -> None:
        """Write a checkpoint of the marked point, if the validation between two updates was
        among the best.
        """
        if self._pending:
            self._save(self._here())

    def save_before(self, error: TaskError) -> TaskError:
        """Write a checkpoint before the run ends with this error; the returned error says how to
        continue from it.
        """
        self._save(self._here())
        self._finish_writing()
        run = self._folder.parent.name
        return TaskError(
            f"{error} A checkpoint of update {self._session.state.step} was saved:"
            f" bench.fit(start={run!r}, …) continues from it."
        )

    def _among_best(self, value: float) -> bool:
        """Whether fewer than save_top_k are kept, or it is better than one of them."""
        values = best_values(list_checkpoints(self._folder.parent), self._monitor)
        if not 0 < self._top_k <= len(values):
            return True
        worst = values[self._top_k - 1]
        return value < worst if self._mode == "min" else value > worst

    # -- the end

    def cut(self) -> None:
        """Store all state where the run's length ends within an epoch, so that a longer fit can
        continue with the rest of the epoch.
        """
        session = self._session
        if session.ranks.any(
            session.state.batch_idx != session.data.batches_of_pass or session.state.pieces > 0
        ):
            self._recorder.flush(wait=True)
            state, why = self._state(ResumePoint.here(session))
            self._left = session.state.step, _copied(state), why

    @contextlib.contextmanager
    def the_end(self) -> Iterator[None]:
        """Context manager in which the model gets its final weights; it then writes the last
        checkpoint, with the state from before.
        """
        self._recorder.flush(wait=True)
        average = self._session.average
        averaged = average is not None and average.count > 0
        handed_over = averaged or bool(self._session.optimizers.modes)
        if self._left is not None and self._left[0] == self._session.state.step:
            _, state, why = self._left
        else:
            state, why = self._state(self._here())
            # from here on weights and statistics change
            state = _copied(state) if handed_over else state
        if handed_over:
            raw = self._raw()  # on all ranks; rank 0 has the state
            state = None if state is None else state | _copied(raw)
        self._averaged = None
        yield
        # The value of the last validation belongs to these weights if they were validated.
        of_these = self._of_average == averaged
        weights = self._session.weights.trained()
        self._write(weights, state, why, self._value() if of_these else None, end=True)

    def restore_best(self) -> None:
        """Give the model the best weights, where `EarlyStopping(restore_best=True)` asks for
        them.
        """
        session = self._session
        best = self._best()
        if best is None or not any(stop.restore_best for stop in session.settings.early_stopping):
            return
        weights = session.weights.read_weights(best.path / files.WEIGHTS)
        session.weights.load(session.task.trained_modules, weights)
        self._restored = True

    def compare_with_best(self) -> str:
        """Compare the model's weights with the best ones, in a sentence; "": early stopping
        ended the fit with them, or did not end it.
        """
        best = self._best() if self._restored or self._validation.ended else None
        if best is None or best.value is None:
            return ""
        shown = f"best {self._monitor} {number(best.value)} at update {best.step}"
        if self._restored:
            return f"the model has the best weights ({shown})."
        if best.step == self._session.state.step:
            return ""
        return (
            f"the model has its last weights, {shown}: bench.load({self._folder.parent.name!r},"
            " 'best')."
        )

    def _best(self) -> Checkpoint | None:
        """The checkpoint with the best value of the monitor; None: there is none."""
        ranked = ranked_by(self._monitor, list_checkpoints(self._folder.parent), self._mode)
        return self._session.ranks.broadcast_object(ranked[0] if ranked else None)

    # -- writing

    def _here(self) -> ResumePoint:
        """The marked point if it is of this update, since batches may have been read after it;
        else the present one.
        """
        if self._marked is not None and self._marked[0] == self._place():
            # without the position in the validation data, which a validation has changed
            point = self._marked[1]
            return ResumePoint(
                point.random, {**point.data, "val": self._session.data.val_position()}
            )
        return ResumePoint.here(self._session)

    def _place(self) -> tuple[int, ...]:
        session = self._session
        return (
            session.state.step,
            session.state.epoch,
            session.state.batch_idx,
            session.state.pieces,
            session.state.validation_due,
        )

    def _save(self, point: ResumePoint, asked: bool = False) -> None:
        session = self._session
        # before the state is taken: the record and the epoch's loss lack the latest updates
        self._recorder.flush(wait=True)
        averaged, self._averaged = self._averaged, None
        value = None if averaged is None and self._of_average else self._value()
        state, why = self._state(point)
        weights: Mapping[str, Tensor]
        if session.optimizers.modes:
            with session.optimizers.modes.evaluating():
                weights = {
                    name: _copy(tensor) for name, tensor in session.weights.trained().items()
                }
        elif averaged is not None and value is not None:
            weights = averaged
        else:
            weights = session.weights.trained()
        if session.optimizers.modes or weights is averaged:
            raw = self._raw()  # on all ranks; rank 0 has the state
            state = None if state is None else state | raw
        self._write(weights, state, why, value, asked=asked)

    def _value(self) -> float | None:
        """The monitor's value for the present weights."""
        return (
            self._judged[1]
            if self._judged is not None and self._judged[0] == self._session.state.step
            else None
        )

    def _raw(self) -> dict[str, Any]:
        """The training weights, for the state of a checkpoint whose weights are the averaged
        ones.
        """
        return {
            "raw": to_plain(
                self._session.hooks.edits.stored(self._session.weights.trained()), "the model"
            )
        }

    def _state(self, point: ResumePoint) -> tuple[dict[str, Any] | None, str | None]:
        """All state but the weights, or why it cannot be stored; of all ranks, on rank 0."""
        held, lost = self._extras.state()
        for problem in lost:
            self._say(
                problem,
                f"{problem} {checkpoints.UNSTORED}: a fit that continues from one begins with its"
                " value at that time.",
            )
        inexact = (
            self._session.data.why_inexact()
            if self._session.state.mid_epoch and not self._session.state.validation_due
            else None
        )
        if inexact is not None:
            self._say(
                "data", f"a fit that continues from the middle of an epoch is not exact: {inexact}."
            )
        state: dict[str, Any] | None = None
        why: str | None = None
        try:
            state = state_of(self._session, self._validation, point, held)
            why = self._session.hooks.edits.unresumable or None
            state = None if why else state
        except NotPlainError as error:
            why = str(error)
        if self._session.ranks.several:
            state = per_rank.gather_states(
                self._session.ranks,
                self._session.task.modules,
                state,
                sharded=self._session.weights.sharded,
            )
        why = next(
            (reason for reason in self._session.ranks.all_gather_object(why) if reason is not None),
            None,
        )
        if why is not None:
            self._say(
                "state",
                f"checkpoints have weights alone, and no fit can continue from them: {why}.",
            )
        return state, why

    def _write(
        self,
        weights: Mapping[str, Tensor],
        state: dict[str, Any] | None,
        why: str | None,
        value: float | None,
        *,
        end: bool = False,
        asked: bool = False,
    ) -> None:
        session, name = self._session, name_of(self._session.state.step, end)
        self._step, self._pending = session.state.step, False
        if not asked:
            self._seconds = session.seconds
        self._finish_writing()
        info = self._info(name, state, why, value, end=end, asked=asked)
        saved = Saved(
            info["step"], info["epoch"], name, info["best"], info["monitor"], info["value"]
        )
        self._settle()
        weights = session.hooks.edits.stored(weights)
        if session.weights.sharded:
            self._begin_writing(name, weights, state, info)
            self._written = saved
            if end:
                self._finish_writing()
        elif session.ranks.first:
            try:
                files.write(self._folder, name, weights, state, info)
            except OSError as error:
                self._say_unwritten(saved.step, error)
            else:
                self._emit(saved)
                self._clear_away()

    def _info(
        self,
        name: str,
        state: Mapping[str, Any] | None,
        why: str | None,
        value: float | None,
        *,
        end: bool,
        asked: bool,
    ) -> dict[str, Any]:
        """The contents of the checkpoint's info.json."""
        session, existing = self._session, list_checkpoints(self._folder.parent)
        # it replaces one that is kept
        asked |= any(checkpoint.kept for checkpoint in existing if checkpoint.name == name)
        sign = 1.0 if self._mode == "min" else -1.0
        others = [
            checkpoint.value
            for checkpoint in existing
            if checkpoint.monitor == self._monitor
            and checkpoint.value is not None
            and checkpoint.step != session.state.step
        ]
        return {
            "step": session.state.step,
            "epoch": session.state.epoch if state is None else state["epoch"],
            "end": end,
            "monitor": None if value is None else self._monitor,
            "value": value,
            "mode": self._mode,
            "best": value is not None and all(sign * value < sign * other for other in others),
            "resumable": state is not None,
            "why": why,
            "kept": asked,
            "removed": list(session.hooks.edits.removed),
            "time": time.time(),
        }

    # -- sharded weights

    def save_start(self) -> None:
        """Write the weights from which the fit starts, of which each rank has its shard."""
        error = None
        try:
            files.save_weights(
                self._session.task.trained_modules, self._folder / "start.safetensors"
            )
        except OSError as failure:
            error = f"rank {self._session.ranks.rank}: {failure}"
        errors = [text for text in self._session.ranks.all_gather_object(error) if text]
        if errors:
            self._say(
                "start",
                f"what the run starts from could not be saved ({'; '.join(errors)}); the run"
                " continues.",
            )

    def _begin_writing(
        self, name: str, weights: Mapping[str, Tensor], state: Any, info: Mapping[str, Any]
    ) -> None:
        """Copy this rank's part of a checkpoint, and let a thread write the copy."""
        ranks, folder, step = self._session.ranks, self._folder, self._session.state.step
        aside: Path | OSError | None = None
        if ranks.first:
            try:
                aside = files.begin(folder, name)
            except OSError as error:
                aside = error
        aside = ranks.broadcast_object(aside)
        if not isinstance(aside, Path):
            if isinstance(aside, OSError):
                self._say_unwritten(step, aside)
            return
        plain, sharded = set_aside(state, copy=True)
        tensor_files = [TensorFile.of(files.WEIGHTS, weights, copy=True)]
        if sharded:
            tensor_files.append(TensorFile.of("state.safetensors", sharded, copy=True))
        tensor_files = [file for file in tensor_files if file.is_written_by(ranks.rank)]
        self._writer = RankWriter(
            ranks,
            aside,
            folder / name,
            partial(
                files.write_files,
                tensor_files=tensor_files,
                state=plain if ranks.first else None,
                info=info if ranks.first else None,
            ),
            self._session.settings.rank_timeout,
        )

    def _finish_writing(self) -> None:
        """Wait for the checkpoint that is being written; all ranks call it together."""
        if self._writer is not None:
            self._writer.wait()
            self._take_written()

    def _take_written(self) -> None:
        """Say that the checkpoint is written, or why it is not."""
        writer, self._writer = self._writer, None
        saved = self._written
        if writer is None or saved is None or not self._session.ranks.first:
            return
        if writer.error is not None:
            self._say_unwritten(saved.step, writer.error)
            return
        self._emit(saved)
        self._clear_away()

    def close(self) -> None:
        """Give a checkpoint that is being written a while to be complete, also where the fit has
        failed.
        """
        if self._writer is not None:
            self._writer.wait(_AFTER)
            if self._writer.is_done:
                self._take_written()

    def _say_unwritten(self, step: int, error: OSError) -> None:
        # Where the run's folder has disappeared, that ends the run: its record is written there.
        if self._folder.parent.is_dir():
            self._say(
                error.errno or type(error),
                f"no checkpoint was written at update {step} ({error}); the fit continues.",
            )

    def _clear_away(self) -> None:
        for checkpoint in obsolete(list_checkpoints(self._folder.parent), self._top_k, self._mode):
            try:
                files.remove(checkpoint.path)
            except OSError as error:
                self._say("old", f"an old checkpoint could not be removed ({error}).")

    def _say(self, kind: object, text: str) -> None:
        """Emit a warning, once for each `kind`."""
        if kind not in self._said:
            self._said.add(kind)
            self._emit(Message(text, "warning", self._session.state.step))


def _copy(tensor: Tensor) -> Tensor:
    """A copy in host memory; of a sharded tensor, in that of its device."""
    return tensor.clone() if in_shards(tensor) else tensor.to("cpu", copy=True)


def _copied(state: dict[str, Any] | None) -> Any:
    """The state with copied tensors, except for those of optimizers, which nothing changes after
    the last update.
    """
    if state is None:
        return None
    return {key: entry if key == "optimizers" else _own(entry) for key, entry in state.items()}


def _own(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return type(value)((key, _own(entry)) for key, entry in value.items())
    if type(value) in (list, tuple):
        return type(value)(_own(entry) for entry in value)
    return value
