"""The form of all settings that are not in the header, one collapsed section a group, generated from their metadata."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, get_args

import ipywidgets as widgets

from workbench.runs.setting_text import same
from workbench.settings import Group, Settings, metadata_of
from workbench.ui.controls import setting_control
from workbench.ui.controls.header import Found
from workbench.ui.controls.setting_control import Control

HEADER = ("batch_size", "lr", "gradient_clip_val", "max_epochs")
"""The four settings that a person tunes; they are in the panel's header."""

Edited = Callable[[str, Any], None]


def grouped() -> dict[Group, list[str]]:
    """The settings of each group, in the order of their fields; without the header's four."""
    groups: dict[Group, list[str]] = {group: [] for group in get_args(Group)}
    for name in Settings.model_fields:
        if name not in HEADER:
            groups[metadata_of(name).group].append(name)
    return {group: names for group, names in groups.items() if names}


class Form(widgets.VBox):  # type: ignore[misc]
    """The accordion. `edited(name, value)` is called when the user changes one; `show` never calls it."""

    def __init__(
        self, settings: Settings, edited: Edited, searches: Mapping[str, tuple[str, Callable[[], None]]], use: Callable[[dict[str, Any]], None]
    ) -> None:
        """searches: by setting, what its Find button does, in words, and the call. use: applies what was found."""
        self._edited, self._searches, self._use = edited, searches, use
        self.find: dict[str, widgets.Button] = {}
        """The Find buttons of the settings that have a search."""
        self.found: dict[str, Found] = {}
        """The buttons that use what these found."""
        self._here = threading.local()
        """`showing` is set in the thread that updates the controls: its changes are not the user's."""
        self.controls: dict[str, Control] = {}
        self.refused: set[str] = set()
        """Settings whose text is not a valid value; it stays until it is corrected."""
        self._settings = settings
        sections = [self._section(names, settings) for names in grouped().values()]
        titles = [group.capitalize() for group in grouped()]
        self.accordion = widgets.Accordion(sections, titles=titles, selected_index=None)
        super().__init__([self.accordion])

    def show(self, settings: Settings) -> None:
        """Set the controls to these settings. A refused text stays, marked, to be corrected."""
        before, self._settings = self._settings, settings
        self._here.showing = True
        try:
            for name, control in self.controls.items():
                value = getattr(settings, name)
                kept = control.refused() and same(value, getattr(before, name))
                if not kept and not same(control.read(), value):
                    control.write(value)
                if kept != (name in self.refused):
                    self._mark(control, kept)
            for offer in self.found.values():
                offer.settle(settings)
        finally:
            self._here.showing = False

    def _section(self, names: list[str], settings: Settings) -> widgets.Widget:
        for name in names:
            control = setting_control.make(name, getattr(settings, name))
            control.widget.observe(lambda change, control=control: self._changed(control, change["new"]), "value")
            self.controls[name] = control
        return widgets.VBox([self._row(name) for name in names]).add_class("wb-form-grid")

    def _row(self, name: str) -> widgets.Widget:
        """The setting's control, with the search for its value where there is one."""
        control = self.controls[name].widget
        if name not in self._searches:
            return control
        tooltip, search = self._searches[name]
        self.find[name] = widgets.Button(description="Find", tooltip=tooltip, layout=widgets.Layout(width="auto"))
        self.find[name].on_click(lambda _: search())
        self.found[name] = Found(self._use)
        return widgets.HBox([control, self.find[name], self.found[name]]).add_class("wb-form-found")

    def _changed(self, control: Control, said: Any) -> None:
        """The user changed a control; by now another thread may have shown the old settings over it."""
        if not getattr(self._here, "showing", False):
            self._edited(control.name, control.means(said))

    def _mark(self, control: Control, refused: bool) -> None:
        """Mark, and not by colour alone, that the text is not valid."""
        control.widget.description = f"⚠ {control.name}" if refused else control.name
        control.widget.style.text_color = "#c2410c" if refused else None
        self.refused ^= {control.name}
