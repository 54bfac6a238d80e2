"""Reads conditions on runs: "lr < 1e-3 and val_loss < 0.1".

    bench.runs.filter("lr < 1e-3 and (optimizer == muon or tags == baseline)")
A condition compares columns by `<`, `<=`, `>`, `>=`, `==` and `!=`, joined by `and`, `or`, `not`
and parentheses. A name with other characters than these is in backquotes: `` `val acc` > 0.5 ``.
A text without any comparison is a search: each of its words is somewhere in the run's texts. It is
parsed here and nowhere else, and nothing of it is executed.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Value = float | int | str | bool | tuple[str, ...] | None
Facts = Mapping[str, Value]
"""What is known of a run, by the name of the column."""
Condition = Callable[[Facts], bool]

LONGEST = 500
"""The most characters of a condition."""
WORDS = ""
"""The column in whose text a search looks; it has no name that a condition could use."""
DATE = "started"
"""The column with a date, which is compared as a text."""
_DEEPEST = 40
"""The most parentheses and `not` inside one another."""
_NEAR = 3
"""How many near names an error lists."""
_TOKEN = re.compile(
    r"\s*(?:(?P<column>`[^`]*`)|(?P<text>'[^']*'|\"[^\"]*\")|(?P<sign><=|>=|==|!=|<|>|=|\(|\))"
    r"|(?P<word>[-+.]?\w[\w./:%+-]*))"
)
_IS_CONDITION = re.compile("[<>=!]")
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
}
_EQUAL = ("==", "=", "!=")
_CONSTANTS: dict[str, Value] = {"true": True, "false": False, "none": None}
_JOINS = ("and", "or", "not")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: Literal["column", "text", "sign", "word"]
    text: str
    """Without its quotes."""


@dataclass(frozen=True, slots=True)
class _Operand:
    token: _Token
    column: str | None
    """The column whose value it is; None: it is `value` in all runs."""
    value: Value = None

    def of(self, run: Facts) -> Value:
        return self.value if self.column is None else run.get(self.column)

    def beside(self, other: Value, run: Facts) -> Value:
        """Its value where it is compared with another one: beside a text or tags, what is written
        without quotes is a text, too (`tags == 2024`).
        """
        is_written = self.column is None and self.value is not None
        return self.token.text if is_written and isinstance(other, str | tuple) else self.of(run)


def parse(text: str, columns: Collection[str]) -> Condition:
    """The condition in this text, as a function of what is known of a run.

    columns: the names that it can use. ValueError names the mistake, and the columns near it.
    """
    if len(text) > LONGEST:
        raise ValueError(f"a condition of {len(text)} characters: give at most {LONGEST}.")
    if not is_condition(text):
        wanted = text.lower().split()
        if len(wanted) > 2 and wanted[1] == "in" and text.split()[0] in columns:
            column = text.split()[0]
            raise ValueError(
                f"'in' is not known beside a column: write {column} == … or {column} == …."
            )
        return lambda run: all(word in str(run.get(WORDS, "")).lower() for word in wanted)
    return _Parser(text, columns).condition()


def no_such_value(text: str, columns: Collection[str], runs: Collection[Facts]) -> str:
    """Which value of a condition no run has, with the nearest one that a run has: of a text that
    must be equal to a column (`status == finish`). "": there is none.
    """
    if not is_condition(text):
        return ""
    parser = _Parser(text, columns)
    parser.condition()
    for column, wanted in parser.equal:
        known = {
            str(value).casefold(): str(value)
            for run in runs
            for value in _each(run.get(column))
            if value is not None
        }
        if wanted.casefold() not in known:
            near = difflib.get_close_matches(wanted.casefold(), known, n=_NEAR, cutoff=0.5)
            hint = f"near it are {', '.join(known[value] for value in near)}"
            if not near:
                hint = (
                    f"there are {', '.join([*known.values()][:_NEAR])}" if known else "none has one"
                )
            return f"no run has {column} == {wanted!r}: {hint}."
    return ""


def _each(value: Value) -> tuple[Value, ...]:
    """The values of a column: of tags each one."""
    return value if isinstance(value, tuple) else (value,)


def is_condition(text: str) -> bool:
    """Whether a text compares columns; otherwise it is a search for words."""
    return _IS_CONDITION.search(text) is not None


def name_in_condition(column: str) -> str:
    """The column's name as a condition has it."""
    token = _TOKEN.fullmatch(column)
    plain = token is not None and token["word"] and column.lower() not in (*_CONSTANTS, *_JOINS)
    return column if plain and _number(column) is None else f"`{column}`"


