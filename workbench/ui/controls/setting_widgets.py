"""Makes ipywidgets for settings of a bench, which a notebook shows among its own widgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets as widgets

from workbench.events import BenchEvent, SettingsSet
from workbench.settings import Settings, reason
from workbench.settings.setting_text import same
from workbench.ui import texts
from workbench.ui.bench import Bench
from workbench.ui.controls import setting_control
from workbench.ui.controls.setting_control import SettingControl, shape


class SettingWidgets:
    """The widgets of the settings of one bench, each made when it is first asked for. A change of
    the widget changes the setting, and a change of the setting changes the widget.

    A refused value stays in its widget, whose description then gives the reason.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._links: dict[str, _Link] = {}
        unsubscribe = bench.subscribe(self._hear)

        def close() -> None:
            unsubscribe()
            for link in self._links.values():
                link.close()

        bench.on_close(close)

    def __getitem__(self, name: str) -> Any:
        """The widget of this setting. SettingsError: there is no such setting."""
        if name not in Settings.model_fields:
            Settings.make(**{name: None})  # its error names the setting that was meant
        if name not in self._links:
            self._links[name] = _Link(name, self._bench)
        return self._links[name].widget

    def __contains__(self, name: object) -> bool:
        return name in Settings.model_fields

    def __iter__(self) -> Iterator[str]:
        return iter(Settings.model_fields)

    def __len__(self) -> int:
        return len(Settings.model_fields)

    def _hear(self, event: BenchEvent) -> None:
        if isinstance(event, SettingsSet):
            for link in tuple(self._links.values()):
                link.show()


class _Link:
    """One setting and its widget."""

    def __init__(self, name: str, bench: Bench) -> None:
        self._name, self._bench = name, bench
        control = setting_control.make(name, getattr(bench.settings, name))
        self.widget, self._means, self._words = _make(name, control)
        self.widget.observe(lambda change: self._enter(change["new"]), "value")

    def show(self) -> None:
        """Show the value of the setting; a text that means the same stays."""
        value = getattr(self._bench.settings, self._name)
        if not same(self._means(self.widget.value), value):
            self.widget.value = self._words(value)
        self.widget.description = self._name

    def close(self) -> None:
        """Close the widget, with its layout and its style."""
        for model in (self.widget.layout, self.widget.style, self.widget):
            model.close()

    def _enter(self, entered: Any) -> None:
        value = self._means(entered)
        if same(getattr(self._bench.settings, self._name), value):
            self.widget.description = self._name
            return
        try:
            self._bench.set(**{self._name: value})
        except Exception as error:  # noqa: BLE001 - shown where the value was entered
            why = reason(self._name, value, error)
            self.widget.description = texts.failed(self._name, why)


def _make(
    name: str, control: SettingControl
) -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    """The widget; what its value means for the setting; and the other way."""
    common: dict[str, Any] = {
        "description": name,
        "tooltip": setting_control.explanation(name),
        "style": {"description_width": "initial"},
    }
    if control.options:
        choice = widgets.Dropdown(options=control.options, value=control.shown, **common)
        return choice, control.means, control.words
    if isinstance(control.shown, bool):
        return widgets.Checkbox(value=control.shown, **common), control.means, control.words
    kinds = shape(name)
    for kind, number in ((int, widgets.IntText), (float, widgets.FloatText)):
        if kinds.types == (kind,) and not kinds.optional:
            return number(value=control.read(), **common), kind, kind
    text = widgets.Text(
        value=control.words(control.read()),
        placeholder=control.placeholder,
        continuous_update=False,
        **common,
    )
    return text, control.means, control.words
