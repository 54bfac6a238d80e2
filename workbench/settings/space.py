"""Defines Space: the settings and values of a model's function among which a study chooses.

A space is parsed once and has one dimension for each name. A point of it is a list of numbers from
0 to 1, one for each dimension (`Space.values` and `Space.units` convert), so that what proposes
points need not know what a dimension means.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from workbench.settings.settings import Settings, metadata_of
from workbench.settings.spellings import OBJECTS, SPOKEN
from workbench.units import RATES, rate
from workbench.values import SettingsError, is_plain, plain, shown, value_text

RELATIVE = "relative"
"""The word for a rate that is a multiple of what a search finds for each trial's own model."""
TIMES_FOUND = "times_found"
"""In the values of a trial, the key of such a multiple: {"lr": {"times_found": 0.7}}."""
OPTIMIZER = "optimizer"
_ONE_LENGTH = (
    "all trials of a study have one length, or longer ones would win: give it to the study for all"
    " of them, study(…, {name}=…)"
)
_SEED = "seeds are no setting to choose, since luck would win: seeds=3 repeats the best trial"
_DEVICES = "where a trial runs changes no result: study(…, workers=4) runs several at once"
_KEPT = "it changes what is kept, and no result: give it to the study, study(…, {name}=…)"
_WATCHED = "it changes what is measured, and no result: give it to the study, study(…, {name}=…)"
_JUDGED = (
    "all trials are judged on the same data at the same times: give it to the study, study(…,"
    " {name}=…)"
)
_SPEED = "it changes how fast a trial is, and no result: give it to the study, study(…, {name}=…)"
_REFUSED_GROUPS = {
    "length": _ONE_LENGTH,
    "devices": _DEVICES,
    "checkpoints": _KEPT,
    "monitoring": _WATCHED,
    "validation": _JUDGED,
    "data": _SPEED,
    "scheduled searches": "a search within a fit chooses for itself, which no study sees",
    "early stopping": (
        "the study stops weak trials itself: give it to the study for all trials, study(…,"
        " early_stopping=…)"
    ),
}
"""Why a setting of this group cannot be in a space."""
_REFUSED = {"seed": _SEED, "compile": _SPEED}
_ALLOWED = ("shuffle", "drop_last")
"""Settings of a refused group that change what a model learns."""
_CHOICES: dict[str, tuple[Any, ...]] = {
    "warmup": (0, 0.01, 0.05, 0.1),
    "gradient_clip_val": (None, 0.3, 1.0, 3.0),
    "gradient_clip_algorithm": ("norm", "value"),
    "lr_schedule": ("constant", "linear", "cosine", "one_cycle"),
    "weight_averaging": (None, "ema"),
    "accumulate_grad_batches": (1, 2, 4),
    "shuffle": (False, True),
    "drop_last": (False, True),
}
"""What a study tries of a setting whose name alone is given."""
_MOST = 200
"""The most dimensions of a record's space."""
_OF_OPTIMIZERS = {
    **dict.fromkeys(("momentum", "nesterov", "dampening"), "sgd"),
    **dict.fromkeys(("betas", "eps", "amsgrad"), "adamw"),
    "alpha": "rmsprop",
}
"""Arguments of optimizers, each with one that takes it."""
_IMPORTANT = ("lr", "optimizer", "batch_size", "weight_decay", "lr_schedule", "warmup")
"""The settings that usually matter most, the first one most."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One thing that a study chooses: a range of numbers, or one of several values.

    A name with dots belongs to a choice: "optimizer.sgd.momentum" exists where "optimizer" is
    "sgd".
    """

    name: str
    present: Any = None
    """The bench's own value, where `has_present`."""
    has_present: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """The parts of its name."""
        return tuple(self.name.split("."))

    def value(self, unit: float) -> Any:
        """The value at this number from 0 to 1."""
        raise NotImplementedError

    def unit(self, value: Any) -> float | None:
        """The number from 0 to 1 of a value; None: it is not in the range."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Float(Dimension):
    """A range of numbers, ends included. log: its logarithm is what is chosen evenly."""

    low: float = 0.0
    high: float = 1.0
    log: bool = False
    relative: bool = False
    """Whether it is a multiple of what a search finds for the trial's own model."""
    around: float = 0.0
    """Above 0: the range is what the searches find, divided and multiplied by this; `low` and
    `high` are around the bench's own value, for where they find nothing.
    """

    def value(self, unit: float) -> Any:
        """The value at this number from 0 to 1, with four digits, as a person would write it."""
        if self.log:
            number = self.low * (self.high / self.low) ** unit
        else:
            number = self.low + unit * (self.high - self.low)
        number = min(max(float(f"{number:.4g}"), self.low), self.high)
        return {TIMES_FOUND: number} if self.relative else number

    def unit(self, value: Any) -> float | None:
        """The number from 0 to 1 of a value; None: it is no number in the range."""
        if self.relative:
            value = value.get(TIMES_FOUND) if isinstance(value, Mapping) else None
        return _unit(value, self.low, self.high, self.log)


