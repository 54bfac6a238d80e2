"""Makes the control of each setting from its type and metadata in `workbench.settings`, parses
typed values, and keeps invalid ones until they are corrected.
"""

from __future__ import annotations

import ast
import contextlib
import html
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import ipywidgets as widgets

from workbench.settings import Settings, SettingsError, metadata_of
from workbench.settings.setting_text import same, typed
from workbench.ui import texts
from workbench.ui.controls.widget_utils import shown


class SettingControl:
    """The control of setting `name`. `means` converts the widget's value to the setting's,
    `write` shows a value of the setting.
    """

    def __init__(
        self,
        name: str,
        widget: widgets.Widget,
        means: Callable[[Any], Any],
        write: Callable[[Any], None],
    ) -> None:
        self.name, self.widget, self.means, self.write = name, widget, means, write
        self.why = ""
        """Why the shown value was refused; "": it is the setting's value."""
        self._row: widgets.Box | None = None
        self._reason: widgets.HTML | None = None

    def read(self) -> Any:
        """The shown value."""
        return self.means(self.widget.value)

    def stands_in(self, row: widgets.Box) -> None:
        """Set the box that contains the widget; the reason of a refusal is added at its end."""
        self._row = row

    def mark(self, why: str) -> None:
        """Show below the value why it was refused; "": it is valid."""
        if why == self.why:
            return
        self.why = why
        (self.widget.add_class if why else self.widget.remove_class)("wb-refused")
        if self._row is None:
            return
        if self._reason is None:
            # Made when first needed, and added at the end, so that the page does not draw the other
            # widgets again.
            self._reason = widgets.HTML().add_class("wb-why")
            self._row.children = (*self._row.children, self._reason)
        # a text may begin with the name of a setting, which keeps its case
        text = why[:1].upper() + why[1:] if why.partition(" ")[0].isalpha() else why
        self._reason.value = f'<span role="alert">⚠ {html.escape(text)}</span>' if why else ""
        shown(self._reason, bool(why))


class SettingControls:
    """The controls of the settings, each made when it is first asked for. An invalid value stays
    in its box until it is corrected, or the setting is changed elsewhere.

    edited(name, value): sets the setting, and returns why that was refused, or "". refused():
    called when the refused settings have changed.
    """

    def __init__(
        self, settings: Settings, edited: Callable[[str, Any], str], refused: Callable[[], None]
    ) -> None:
        self._settings, self._edited, self._refused = settings, edited, refused
        self._here = threading.local()
        """By thread. `showing`: the thread updates the controls, so that its changes are not the
        user's. `entered`: the control whose new value the thread sets.
        """
        self._controls: dict[str, SettingControl] = {}

    def __getitem__(self, name: str) -> SettingControl:
        if name not in self._controls:
            control = self._controls[name] = make(name, getattr(self._settings, name))
            # The value that the user sent, and not the present one, which another thread may have
            # overwritten with the old setting.
            control.widget.observe(lambda change: self._changed(control, change["new"]), "value")
        return self._controls[name]

    @property
    def refused(self) -> list[str]:
        """The settings whose entered values were refused."""
        return [
            name
            for name in Settings.model_fields
            if name in self._controls and self._controls[name].why
        ]

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Context manager in which this thread's changes of the controls are not the user's."""
        before, self._here.showing = self.shows, True
        try:
            yield
        finally:
            self._here.showing = before

    @property
    def shows(self) -> bool:
        """Whether this thread updates the controls."""
        return getattr(self._here, "showing", False)

    def show(self, settings: Settings) -> None:
        """Set the controls to these settings. A refused value stays where its setting has not
        changed.
        """
        before, self._settings = self._settings, settings
        with self.showing():
            for name, control in self._controls.items():
                value = getattr(settings, name)
                if (
                    control.why
                    and same(value, getattr(before, name))
                    and name != getattr(self._here, "entered", "")
                ):
                    continue
                self._mark(control, "")
                if not same(control.read(), value):
                    control.write(value)

    def _changed(self, control: SettingControl, entered: Any) -> None:
        if self.shows:
            return
        self._here.entered = control.name
        try:
            why = self._edited(control.name, control.means(entered))
        finally:
            self._here.entered = ""
        with self.showing():
            if why:
                control.widget.value = entered
            self._mark(control, why)

    def _mark(self, control: SettingControl, why: str) -> None:
        changes = bool(control.why) != bool(why)
        control.mark(why)
        if changes:
            self._refused()


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts of a field's annotation: its plain types, its choices, and whether None is
    allowed.
    """

    types: tuple[type, ...]
    choices: tuple[Any, ...]
    optional: bool


def shape(name: str) -> Shape:
    """The shape of setting `name`."""
    return Shape(*_flatten(Settings.model_fields[name].annotation))


def make(name: str, value: Any) -> SettingControl:
    """The control for setting `name`, showing `value`."""
    s = shape(name)
    if s.types == (bool,) and s.choices:
        control = _choice(name, {texts.NO: False, texts.YES: True} | {str(c): c for c in s.choices})
    elif s.types == (bool,):
        control = _choice(name, _BOOLEANS) if s.optional else _checkbox(name)
    elif s.choices and not s.types:
        control = _choice(
            name,
            {str(c): c for c in s.choices}
            | ({_NONE.get(name, texts.NONE): None} if s.optional else {}),
        )
    else:
        control = _text(name, s)
    control.write(value)
    return control


