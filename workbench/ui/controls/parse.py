"""Parses typed values of settings: numbers, words, dicts, several with commas."""

from __future__ import annotations

import ast
from typing import Any

from workbench.settings import Settings, SettingsError, metadata_of

_NOTHING = ("none", "off")
_WORDS = {"yes": True, "on": True, "true": True, "no": False, "false": False}
_DEFAULTS = {
    "weight_decay": "the optimizer's own",
    "accumulate_grad_batches": "1, or {0: 8, 4: 4}",
    "early_stopping": "none; val_loss, say, or EarlyStopping(monitor='val_loss', patience=5)",
    "swa_lrs": "as scheduled",
    "truncated_bptt_steps": "off",
    "find_lr_at": "none, or 0, 5",
    "find_batch_size_at": "none, or 0",
    "val_check_interval": "each epoch (1.0)",
    "compile": "off",
    "max_time": "none, or 00:01:30:00",
    "max_steps": "no limit",
    "check_val_every_n_epoch": "every (1)",
    "checkpoint_every": "epochs 10 min apart",
    "monitor": "val_loss, if any",
    "devices": "auto, or 2, or [0, 2]",
    "launch": "your own config",
}


class ParseError:
    """Text that is neither a value nor a word. No setting takes it, so the error names it as it was typed."""

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
    if name in _DEFAULTS:
        return _DEFAULTS[name]
    if value is None or value == ():
        return "none"
    if isinstance(value, int | float) and not value:
        return f"off ({value})"
    return "all (1.0)" if value == 1.0 and metadata_of(name).unit == "batches or a fraction" else str(value)


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