@dataclass(frozen=True, slots=True)
class Int(Dimension):
    """A range of whole numbers, ends included."""

    low: int = 0
    high: int = 1
    log: bool = False

    def value(self, unit: float) -> Any:
        """The whole number at this number from 0 to 1; each has the same share, or by log."""
        low, high = self.low - 0.5, self.high + 0.5
        if self.log:
            number = low * (high / low) ** unit
        else:
            number = low + unit * (high - low)
        return min(max(round(number), self.low), self.high)

    def unit(self, value: Any) -> float | None:
        """The number from 0 to 1 of a whole number; None: it is none of the range."""
        if type(value) is not int or not self.low <= value <= self.high:
            return None
        return _unit(value, self.low - 0.5, self.high + 0.5, self.log)


@dataclass(frozen=True, slots=True)
class Choice(Dimension):
    """Some values to choose from. Numbers in their order are neighbours."""

    choices: tuple[Any, ...] = ()
    tuples: bool = False
    """Whether sequences among the values are tuples, which a record keeps as lists."""

    @property
    def ordered(self) -> bool:
        """Whether the values are rising numbers, after a None at most."""
        numbers = [choice for choice in self.choices if choice is not None]
        are_numbers = all(type(number) in (int, float) for number in numbers)
        return are_numbers and self.choices[-len(numbers) :] == tuple(sorted(numbers))

    def value(self, unit: float) -> Any:
        """The value at this number from 0 to 1: each has the same share."""
        return self.choices[min(int(unit * len(self.choices)), len(self.choices) - 1)]

    def unit(self, value: Any) -> float | None:
        """The middle of a value's share; None: it is none of them."""
        for k, choice in enumerate(self.choices):
            if type(choice) is type(value) and choice == value:
                return (k + 0.5) / len(self.choices)
        return None


def prior_of(dimension: Dimension, priors: Mapping[str, Any]) -> Any:
    """What the searches have found for a dimension: under its full name, else for all optimizers;
    None: nothing.
    """
    return priors.get(dimension.name, priors.get(dimension.path[-1]))


def text_of(value: Any) -> str:
    """A value of a trial for people: "3.2e-3", "gelu", "sgd(momentum=0.9)", "0.7×" (the rate that a
    search finds, times that).
    """
    if isinstance(value, float) and math.isfinite(value):
        return rate(value)
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, inner),) = value.items()
        if name == TIMES_FOUND:
            return f"{text_of(inner)}×"
        if isinstance(inner, Mapping):
            return f"{name}({assigned(inner)})"
    return value if isinstance(value, str) else value_text(value)


def refuse_text(call: str, name: str, value: Any, present: Any) -> None:
    """Raise SettingsError for the text of a number where the bench has a number: the model's
    function would fail, or take it for something else. A word ("same") may be meant.

    call: what a user wrote around the value.
    """
    if type(value) is not str or type(present) not in (int, float):
        return
    try:
        written = float(value)
    except ValueError:
        return
    raise SettingsError(
        f"{call}: {name}={shown(value)} is a text, and {shown(present)} in the bench: give the"
        f" number, {written:g}."
    )


def assigned(values: Mapping[str, Any]) -> str:
    """The values of a trial as a person would write them: "lr=3.2e-3, act=gelu"."""
    return ", ".join(f"{name}={text_of(value)}" for name, value in values.items())


def tuples(values: Iterable[Any]) -> list[Any]:
    """The values, with a tuple in place of each list."""
    return [tuple(value) if isinstance(value, list) else value for value in values]


_KINDS: dict[str, type[Dimension]] = {"float": Float, "int": Int, "choice": Choice}


