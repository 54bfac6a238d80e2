"""Makes the buttons that start, pause and end a fit, change a running one, and write the script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ipywidgets as widgets

from workbench.events import Status
from workbench.ui import texts
from workbench.ui.controls.widget_utils import off, shown


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


class RunButtons(widgets.VBox):  # type: ignore[misc]
    """▶ Train, ❚❚ Pause, ■ Stop, ▶ Continue, Apply to the run, Tune, Export…, ⋯"""

    def __init__(self, actions: Actions) -> None:
        self.fit = button(texts.TRAIN, "", actions.fit, "primary")
        self.pause = button(texts.PAUSE, texts.PAUSE_TOOLTIP, actions.pause)
        self.stop = button(texts.STOP, texts.STOP_TOOLTIP, actions.stop)
        # After Stop, so that the button that the user has just pressed does not move.
        self.continue_ = button(texts.CONTINUE, texts.CONTINUE_TOOLTIP, actions.continue_)
        self.apply = button(texts.APPLY, "", actions.apply).add_class("wb-apply")
        self.tune = button(texts.TUNE, texts.TUNE_TOOLTIP, actions.tune).add_class("wb-tune")
        self.export = _toggle(texts.EXPORT, texts.EXPORT_TOOLTIP).add_class("wb-export")
        self.more = _toggle(texts.MORE, texts.MORE_TOOLTIP)
        self.validate = button(texts.VALIDATE, texts.VALIDATE_TOOLTIP, actions.validate)
        self.checkpoint = button(texts.CHECKPOINT, texts.CHECKPOINT_TOOLTIP, actions.checkpoint)
        self.profile = button(texts.PROFILE, texts.PROFILE_TOOLTIP, actions.profile)
        more = widgets.HBox([self.validate, self.checkpoint, self.profile])
        buttons = [
            self.fit,
            self.pause,
            self.stop,
            self.continue_,
            self.apply,
            self.tune,
            self.export,
            self.more,
        ]
        super().__init__([widgets.Box(buttons).add_class("wb-run"), more])
        shown(more, False)
        self.more.observe(lambda change: shown(more, change["new"]), "value")
        self.export.observe(lambda change: actions.preview(change["new"]), "value")
        self.follow(None, "")
        self.offer_to_train("", ())
        self.offer_to_continue(False)
        self.offer_change("")

    def follow(self, status: Status | None, kind: str) -> None:
        """Enable the buttons that have an effect now: only a fit can be paused, only a job that
        has not ended can be stopped.
        """
        live = status in ("running", "paused")
        self.stop.disabled = not (live or status == "queued")
        self.stop.description = texts.STOP
        for control in (self.pause, self.validate, self.checkpoint):
            control.disabled = not (live and kind == "fit")
        self.pause.description = texts.RESUME if status == "paused" else texts.PAUSE
        self.pause.tooltip = texts.RESUME_TOOLTIP if status == "paused" else texts.PAUSE_TOOLTIP

    def stopping(self) -> None:
        """Show that the job stops: it ends only before its next update."""
        if not self.stop.disabled:
            self.stop.description = texts.STOPPING

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
        self.fit.description, self.fit.tooltip = text, why
        off(self.fit, bool(state or wrong))

    def offer_to_continue(self, possible: bool) -> None:
        """Show Continue if the last fit can be continued, else hide it."""
        shown(self.continue_, possible)

    def offer_change(self, what: str) -> None:
        """Show Apply if there are values to change in the running fit; `what` names them, "":
        none.
        """
        shown(self.apply, bool(what))
        if what:
            self.apply.description = texts.apply(what)
            self.apply.tooltip = texts.APPLY_TOOLTIP


def button(text: str, tooltip: str, clicked: Callable[[], None], style: str = "") -> widgets.Button:
    """A button as wide as its text."""
    widget = widgets.Button(
        description=text, tooltip=tooltip, button_style=style, layout=widgets.Layout(width="auto")
    )
    widget.on_click(lambda _: clicked())
    return widget


def _toggle(text: str, tooltip: str) -> widgets.ToggleButton:
    return widgets.ToggleButton(
        description=text, tooltip=tooltip, layout=widgets.Layout(width="auto")
    )
