"""Makes the control of each setting from its type and metadata in `workbench.settings`, parses
typed values, and keeps invalid ones until they are corrected.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from workbench.settings import Settings, SettingsError, metadata_of
from workbench.settings.setting_text import same, typed
from workbench.ui import texts
from workbench.ui.canvas.transport.messages import cut
from workbench.units import RATES, rate

_BYTES = 12_000
"""Bytes of a value or of a reason as JSON, so that both fit into one message."""
_DIGITS = 6
"""Significant digits of a rate that is shown; a computed one has up to 17."""
Entered = str | bool
"""What a control shows, and what a user enters: text, one of its options, or a tick."""


class SettingControl:
    """The control of setting `name`. `means` converts what is entered to the setting's value,
    `words` converts a value of the setting to what is shown.
    """

    def __init__(
        self,
        name: str,
        means: Callable[[Any], Any],
        words: Callable[[Any], Entered],
        options: Sequence[str] = (),
        placeholder: str = "",
    ) -> None:
        self.name, self.means, self.words = name, means, words
        self.options = tuple(options)
        """The options of a choice; empty: there is a box for text, or a tick."""
        self.placeholder = placeholder
        """What an empty box means."""
        self.shown: Entered = ""
        self._written: tuple[Entered, Any] = ("", None)
        """The last value that was not entered, which may have more digits than are shown for it."""
        self.why = ""
        """Why the shown value was refused; "": it is the setting's value."""

    def read(self) -> Any:
        """The shown value."""
        shown, value = self._written
        return value if self.shown == shown else self.means(self.shown)

    def write(self, value: Any) -> None:
        """Show a value of the setting."""
        self.shown = self.words(value)
        if self.shown and self.name in RATES and isinstance(value, float):
            self.shown = rate(value, _DIGITS)
        self._written = self.shown, value

    def described(self) -> dict[str, Any]:
        """What the front end shows now. why: the reason of a refusal, as a sentence."""
        why = cut(_as_sentence(self.why), _BYTES)
        shown = self.shown if isinstance(self.shown, bool) else cut(self.shown, _BYTES)
        return {"shown": shown, "why": why}


class SettingControls:
    """The controls of all settings. An invalid value stays in its box until it is corrected, or the
    setting is changed elsewhere.

    edited(name, value): sets the setting, and returns why that was refused, or "". refused():
    called when the refused settings have changed. put: sends plain data to the front end. names:
    the settings that have controls.
    """

    def __init__(
        self,
        settings: Settings,
        edited: Callable[[str, Any], str],
        refused: Callable[[], None],
        put: Callable[[str, Any], None],
        names: Iterable[str] = tuple(Settings.model_fields),
    ) -> None:
        self._settings, self._edited = settings, edited
        self._refused, self._put = refused, put
        self._entered = ""
        """The setting whose new value is being set."""
        self._controls = {name: make(name, getattr(settings, name)) for name in names}

    def __getitem__(self, name: str) -> SettingControl:
        return self._controls[name]

    @property
    def refused(self) -> list[str]:
        """The settings whose entered values were refused."""
        return [name for name, control in self._controls.items() if control.why]

    def show(self, settings: Settings) -> None:
        """Set the controls to these settings. A refused value stays where its setting has not
        changed.
        """
        before, self._settings = self._settings, settings
        for name, control in self._controls.items():
            value = getattr(settings, name)
            if control.why and same(value, getattr(before, name)) and name != self._entered:
                continue
            self._mark(control, "")
            if not same(control.read(), value):
                control.write(value)
        self.send()

    def enter(self, name: str, entered: Entered) -> None:
        """Set a setting to what a user has entered into its control."""
        control = self._controls[name]
        control.shown = entered
        self._entered = name
        try:
            why = self._edited(name, control.read())
        finally:
            self._entered = ""
        if why:
            control.shown = entered
        self._mark(control, why)
        self.send()

    def write(self, name: str, value: Any) -> None:
        """Show a value that the setting need not have, in place of what was entered."""
        self._controls[name].write(value)
        self._mark(self._controls[name], self._edited(name, value))

    def send(self) -> None:
        """Send what the controls show. changed: whether the setting differs from its default."""
        for name, control in self._controls.items():
            default = Settings.model_fields[name].default
            changed = not same(getattr(self._settings, name), default)
            self._put(f"field.{name}", {**control.described(), "changed": changed})

    def _mark(self, control: SettingControl, why: str) -> None:
        changes = bool(control.why) != bool(why)
        control.why = why
        if changes:
            self._refused()


def _as_sentence(why: str) -> str:
    """A text may begin with the name of a setting, which keeps its case."""
    return why[:1].upper() + why[1:] if why.partition(" ")[0].isalpha() else why


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
        control = _choice(name, _BOOLEANS) if s.optional else SettingControl(name, bool, bool)
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


def explanation(name: str) -> str:
    """The help of a setting, and how a count is told from a fraction where it takes both."""
    both = {int, float} <= set(shape(name).types)
    help_text = Settings.model_fields[name].description or ""
    return f"{help_text}{texts.WHOLE_OR_FRACTION if both else ''}"


_NOTHING = ("none", "off")
_WORDS = {"yes": True, "on": True, "true": True, "no": False, "false": False}
_BOOLEANS = {texts.AUTO: None, texts.YES: True, texts.NO: False}
_NONE = {"monitor_mode": texts.MONITOR_MODE_BY_NAME}
"""The label of None, where it is not "none"."""


def _choice(name: str, options: dict[str, Any]) -> SettingControl:
    words = {value: word for word, value in options.items()}

    def means(word: str) -> Any:
        if word not in options:
            return ParseError(str(word))
        return options[word]

    return SettingControl(name, means, lambda value: words[value], tuple(options))


def _text(name: str, s: Shape) -> SettingControl:
    """A text box, for a number, or for a setting that may be None or of several types. An empty
    box means the default.
    """
    default = Settings.model_fields[name].default
    # its default is shown as a number, too
    number = s.types in ((int,), (float,)) and not s.optional

    def words(value: Any) -> str:
        return "" if not number and same(value, default) else typed(name, value)

    def means(line: Any) -> Any:
        value = parse(name, str(line), bool in s.types)
        settled = _settled(name, value)
        return value if settled is None else settled[0]

    placeholder = typed(name, default) if number else _default_in_words(name)
    return SettingControl(name, means, words, placeholder=placeholder)


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