def value_in_condition(value: Value) -> str | None:
    """The value as a condition has it; None: its text has both kinds of quotes."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    quote = "'" if '"' in text else '"'
    return None if quote in text else f"{quote}{text}{quote}"


def unknown_column(name: str, columns: Collection[str]) -> str:
    """The sentence that there is no such column, with the names near it."""
    near = difflib.get_close_matches(name, columns, n=_NEAR, cutoff=0.5)
    hint = f"near it are {', '.join(near)}" if near else "Columns in the panel lists them"
    return f"{name!r} is no column: {hint}."


class _Parser:
    """Reads one condition from left to right."""

    def __init__(self, text: str, columns: Collection[str]) -> None:
        self._columns = columns
        self._tokens = _tokens(text)
        self._at, self._depth = 0, 0
        self.equal: list[tuple[str, str]] = []
        """The columns that are compared by == with a text, each with the text."""

    def condition(self) -> Condition:
        """The whole condition."""
        condition = self._any()
        if self._at < len(self._tokens):
            next_text = self._tokens[self._at].text
            raise ValueError(
                f"{self._before()} comes {next_text!r}: join two comparisons by and, or or."
            )
        return condition

    def _any(self) -> Condition:
        return self._joined("or", self._all, any)

    def _all(self) -> Condition:
        return self._joined("and", self._negated, all)

    def _joined(
        self, word: str, part: Callable[[], Condition], joins: Callable[..., bool]
    ) -> Condition:
        conditions = [part()]
        while self._takes("word", word):
            conditions.append(part())
        if len(conditions) == 1:
            return conditions[0]
        return lambda run: joins(condition(run) for condition in conditions)

    def _negated(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} deep: leave parentheses out.")
        try:
            if self._takes("word", "not"):
                negated = self._negated()
                return lambda run: not negated(run)
            if self._takes("sign", "("):
                inner = self._any()
                if not self._takes("sign", ")"):
                    raise ValueError(f"{self._before()} a closing parenthesis is missing.")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Condition:
        """Two operands with a sign between them, or more: `1e-4 < lr <= 1e-2`."""
        tokens, signs = [self._operand()], []
        while self._at < len(self._tokens) and self._tokens[self._at].text in _SIGNS:
            if self._tokens[self._at].kind != "sign":
                break
            signs.append(self._tokens[self._at].text)
            self._at += 1
            tokens.append(self._operand())
        if not signs:
            raise ValueError(f"{self._before()} a comparison is missing: < <= > >= == or !=.")
        triples = [
            (sign, *self._resolved(left, sign, right))
            for left, sign, right in zip(tokens, signs, tokens[1:], strict=False)
        ]
        return lambda run: all(_compared(sign, left, right, run) for sign, left, right in triples)

    def _operand(self) -> _Token:
        if self._at == len(self._tokens):
            raise ValueError(f"{self._before()} a column or a value is missing.")
        token = self._tokens[self._at]
        if token.kind == "sign" or (token.kind == "word" and token.text.lower() in _JOINS):
            raise ValueError(f"{self._before()} a column or a value is missing: {token.text!r}.")
        self._at += 1
        return token

    def _resolved(self, left: _Token, sign: str, right: _Token) -> tuple[_Operand, _Operand]:
        """Both sides; a word that is no column is a text where it is compared with a column."""
        sides = [self._side(left), self._side(right)]
        if sides[0].column is None and sides[1].column is None:
            first = left if left.kind == "word" and _number(left.text) is None else right
            raise ValueError(self._unknown(first))
        for side in sides:
            is_word = side.column is None and side.token.kind == "word" and side.value is not None
            beside_date = any(other.column == DATE for other in sides)
            if is_word and sign not in _EQUAL and (isinstance(side.value, str) or beside_date):
                raise ValueError(self._unknown(side.token, beside_date))
        for side, other in (sides, sides[::-1]):
            if sign in ("==", "=") and side.column and isinstance(other.value, str):
                self.equal.append((side.column, other.value))
        return sides[0], sides[1]

    def _side(self, token: _Token) -> _Operand:
        if token.kind == "text":
            return _Operand(token, None, token.text)
        if token.text in self._columns:
            return _Operand(token, token.text)
        if token.kind == "column":
            raise ValueError(self._unknown(token))
        if token.text.lower() in _CONSTANTS:
            return _Operand(token, None, _CONSTANTS[token.text.lower()])
        number = _number(token.text)
        return _Operand(token, None, token.text if number is None else number)

    def _unknown(self, token: _Token, is_date: bool = False) -> str:
        is_word = token.kind == "word"
        if is_word and token.text[0].isdigit() and _number(token.text) is None and not is_date:
            return f"{token.text!r} is no number: columns have no units, and time is in seconds."
        if token.kind == "word" and token.text[0].isdigit():
            return f'{token.text!r} is no column: a date or a text is in quotes, "{token.text}".'
        return unknown_column(token.text, self._columns)

    def _takes(self, kind: str, text: str) -> bool:
        """Go past the next token if it is this one."""
        if self._at == len(self._tokens):
            return False
        token = self._tokens[self._at]
        if token.kind != kind or token.text.lower() != text:
            return False
        self._at += 1
        return True

    def _before(self) -> str:
        return f"after {self._tokens[self._at - 1].text!r}" if self._at else "at the beginning"


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            rest = text[at:].strip()
            raise ValueError(
                f"{rest[0]!r} has no meaning here: quote a text or a name that has it."
            )
        kind = match.lastgroup
        content = match[kind or 0]
        quoted = kind in ("column", "text")
        tokens.append(_Token(kind, content[1:-1] if quoted else content))  # type: ignore[arg-type]
        at = match.end()
    return tokens


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _compared(sign: str, left: _Operand, right: _Operand, run: Facts) -> bool:
    first, second = left.of(run), right.of(run)
    asks_none = any(side.column is None and side.value is None for side in (left, right))
    if not asks_none and any(
        side.column is not None and side.column not in run for side in (left, right)
    ):
        return False  # a run that has no such column is neither equal nor unequal
    if sign in _EQUAL:
        first, second = left.beside(second, run), right.beside(first, run)
    return _holds(_SIGNS[sign], first, second)


def _holds(compare: Callable[[object, object], bool], left: Value, right: Value) -> bool:
    """Whether a comparison holds; what is none is only equal to none."""
    if isinstance(left, tuple) or isinstance(right, tuple):
        return _holds_of_any(compare, left, right)
    if left is None or right is None:
        if compare in (operator.eq, operator.ne):
            return compare(left is None, right is None)
        return False
    if isinstance(left, str) and isinstance(right, str):
        return compare(left.casefold(), right.casefold())
    if isinstance(left, str) or isinstance(right, str):
        return compare is operator.ne
    return compare(left, right)


def _holds_of_any(compare: Callable[[object, object], bool], left: Value, right: Value) -> bool:
    """Of several tags one must be equal, and none of them for !=."""
    tags, other = (left, right) if isinstance(left, tuple) else (right, left)
    assert isinstance(tags, tuple)
    if compare is operator.ne:
        return not _holds_of_any(operator.eq, tags, other)
    if other is None:
        return not tags
    return any(_holds(compare, tag, other) for tag in tags)
