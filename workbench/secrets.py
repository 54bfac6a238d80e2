"""Recognizes secrets (keys, tokens, passwords) by their name or shape, and hides them.

Nothing that the workbench writes (scripts, records, messages, trackers' configurations) contains
them. A name is judged by its words, so that `hf_token` and `apiKey` count and `tokenizer`,
`monkey`, `n_tokens` and `pad_token="[PAD]"` do not.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")

HIDDEN = "…"
"""The text that replaces a secret."""
LONGEST = 1 << 18
"""The most characters of a text in an event."""
_AHEAD = 1 << 13
"""How many characters beyond a cut are searched too, since a secret may lie across the cut. A
private key has some 3,000.
"""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = {
    "secret",
    "secrets",
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "apikey",
    "apikeys",
    "authtoken",
    "accesstoken",
    "hftoken",
    "accesskey",
    "privatekey",
    "secretkey",
    "credentials",
}
"""Words that appear only in names of secrets."""
_OF_A_KEY = {
    "api",
    "access",
    "auth",
    "private",
    "secret",
    "account",
    "license",
    "encryption",
    "signing",
    "ssh",
    "wandb",
    "comet",
    "neptune",
    "openai",
    "anthropic",
    "aws",
    "azure",
    "gcp",
    "google",
    "kaggle",
    "service",
    "master",
    "admin",
}
"""Words that make a name with KEY or TOKEN a secret's; `KEYS` and `TOKENS` count only with one
of them.
"""
_ROLES = {
    "pad",
    "eos",
    "bos",
    "unk",
    "mask",
    "sep",
    "cls",
    "special",
    "start",
    "end",
    "stop",
    "begin",
    "additional",
    "image",
    "video",
    "audio",
    "system",
    "blank",
    "oov",
    "sort",
    "primary",
    "foreign",
    "dict",
    "label",
    "target",
    "input",
    "output",
    "data",
    "batch",
    "metric",
    "monitor",
    "column",
    "group",
    "feature",
    "public",
    "index",
    "text",
    "loss",
    "score",
    "state",
    "join",
    "sample",
    "time",
    "query",
    "value",
    "attention",
}
"""Words next to KEY or TOKEN in names of a column, or of a piece of a vocabulary."""
_ABOUT = {
    "type",
    "types",
    "name",
    "names",
    "file",
    "path",
    "dir",
    "folder",
    "size",
    "len",
    "length",
    "dim",
    "column",
    "index",
    "url",
    "mode",
    "format",
    "kind",
    "class",
    "pattern",
    "regex",
    "field",
    "env",
    "var",
    "prefix",
    "suffix",
    "mask",
    "padding",
    "strategy",
    "embedding",
    "embeddings",
    "encoder",
    "function",
    "fn",
    "help",
    "prompt",
    "message",
}
"""Last words of names that describe a secret and do not contain it: `token_file`, `key_size`."""
_LOGIN = {
    "login",
    "auth",
    "authenticate",
    "authorize",
    "connect",
    "signin",
    "credentials",
    "client",
    "session",
    "api",
}
"""Words in the name of a function whose arguments `key=` and `token=` are secrets, whatever
their values look like.
"""

_SHAPES = re.compile(
    r"\bsk-[A-Za-z0-9_-]{16,}+"
    r"|\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}+"
    r"|\bhf_[A-Za-z0-9]{16,}+"
    r"|\bgh[pousr]_[A-Za-z0-9]{16,}+|\bgithub_pat_\w{16,}+|\bglpat-[\w-]{16,}+"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bAIza[\w-]{30,}+"
    r"|\bxox[abprs]-[\w-]{10,}+"
    r"|\bpypi-[\w-]{32,}+|\bnpm_[A-Za-z0-9]{30,}+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?i:\b(?:bearer|basic)\s++[A-Za-z0-9+/_.=-]{16,}+)"
    r"|(?<=://)[^\s/:@]++:[^\s/@]++(?=@)"
)
_JWT = re.compile(r"\beyJ[\w-]{8,}+(?P<rest>\.[\w-]{8,}+\.[\w-]*+)?")
"""Matches a JSON Web Token, or with an empty `rest` a word that only begins like one: it is
passed at once, since a search that began again at each `eyJ` in it would take a time that grows
with the square of its length.
"""
_SETS = re.compile(
    r"(?<![\w.-])(?P<before>(?:(?![A-Za-z_])[\w.-])*+)(?P<name>[A-Za-z_][\w.-]*+)"
    r"(?P<is>[\"']?\s*+[=:]\s*+)(?P<quote>[\"']?)(?P<value>[^\s\"'#,;]++)(?P=quote)(?!\s*+[=:])"
)
"""Matches NAME=value: in a .env file, a shell's export, or code that was commented out."""
_PIECE = re.compile(r"\[\w+\]|<[^<>]*>|\W*|.")
"""A piece of a vocabulary, such as `[PAD]`, `</s>` and `<|end|>`, or a single sign."""
_PLAIN = re.compile(r"[A-Za-z]+([_ ./-][A-Za-z]+)*")
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=-]{16,}")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")


