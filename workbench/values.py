"""Defines the types of settings beyond plain numbers: durations, intervals, numbers of batches,
monitors.
"""

from __future__ import annotations

import inspect
import json
import math
import numbers
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from workbench.metric_mode import Mode, known_mode
from workbench.tracebacks import UserError

_CLOCK = re.compile(r"(\d+):(\d{1,2}):(\d{1,2}):(\d{1,2}(?:\.\d+)?)")


class SettingsError(UserError):
    """Raised for a setting that does not exist, or a value that it cannot take."""


def plain_number(value: Any) -> Any:
    """Return NumPy's numbers as Python's own: a record stores them so, too."""
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def plain(value: Any) -> Any:
    """Return the number in an array or tensor without dimensions, and the dict or list in a
    configuration of OmegaConf; anything else unchanged.
    """
    omegaconf = sys.modules.get("omegaconf")  # without it there is no such value
    if omegaconf is not None and omegaconf.OmegaConf.is_config(value):
        return omegaconf.OmegaConf.to_container(value, resolve=True)
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return value.item()
    return value


def shown(value: object, most: int = 80) -> str:
    """Format a value for an error: an array, tensor or table by its shape; a long text is cut."""
    shape, kind = getattr(value, "shape", None), type(value).__name__
    if (
        not isinstance(value, type)
        and isinstance(shape, tuple)
        and all(isinstance(size, int) for size in shape)
        and shape
    ):
        return f"<{kind} of shape {tuple(shape)}>"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # a repr of the user's own must not hide what is wrong
        return f"<{kind}>"
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= most else f"{text[: most - 2]} …"


VALUES = 1 << 18
"""The most values in a JSON text from a file: as Python objects, many small ones take thirty
times the memory of the text.
"""


def from_json(text: str | bytes) -> Any:
    """Parse JSON that may come from a stranger. ValueError: it is no JSON, has more than
    `VALUES` values, or is nested too deeply.
    """
    if len(text) > VALUES:
        data = text.encode(errors="replace") if isinstance(text, str) else text
        if sum(map(data.count, (b",", b"[", b"{"))) > VALUES:
            raise ValueError(f"more than {VALUES} values")
    try:
        return json.loads(text)
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"no readable JSON ({type(error).__name__})") from None


NOT_HELD = "not held"
"""In a record, the key of the text of a value that a record cannot hold."""
_TUPLE = "tuple"
"""In a record, the key of the list of a tuple's items, which JSON does not have."""


def recordable(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a function's parameters as a record holds them: one that is not plain is
    {NOT_HELD: its text}, from which it cannot be made again.
    """
    return {
        name: _encoded(value) if is_plain(value) else {NOT_HELD: text_not_held(value)}
        for name, value in values.items()
    }


def text_not_held(value: object) -> str:
    """The text of a value that a record cannot hold. It is the same in each process, so it has no
    address; of a class and of a function it has the module and the name.
    """
    if isinstance(value, type):
        return type.__repr__(value)
    if inspect.isroutine(value):
        return f"<function {getattr(value, '__module__', None)}.{value.__qualname__}>"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", shown(value))


def from_record(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that `recordable` has written. One that is not held stays as it is."""
    return {
        name: {NOT_HELD: str(value[NOT_HELD])} if not is_held(value) else _decoded(value)
        for name, value in values.items()
    }


def is_held(value: Any) -> bool:
    """Whether a record holds this value, and not its text alone."""
    return not (isinstance(value, Mapping) and NOT_HELD in value)


def value_text(value: Any) -> str:
    """The text of a value of `from_record`."""
    return shown(value) if is_held(value) else str(value[NOT_HELD])


def _encoded(value: Any) -> Any:
    if isinstance(value, tuple):
        return {_TUPLE: [_encoded(item) for item in value]}
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _encoded(item) for key, item in value.items()}
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {_TUPLE} and isinstance(value[_TUPLE], list):
        return tuple(_decoded(item) for item in value[_TUPLE])
    return {key: _decoded(item) for key, item in value.items()}


