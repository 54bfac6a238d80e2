"""Makes the form of all settings that are not in the header, from their metadata, with a
collapsed section for each group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

import ipywidgets as widgets

from workbench.settings import Group, Settings, metadata_of
from workbench.ui import texts
from workbench.ui.controls.setting_control import SettingControls

HEADER = ("batch_size", "lr", "gradient_clip_val", "max_epochs")
"""The four settings of the panel's header, which users tune most."""


def grouped() -> dict[Group, list[str]]:
    """The settings of each group, in the order of their fields; without the header's four."""
    groups: dict[Group, list[str]] = {group: [] for group in get_args(Group)}
    for name in Settings.model_fields:
        if name not in HEADER:
            groups[metadata_of(name).group].append(name)
    return {group: names for group, names in groups.items() if names}


class Form(widgets.VBox):  # type: ignore[misc]
    """The accordion with the settings of all groups."""

    def __init__(
        self,
        controls: SettingControls,
        searches: Mapping[str, tuple[str, Callable[[], None]]],
    ) -> None:
        """searches: for each setting the tooltip of its Find button, and the call."""
        self._searches = searches
        self.find: dict[str, widgets.Button] = {}
        """The Find buttons of the settings that have a search."""
        self.controls = {name: controls[name] for names in grouped().values() for name in names}
        # shared: each layout is a model that the browser has to make
        self._row_layout = widgets.Layout(width="auto")
        sections = [
            widgets.VBox([self._row(name) for name in names]).add_class("wb-form-grid")
            for names in grouped().values()
        ]
        titles = [group.capitalize() for group in grouped()]
        self.accordion = widgets.Accordion(sections, titles=titles, selected_index=None)
        super().__init__([self.accordion])
        self.add_class("wb-form")

    def _row(self, name: str) -> widgets.Widget:
        """The setting's control, with the search for its value where there is one."""
        control = self.controls[name]
        parts = [control.widget]
        if name in self._searches:
            tooltip, search = self._searches[name]
            self.find[name] = widgets.Button(
                description=texts.FIND, tooltip=tooltip, layout=widgets.Layout(width="auto")
            )
            self.find[name].on_click(lambda _: search())
            parts.append(self.find[name])
        row = widgets.Box(parts, layout=self._row_layout).add_class("wb-form-row")
        control.stands_in(row)
        return row
