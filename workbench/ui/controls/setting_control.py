"""Makes the control of one setting from its type, bounds and metadata in `workbench.settings`."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import ipywidgets as widgets
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from workbench.runs import setting_text
from workbench.settings import Settings, SettingsError, metadata_of
from workbench.ui.controls import parse

_HUGE = 10**12


@dataclass(frozen=True)
class Control:
    """A widget for setting `name`. `means`, `read` and `write` use the setting's own values."""

    name: str
    widget: widgets.Widget
    means: Callable[[Any], Any]
    """The setting's value for a value of the widget."""
    write: Callable[[Any], None]
    text: bool = False
    """Whether it is a line of text, which may hold an invalid value."""

    def read(self) -> Any:
        """The shown value."""
        return self.means(self.widget.value)

    def refused(self) -> bool:
        """Whether its text is not a valid value."""
        return self.text and parse.settled(self.name, self.read()) is None


@dataclass(frozen=True, slots=True)
class Shape:
    """A field's annotation: its plain types, its choices, whether None is one of its values."""

    types: tuple[type, ...]
    choices: tuple[Any, ...]
    optional: bool
    low: float | None
    high: float | None


def shape(name: str) -> Shape:
    """The shape of setting `name`."""
    field = Settings.model_fields[name]
    plain, choices, optional = _flatten(field.annotation)
    low, high = _bounds(field)
    return Shape(plain, choices, optional, low, high)


def make(name: str, value: Any) -> Control:
    """The control for setting `name`, showing `value`."""
    s = shape(name)
    if s.types == (bool,) and s.choices:
        made = _choice(name, {"no": False, "yes": True} | {str(c): c for c in s.choices})
    elif s.types == (bool,):
        made = _choice(name, _BOOLEANS) if s.optional else _checkbox(name)
    elif s.choices and not s.types:
        made = _choice(name, {str(c): c for c in s.choices} | ({_NONE.get(name, "none"): None} if s.optional else {}))
    elif len(s.types) == 1 and s.types[0] in (int, float) and not s.choices and (not s.optional or zero_is_off(name)):
        made = _number(name, s)
    else:
        made = _written(name)
    made.write(value)
    return made


def zero_is_off(name: str) -> bool:
    """Whether 0 means None for this setting, so that a number box can say both."""
    try:
        return shape(name).optional and getattr(Settings.make(**{name: 0}), name) is None
    except SettingsError:
        return False


def tooltip(name: str) -> str:
    """What a setting means, with its unit."""
    unit = metadata_of(name).unit
    both = {int, float} <= set(shape(name).types)
    kinds = " A whole number counts; one with a point, like 1.0, is a fraction." if both else ""
    return f"{Settings.model_fields[name].description}{f' ({unit})' if unit else ''}{kinds}"


_BOOLEANS = {"auto": None, "yes": True, "no": False}
_NONE = {"monitor_mode": "by its name"}
"""The name of None where it is not "none"."""
_WIDE = {"description_width": "184px"}  # as long as the longest name, marked


def _common(name: str) -> dict[str, Any]:
    """The arguments that all controls share. A control has the name that the setting has in code."""
    return {
        "description": name, "tooltip": tooltip(name),
        "style": dict(_WIDE), "layout": widgets.Layout(width="auto"),
    }  # fmt: skip


def _checkbox(name: str) -> Control:
    box = widgets.Checkbox(**{**_common(name), "style": {"description_width": "0"}}, indent=False)
    return Control(name, box, lambda shown: shown, lambda value: setattr(box, "value", bool(value)))


def _choice(name: str, options: dict[str, Any]) -> Control:
    box = widgets.Dropdown(options=list(options), **_common(name))
    words = {value: word for word, value in options.items()}  # None as a value would mean that nothing is chosen
    return Control(name, box, lambda word: options[word], lambda value: setattr(box, "value", words[value]))


def _number(name: str, s: Shape) -> Control:
    """A number box. Strict bounds are left to Settings, whose message says more than a box that jumps back."""
    low = s.low if s.low is not None else -_HUGE
    high = s.high if s.high is not None else _HUGE
    box: widgets.Widget
    if s.types[0] is int:
        box = widgets.BoundedIntText(min=int(low), max=int(high), **_common(name))
    else:
        box = widgets.BoundedFloatText(min=low, max=high, step=None, **_common(name))
    off = s.optional

    def means(number: Any) -> Any:
        return None if off and number == 0 else number

    return Control(name, box, means, lambda value: setattr(box, "value", 0 if value is None else value))


def _written(name: str) -> Control:
    """A line of text, for what may be None or of several kinds: a number, a word, a dict. Empty is the default."""
    default = Settings.model_fields[name].default
    box = widgets.Text(placeholder=parse.default(name), continuous_update=False, **_common(name))

    def write(value: Any) -> None:
        box.value = "" if setting_text.same(value, default) else setting_text.typed(name, value)

    def means(line: Any) -> Any:
        value = parse.read(name, line, bool in shape(name).types)
        settled = parse.settled(name, value)
        return value if settled is None else settled[0]

    return Control(name, box, means, write, text=True)


def _flatten(annotation: Any) -> tuple[tuple[type, ...], tuple[Any, ...], bool]:
    """The plain types, the literal choices, and whether None is among them."""
    origin = get_origin(annotation)
    if origin is Literal:
        choices = get_args(annotation)
        return (), tuple(c for c in choices if c is not None), None in choices
    if origin in (Union, types.UnionType):
        parts = [_flatten(arg) for arg in get_args(annotation)]
        plain = tuple(t for part in parts for t in part[0])
        return plain, tuple(c for part in parts for c in part[1]), any(part[2] for part in parts)
    if origin is Annotated:
        return _flatten(get_args(annotation)[0])
    if annotation is type(None):
        return (), (), True
    return (origin or annotation,), (), False


def _bounds(field: FieldInfo) -> tuple[float | None, float | None]:
    low: Any = None
    high: Any = None
    for rule in field.metadata:
        if isinstance(rule, Ge):
            low = rule.ge
        elif isinstance(rule, Gt):
            low = rule.gt
        elif isinstance(rule, Le):
            high = rule.le
        elif isinstance(rule, Lt):
            high = rule.lt
    return low, high
