"""Captures the place where a Workbench is made: the source that has run by then, as plain data.

It is captured when the Workbench is made, because later cells can redefine everything; the export
reads it later.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType, ModuleType
from typing import Any

from workbench.export.source import origins

_TRANSPARENT = {"time", "capture", "prun", "memit", "mprun"}
"""Cell magics that run their body in the notebook's own namespace."""
_LINE_MAGIC = re.compile(
    r"^([^\S\n]*)get_ipython\(\)\.run_line_magic\('time', (.*)\)[ \t]*$", re.MULTILINE
)
_RAISED_AT = re.compile(r"In\[(\d+)\], line (\d+)|<timed exec>:(\d+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_BOOKKEEPING = re.compile(r"In|Out|_+|_i+|_ih|_oh|_dh|_i?\d+|__\w+__")
_ITEMS = 1000
_DEPTH = 30
_KINDS = {
    "torch.nn.modules.module.Module": "network",
    "torch.utils.data.dataloader.DataLoader": "loader",
    "torch._C.Generator": "random",
    "numpy.random._generator.Generator": "random",
    "numpy.random.mtrand.RandomState": "random",
    "random.Random": "random",
    "torch._C.TensorBase": "tensor",
    "torch.Tensor": "tensor",
    "numpy.ndarray": "array",
    "pandas.core.generic.NDFrame": "frame",
    "sklearn.base.BaseEstimator": "estimator",
}
_IMMUTABLE = {
    "int",
    "float",
    "bool",
    "str",
    "bytes",
    "complex",
    "NoneType",
    "range",
    "frozenset",
    "device",
    "dtype",
}
_CODE = {"function", "builtin_function_or_method", "method", "type"}


@dataclass(frozen=True)
class Piece:
    """One piece of source that has run: a cell (as plain Python) or a whole file."""

    label: str
    """Its name in messages: "In [3]", or a file name."""
    source: str
    stopped: int | None = None
    """The line at which it raised an error; None: it ran to its end (or is running now)."""


@dataclass(frozen=True)
class Spot:
    """A place in a piece, as the interpreter gives it; `column` is -1 where columns are unknown."""

    piece: int
    line: int
    column: int = -1
    end_line: int = -1
    end_column: int = -1


@dataclass(frozen=True)
class Frame:
    """A frame of the user's code that was running: the top level, or a function."""

    spot: Spot
    values: Mapping[str, str] = field(default_factory=dict)
    """Its names that hold plain literals, as source text."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Its names, attributes and items that refer to an object of the top level, each with the
    name there; "": the bench.
    """


@dataclass(frozen=True)
class BuildCall:
    """How `model=`, a function, made the model of a run: the values that are not its defaults."""

    values: Mapping[str, str]
    """The source text of each, by the name of the parameter."""
    returns_model: bool
    """Whether it returns the model alone, and not a dict of the bench's arguments."""
    rated: bool = False
    """Whether the function has a rule for the optimizer's groups, too: `wb.mup(…)`."""


@dataclass(frozen=True)
class CallSite:
    """The place where a Workbench was made, and the code that had run before. It is plain data,
    without the user's objects, and can be pickled.
    """

    pieces: tuple[Piece, ...] = ()
    call: Spot | None = None
    reached: Spot | None = None
    """Where the top level was at that moment; None: all pieces had run to their end."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Names in the scope of the call that held plain literals, as source text."""
    top_values: Mapping[str, str] = field(default_factory=dict)
    """The values at the module's top level."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """The kind of each name's value: "module", "network", "random", "iterator", "immutable", …"""
    package: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The text of the user's own modules that were loaded, by module name."""
    problem: str | None = None
    """Why there is no source to slice."""
    given: frozenset[str] = frozenset()
    """The names of the objects that the Workbench was given, of which the call may name some only
    in `**kwargs`.
    """
    module: str = ""
    """The name of the module that made it."""
    around: tuple[Frame, ...] = ()
    """The frames that were running at the call, the top level first."""
    build: BuildCall | None = None
    """The call of the function that made the model; None: the model was given."""
    fit: tuple[Frame, ...] = ()
    """The frames that were running when the run began, the top level first; empty: those at the
    call.
    """

    @classmethod
    def capture(cls, frame: FrameType, given: Iterable[str] = ()) -> CallSite:
        """The call site of the function that runs in `frame`, a caller of Workbench. It never
        raises an error.

        given: the names of the objects that it gave.
        """
        try:
            return replace(_capture(frame), given=frozenset(given))
        except Exception as error:  # noqa: BLE001  # making a Workbench must not fail because of its export
            return cls(problem=f"its source could not be read ({type(error).__name__}: {error})")

    def until(self, frame: FrameType, bench: object) -> CallSite:
        """A copy with the code that had run when `frame` called `bench.fit`, since functions
        read their globals then. It never raises an error.
        """
        try:
            return _until(self, frame, bench)
        except Exception:  # noqa: BLE001  # a fit must not fail because of its export
            return self


def _until(site: CallSite, frame: FrameType, bench: object) -> CallSite:
    if site.call is None:
        return site
    shell = _shell()
    in_notebook = shell is not None and site.pieces[0].label.startswith("In [")
    stack = [*_outwards(frame)]
    frames = [
        f
        for f in stack
        if (
            shell.user_ns is f.f_globals and _is_written(f)
            if in_notebook
            else _is_of(f, site.pieces)
        )
    ]
    if frames:
        names = frames[-1].f_globals
    else:
        names = shell.user_ns if in_notebook else vars(sys.modules[site.module])
    pieces = _cells(shell) if in_notebook else list(site.pieces)
    around = _frames(frames, pieces, shell if in_notebook else None, names, bench)
    # a click in the panel, or another file's call
    if not around or not _is_top_level(frames[-1]):
        end = Frame(
            Spot(len(pieces) - 1, sys.maxsize),
            dict(_literals(_own_names(names))),
            _names_of(names, {}, {}, bench),
        )
        around = (end, *around)
    until = site.call.piece + 1
    if [piece.source for piece in pieces[:until]] != [
        piece.source for piece in site.pieces[:until]
    ]:
        return site
    kinds = {name: kind(value) for name, value in _own_names(names).items()} | dict(site.kinds)
    return replace(site, pieces=tuple(pieces), kinds=kinds, fit=around)


def _frames(
    own: list[FrameType],
    pieces: list[Piece],
    shell: Any,
    names: Mapping[str, Any],
    bench: object,
) -> tuple[Frame, ...]:
    """The frames of the Workbench's cells or file, outermost first. pieces: it may add cells."""
    history: list[str] = [] if shell is None else list(shell.history_manager.input_hist_parsed)[1:]
    frames: list[Frame] = []
    known, objects = names, _objects_of(names)
    for walk in reversed(own):
        own_names = _own_names(_locals_of(walk))
        top = _is_top_level(walk) and walk.f_globals is names
        held = _names_of(own_names, {} if top else known, {} if top else objects, bench)
        known = {
            **{name: value for name, value in own_names.items() if held.get(name, name) == name},
            **known,
        }
        objects = _objects_of(known)
        frames = [] if _is_top_level(walk) else frames  # `%%time` runs a cell in another
        spot = _spot(walk, 0) if shell is None else _place(pieces, history, walk)
        frames.append(Frame(spot, dict(_literals(own_names)), held))
    return tuple(frames)


def _objects_of(names: Mapping[str, Any]) -> dict[int, str]:
    """The first name of each mutable object, by the object's id."""
    return {
        id(value): name
        for name, value in reversed(_own_names(names).items())
        if kind(value) not in ("immutable", "code", "module")
    }


def _names_of(
    local: Mapping[str, Any], top: Mapping[str, Any], objects: Mapping[int, str], bench: object
) -> dict[str, str]:
    """The names in `local` that refer to objects of the top level, and the names, attributes and
    items that refer to the bench. objects: of `top`.
    """
    names: dict[str, str] = {}
    for name, value in _own_names(local).items():
        attributes = (
            getattr(value, "__dict__", None) if not isinstance(value, (ModuleType, type)) else None
        )
        if value is bench:
            names[name] = ""
        elif id(value) in objects:
            names[name] = name if top.get(name) is value else objects[id(value)]
        if isinstance(attributes, dict):
            names |= {
                f"{name}.{key}": "" for key, held in list(attributes.items()) if held is bench
            }
        if type(value) in (list, tuple, dict):
            items = enumerate(value) if not isinstance(value, dict) else value.items()
            names |= {
                f"{name}[{key!r}]": ""
                for key, held in list(items)
                if held is bench and isinstance(key, (int, str, float))
            }
    return names


def root_of(text: str) -> str:
    """The name with which the text of an attribute or an item begins: "benches" in
    "benches[1].model".
    """
    return text.partition(".")[0].partition("[")[0]


def _locals_of(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's local names. Before Python 3.13 a frame keeps the dict that it makes
    for this, and so keeps their values alive.
    """
    variables = frame.f_locals
    copied = dict(variables)
    # no other reference to it
    if (
        frame.f_code.co_flags & inspect.CO_OPTIMIZED
        and isinstance(variables, dict)
        and sys.getrefcount(variables) <= 3
    ):
        variables.clear()
    return copied


def _own_names(names: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in list(names.items())
        if not _BOOKKEEPING.fullmatch(name) and name.isidentifier()
    }


def _is_written(frame: FrameType) -> bool:
    """Whether its code is in a file or a cell; that of a dataclass's `__init__` is in neither."""
    return frame.f_code.co_filename.startswith("<timed") or bool(
        linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    )


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _capture(frame: FrameType) -> CallSite:
    shell = _shell()
    in_notebook = shell is not None and shell.user_ns is frame.f_globals
    if in_notebook:
        pieces, call, reached = _from_notebook(shell, frame)
    else:
        pieces, call, reached = _from_file(frame)
    if not pieces:
        return CallSite(
            problem="there is no source to read (python -c, exec, or an interactive prompt)"
        )
    names = _own_names(frame.f_globals)
    around: dict[str, Any] = {}
    for outer in _scopes(frame):
        around = {**_locals_of(outer), **around}
    return CallSite(
        pieces=tuple(pieces),
        call=call,
        reached=reached,
        values=dict(
            _literals({name: around[name] for name in around if not _BOOKKEEPING.fullmatch(name)})
        ),
        top_values=dict(_literals(names)),
        kinds={name: kind(value) for name, value in {**names, **around}.items()},
        package=str(frame.f_globals.get("__package__") or ""),
        module=str(frame.f_globals.get("__name__")),
        around=_frames(
            [f for f in _outwards(frame) if f.f_globals is frame.f_globals and _is_written(f)],
            pieces,
            shell if in_notebook else None,
            names,
            object(),
        ),
        sources=origins.own_sources(),
    )


def _shell() -> Any:
    """The running IPython shell, or None; IPython is never imported for it."""
    module = sys.modules.get("IPython.core.interactiveshell")
    shells = getattr(module, "InteractiveShell", None)
    return shells.instance() if shells is not None and shells.initialized() else None


# ---- a file --------------------------------------------------------------------------------------


def _from_file(frame: FrameType) -> tuple[list[Piece], Spot | None, Spot | None]:
    filename = frame.f_code.co_filename
    lines = linecache.getlines(filename, frame.f_globals)
    if filename.startswith("<") or not lines:
        return [], None, None
    top = _top_level(frame)
    return (
        [Piece(pathlib.Path(filename).name, "".join(lines))],
        _spot(frame, 0),
        top and _spot(top, 0),
    )


def _is_of(frame: FrameType, pieces: tuple[Piece, ...]) -> bool:
    """Whether the frame's code belongs to these pieces. A file of another name is not read for
    it.
    """
    return frame.f_code.co_filename.endswith(pieces[0].label) and _from_file(frame)[0] == list(
        pieces
    )


def _top_level(frame: FrameType) -> FrameType | None:
    """The frame of the module's top level below `frame`; None when the module has run to its
    end.
    """
    walk: FrameType | None = frame
    while walk is not None:
        if walk.f_globals is frame.f_globals and _is_top_level(walk):
            return walk
        walk = walk.f_back
    return None


def _is_top_level(frame: FrameType) -> bool:
    # Some versions of IPython 8 name the code of a cell "<cell line: 3>".
    return frame.f_code.co_name == "<module>" or frame.f_code.co_name.startswith("<cell line")


def _spot(frame: FrameType, piece: int) -> Spot:
    """The expression that `frame` is running."""
    positions = frame.f_code.co_positions()
    line, end_line, column, end_column = next(
        itertools.islice(positions, frame.f_lasti // 2, None), (None, None, None, None)
    )
    if line is None or end_line is None or column is None or end_column is None:
        return Spot(piece, frame.f_lineno)
    return Spot(piece, line, column, end_line, end_column)


def _scopes(frame: FrameType) -> Iterator[FrameType]:
    """`frame`, and, if it is a comprehension or a lambda, the frames around it up to that of the
    function.
    """
    yield frame
    while frame.f_code.co_name in (
        "<listcomp>",
        "<setcomp>",
        "<dictcomp>",
        "<genexpr>",
        "<lambda>",
    ):
        back = frame.f_back
        if back is None or back.f_code.co_filename != frame.f_code.co_filename:
            return
        frame = back
        yield frame


# ---- a notebook ----------------------------------------------------------------------------------


def _from_notebook(shell: Any, frame: FrameType) -> tuple[list[Piece], Spot | None, Spot | None]:
    history: list[str] = list(shell.history_manager.input_hist_parsed)[1:]
    pieces = _cells(shell)
    call = _place(pieces, history, frame)
    top = _top_level(frame)
    if top is None:
        return pieces, call, None
    return pieces, call, call if top is frame else _place(pieces, history, top)


def _cells(shell: Any) -> list[Piece]:
    history: list[str] = list(shell.history_manager.input_hist_parsed)[1:]
    stops = _stops(shell, history)
    return [
        Piece(f"In [{n}]", _plain(shell, text), stops.get(n)) for n, text in enumerate(history, 1)
    ]


def _place(pieces: list[Piece], history: list[str], frame: FrameType) -> Spot:
    """The spot that `frame` runs; source that is in no cell is added to the pieces."""
    filename = frame.f_code.co_filename
    last = len(history) - 1
    if filename.startswith("<timed"):
        if history[last].startswith("get_ipython().run_cell_magic("):
            return _spot(frame, last)
        outer = frame.f_back
        while outer is not None and not (
            outer.f_globals is frame.f_globals and _is_top_level(outer)
        ):
            outer = outer.f_back
        return Spot(last, outer.f_lineno if outer is not None else 1)
    text = "".join(linecache.getlines(filename)).rstrip("\n")
    for index in range(len(pieces) - 1, -1, -1):
        if text in (
            pieces[index].source.rstrip("\n"),
            (history[index] if index <= last else "").rstrip("\n"),
        ):
            return _spot(frame, index)
    if not text:
        raise LookupError(f"no source for {filename}")
    pieces.append(Piece(pathlib.Path(filename).name, text + "\n"))
    return _spot(frame, len(pieces) - 1)


def _plain(shell: Any, text: str) -> str:
    """A cell as plain Python: `%%time`, `%%capture` and `%time` are replaced by the code that
    they run.
    """
    if text.lstrip().startswith("get_ipython().run_cell_magic("):
        try:
            call = ast.parse(text.strip(), mode="eval").body
            name, _, body = (ast.literal_eval(arg) for arg in getattr(call, "args", ()))
        except (SyntaxError, ValueError):
            return text
        return _plain(shell, shell.transform_cell(body)) if name in _TRANSPARENT else text
    return _LINE_MAGIC.sub(lambda found: found[1] + str(ast.literal_eval(found[2])), text)


def _stops(shell: Any, history: list[str]) -> dict[int, int]:
    """The line at which a cell raised an error, by the cell's number."""
    stops: dict[int, int] = {}
    for number, error in (getattr(shell.history_manager, "exceptions", None) or {}).items():
        for text in error.get("traceback", ()):
            match = _RAISED_AT.search(_COLOURS.sub("", text))
            if match and (match[1] is None or int(match[1]) == number):
                stops[number] = int(match[2] or match[3])
                break
    if hasattr(shell.history_manager, "exceptions"):
        return stops
    last = getattr(sys, "last_traceback", None)  # IPython before 9 remembers the last error only
    names = getattr(shell.compile, "_filename_map", {})
    while last is not None:
        number = names.get(last.tb_frame.f_code.co_filename)
        if number is not None and number < len(history) and _is_top_level(last.tb_frame):
            if history.count(history[number - 1]) == 1:
                stops[number] = last.tb_lineno
            break
        last = last.tb_next
    return stops


# ---- values --------------------------------------------------------------------------------------


def _literals(names: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in names.items():
        if name.isidentifier():
            text = literal(value)
            if text is not None:
                yield name, text


def literal(value: Any) -> str | None:
    """Source text that makes an equal value, for plain values of a moderate size; else None."""
    return _literal(value, iter(range(2 * _ITEMS)), frozenset())


def _literal(value: Any, left: Iterator[int], around: frozenset[int]) -> str | None:
    """See `literal`. left: yields once for each item that may still be written; around: the ids
    of the containers around `value`.
    """
    if value is None or type(value) is bool:
        return repr(value)
    if type(value) in (str, bytes):
        return repr(value) if len(value) <= 10 * _ITEMS else None
    if type(value) is int:
        return repr(value) if value.bit_length() <= 10 * _ITEMS else None
    if type(value) is float:
        return repr(value) if value - value == 0 else f"float({str(value)!r})"
    if isinstance(value, pathlib.PurePath):
        kind = "Path" if isinstance(value, pathlib.Path) else type(value).__name__
        return f"pathlib.{kind}({str(value)!r})"
    if (
        type(value) not in (tuple, list, dict)
        or id(value) in around
        or len(around) == _DEPTH
        or len(value) > _ITEMS
    ):
        return None
    words: list[str] = []
    for item in [*value, *value.values()] if type(value) is dict else list(value):
        text = None if next(left, None) is None else _literal(item, left, around | {id(value)})
        if text is None:
            return None
        words.append(text)
    if sum(map(len, words)) > 100 * _ITEMS:
        return None
    if type(value) is dict:
        half = len(words) // 2
        return (
            "{"
            + ", ".join(f"{k}: {v}" for k, v in zip(words[:half], words[half:], strict=True))
            + "}"
        )
    if type(value) is list:
        return "[" + ", ".join(words) + "]"
    return "(" + ", ".join(words) + ("," if len(words) == 1 else "") + ")"


def kind(value: Any) -> str:
    """The kind of `value` in one word, as far as it matters for the question which code may
    change it.
    """
    cls = type(value)
    if issubclass(cls, ModuleType):
        return "module"
    if cls.__name__ in _CODE or issubclass(cls, type):
        return "code"
    if cls.__name__ in _IMMUTABLE and cls.__module__ in ("builtins", "torch"):
        return "immutable"
    for base in cls.__mro__:
        named = _KINDS.get(f"{base.__module__}.{base.__qualname__}")
        if named:
            return named
    if hasattr(cls, "__next__"):
        return "iterator"
    if cls.__module__ == "builtins":
        return cls.__name__
    if any(
        _KINDS.get(f"{type(attribute).__module__}.{type(attribute).__qualname__}") == "random"
        for attribute in getattr(value, "__dict__", {}).values()
    ):
        return "random"  # its methods advance it
    return (
        "estimator"
        if hasattr(cls, "fit") and hasattr(cls, "get_params")
        else cls.__module__.partition(".")[0]
    )