def with_values(name: str, values: Mapping[str, Any]) -> str:
    """A name with the values of `from_record` as a call: "Net(width=256)"; the name alone where
    there are none.
    """
    texts = [f"{key}={value_text(value)}" for key, value in values.items()]
    return f"{name}({', '.join(texts)})" if texts else name


def is_plain(value: Any) -> bool:
    """Whether a record can hold a value: a number, a text, a boolean, None, or lists, tuples and
    dicts of these.
    """
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    if type(value) is dict:
        return all(isinstance(key, str) and is_plain(inner) for key, inner in value.items())
    return value is None or type(value) in (bool, int, str)


def holds_text(value: Any) -> bool:
    """Whether a plain value is a text, or has one in it."""
    if isinstance(value, list | tuple):
        return any(map(holds_text, value))
    if isinstance(value, dict):
        return any(map(holds_text, (*value, *value.values())))
    return isinstance(value, str)


def first_names(names: Sequence[str], most: int) -> str:
    """List the first of these names and how many others there are: `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def seconds(duration: str) -> float:
    """Convert a duration as `Duration` stores it ("DD:HH:MM:SS") to seconds."""
    match = _CLOCK.fullmatch(duration)
    if match is None:
        raise ValueError(
            f"{duration!r} should be a duration like '00:01:30:00' (days:hours:minutes:seconds)"
        )
    days, hours, minutes, rest = match.groups()
    return int(days) * 86400 + int(hours) * 3600 + int(minutes) * 60 + float(rest)


def _duration(value: object) -> object:
    """ "DD:HH:MM:SS", a timedelta, or its keyword arguments in a dict, in the one form that can
    be written down.
    """
    try:
        if isinstance(value, dict):
            value = timedelta(**value)
        elif isinstance(value, str):
            value = timedelta(seconds=seconds(value))
    except TypeError:
        raise ValueError(
            "a duration as a dict takes timedelta's names: days, hours, minutes, seconds"
        ) from None
    except OverflowError:
        raise ValueError("a duration should be shorter than 999999999 days") from None
    if not isinstance(value, timedelta):
        raise ValueError("should be 'DD:HH:MM:SS', a timedelta, or a dict like {'minutes': 90}")
    if value < timedelta(0):
        raise ValueError("a duration should not be negative")
    minutes, rest = divmod(value.seconds, 60)
    fraction = f".{value.microseconds:06d}".rstrip("0") if value.microseconds else ""
    return f"{value.days:02d}:{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}{fraction}"


Duration = Annotated[str, BeforeValidator(_duration)]
"""A length of time: "DD:HH:MM:SS", a timedelta, or a dict of its arguments; kept as the first."""


def _interval(value: object) -> object:
    value = plain_number(value)
    if isinstance(value, (str, timedelta, dict)):
        duration = _duration(value)
        if not timedelta(seconds=seconds(str(duration))):
            raise ValueError("a time from one to the next should be above 0")
        return duration
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            "should be a fraction of an epoch (0.25), a number of updates (500) or a time"
            " ('00:00:10:00')"
        )
    if isinstance(value, float) and not 0 < value <= 1:
        raise ValueError(
            "a fraction of an epoch should be above 0 and at most 1.0; a number of updates is"
            " an int"
        )
    if isinstance(value, int) and value < 1:
        raise ValueError("a number of updates should be at least 1")
    return value


Interval = Annotated[int | float | str, BeforeValidator(_interval)]
"""A float is a fraction of an epoch, an int a number of updates, a string (timedelta, dict) a
time.
"""


def _every(value: object) -> object:
    value = plain_number(value)
    if isinstance(value, (str, timedelta, dict)):
        return _interval(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(
            "should be a number of updates (500) or a time ('00:00:10:00', {'minutes': 10})"
        )
    return _interval(value)


Every = Annotated[int | str, BeforeValidator(_every)]
"""An int is a number of updates, a string (timedelta, dict) a time."""


def _batches(value: object) -> object:
    value = plain_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            "should be a number of batches (an int) or a fraction of them (a float up to 1.0)"
        )
    if isinstance(value, float) and not 0 <= value <= 1:
        raise ValueError(
            "a fraction of the batches should be between 0.0 and 1.0; a number of them is an int"
        )
    if value < 0:
        raise ValueError("should not be negative")
    return value


Batches = Annotated[int | float, BeforeValidator(_batches)]
"""An int is a number of batches, a float a fraction of an epoch's."""