@dataclass(frozen=True)
class Space:
    """What a study chooses, each name a dimension."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def parse(
        cls,
        space: Any,
        settings: Settings,
        build: Mapping[str, Any] | None = None,
        *,
        fits: float | None = None,
        fixed: Collection[str] = (),
    ) -> Space:
        """The space that a user writes, checked.

        space: names, ["lr", "weight_decay"], or by name a range (low, high), a list of values,
        "relative", or `...` for a range around what a search has found. "optimizer" has a dict:
        {"adamw": {"lr": ...}, "sgd": {"momentum": (0.8, 0.99)}}. None: what fits the budget.
        settings: the bench's. build: the parameters of the function that makes its model, with
        their present values (`inspect.Parameter.empty` for one that has none). fits: the budget in
        whole fits, for space=None. fixed: what is given for all trials.
        SettingsError names the argument, the value and the remedy.
        """
        parser = _Parser(settings, dict(build or {}), fixed)
        if space is None:
            space = _names_for(fits)
        dimensions = tuple(parser.dimensions(space))
        everywhere = {dimension.name for dimension in dimensions}
        for dimension in dimensions:
            if len(dimension.path) > 1 and dimension.path[-1] in everywhere:
                raise SettingsError(
                    f"space: {dimension.path[-1]} is given for all optimizers and for"
                    f" {dimension.path[1]}: leave one out."
                )
        return cls(dimensions)

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], priors: Mapping[str, Any] | None = None
    ) -> Space:
        """The space of a study's record. ValueError: it is none.

        priors: what the searches have found, by name. A range written as `...` lies around their
        "center", and no choice is above their "largest".
        """
        dimensions = []
        for name, entry in record.items():
            try:
                fields = dict(entry)
                kind = _KINDS[fields.pop("kind")]
                if "choices" in fields:
                    as_written = tuples if fields.get("tuples") is True else list
                    fields["choices"] = tuple(as_written(fields["choices"]))
                    (fields["present"],) = as_written([fields.get("present")])
                dimension = kind(name=name, **fields)
                _check_record(dimension)
                dimension = _resolved(dimension, prior_of(dimension, priors or {}))
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"the space's {name}={shown(entry)} is none: {error}") from None
            dimensions.append(dimension)
        if not dimensions:
            raise ValueError("the space is empty")
        if len(dimensions) > _MOST:
            raise ValueError(f"the space has more than {_MOST} dimensions")
        return cls(tuple(dimensions))

    def to_record(self) -> dict[str, Any]:
        """The space as plain data."""
        kinds = {kind: name for name, kind in _KINDS.items()}
        record = {}
        for dimension in self.dimensions:
            entry = {"kind": kinds[type(dimension)], **asdict(dimension)}
            name = entry.pop("name")
            if isinstance(dimension, Choice):
                entry["choices"] = list(dimension.choices)
            record[name] = entry
        return record

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its dimensions."""
        return tuple(dimension.name for dimension in self.dimensions)

    def dimension(self, name: str) -> Dimension:
        """The dimension of this name. KeyError: there is none."""
        for dimension in self.dimensions:
            if dimension.name == name:
                return dimension
        raise KeyError(name)

    def values(self, units: Sequence[float]) -> dict[str, Any]:
        """The arguments of a fit at a point of the unit cube. A dimension that belongs to another
        choice is left out.
        """
        values: dict[str, Any] = {}
        arguments: dict[str, Any] = {}
        for dimension, unit in zip(self.dimensions, units, strict=True):
            value = dimension.value(min(max(unit, 0.0), 1.0))
            if len(dimension.path) == 1:
                values[dimension.name] = value
                continue
            choice, branch, name = dimension.path
            if values.get(choice) != branch:
                continue
            if name in Settings.model_fields:
                values[name] = value
            else:
                arguments[name] = value
        if arguments:
            values[OPTIMIZER] = {values[OPTIMIZER]: arguments}
        return values

    def units(self, values: Mapping[str, Any]) -> list[float | None]:
        """The point of a trial's values; None for a dimension that it does not have, or whose value
        is not in the range.
        """
        return [self._unit_of(dimension, values) for dimension in self.dimensions]

    def placed(self, values: Mapping[str, Any]) -> list[tuple[Dimension, Any]]:
        """The dimensions in which a trial's values have one of the range, each with that value; a
        multiple of what a search finds as a number.
        """
        places = []
        for dimension, unit in zip(self.dimensions, self.units(values), strict=True):
            if unit is None:
                continue
            value = dimension.value(unit)
            if isinstance(dimension, Float) and dimension.relative:
                value = value[TIMES_FOUND]
            places.append((dimension, value))
        return places

    def _unit_of(self, dimension: Dimension, values: Mapping[str, Any]) -> float | None:
        optimizer = values.get(OPTIMIZER)
        arguments: Mapping[str, Any] = {}
        if isinstance(optimizer, Mapping) and len(optimizer) == 1:
            ((optimizer, arguments),) = optimizer.items()
        if len(dimension.path) == 1:
            value = optimizer if dimension.name == OPTIMIZER else values.get(dimension.name)
            return dimension.unit(value) if dimension.name in values else None
        _, branch, name = dimension.path
        if optimizer != branch:
            return None
        source = values if name in Settings.model_fields else arguments
        return dimension.unit(source[name]) if name in source else None

    @property
    def present(self) -> dict[str, Any]:
        """The bench's own values of its dimensions, where they are known."""
        return {
            dimension.name: dimension.present
            for dimension in self.dimensions
            if dimension.has_present and len(dimension.path) == 1
        }

    def too_many(self, fits: float, compare: str = "") -> str:
        """A warning where a trial has more dimensions than the budget of whole fits can tell
        apart; "": it has not. compare: the setting whose values share the budget.
        """
        split = compare or next((d.path[0] for d in self.dimensions if len(d.path) > 1), "")
        branches = self._branches(split)
        names = max((branch._searched for branch in branches), key=len)
        if compare:
            fits /= len(branches)
        elif len(branches) > 1:
            names = [split, *names]
        if len(names) <= max(fits / 2, 2):
            return ""
        ranks = {name: k for k, name in enumerate(_IMPORTANT)}
        order = sorted(names, key=lambda name: (ranks.get(name, len(ranks)), names.index(name)))
        least = order[max(int(fits / 2), 2) :]
        budget = 2 * len(names) * (len(branches) if compare else 1)
        if compare:
            return (
                f"space= has {len(names)} dimensions for a value of {compare}, of which each has"
                f" {fits:.3g} fits: these tell about {max(int(fits / 2), 2)} apart. Give"
                f" budget={budget}, or search fewer."
            )
        return (
            f"space= has {len(names)} dimensions, and {fits:g} fits tell about"
            f" {max(int(fits / 2), 2)} apart: leave out {' and '.join(least)}, or give"
            f" budget={budget}."
        )

    def _branches(self, name: str) -> list[Space]:
        """The space for each value of this choice; itself alone where the name is ""."""
        for dimension in self.dimensions:
            if dimension.name == name and isinstance(dimension, Choice):
                return [self.only(name, value) for value in dimension.choices]
        return [self]

    @property
    def _searched(self) -> list[str]:
        """The names of the dimensions with more than one value."""
        single = (isinstance(d, Choice) and len(d.choices) == 1 for d in self.dimensions)
        return [d.name for d, is_one in zip(self.dimensions, single, strict=True) if not is_one]

    def only(self, name: str, value: Any) -> Space:
        """This space with one value of a choice, without the dimensions of its other values."""
        dimensions: list[Dimension] = []
        for dimension in self.dimensions:
            if dimension.name == name and isinstance(dimension, Choice):
                dimensions.append(replace(dimension, choices=(value,)))
            elif dimension.path[0] != name or dimension.path[1] == value:
                dimensions.append(dimension)
        return Space(tuple(dimensions))

    def with_ranges(self, other: Space) -> Space:
        """This space with the dimensions of another one in place of those of the same name."""
        changed = {dimension.name: dimension for dimension in other.dimensions}
        kept = tuple(changed.pop(d.name, d) for d in self.dimensions)
        return Space((*kept, *changed.values()))


