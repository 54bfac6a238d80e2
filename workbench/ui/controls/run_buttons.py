"""The buttons that start, pause and end a fit, change a running one, and write the script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ipywidgets as widgets

from workbench.events import Status
from workbench.ui.controls.widget_utils import shown


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
    export: Callable[[str], None]
    tune: Callable[[], None]


class RunButtons(widgets.VBox):  # type: ignore[misc]
    """▶ Fit with these, ❚❚ Pause, ■ Stop, ▶ Continue, Apply to the run, Tune, All settings, Export…, ⋯"""

    def __init__(self, actions: Actions) -> None:
        self.fit = button("▶ Fit with these", "Train with the settings above", actions.fit, "primary")
        self.pause = button("❚❚ Pause", "Wait before the next update", actions.pause)
        self.stop = button("■ Stop", "End at the next update and keep the results so far", actions.stop)
        # After Stop, so that the button under a hand that has just pressed it stays Stop.
        self.continue_ = button(
            "▶ Continue", "Continue the last fit with its optimizers and its position in the data, and with the settings changed since",
            actions.continue_,
        )  # fmt: skip
        self.apply = button("Apply to the run", "", actions.apply).add_class("wb-apply")
        self.tune = button(
            "Tune", "Find loader workers, a batch size, a learning rate and a clip value, one after another; nothing is applied", actions.tune
        )
        self.settings = _toggle("All settings", "Every other setting", icon="sliders")
        self.export = _toggle("Export…", "See and write a script that repeats the last fit")
        self.more = _toggle("⋯", "More that can be done while a fit runs")
        self.path = widgets.Text("train.py", description="File", style={"description_width": "auto"})
        self.write = button("Write the script", "Write it, with the starting weights beside it", self._write, "primary")
        self.validate = button("Validate now", "Validate before the next update; the run does not change", actions.validate)
        self.checkpoint = button("Save a checkpoint now", "Write one before the next update; it stays as long as the run does", actions.checkpoint)
        self._actions = actions
        exporting, now = widgets.HBox([self.path, self.write]), widgets.HBox([self.validate, self.checkpoint])
        gap = widgets.Box().add_class("wb-gap")
        buttons = [self.fit, self.pause, self.stop, self.continue_, self.apply, gap, self.tune, self.settings, self.export, self.more]
        super().__init__([widgets.Box(buttons).add_class("wb-run"), now, exporting])
        for toggle, box in ((self.export, exporting), (self.more, now)):
            toggle.observe(lambda change, box=box: shown(box, change["new"]), "value")
            shown(box, False)
        self.export.observe(lambda change: actions.preview(change["new"]), "value")
        self.follow(None, "")
        self.offer_to_continue(False)
        self.offer_change("")

    def follow(self, status: Status | None, kind: str) -> None:
        """Set the buttons to what can be done now: only a fit can be paused, only a job that has not ended can be
        stopped.
        """
        live = status in ("running", "paused")
        self.stop.disabled = not (live or status == "queued")
        for one in (self.pause, self.validate, self.checkpoint):
            one.disabled = not (live and kind == "fit")
        self.pause.description = "▶ Resume" if status == "paused" else "❚❚ Pause"
        self.pause.tooltip = "Resume training" if status == "paused" else "Wait before the next update"

    def offer_to_continue(self, possible: bool) -> None:
        """Offer to continue the last fit, where it has ended and more can be done."""
        shown(self.continue_, possible)

    def offer_change(self, what: str) -> None:
        """Offer to change the running fit: `what` names the values. Empty: nothing differs."""
        shown(self.apply, bool(what))
        if what:
            self.apply.description = f"Apply to the run: {what}"
            self.apply.tooltip = "The running fit keeps its own values until you press this"

    def _write(self) -> None:
        self._actions.export(self.path.value.strip() or "train.py")


def button(text: str, tooltip: str, clicked: Callable[[], None], style: str = "") -> widgets.Button:
    """A button as wide as its text."""
    made = widgets.Button(description=text, tooltip=tooltip, button_style=style, layout=widgets.Layout(width="auto"))
    made.on_click(lambda _: clicked())
    return made


def _toggle(text: str, tooltip: str, icon: str = "") -> widgets.ToggleButton:
    return widgets.ToggleButton(description=text, tooltip=tooltip, icon=icon, layout=widgets.Layout(width="auto"))