def _by_epoch(value: object) -> object:
    value = plain_number(value)
    if isinstance(value, bool) or not isinstance(value, int | dict):
        raise ValueError("should be a number of batches (an int), or {epoch: batches}")
    if isinstance(value, int):
        if value < 1:
            raise ValueError("should be at least 1")
        return value
    if not value:
        raise ValueError("an empty dict has no number of batches: give {0: 4}, say, or an int")
    return {_key(key): _size(key, size) for key, size in value.items()}


def _key(key: object, what: str = "the key ") -> int:
    key = plain_number(key)
    # JSON has no other keys than strings
    number = int(key) if isinstance(key, str) and key.isdecimal() else key
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{what}{key!r} should be an epoch, counted from 0")
    return number


def _size(key: object, size: object) -> int:
    size = plain_number(size)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(
            f"the value at key {key!r} is {size!r}, and should be a number of batches of at least 1"
        )
    return size


ByEpoch = Annotated[int | dict[int, int], BeforeValidator(_by_epoch)]
"""A number, or {epoch: number}: each holds from its epoch (counted from 0) on; before the first
it is 1.
"""


def _epochs(value: object) -> object:
    value = plain_number(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value,)
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise ValueError("should be epochs, counted from 0: {0, 5, 10}")
    return tuple(sorted({_key(epoch, "") for epoch in value}))


Epochs = Annotated[tuple[int, ...], BeforeValidator(_epochs)]
"""Some epochs, counted from 0, in their order."""


def _unlimited(value: object) -> object:
    value = plain_number(value)
    # Lightning's word for "no limit"
    return None if value == -1 and not isinstance(value, bool) else value


Unlimited = Annotated[int | None, BeforeValidator(_unlimited)]
"""An int is a limit; None, and -1 as in Lightning, means no limit."""

_PRECISIONS = {
    "64": "64-true",
    "32": "32-true",
    "16": "16-mixed",
    "bf16": "bf16-mixed",
    "fp16": "16-mixed",
    "fp32": "32-true",
    "no": "32-true",
}
"""Other names of precisions: Lightning's numbers, and accelerate's names."""
_TRUE_16 = (
    "which trains in 16 bits throughout: convert the model and its data, model.to(torch.bfloat16),"
    " or take '{}'"
)


def _precision(value: object) -> object:
    value = plain_number(value)
    if isinstance(value, bool):
        raise ValueError("should be '32-true', '16-mixed', 'bf16-mixed' or '64-true'")
    word = str(value) if isinstance(value, int) else value
    if isinstance(word, str) and word in ("16-true", "bf16-true"):
        raise ValueError(
            f"is not supported, and should be a mixed precision: {word!r} is one"
            f" {_TRUE_16.format(word.replace('true', 'mixed'))}"
        )
    if isinstance(word, str) and word.startswith("transformer-engine"):
        raise ValueError(
            "is not supported, and should be 'bf16-mixed': make the layers of Transformer Engine in"
            " the model itself"
        )
    return _PRECISIONS.get(word, word) if isinstance(word, str) else word


Precision = Annotated[
    Literal["32-true", "16-mixed", "bf16-mixed", "64-true"], BeforeValidator(_precision)
]
"""The type of the arithmetic, by Lightning's words."""


