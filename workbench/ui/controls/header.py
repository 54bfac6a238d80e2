"""Makes the header: batch size, learning rate, clip and epochs, with their finders."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from dataclasses import dataclass

import ipywidgets as widgets

from workbench.launch.select_launcher import ranks
from workbench.settings import Settings, SettingsError
from workbench.tuners.batch_size.effective_batch import effective_batch
from workbench.ui import texts
from workbench.ui.controls.setting_control import SettingControl, SettingControls, tooltip
from workbench.ui.controls.widget_utils import shown

LOWEST, HIGHEST, STEP = -7, 1, 0.02
"""The slider's range, as powers of ten. The box takes any rate; one outside is shown at the
slider's end.
"""


@dataclass(frozen=True)
class FinderCalls:
    """The calls of the finders' controls. Each returns at once."""

    batch_size: Callable[[bool], None]
    """Search for a batch size; True: keep the number of samples in an update."""
    lr: Callable[[int, bool], None]
    """Sweep the rate of this optimizer; True: then race the best rates."""
    clip_val: Callable[[], None]
    """Measure gradient norms, and suggest a clip value."""
    look_at: Callable[[int], None]
    """Show this optimizer's curves."""


class Header(widgets.Box):  # type: ignore[misc]
    """The four steps. `slid(lr)` is called when the user moves the slider; `show` never calls
    it.
    """

    def __init__(
        self,
        settings: Settings,
        controls: SettingControls,
        slid: Callable[[float], None],
        finders: FinderCalls,
        optimizers: int = 1,
    ) -> None:
        self._controls = controls
        self.batch_size = _bare(controls["batch_size"], texts.BATCH_SIZE, "82px")
        self.clip = _bare(controls["gradient_clip_val"], texts.CLIPPING_LABEL, "82px")
        self.epochs = _bare(controls["max_epochs"], texts.EPOCHS, "72px")
        self.lr = _bare(controls["lr"], texts.LEARNING_RATE, "96px")
        # Not continuous: a continuous slider reports each value that is set from here back, late
        # and rounded, and would undo the user's choice of that time.
        self.slider = widgets.FloatLogSlider(
            value=10 ** on_slider(settings.lr),
            base=10,
            min=LOWEST,
            max=HIGHEST,
            step=STEP,
            readout_format=".1e",
            continuous_update=False,
            layout=widgets.Layout(flex="1 1 70px", width="auto", min_width="70px"),
            tooltip=tooltip("lr"),
        )
        self.keep = widgets.Checkbox(indent=False, layout=widgets.Layout(width="auto")).add_class(
            "wb-keep"
        )
        self.optimizer = widgets.Dropdown(
            options=[(str(i), i) for i in range(optimizers)],
            description=texts.OPTIMIZER,
            layout=widgets.Layout(width="auto"),
            style={"description_width": "auto"},
            tooltip=texts.OPTIMIZER_TOOLTIP,
        )
        shown(self.optimizer, optimizers > 1)
        self.find_batch_size = _button(
            texts.FIND, texts.FIND_BATCH_SIZE, lambda: finders.batch_size(self.keep.value)
        )
        self.find_lr = _button(
            texts.FIND, texts.FIND_LR, lambda: finders.lr(self.optimizer.value, False)
        )
        self.race = _button(
            texts.RACE,
            texts.RACE_TOOLTIP,
            lambda: finders.lr(self.optimizer.value, True),
        )
        self.find_clip = _button(texts.FIND, texts.FIND_CLIP, finders.clip_val)
        self._size_step = _step(
            "①",
            texts.BATCH_SIZE,
            self.batch_size,
            [self.batch_size.widget, self.find_batch_size, self.keep],
        )
        rate = [self.slider, self.lr.widget, self.find_lr, self.race, self.optimizer]
        super().__init__(
            [
                self._size_step,
                _step("②", texts.LEARNING_RATE, self.lr, rate).add_class("wb-step-lr"),
                _step(
                    "③",
                    texts.CLIPPING,
                    self.clip,
                    [self.clip.widget, self.find_clip],
                    texts.CLIPPING_NOTE,
                ),
                _step("④", texts.EPOCHS, self.epochs, [self.epochs.widget]),
            ]
        )
        self.add_class("wb-four")
        self.slider.observe(
            lambda change: None if controls.shows else slid(rounded(change["new"])), "value"
        )
        self.optimizer.observe(lambda change: finders.look_at(change["new"]), "value")
        self.show(settings)

    def show(self, settings: Settings) -> None:
        """Update the widgets next to the boxes for these settings."""
        with self._controls.showing():
            if on_slider(self.slider.value) != on_slider(settings.lr):
                self.slider.value = 10 ** on_slider(settings.lr)
            self.epochs.widget.placeholder = (
                texts.NO_NUMBER if settings.epochs is None else str(settings.epochs)
            )
            self._show_kept(settings)
            self._size_step.children[0].value = _name("①", texts.BATCH_SIZE, _each(settings))

    def _show_kept(self, settings: Settings) -> None:
        """Show the number of samples in an update, which the search for a batch size can keep."""
        try:
            kept, why = str(effective_batch(settings, ranks(settings))), texts.KEEP_TOOLTIP
        except SettingsError as error:
            kept, why = "", str(error)
            self.keep.value = False
        self.keep.disabled = not kept
        self.keep.description, self.keep.tooltip = texts.keep(kept) if kept else texts.KEEP, why


def on_slider(lr: float) -> float:
    """The slider's nearest step, as a power of ten."""
    power = math.log10(lr) if lr > 0 else LOWEST
    return round(round(min(max(power, LOWEST), HIGHEST) / STEP) * STEP, 6)


def rounded(value: float) -> float:
    """A rate rounded as a person would write it, at the same step of the slider: 3.2e-3, not
    0.0031622776.
    """
    short = float(f"{value:.1e}")
    return short if on_slider(short) == on_slider(value) else float(f"{value:.2e}")


def _bare(control: SettingControl, title: str, width: str) -> SettingControl:
    """Hide a label whose step's title says the same; screen readers still get it
    (controls/controls.css).
    """
    control.widget.description = title
    control.widget.layout.width = width
    control.widget.style.description_width = "0"
    return control


def _button(text: str, tooltip: str, clicked: Callable[[], None]) -> widgets.Button:
    button = widgets.Button(description=text, tooltip=tooltip, layout=widgets.Layout(width="auto"))
    button.on_click(lambda _: clicked())
    return button


def _step(
    number: str, title: str, control: SettingControl, parts: list[widgets.Widget], note: str = ""
) -> widgets.VBox:
    row = widgets.HBox(parts)
    control.stands_in(row)
    return widgets.VBox([widgets.HTML(_name(number, title, note)), row]).add_class("wb-step")


def _name(number: str, title: str, note: str) -> str:
    aside = f" · {html.escape(note)}" if note else ""
    return (
        f'<div class="wb-step-name">{html.escape(number)} <b>{html.escape(title)}</b>{aside}</div>'
    )


def _each(settings: Settings) -> str:
    """A note on the number of devices that each have a batch of that size; "": one."""
    try:
        count = ranks(settings)
    except SettingsError:  # starting a job will show this error
        return ""
    return texts.each_of(count) if count > 1 else ""
