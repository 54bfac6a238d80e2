"""The header: batch size, learning rate, clip and epochs, with their finders and what these found."""

from __future__ import annotations

import html
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ipywidgets as widgets

from workbench.launch.select_launcher import ranks
from workbench.settings import Settings, SettingsError
from workbench.tuners.effective_batch import effective_batch
from workbench.ui.controls import setting_control
from workbench.ui.controls.widget_utils import shown

Edited = Callable[[str, Any], None]
LOWEST, HIGHEST, STEP = -7, 1, 0.02
"""The slider's decades. The number box takes any rate; one outside is shown at the slider's end."""


class Found(widgets.Button):  # type: ignore[misc]
    """The button 'Use 3.2e-3': a search's result, applied only by this click. Hidden without a result.

    '3.2e-3 in use' takes no click, and stays: the keyboard focus is on it right after it was pressed.
    """

    def __init__(self, use: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(layout=widgets.Layout(width="auto", display="none"))
        self._changes: dict[str, Any] = {}
        self._text, self._used = "", False
        self.on_click(lambda _: None if self._used else use(dict(self._changes)))
        self.add_class("wb-use")

    def offer(self, changes: dict[str, Any], text: str, why: str, settings: Settings) -> None:
        """Offer these settings as `text`; hide the button where there are none, or where they are in use already."""
        self._changes, self._text, self.tooltip = changes, text, why
        self.settle(settings)

    def settle(self, settings: Settings) -> None:
        """These settings are in use now."""
        self._used = all(_near(value, getattr(settings, name)) for name, value in self._changes.items())
        self.description = f"{self._text} in use" if self._used else f"Use {self._text}"
        (self.add_class if self._used else self.remove_class)("wb-used")
        shown(self, bool(self._changes))


@dataclass(frozen=True)
class Finding:
    """The calls of the finders' controls. Each returns at once."""

    batch_size: Callable[[bool], None]
    """Search; True: keep the number of samples in an update."""
    lr: Callable[[int, bool], None]
    """Sweep this optimizer; True: and race."""
    clip_val: Callable[[], None]
    """Measure gradient norms, and suggest a clip value."""
    look_at: Callable[[int], None]
    """Show this optimizer's curves."""
    use: Callable[[dict[str, Any]], None]
    """Use what was found."""


class Header(widgets.Box):  # type: ignore[misc]
    """The four steps. `edited(name, value)` is called when the user changes one; `show` never calls it."""

    def __init__(self, settings: Settings, edited: Edited, finding: Finding, optimizers: int = 1) -> None:
        self._edited = edited
        self._here = threading.local()
        """`showing` is set in the thread that updates the controls: its changes are not the user's."""
        self.batch_size = _bare(setting_control.make("batch_size", settings.batch_size), "Batch size", "82px")
        self.clip = _bare(setting_control.make("gradient_clip_val", settings.gradient_clip_val), "Clip, 0: off", "82px")
        self.epochs = _bare(setting_control.make("max_epochs", settings.max_epochs), "Epochs", "72px")
        self.lr = _bare(setting_control.make("lr", settings.lr), "Learning rate", "96px")
        # Not continuous: a continuous slider reports every value back that is set from here, late and a little off,
        # and would undo what was chosen meanwhile.
        self.slider = widgets.FloatLogSlider(
            value=10 ** on_slider(settings.lr), base=10, min=LOWEST, max=HIGHEST, step=STEP, readout_format=".1e", continuous_update=False,
            layout=widgets.Layout(flex="1 1 70px", width="auto", min_width="70px"), tooltip=setting_control.tooltip("lr"),
        )  # fmt: skip
        self.use_batch_size, self.use_lr, self.use_clip = Found(finding.use), Found(finding.use), Found(finding.use)
        self.keep = widgets.Checkbox(indent=False, layout=widgets.Layout(width="auto")).add_class("wb-keep")
        self.optimizer = widgets.Dropdown(
            options=[(str(i), i) for i in range(optimizers)], description="of optimizer", layout=widgets.Layout(width="auto"),
            style={"description_width": "auto"}, tooltip="The optimizer that Find sweeps, and whose curve is shown",
        )  # fmt: skip
        shown(self.optimizer, optimizers > 1)
        self.find_batch_size = _button("Find", "Try batch sizes for speed and memory", lambda: finding.batch_size(self.keep.value))
        self.find_lr = _button("Find", "Sweep the learning rate and watch the loss", lambda: finding.lr(self.optimizer.value, False))
        self.race = _button(
            "Race", "Sweep, then train four rates around the suggestion for a while: validation batches judge",
            lambda: finding.lr(self.optimizer.value, True),
        )  # fmt: skip
        self.find_clip = _button("Find", "Measure the gradient norms of 200 updates, and suggest a clip value", finding.clip_val)
        self._size_step = _step("①", "Batch size", [self.batch_size.widget, self.find_batch_size, self.keep, self.use_batch_size])
        rate = [self.slider, self.lr.widget, self.find_lr, self.race, self.optimizer, self.use_lr]
        super().__init__([
            self._size_step,
            _step("②", "Learning rate", rate).add_class("wb-step-lr"),
            _step("③", "Clip", [self.clip.widget, self.find_clip, self.use_clip], "0: off"),
            _step("④", "Epochs", [self.epochs.widget]),
        ])  # fmt: skip
        self.add_class("wb-four")
        for control in (self.batch_size, self.clip, self.epochs, self.lr):
            # The value that the user sent, not the present one: another thread may have shown the old settings over it.
            control.widget.observe(lambda change, control=control: self._changed(control.name, control.means(change["new"])), "value")
        self.slider.observe(lambda change: self._changed("lr", rounded(change["new"])), "value")
        self.optimizer.observe(lambda change: finding.look_at(change["new"]), "value")
        self.show(settings)

    def show(self, settings: Settings) -> None:
        """Set the controls to these settings."""
        self._here.showing = True
        try:
            for control in (self.batch_size, self.clip, self.epochs, self.lr):
                value = getattr(settings, control.name)
                if control.read() != value:
                    control.write(value)
            if on_slider(self.slider.value) != on_slider(settings.lr):
                self.slider.value = 10 ** on_slider(settings.lr)
            self.epochs.widget.placeholder = "–" if settings.epochs is None else str(settings.epochs)
            self.use_lr.settle(settings)
            self.use_batch_size.settle(settings)
            self.use_clip.settle(settings)
            self._show_kept(settings)
            self._size_step.children[0].value = _name("①", "Batch size", _each(settings))
        finally:
            self._here.showing = False

    def _show_kept(self, settings: Settings) -> None:
        """Show how many samples an update has now, which the search for a batch size can keep."""
        try:
            kept, why = str(effective_batch(settings, ranks(settings))), "Search with as many samples in an update as now"
        except SettingsError as error:
            kept, why = "", str(error)
            self.keep.value = False
        self.keep.disabled = not kept
        self.keep.description, self.keep.tooltip = f"keep {kept} an update" if kept else "keep the update's size", why

    def _changed(self, name: str, value: Any) -> None:
        if not getattr(self._here, "showing", False):
            self._edited(name, value)


def on_slider(lr: float) -> float:
    """The slider's nearest stop, as a power of ten."""
    power = math.log10(lr) if lr > 0 else LOWEST
    return round(round(min(max(power, LOWEST), HIGHEST) / STEP) * STEP, 6)


def rounded(value: float) -> float:
    """A rate as a person would write it, at the same stop of the slider: 3.2e-3, not 0.0031622776."""
    short = float(f"{value:.1e}")
    return short if on_slider(short) == on_slider(value) else float(f"{value:.2e}")


def _near(value: Any, current: Any) -> bool:
    """Whether a setting equals the result, to the digits that are shown."""
    numbers = isinstance(value, int | float) and isinstance(current, int | float)
    return math.isclose(value, current, rel_tol=1e-3) if numbers else bool(value == current)


def _bare(control: setting_control.Control, title: str, width: str) -> setting_control.Control:
    """Hide a label whose step's title says the same; screen readers still get it (panel.css)."""
    control.widget.description = title
    control.widget.layout.width = width
    control.widget.style.description_width = "0"
    return control


def _button(text: str, tooltip: str, clicked: Callable[[], None]) -> widgets.Button:
    button = widgets.Button(description=text, tooltip=tooltip, layout=widgets.Layout(width="auto"))
    button.on_click(lambda _: clicked())
    return button


def _step(number: str, title: str, parts: list[widgets.Widget], note: str = "") -> widgets.VBox:
    return widgets.VBox([widgets.HTML(_name(number, title, note)), widgets.HBox(parts)]).add_class("wb-step")


def _name(number: str, title: str, note: str) -> str:
    aside = f" · {html.escape(note)}" if note else ""
    return f'<div class="wb-step-name">{html.escape(number)} <b>{html.escape(title)}</b>{aside}</div>'


def _each(settings: Settings) -> str:
    """On how many devices a batch of that size is; "" for one."""
    try:
        count = ranks(settings)
    except SettingsError:  # the error comes when a job is started
        return ""
    return f"each of {count}" if count > 1 else ""