def _warmup(value: object) -> object:
    value = plain_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            "should be a number of updates (an int) or a fraction of the run (a float below 1.0)"
        )
    if isinstance(value, float) and not 0 <= value < 1:
        raise ValueError(
            "a fraction of the run should be from 0.0 to below 1.0; a number of updates is an int"
        )
    if value < 0:
        raise ValueError("should not be negative")
    return value


Warmup = Annotated[int | float, BeforeValidator(_warmup)]
"""An int is a number of updates, a float a fraction of all the run's."""


def _swa_start(value: object) -> object:
    value = plain_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            "should be an epoch (an int, from 0) or a fraction of max_epochs (a float)"
        )
    if not value >= 0 or (isinstance(value, float) and value > 1):
        raise ValueError(
            "an epoch should not be negative, and a fraction should be between 0.0 and 1.0"
        )
    return value


SwaStart = Annotated[int | float, BeforeValidator(_swa_start)]
"""An int is an epoch, counted from 0, a float a fraction of `max_epochs`."""


class EarlyStopping(BaseModel):
    """When to end a fit because of a metric, which is read after each validation.

    Names and meaning are those of Lightning's EarlyStopping callback. `warmup` is added, and a
    metric such as "val_accuracy", of which more is better, needs no `mode`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    monitor: str = Field(
        description="The metric, as the run reports it: 'val_loss', 'val_accuracy', 'train_loss'."
    )
    mode: Mode | None = Field(
        None,
        description=(
            "Whether a lower or a higher value is better; None: as the metric's name says, else"
            " 'min'."
        ),
    )
    min_delta: float = Field(
        0.0, ge=0, description="A change of at most this does not count as an improvement."
    )
    patience: int = Field(
        3, ge=0, description="Validations without improvement after which the run ends."
    )
    warmup: int = Field(
        0,
        ge=0,
        description="This many validations at the beginning never end the run by `patience`.",
    )
    stopping_threshold: float | None = Field(
        None, description="Ends the run as soon as the metric is this good."
    )
    divergence_threshold: float | None = Field(
        None, description="Ends the run as soon as the metric is worse."
    )
    check_finite: bool = Field(True, description="Ends the run when the metric is NaN or infinite.")
    restore_best: bool = Field(
        False,
        description=(
            "At the end of the fit, the model gets the weights with the best value of the metric."
        ),
    )

    def __init__(self, *monitor: str, **options: Any) -> None:
        """The monitor may be positional, as in Lightning: EarlyStopping("val_loss")."""
        if monitor:
            options = {"monitor": monitor[0], **options}
        try:
            super().__init__(**options)
        except ValidationError as error:
            reasons = [
                f"{'.'.join(map(str, e['loc']))}{_given(e)}: {_reason(e['msg'])}"
                for e in error.errors()
            ]
            raise SettingsError(f"EarlyStopping: {', '.join(reasons)}") from None

    @model_validator(mode="before")
    @classmethod
    def _without_a_mode_that_goes_without_saying(cls, value: Any) -> Any:
        """Store the mode that the name implies as None, so that rules which mean the same are
        equal, also those of older records.
        """
        if (
            isinstance(value, dict)
            and isinstance(monitor := value.get("monitor"), str)
            and value.get("mode") == (known_mode(monitor) or "min")
        ):
            return {name: value for name, value in value.items() if name != "mode"}
        return value

    @property
    def direction(self) -> Mode:
        """`mode`, or what the metric's name says, or else "min", as in Lightning."""
        return self.mode or known_mode(self.monitor) or "min"


def _given(error: ErrorDetails) -> str:
    return "" if error["type"] == "missing" else f"={shown(error['input'])}"


def _reason(message: str) -> str:
    return message[:1].lower() + message[1:]