def _names_for(fits: float | None) -> list[str]:
    """What is chosen without a space: more where the budget is larger."""
    names = ["lr", "weight_decay"]
    if fits is not None and fits >= 10:
        names += ["batch_size", "warmup"]
    if fits is not None and fits >= 25:
        names += ["gradient_clip_val"]
    return names


@dataclass(frozen=True)
class _Parser:
    settings: Settings
    build: dict[str, Any]
    fixed: Collection[str]

    def dimensions(self, space: Any) -> Iterator[Dimension]:
        for name, value in self.build.items():
            if value is inspect.Parameter.empty:
                raise SettingsError(
                    f"the model's function needs {name}, which has no default: the first trial is"
                    f" the bench as it is, so give {name}=… to the bench, or a default in the"
                    " function."
                )
        if isinstance(space, str) or not isinstance(space, Mapping | list | tuple) or not space:
            raise SettingsError(
                f'space={shown(space)}: give names, ["lr", "weight_decay"], or ranges by name,'
                ' {"lr": (1e-4, 1e-1)}.'
            )
        entries = space if isinstance(space, Mapping) else dict.fromkeys(space, ...)
        if not isinstance(space, Mapping) and len(entries) < len(space):
            raise SettingsError(f"space={shown(space)}: a name is in it twice.")
        for name, entry in entries.items():
            self._check_name(name)
            if name == OPTIMIZER and name not in self.build:
                yield from self._optimizers(entry)
            else:
                yield self._dimension(name, name, plain(entry))

    def _check_name(self, name: Any) -> None:
        if not isinstance(name, str):
            raise SettingsError(f"space: {shown(name)} is no name of a setting.")
        if name in self.fixed:
            raise SettingsError(
                f"{name} is in the space and given for all trials too: leave one out."
            )
        is_setting = name in Settings.model_fields
        if is_setting and name in self.build:
            raise SettingsError(
                f"space: {name} is a setting and a parameter of the model's function: give the"
                " parameter another name."
            )
        if name in self.build or name == OPTIMIZER:
            return
        if not is_setting:
            parameters = ", ".join(self.build) or "none, since the bench has a model itself"
            raise SettingsError(
                f"space: {name!r} is neither a setting nor a parameter of the model's function"
                f" (those are {parameters}).{self._meant(name)}"
            )
        if why := _why_refused(name):
            raise SettingsError(f"space: {name} cannot be chosen: {why}.")

    def _meant(self, name: str) -> str:
        """What a name was probably meant to be, after a space; "": nothing is near it."""
        if taker := _OF_OPTIMIZERS.get(name, ""):
            return (
                f" Optimizers take it: {{'optimizer': {{{taker!r}: {{{name!r}: …}}}}}} chooses it"
                f" for {taker}."
            )
        if name in (*OBJECTS, *OBJECTS.values()):
            return (
                " It is an object and no number: let the function that makes the model choose it by"
                f' a parameter, and return it, {{"model": …, {name!r}: …}}.'
            )
        names = [*self.build, *Settings.model_fields]
        meanings = {**SPOKEN, **dict(zip(names, names, strict=True))}
        close = difflib.get_close_matches(name.lower(), meanings, n=1, cutoff=0.6)
        near = [*dict.fromkeys(meanings[word] for word in close)]
        refused = _why_refused(near[0]) if len(near) == 1 and near[0] not in self.build else ""
        if refused:
            return f" {near[0]} cannot be chosen: {refused}."
        return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""

    def _optimizers(self, entry: Any) -> Iterator[Dimension]:
        names = [*entry] if isinstance(entry, Mapping | list) else []
        chooses = len(names) > 1 or (isinstance(entry, Mapping) and any(entry.values()))
        if not chooses or not all(isinstance(name, str) for name in names):
            raise SettingsError(
                f"space: optimizer={shown(entry)}: give at least two names,"
                ' ["adamw", "sgd"], or a dict with what is chosen for each,'
                ' {"adamw": {"lr": ...}, "sgd": {"lr": ..., "momentum": (0.8, 0.99)}}.'
            )
        self._check_values(OPTIMIZER, names)
        distinct = _distinct(OPTIMIZER, names) if len(names) > 1 else tuple(names)
        present = self.settings.optimizer
        yield Choice(OPTIMIZER, present, isinstance(present, str), choices=distinct)
        for branch, inner in entry.items() if isinstance(entry, Mapping) else ():
            if not isinstance(inner, Mapping):
                raise SettingsError(
                    f"space: optimizer={{{branch!r}: {shown(inner)}}}: give a dict of what is"
                    ' chosen, {"lr": ...}, an empty one for nothing.'
                )
            for name, values in inner.items():
                if name in Settings.model_fields:
                    self._check_name(name)
                yield self._dimension(f"{OPTIMIZER}.{branch}.{name}", name, plain(values))

    def _dimension(self, full_name: str, name: str, entry: Any) -> Dimension:
        dimension = self._of_entry(full_name, name, entry)
        if name in self.build:
            present = self.build[name]
        elif name in Settings.model_fields:
            present = getattr(self.settings, name)
        else:
            return dimension
        if not is_plain(present) or (isinstance(dimension, Float) and dimension.relative):
            return dimension
        return replace(dimension, present=present, has_present=True)

    def _of_entry(self, full_name: str, name: str, entry: Any) -> Dimension:
        if entry is ...:
            return self._of_name(full_name, name)
        if isinstance(entry, str) and entry == RELATIVE:
            if name != "lr":
                raise SettingsError(
                    f'space: {name}="relative": only lr is found by a search of each model; give a'
                    f" range, {name}=(low, high)."
                )
            return Float(full_name, low=0.1, high=10.0, log=True, relative=True)
        if isinstance(entry, list):
            choices = _distinct(name, entry)
            self._check_values(name, choices)
            kinds = {type(value) for value in choices} & {list, tuple}
            if len(kinds) > 1:
                raise SettingsError(
                    f"space: {name}={shown(entry)} has lists and tuples: write all of them as lists"
                    " or all as tuples."
                )
            written = tuple in kinds and full_name == name
            return Choice(full_name, choices=choices, tuples=written)
        if isinstance(entry, tuple) and len(entry) == 2:
            low, high = map(plain, entry)
            if _is_number(low) and _is_number(high):
                return self._range(full_name, name, low, high)
        raise SettingsError(
            f"space: {name}={shown(entry)}: give a tuple of two numbers (low, high) for a range, a"
            ' list of values to choose from, "relative" (for lr), or ... for a range around what a'
            " search has found."
        )

    def _range(self, full_name: str, name: str, low: float, high: float) -> Dimension:
        text = f"space: {name}=({shown(low)}, {shown(high)})"
        if not (math.isfinite(low) and math.isfinite(high)):
            raise SettingsError(f"{text}: give two finite numbers.")
        if not low < high:
            raise SettingsError(f"{text}: give (low, high), the lower one first.")
        whole = type(low) is int and type(high) is int
        if not whole and name not in RATES and self._is_whole(name, low + 0.381966 * (high - low)):
            present = self.build.get(name, getattr(self.settings, name, None))
            raise SettingsError(
                f"{text}: {name} is a whole number, {present}: give"
                f" ({math.floor(low)}, {math.ceil(high)})."
            )
        self._check_values(name, (low, high))
        if name in RATES and low <= 0:
            raise SettingsError(
                f"{text}: the range of a rate is logarithmic and begins above 0; give a list,"
                f" {name}=[0, 1e-3, 1e-2], to try 0."
            )
        if whole and name not in RATES:
            return Int(full_name, low=int(low), high=int(high), log=low >= 1 and high >= 8 * low)
        log = name in RATES or (low > 0 and high >= 50 * low)
        return Float(full_name, low=float(low), high=float(high), log=log)

    def _is_whole(self, name: str, between: float) -> bool:
        """Whether a name takes whole numbers alone. between: a number of its range."""
        if name in self.build:
            return type(self.build[name]) is int
        if type(getattr(self.settings, name, None)) is not int:
            return False
        try:
            self.settings.replace(**{name: between})
        except SettingsError:
            return True
        return False

    def _check_values(self, name: str, values: Sequence[Any]) -> None:
        """SettingsError: the setting does not take one of these values."""
        for value in values:
            if name in Settings.model_fields and name not in self.build:
                self.settings.replace(**{name: value})
            elif not is_plain(value):
                raise SettingsError(
                    f"space: {name}={shown(value)}: a study's record holds numbers, texts, booleans"
                    " and None. Give a name, from which the model's function makes the object."
                )
            refuse_text("space", name, value, self.build.get(name))

    def _of_name(self, full_name: str, name: str) -> Dimension:
        """The dimension of a name alone: around what was found, or around the present value."""
        if name in self.build:
            return self._around(full_name, name, self.build[name])
        if name == "lr":
            return _wide(Float(full_name, log=True, around=100.0), self.settings.lr or 1e-3)
        if name == "weight_decay":
            center = self.settings.weight_decay or 1e-2
            return _wide(Float(full_name, log=True, around=30.0), center)
        if name == "batch_size":
            return Choice(full_name, choices=self._batch_sizes())
        if name in _CHOICES:
            present = getattr(self.settings, name)
            choices = [*_CHOICES[name]]
            if present not in choices and is_plain(present):
                choices.append(present)
            if Choice(name, choices=_CHOICES[name]).ordered and _is_number(present):
                choices.sort(key=lambda choice: -1.0 if choice is None else float(choice))
            return Choice(full_name, choices=tuple(choices))
        raise SettingsError(
            f"space: {name} has no range of its own: give one, {{{name!r}: (low, high)}}, or a list"
            " of values."
        )

    def _batch_sizes(self) -> tuple[int, ...]:
        """The present size halved and doubled up to three times."""
        size = self.settings.batch_size
        return tuple(int(size * 2.0**k) for k in range(-3, 4) if (size * 2.0**k).is_integer())

    def _around(self, full_name: str, name: str, value: Any) -> Dimension:
        """A range around the default of a parameter of the model's function."""
        if type(value) is bool:
            return Choice(full_name, choices=(False, True))
        if type(value) is int and value >= 1:
            return Int(full_name, low=max(1, value // 4), high=value * 4, log=True)
        if type(value) is float and 0 <= value <= 0.5:
            return Float(full_name, low=0.0, high=0.5)
        if type(value) is float and value > 0:
            return Float(full_name, low=_two(value / 4), high=_two(value * 4), log=True)
        raise SettingsError(
            f"space: {name}={shown(value)} has no range of its own: give one,"
            f" {{{name!r}: (low, high)}}, or a list of values."
        )


def _why_refused(name: str) -> str:
    """Why a setting cannot be in a space; "": it can."""
    if name in _ALLOWED:
        return ""
    why = _REFUSED.get(name) or _REFUSED_GROUPS.get(metadata_of(name).group, "")
    return why.format(name=name)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _two(number: float) -> float:
    """The number with two digits."""
    return float(rate(number, 2))


def _distinct(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """SettingsError: there are fewer than two values, or two equal ones."""
    choices = tuple(map(plain, values))
    if len(choices) < 2:
        raise SettingsError(
            f"space: {name}={shown(list(choices))}: give at least two values to choose from; one"
            f" value for all trials is given to the study, study(…, {name}=…)."
        )
    for k, value in enumerate(choices):
        if any(type(value) is type(other) and value == other for other in choices[:k]):
            raise SettingsError(f"space: {name}={shown(list(choices))}: {shown(value)} is twice.")
    if all(map(_is_number, choices)):
        return tuple(sorted(choices))
    return choices


def _wide(dimension: Float, center: float) -> Float:
    """The dimension with a range around this value."""
    low, high = center / dimension.around, min(center * dimension.around, 1e3)
    return replace(dimension, low=_two(low), high=_two(high))


def _resolved(dimension: Dimension, prior: Any) -> Dimension:
    """The dimension with what the searches found of it."""
    if not isinstance(prior, Mapping):
        return dimension
    center, largest = prior.get("center"), prior.get("largest")
    if isinstance(dimension, Float) and dimension.around > 1 and isinstance(center, int | float):
        wide = _wide(dimension, max(float(center), 0.0))
        return wide if 0 < wide.low < wide.high else dimension
    if not isinstance(largest, int | float):
        return dimension
    if isinstance(dimension, Choice):
        fitting = tuple(c for c in dimension.choices if not _is_number(c) or c <= largest)
        return replace(dimension, choices=fitting or dimension.choices[:1])
    if isinstance(dimension, Int) and dimension.low < int(largest) < dimension.high:
        return replace(dimension, high=int(largest))
    return dimension


def _unit(value: Any, low: float, high: float, log: bool) -> float | None:
    if type(value) not in (int, float) or not low <= value <= high:
        return None
    if log:
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def _check_record(dimension: Dimension) -> None:
    """ValueError: the numbers of a dimension from a record make no range."""
    outer = dimension.path[:-1]
    if outer and (len(outer) != 2 or outer[0] != OPTIMIZER):
        raise ValueError("its name has other parts than optimizer.value.name")
    if isinstance(dimension, Choice):
        if not dimension.choices:
            raise ValueError("no values")
        return
    numbers = cast("Float | Int", dimension)
    kind = float if isinstance(dimension, Float) else int
    if type(numbers.low) is not kind or type(numbers.high) is not kind:
        raise ValueError("its ends are no numbers")
    if not numbers.low < numbers.high or (numbers.log and numbers.low <= 0):
        raise ValueError("its ends make no range")
    if isinstance(dimension, Float) and not _is_number(dimension.around):
        raise ValueError("around is no number")