def tooltip(name: str) -> str:
    """The help of a setting, with its unit."""
    unit = metadata_of(name).unit
    both = {int, float} <= set(shape(name).types)
    kinds = texts.WHOLE_OR_FRACTION if both else ""
    return f"{Settings.model_fields[name].description}{f' ({unit})' if unit else ''}{kinds}"


_NOTHING = ("none", "off")
_WORDS = {"yes": True, "on": True, "true": True, "no": False, "false": False}
_BOOLEANS = {texts.AUTO: None, texts.YES: True, texts.NO: False}
_NONE = {"monitor_mode": texts.MONITOR_MODE_BY_NAME}
"""The label of None, where it is not "none"."""
_WIDE = {"description_width": "184px"}  # as long as the longest name, marked


def _common(name: str) -> dict[str, Any]:
    """The arguments that all controls share. A control has the name that the setting has in
    code.
    """
    return {
        "description": name,
        "tooltip": tooltip(name),
        "style": dict(_WIDE),
        "layout": widgets.Layout(width="auto"),
    }


def _checkbox(name: str) -> SettingControl:
    box = widgets.Checkbox(**{**_common(name), "style": {"description_width": "0"}}, indent=False)
    return SettingControl(
        name, box, lambda shown: shown, lambda value: setattr(box, "value", bool(value))
    )


def _choice(name: str, options: dict[str, Any]) -> SettingControl:
    box = widgets.Dropdown(options=list(options), **_common(name))
    # for the widget, the value None means that nothing is chosen
    words = {value: word for word, value in options.items()}
    return SettingControl(
        name, box, lambda word: options[word], lambda value: setattr(box, "value", words[value])
    )


def _text(name: str, s: Shape) -> SettingControl:
    """A text box, for a number, or for a setting that may be None or of several types. An empty
    box means the default.
    """
    default = Settings.model_fields[name].default
    # its default is shown as a number, too
    number = s.types in ((int,), (float,)) and not s.optional
    box = widgets.Text(
        placeholder=typed(name, default) if number else _default_in_words(name),
        continuous_update=False,
        **_common(name),
    )

    def write(value: Any) -> None:
        box.value = "" if not number and same(value, default) else typed(name, value)

    def means(line: str) -> Any:
        value = parse(name, line, bool in s.types)
        settled = _settled(name, value)
        return value if settled is None else settled[0]

    return SettingControl(name, box, means, write)


def _flatten(annotation: Any) -> tuple[tuple[type, ...], tuple[Any, ...], bool]:
    """The plain types, the literal choices, and whether None is among them."""
    origin = get_origin(annotation)
    if origin is Literal:
        choices = get_args(annotation)
        return (), tuple(c for c in choices if c is not None), None in choices
    if origin in (Union, types.UnionType):
        parts = [_flatten(arg) for arg in get_args(annotation)]
        plain = tuple(t for member in parts for t in member[0])
        return (
            plain,
            tuple(c for member in parts for c in member[1]),
            any(member[2] for member in parts),
        )
    if origin is Annotated:
        return _flatten(get_args(annotation)[0])
    if annotation is type(None):
        return (), (), True
    return (origin or annotation,), (), False


# ---- typed values --------------------------------------------------------------------------------


class ParseError:
    """Typed text that is neither a value nor a word. No setting accepts it, and its repr is the
    text, which the error shows.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def parse(name: str, line: str, yes_or_no: bool = False) -> Any:
    """The typed value of setting `name`; empty text is its default."""
    line = line.strip()
    if not line:
        return Settings.model_fields[name].default
    if line.lower() in _NOTHING:
        return _nothing(name, line)
    if yes_or_no and line.lower() in _WORDS:
        return _WORDS[line.lower()]
    try:
        return ast.literal_eval(_Calls().visit(ast.parse(line, mode="eval")))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    if set(line) & set("()[]{}='\""):
        # half a dict, for example, which could pass for the name of a metric
        return ParseError(line)
    if "," in line:
        return [word.strip() for word in line.split(",") if word.strip()]
    return line  # a word; Settings checks it


def _settled(name: str, value: Any) -> tuple[Any] | None:
    """A tuple with the value as Settings stores it; None: Settings refuses it."""
    try:
        return (getattr(Settings.make(**{name: value}), name),)
    except SettingsError:
        return None


def _default_in_words(name: str) -> str:
    """The default, as text."""
    value = Settings.model_fields[name].default
    if name in texts.DEFAULTS:
        return texts.DEFAULTS[name]
    if value is None or value == ():
        return texts.NONE
    if isinstance(value, int | float) and not value:
        return texts.off(value)
    return (
        texts.all_of_it(value)
        if value == 1.0 and metadata_of(name).unit == "batches or a fraction"
        else str(value)
    )


def _nothing(name: str, line: str) -> Any:
    """None, False, no items or 0: the value that switches this setting off."""
    field = Settings.model_fields[name]
    zero = field.default == 0 or any(f"0: {word}" in (field.description or "") for word in _NOTHING)
    for value in (None, False, (), *([0] if zero else [])):
        if _settled(name, value) == (value,):  # and not None for the default
            return value
    return line


class _Calls(ast.NodeTransformer):
    """Replaces a call such as EarlyStopping(monitor='val_loss') by the dict of its arguments."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if node.args or any(item.arg is None for item in node.keywords):
            raise ValueError("only arguments by name are plain data")
        keys: list[ast.expr | None] = [ast.Constant(item.arg) for item in node.keywords]
        return ast.Dict(keys, [item.value for item in node.keywords])
