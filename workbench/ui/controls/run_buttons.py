"""Keeps the buttons that start, pause and end a fit, change a running one, and write the script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.events import Status
from workbench.ui import texts
from workbench.ui.controls.board import Board


@dataclass(frozen=True)
class Actions:
    """The calls of the buttons. Each returns at once."""

    fit: Callable[[], None]
    continue_: Callable[[], None]
    pause: Callable[[], None]
    stop: Callable[[], None]
    apply: Callable[[], None]
    validate: Callable[[], None]
    checkpoint: Callable[[], None]
    preview: Callable[[bool], None]
    """Show the script, or close it."""
    tune: Callable[[], None]
    profile: Callable[[], None]


class RunButtons:
    """▶ Train, ❚❚ Pause, ■ Stop, ▶ Continue, Apply to the run, Tune, Export…, ⋯"""

    def __init__(self, board: Board, actions: Actions) -> None:
        self.fit = board.button("train", texts.TRAIN, "", actions.fit)
        self.pause = board.button("pause", texts.PAUSE, texts.PAUSE_TOOLTIP, actions.pause)
        self.stop = board.button("stop", texts.STOP, texts.STOP_TOOLTIP, actions.stop)
        self.continue_ = board.button(
            "continue", texts.CONTINUE, texts.CONTINUE_TOOLTIP, actions.continue_
        )
        self.apply = board.button("apply", texts.APPLY, texts.APPLY_TOOLTIP, actions.apply)
        self.tune = board.button("tune", texts.TUNE, texts.TUNE_TOOLTIP, actions.tune)
        self.export = board.toggle("export", texts.EXPORT, texts.EXPORT_TOOLTIP, actions.preview)
        self.validate = board.button(
            "validate", texts.VALIDATE, texts.VALIDATE_TOOLTIP, actions.validate
        )
        self.checkpoint = board.button(
            "checkpoint", texts.CHECKPOINT, texts.CHECKPOINT_TOOLTIP, actions.checkpoint
        )
        self.profile = board.button(
            "profile", texts.PROFILE, texts.PROFILE_TOOLTIP, actions.profile
        )
        self.follow(None, "")
        self.offer_to_train("", ())
        self.offer_to_continue(False)
        self.offer_change("")

    def follow(self, status: Status | None, kind: str) -> None:
        """Enable the buttons that have an effect now: only a fit can be paused, only a job that
        has not ended can be stopped.
        """
        live = status in ("running", "paused")
        self.stop.set(
            text=texts.STOP,
            tooltip=texts.STOP_TOOLTIP,
            disabled=not (live or status == "queued"),
        )
        for control in (self.pause, self.validate, self.checkpoint):
            control.set(disabled=not (live and kind == "fit"))
        if status == "paused":
            self.pause.set(text=texts.RESUME, tooltip=texts.RESUME_TOOLTIP)
        else:
            self.pause.set(text=texts.PAUSE, tooltip=texts.PAUSE_TOOLTIP)

    def stopping(self) -> None:
        """Show that the job stops: it ends only before its next update. A second click is shown,
        too: it kills ranks that do not end.
        """
        if self.stop.disabled:
            return
        again = self.stop.text != texts.STOP
        self.stop.set(
            text=texts.STOPPING_NOW if again else texts.STOPPING, tooltip=texts.STOPPING_TOOLTIP
        )

    def offer_to_train(self, state: str, wrong: Sequence[str]) -> None:
        """Update Train. state: of a fit that waits or runs; wrong: the settings whose boxes have
        invalid values.
        """
        if state:
            text, why = (
                (texts.QUEUED if state == "queued" else texts.TRAINING),
                texts.TRAINING_TOOLTIP,
            )
        elif wrong:
            text, why = texts.correct(wrong), texts.not_valid(wrong)
        else:
            text, why = texts.TRAIN, texts.TRAIN_TOOLTIP
        self.fit.set(text=text, tooltip=why, off=bool(state or wrong))

    def offer_to_continue(self, possible: bool) -> None:
        """Show Continue if the last fit can be continued, else hide it."""
        self.continue_.set(visible=possible)

    def offer_change(self, what: str) -> None:
        """Show Apply if there are values to change in the running fit; `what` names them, "":
        none.
        """
        self.apply.set(visible=bool(what), text=texts.apply(what) if what else None)
