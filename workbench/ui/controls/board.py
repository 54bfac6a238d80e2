"""Keeps the controls of a panel as plain data, which the front end draws, and hears what the user
does with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from workbench.ui import texts
from workbench.ui.controls.notice import Notice
from workbench.ui.controls.setting_control import SettingControls

Put = Callable[[str, Any], None]
"""Sends a value of plain data to the front end by its name."""


class Button:
    """A button of the panel. `set` changes what is shown of it; `click` does what a click does."""

    def __init__(
        self, text: str, tooltip: str, clicked: Callable[[], None], changed: Callable[[], None]
    ) -> None:
        self._clicked, self._changed = clicked, changed
        self.text, self.tooltip = text, tooltip
        self.off = False
        """Whether a click has no effect now. Such a button keeps the keyboard's focus."""
        self.disabled = False
        self.visible = True

    def set(
        self,
        *,
        text: str | None = None,
        tooltip: str | None = None,
        off: bool | None = None,
        disabled: bool | None = None,
        visible: bool | None = None,
    ) -> None:
        """Change how the button is shown; None: as it is."""
        changes = {
            "text": text,
            "tooltip": tooltip,
            "off": off,
            "disabled": disabled,
            "visible": visible,
        }
        for name, value in changes.items():
            if value is not None:
                setattr(self, name, value)
        self._changed()

    def click(self) -> None:
        """Do what a click does; a disabled button does nothing."""
        if not self.disabled:
            self._clicked()

    def described(self) -> dict[str, Any]:
        """The plain data from which the front end draws it."""
        return {
            "text": self.text,
            "tooltip": self.tooltip,
            "off": self.off,
            "disabled": self.disabled,
            "visible": self.visible,
        }


class Toggle(Button):
    """A button that is pressed or not; `toggled` is called with its new state."""

    def __init__(
        self, text: str, tooltip: str, toggled: Callable[[bool], None], changed: Callable[[], None]
    ) -> None:
        super().__init__(text, tooltip, self._turn, changed)
        self._toggled, self._is_pressed = toggled, False

    @property
    def pressed(self) -> bool:
        """Whether it is pressed; setting it does what a click does."""
        return self._is_pressed

    @pressed.setter
    def pressed(self, is_pressed: bool) -> None:
        if is_pressed != self._is_pressed:
            self._is_pressed = is_pressed
            self._changed()
            self._toggled(is_pressed)

    def described(self) -> dict[str, Any]:
        return {**super().described(), "pressed": self._is_pressed}

    def _turn(self) -> None:
        self.pressed = not self._is_pressed


class Board:
    """The buttons, the settings and the notices of one panel."""

    def __init__(
        self,
        put: Put,
        controls: SettingControls,
        notice: Notice,
        lock: AbstractContextManager[Any],
    ) -> None:
        """lock: held while a setting is changed, so that no other thread shows the settings
        meanwhile.
        """
        self._put, self._controls, self._notice, self._lock = put, controls, notice, lock
        self._buttons: dict[str, Button] = {}

    def button(self, name: str, text: str, tooltip: str, clicked: Callable[[], None]) -> Button:
        """Add a button. name: by which the front end places it."""
        button = self._buttons[name] = Button(text, tooltip, clicked, self.show)
        return button

    def toggle(self, name: str, text: str, tooltip: str, toggled: Callable[[bool], None]) -> Toggle:
        """Add a button that is pressed or not."""
        button = self._buttons[name] = Toggle(text, tooltip, toggled, self.show)
        return button

    def show(self) -> None:
        """Send the buttons as they are now."""
        self._put("buttons", {name: button.described() for name, button in self._buttons.items()})

    def hear(self, message: Mapping[str, Any]) -> bool:
        """Carry out what the user did with a control; False: the message is about something
        else.
        """
        match message:
            case {"what": "press", "button": str(name)}:
                if name not in self._buttons:
                    raise ValueError(texts.unknown_request(dict(message)))
                self._buttons[name].click()
            case {"what": "enter", "name": str(name), "value": str(value) | bool(value)}:
                with self._lock:
                    self._controls.enter(name, value)
            case {"what": "close_notices"}:
                self._notice.clear()
            case {"what": "answer_notice", "number": int(number), "offer": str(offer)}:
                self._notice.answer(number, offer)
            case _:
                return False
        return True