def is_secret_name(name: str, value: str | None = None, callee: str = "") -> bool:
    """Whether a name is that of a secret; `value`: the text given for it, `callee`: the function
    that gets it.

    Some values show that they are no secret: an empty text, a piece of a vocabulary, the name of an
    environment variable.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT:
        return False
    if value is not None and (
        _PIECE.fullmatch(value) or (_VARIABLE.fullmatch(value) and is_secret_name(value))
    ):
        return False
    said = set(words)
    if said & _SECRET:
        return True
    if said & {"key", "token", "keys", "tokens"} and said & _OF_A_KEY:
        return True
    if not said & {"key", "token"}:
        return False
    if said & _ROLES:
        return value is not None and _RANDOM.fullmatch(value) is not None
    if name in ("key", "token") and value is not None and _PLAIN.fullmatch(value):
        # `key="label"` names a column, `login(key="label")` does not.
        return name == "token" or bool({word.lower() for word in _WORD.findall(callee)} & _LOGIN)
    return True


def looks_secret(text: str) -> bool:
    """Whether a text contains something that has the shape of a secret, or a line that sets one."""
    return _has_shape(text) or any(_is_set(match) for match in _SETS.finditer(text))


def _has_shape(text: str) -> bool:
    return _SHAPES.search(text) is not None or any(match["rest"] for match in _JWT.finditer(text))


def _without_shapes(text: str) -> str:
    return _JWT.sub(lambda match: HIDDEN if match["rest"] else match[0], _SHAPES.sub(HIDDEN, text))


def hide(text: str) -> str:
    """Return `text` with `…` in place of everything that has the shape of a secret or is set under
    a secret's name.

    The time is proportional to the length of the text, whatever it holds.
    """

    def value_hidden(found: re.Match[str]) -> str:
        if not _is_set(found, random_too=True):
            return found[0]
        return (
            f"{found['before']}{found['name']}{found['is']}{found['quote']}{HIDDEN}{found['quote']}"
        )

    return _SETS.sub(value_hidden, _without_shapes(text))


def beginning(text: str, most: int) -> str:
    """Return the beginning of a text without secrets: about `most` characters. The rest is not
    looked at, however long it is.
    """
    looked = text[: most + _AHEAD]
    shown = hide(looked)
    # what was cut may be half of a secret
    room = most if looked == text else min(most, len(shown) - _AHEAD)
    return shown if len(shown) <= room else f"{shown[: max(0, room)]}…"


def ending(text: str, most: int) -> str:
    """Return the end of a text without secrets, as `beginning` returns its beginning."""
    looked = text[-(most + _AHEAD) :]
    shown = hide(looked)
    room = most if looked == text else min(most, len(shown) - _AHEAD)
    return shown if len(shown) <= room else f"…{shown[len(shown) - max(0, room) :]}"


def hidden(value: T) -> T:
    """Return an object of a dataclass, such as an event, without the secrets in its texts, also in
    those of its containers.

    A text longer than `LONGEST` is cut. Returns the object itself if it has no secrets.
    """
    cleaned: T = _hidden(value, "")
    return cleaned


def _hidden(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return HIDDEN if name and is_secret_name(name, value) else beginning(value, LONGEST)
    if isinstance(value, Mapping):
        new = {
            key: _hidden(item, key if isinstance(key, str) else "") for key, item in value.items()
        }
        return value if all(new[key] is item for key, item in value.items()) else new
    if type(value) in (list, tuple):
        items = [_hidden(item, name) for item in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: _hidden(getattr(value, field.name), "") for field in fields(value)}
        changed = {key: item for key, item in changed.items() if item is not getattr(value, key)}
        return replace(value, **changed) if changed else value
    return value


def without_secrets(value: Any, name: str = "") -> Any:
    """Return plain data with its secrets replaced by `…`. Secrets are found by the names in
    mappings, and by their shape.
    """
    if isinstance(value, str):
        return HIDDEN if is_secret_name(name, value) else _without_shapes(value)
    if isinstance(value, Mapping):
        return {
            key: without_secrets(item, key if isinstance(key, str) else "")
            for key, item in value.items()
        }
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(without_secrets(item, name) for item in value)
    return value


def secrets_in(value: Any, name: str = "") -> set[str]:
    """Return the texts in plain data that `without_secrets` would hide."""
    if isinstance(value, str):
        return {value} if is_secret_name(name, value) or _has_shape(value) else set()
    if isinstance(value, Mapping):
        items = [
            secrets_in(item, key if isinstance(key, str) else "") for key, item in value.items()
        ]
        return set().union(*items)
    if type(value) in (list, tuple, set, frozenset):
        return set().union(*(secrets_in(item, name) for item in value))
    return set()


def _is_set(match: re.Match[str], *, random_too: bool = False) -> bool:
    """random_too: a name such as `token` counts as well, where its value looks random."""
    # `key=value` in a sentence or a URL pattern is no setting: the name must leave no doubt, or be
    # written as a variable.
    name, value = match["name"], match["value"]
    if value in (HIDDEN, "None", "True", "False") or re.match(r"[\w.]+\(|os\.environ|\$|\{", value):
        return False
    words = {word.lower() for word in _WORD.findall(name)}
    strong = bool(words & _SECRET) or bool(words & {"key", "token"} and words & _OF_A_KEY)
    sure = (
        strong
        or _VARIABLE.fullmatch(name) is not None
        or (random_too and _RANDOM.fullmatch(value) is not None)
    )
    return sure and is_secret_name(name, value)