def _monitors(value: object) -> object:
    if value is None:
        return ()
    monitors = [value] if isinstance(value, (str, dict, EarlyStopping)) else value
    if not isinstance(monitors, (list, tuple)):
        raise ValueError(
            "should be EarlyStopping(monitor='val_loss'), several of them, or a metric's name"
        )
    for item in monitors:
        if isinstance(item, dict) and not all(isinstance(name, str) for name in item):
            raise ValueError(
                "a dict should have the arguments of EarlyStopping by their names: {'monitor': "
                "'val_loss'}"
            )
    return tuple({"monitor": item} if isinstance(item, str) else item for item in monitors)


Monitors = Annotated[tuple[EarlyStopping, ...], BeforeValidator(_monitors)]
"""Any number of EarlyStopping; None means no rule, and a metric's name means
EarlyStopping(monitor=name).
"""


def _devices(value: object) -> object:
    value = plain_number(value)
    if value == "auto" or (isinstance(value, str) and value.isdecimal()):
        return value if value == "auto" else _devices(int(value))
    # "0,1" are these GPUs, in Lightning
    if isinstance(value, str) and re.fullmatch(r"\d+(,\d+)*,?", value.replace(" ", "")):
        return _devices([int(number) for number in value.replace(" ", "").strip(",").split(",")])
    if value in (-1, "-1"):  # in Lightning: all devices
        return "auto"
    if isinstance(value, bool) or not isinstance(value, (int, list, tuple)):
        raise ValueError(
            "should be 'auto', a number of devices, or the numbers of some GPUs: [0, 2]"
        )
    if isinstance(value, int):
        if value < 1:
            raise ValueError("should be at least 1 device, or 'auto'")
        return value
    numbers = tuple(plain_number(number) for number in value)
    if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a list of devices should hold the numbers of GPUs, from 0: [0, 2]")
    return numbers


Devices = Annotated[Literal["auto"] | int | tuple[int, ...], BeforeValidator(_devices)]
"""An int is a number of devices, a tuple the numbers of GPUs; "auto": all GPUs, or the one CPU."""

_STRATEGIES = {
    "ddp_spawn": "pool",
    "ddp_notebook": "pool",
    "ddp_fork": "pool",
    "ddp": "pool",
    "notebook": "pool",
    "accelerate": "launch",
    "single_device": "thread",
}
"""Other libraries' names for strategies."""
_UNUSED = re.compile(r"(ddp(_spawn|_fork|_notebook)?)_find_unused_parameters_(true|false)")
"""Lightning's strategies that search for parameters without a gradient, which happens here in
any case.
"""


def _strategy(value: object) -> object:
    if isinstance(value, str) and (match := _UNUSED.fullmatch(value)):
        value = match[1]
    if isinstance(value, str) and value.startswith(("fsdp", "deepspeed")):
        raise ValueError(
            "should be 'launch', with an accelerate config that says FSDP: launch={'config_file':"
            " 'fsdp.yaml'}"
        )
    return _STRATEGIES.get(value, value) if isinstance(value, str) else value


Strategy = Annotated[Literal["auto", "thread", "pool", "launch"], BeforeValidator(_strategy)]
"""Where a job runs: in the notebook's process, in a pool of processes on this machine, or under
`accelerate launch`.
"""


def _options(value: object) -> object:
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        raise ValueError(
            "should be a dict of options of `accelerate launch`, {'config_file': 'two_gpus.yaml'}"
        )
    for name, option in value.items():
        if not isinstance(name, str) or not re.fullmatch(r"[a-z]\w*", name):
            raise ValueError(
                f"has {name!r}, which is not the name of an option: give it as in `accelerate"
                " launch`, without dashes"
            )
        if not isinstance(plain_number(option), str | bool | int | float):
            raise ValueError(
                f"has {name}={option!r}; an option takes a word or a number, or True if it has no "
                "value"
            )
    return {name: plain_number(option) for name, option in value.items()}


LaunchOptions = Annotated[dict[str, str | bool | int | float], BeforeValidator(_options)]
"""Options of `accelerate launch` by their names; True: the option stands alone."""
