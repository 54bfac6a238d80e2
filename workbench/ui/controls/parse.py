"""Parses typed values of settings: numbers, words, dicts, several with commas."""

from __future__ import annotations

import ast
from typing import Any

from workbench.settings import Settings, SettingsError, metadata_of
from workbench.ui import texts

_NOTHING = ("none", "off")
_WORDS = {"yes": True, "on": True, "true": True, "no": False, "false": False}


class ParseError:
    """Text that is neither a value nor a word. No setting takes it, so the error names what was typed."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def read(name: str, typed: str, yes_or_no: bool = False) -> Any:
    """The typed value of setting `name`; empty text is its default."""
    typed = typed.strip()
    if not typed:
        return Settings.model_fields[name].default
    if typed.lower() in _NOTHING:
        return _nothing(name, typed)
    if yes_or_no and typed.lower() in _WORDS:
        return _WORDS[typed.lower()]
    try:
        return ast.literal_eval(_Calls().visit(ast.parse(typed, mode="eval")))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    if set(typed) & set("()[]{}='\""):
        return ParseError(typed)  # half a dict, for example: as a word it could pass for a metric's name
    if "," in typed:
        return [word.strip() for word in typed.split(",") if word.strip()]
    return typed  # a word; Settings decides whether it knows it


def settled(name: str, value: Any) -> tuple[Any] | None:
    """The value as Settings keeps it, or None where it refuses it."""
    try:
        return (getattr(Settings.make(**{name: value}), name),)
    except SettingsError:
        return None


def default(name: str) -> str:
    """The default, in words."""
    value = Settings.model_fields[name].default
    if name in texts.DEFAULTS:
        return texts.DEFAULTS[name]
    if value is None or value == ():
        return texts.NONE
    if isinstance(value, int | float) and not value:
        return texts.off(value)
    return texts.all_of_it(value) if value == 1.0 and metadata_of(name).unit == "batches or a fraction" else str(value)


def _nothing(name: str, typed: str) -> Any:
    """None, False, no items or 0: the value that switches this setting off."""
    field = Settings.model_fields[name]
    zero = field.default == 0 or any(f"0: {word}" in (field.description or "") for word in _NOTHING)
    for value in (None, False, (), *([0] if zero else [])):
        if settled(name, value) == (value,):  # and not None for the default
            return value
    return typed


class _Calls(ast.NodeTransformer):
    """EarlyStopping(monitor='val_loss'), as in code, is the dict of its arguments."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if node.args or any(item.arg is None for item in node.keywords):
            raise ValueError("only arguments by name are plain data")
        keys: list[ast.expr | None] = [ast.Constant(item.arg) for item in node.keywords]
        return ast.Dict(keys, [item.value for item in node.keywords])
