"""Copies what the user's own objects hold, with or without the weights, and restores it.

A fresh fit begins with the state that the objects had when the bench was made, a search restores
the state from before it, and so does the trial of two samples. All of them copy the same objects
(`walk.py`).
"""

from __future__ import annotations

import abc
import ast
import contextlib
import copy
import io
import itertools
import random
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from workbench.task.device.dtensor import local
from workbench.task.modules import Modes, slots_of
from workbench.task.rng import is_generator, is_own
from workbench.task.state.contents import (
    MOST_PARTS,
    content_mark,
    content_of,
    is_block,
    is_container,
    is_data,
    is_large,
    is_plain,
    is_table,
    may_be_log,
    overwrite,
    put_content,
    refill,
    same_tensors,
    sample_mark,
    size_of,
)
from workbench.task.state.places import (
    ANY,
    counted_names,
    delete_name,
    has_state,
    set_name,
    set_variable,
    state_names,
    variables_of,
)
from workbench.task.state.walk import Reached, functions_of, is_own_code, walk

_UNDRAWN = 624
"""The position of a Mersenne Twister that has just been seeded."""
_SMALL = 1 << 16
"""Bytes up to which a block is always copied."""
_DATA_BUDGET = 1 << 26
"""Bytes of blocks in data that are copied; what is beyond them is data."""


# ---- what an object holds ------------------------------------------------------------------------


class Holding(abc.ABC):
    """What one object held when the copy was made."""

    @property
    @abc.abstractmethod
    def holder(self) -> Any:
        """The object."""

    @abc.abstractmethod
    def same(self, other: Self) -> bool:
        """Whether the object held the same at both moments."""

    def merged(self, left: Self, now: Self) -> Self:
        """This, with what the user has changed between `left` and `now`."""
        return self if now.same(left) else now

    def kept(self) -> Holding:
        """This, or a new copy where it has a checksum alone."""
        return self

    @abc.abstractmethod
    def put(self, names: Collection[str] | None) -> str | None:
        """Restore the object; returns what could not be restored. names: the attributes to
        restore; None: all.
        """


class Weights(Holding):
    """The parameters and buffers of a module."""

    def __init__(self, part: nn.Module, copies: dict[Tensor, Tensor]) -> None:
        """copies: those made so far; tied weights are copied once."""
        self.part = part
        self.values: dict[tuple[str, str], Tensor] = {}
        for (_, kind, name), tensor in slots_of([part]):
            if tensor not in copies:  # of a sharded one, this rank's piece
                copies[tensor] = local(tensor).detach().to("cpu", copy=True)
            self.values[kind, name] = copies[tensor]

    @property
    def holder(self) -> Any:
        return self.part

    def same(self, other: Self) -> bool:
        names = self.values.keys()
        if names != other.values.keys():
            return False
        return all(same_tensors(self.values[name], other.values[name]) for name in names)

    @torch.no_grad()
    def put(self, names: Collection[str] | None) -> None:
        """Write them back, in place where the tensors still exist; added buffers are removed."""
        for (kind, name), value in self.values.items():
            registered = getattr(self.part, kind)
            present = registered.get(name)
            piece = None if present is None else local(present)
            if piece is not None and piece.shape == value.shape:
                overwrite(piece, value)
            elif present is None:  # forward() has replaced the tensor
                registered[name] = value.clone()
            else:
                registered[name] = value.to(present.device, copy=True)
        for (_, kind, name), _ in list(slots_of([self.part])):
            if kind == "_buffers" and (kind, name) not in self.values:
                del self.part._buffers[name]


class Mode(Holding):
    """Whether a module that is not trained is in training mode."""

    def __init__(self, part: nn.Module) -> None:
        self.part, self.training = part, part.training

    @property
    def holder(self) -> Any:
        return self.part

    def same(self, other: Self) -> bool:
        return self.training == other.training

    def put(self, names: Collection[str] | None) -> None:
        Modes(((self.part, self.training),)).restore()


class Attributes(Holding):
    """The attributes of an object: the same objects again, and none that were added."""

    def __init__(self, owner: Any, without: frozenset[str] = frozenset()) -> None:
        """without: the names of attributes that stay as they are."""
        self.owner, self._without = owner, without
        self.names = {name: _frozen(value) for name, value in self._present().items()}
        self._layers = _layers_of(owner)

    def _present(self) -> dict[str, Any]:
        names = state_names(self.owner)
        return {name: value for name, value in names.items() if name not in self._without}

    @property
    def holder(self) -> Any:
        return self.owner

    def same(self, other: Self) -> bool:
        return self.names.keys() == other.names.keys() and all(
            _alike(value, other.names[name]) for name, value in self.names.items()
        )

    def merged(self, left: Self, now: Self) -> Self:
        return self.adopting(left, now, now.names.keys() | left.names.keys())

    def adopting(self, left: Self, now: Self, names: Iterable[str]) -> Self:
        """This, with the changes of these attributes between `left` and `now`."""
        missing = object()
        changed = copy.copy(self)
        changed.names = dict(self.names)
        changed._layers = self._layers | now._layers
        for name in names:
            before, after = left.names.get(name, missing), now.names.get(name, missing)
            if after is missing and before is not missing:
                changed.names.pop(name, None)
            elif after is not missing and not _alike(before, after):
                changed.names[name] = after
        return changed

    def put(self, names: Collection[str] | None) -> None:
        """Restore the attributes. Attributes that a job has added stay where it has added
        layers: a flag may belong to one.
        """
        now = self._present()
        if _layers_of(self.owner) <= self._layers:
            for name in now.keys() - self.names.keys():
                if names is None or name in names:
                    delete_name(self.owner, name)
        for name, value in self.names.items():
            if (names is None or name in names) and not (name in now and _alike(now[name], value)):
                set_name(self.owner, name, _frozen(value))


class Numbers(Holding):
    """The numbers among the attributes of an object that a set-up fills."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.names = {name: value for name, value in vars(owner).items() if _is_number(value)}

    @property
    def holder(self) -> Any:
        return self.owner

    def same(self, other: Self) -> bool:
        return self.names == other.names

    def put(self, names: Collection[str] | None) -> None:
        now = vars(self.owner)
        now.update({name: value for name, value in self.names.items() if _is_number(now.get(name))})


class Items(Holding):
    """What a container holds. Containers inside it stay the same objects, since others may refer
    to them.
    """

    def __init__(self, container: Any) -> None:
        self.container = container
        self.items = copy.copy(container)
        nested = not is_data(container) and is_plain(container)
        self._inner = (
            [Items(item) for item in _flat(container) if is_container(item)] if nested else []
        )

    @property
    def holder(self) -> Any:
        return self.container

    def same(self, other: Self) -> bool:
        if len(self.items) != len(other.items) or len(self._inner) != len(other._inner):
            return False
        pairs = zip(self._inner, other._inner, strict=True)
        return _same_items(self.items, other.items) and all(
            inner.same(theirs) for inner, theirs in pairs
        )

    def put(self, names: Collection[str] | None) -> None:
        for inner in self._inner:
            inner.put(names)
        if len(self.container) != len(self.items) or not _same_items(self.container, self.items):
            refill(self.container, copy.copy(self.items))


class Variables(Holding):
    """The variables that a function's code sets: those of enclosing functions, and globals."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self.values = {name: _frozen(value) for name, value in variables_of(function).items()}

    @property
    def holder(self) -> Any:
        return self.function

    def same(self, other: Self) -> bool:
        return self.values.keys() == other.values.keys() and all(
            _alike(value, other.values[name]) for name, value in self.values.items()
        )

    def put(self, names: Collection[str] | None) -> None:
        now = variables_of(self.function)
        for name, value in self.values.items():
            if name in now and not _alike(now[name], value):
                set_variable(self.function, name, _frozen(value))


class Content(Holding):
    """The contents of a block, the state of a generator, or the place in an iterator or a file."""

    def __init__(self, value: Any, *, copied: bool) -> None:
        """copied: False for what is too large to be copied."""
        self.value = value
        self.content = content_of(value) if copied else None
        self._sample = sample_mark(value) if self.content is None and is_block(value) else None
        self._seed = _seed_of(value)
        self._mark: Any = None

    @property
    def mark(self) -> Any:
        """A checksum of the contents; of large ones that of a sample."""
        if self._mark is None:
            self._mark = self._sample if self.content is None else content_mark(self.content)
        return self._mark

    @property
    def holder(self) -> Any:
        return self.value

    def same(self, other: Self) -> bool:
        return bool(self.mark == other.mark)

    def merged(self, left: Self, now: Self) -> Self:
        """A generator that was used meanwhile begins anew, unless the user has seeded it."""
        if is_generator(self.value) and not (now._seed is not None and now._seed != left._seed):
            return self
        return super().merged(left, now)

    def kept(self) -> Content:
        forgotten = self.content is None and self._sample is None and self._mark is not None
        return Content(self.value, copied=True) if forgotten else self

    def put(self, names: Collection[str] | None) -> str | None:
        if self.content is not None:
            put_content(self.value, self.content)
            moves = isinstance(self.value, (Iterator, io.IOBase))
            if moves and content_of(self.value) != self.content:
                return f"a {type(self.value).__name__} that was read further"
        elif self._sample is not None and self._sample != sample_mark(self.value):
            return "too large to be copied"
        return None

    def forget(self) -> None:
        """Keep a checksum alone, for comparing."""
        if self.content is not None:
            _ = self.mark
            self.content = None


# ---- the state of a task -------------------------------------------------------------------------


Key = tuple[int, type[Holding]]
"""The id of an object, and the kind of copy: of a list of the user's own class there are two."""


class StateCopy:
    """A copy of what the objects of a task hold."""

    def __init__(
        self,
        holdings: Mapping[Key, tuple[str, Holding]],
        counted: frozenset[str] = frozenset(),
        callbacks: Callable[[], object] | None = None,
    ) -> None:
        """
        Args:
            holdings: the copies, with the paths of the objects.
            counted: the names of attributes that the task's own code sets.
            callbacks: restores the callbacks of the task; None: they are left as they are.
        """
        self._holdings, self._counted, self._callbacks = holdings, counted, callbacks

    def __getstate__(self) -> dict[str, Any]:
        # In another process the objects have other ids.
        entries = [
            (holding.holder, kind, path, holding)
            for (_, kind), (path, holding) in self._holdings.items()
        ]
        return {**vars(self), "_holdings": entries}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._holdings = {
            (id(holder), kind): (path, holding)
            for holder, kind, path, holding in state["_holdings"]
        }

    @classmethod
    def of_data(cls, objects: Iterable[Reached]) -> StateCopy:
        """Copy what these objects of data hold."""
        copied = Copied(False, 0, set())
        copied.take(objects, data=True)
        return copied.all()

    @classmethod
    def of_attributes(
        cls, owners: Iterable[Any], closed: Callable[[Any], bool], without: frozenset[str]
    ) -> StateCopy:
        """Copy the attributes of these objects, whatever their class, and what those hold, but not
        what their methods use. closed: see `walk`. without: see `Attributes`.
        """
        copied = Copied(False, sys.maxsize, set())
        for owner in owners:
            attributes = Attributes(owner, without)
            copied.add(owner, type(owner).__name__, attributes)
            namespace = types.SimpleNamespace(**attributes.names)
            objects = walk(
                {type(owner).__name__: namespace},
                closed=lambda value: copied.has(value) or closed(value),
                variables=False,
            )
            within = [reached for reached in objects if reached.value is not namespace]
            copied.take(within, data=False)
            for reached in within:
                if isinstance(reached.value, nn.Module):
                    copied.holdings[id(reached.value), Mode] = reached.path, Mode(reached.value)
        return cls(copied.holdings)

    def joined(self, other: StateCopy, callbacks: Callable[[], object] | None) -> StateCopy:
        """This, and what another copy has of the same task."""
        return StateCopy({**self._holdings, **other._holdings}, other._counted, callbacks)

    def reached_in(self, other: StateCopy) -> StateCopy:
        """This, without the objects that another copy has not reached."""
        holdings = {key: kept for key, kept in self._holdings.items() if key in other._holdings}
        return StateCopy(holdings, self._counted)

    def put(self, *, searched: bool = False) -> list[str]:
        """Restore this state; returns the paths of what could not be restored, each with the
        reason.

        searched: the user's cells may have run meanwhile. What they have set stays: of objects
        other than modules, only the attributes that the task's own code sets are restored.
        """
        lost = []
        for path, holding in self._holdings.values():
            limited = (
                searched
                and ANY not in self._counted
                and isinstance(holding, Attributes)
                and not isinstance(holding.owner, nn.Module)
            )
            try:
                left = holding.put(self._counted if limited else None)
            except Exception as error:  # the user's object may raise anything
                if isinstance(holding, Weights):
                    raise
                left = f"{type(error).__name__}: {error}"
            if left is not None:
                lost.append(f"{path} ({left})")
        if self._callbacks is not None:
            self._callbacks()
        return lost

    def with_changes(self, left: StateCopy, now: StateCopy) -> tuple[StateCopy, list[str]]:
        """This state, with what the user has changed between `left` and `now`, which is the
        present; and the paths of what may have changed by accident.
        """
        merged, changed = dict(self._holdings), []
        for key, (path, holding) in now._holdings.items():
            before = left._holdings.get(key)
            if before is None:
                merged[key] = path, holding.kept()
            elif not holding.same(before[1]):
                if key in merged:
                    merged[key] = path, merged[key][1].merged(before[1], holding).kept()
                if self._is_told(holding, before[1]):
                    changed.append(path)
        return StateCopy(merged, self._counted), changed

    def _is_told(self, holding: Holding, before: Holding) -> bool:
        """Whether a change between two jobs may be an accident: of an array in data, or of what
        the task's own code counts.
        """
        if (
            isinstance(holding, Attributes)
            and isinstance(before, Attributes)
            and not isinstance(holding.owner, nn.Module)
        ):
            names = (
                name
                for name, value in holding.names.items()
                if name not in before.names or not _alike(value, before.names[name])
            )
            return ANY in self._counted or any(name in self._counted for name in names)
        return isinstance(holding, Content) and is_block(holding.value)

    def adopting(self, begun: StateCopy, end: StateCopy) -> StateCopy:
        """This state, with the attributes that the user's cells have set while a job ran, from
        `begun` to `end`: those that the task's own code does not set.
        """
        merged = dict(self._holdings)
        if ANY in end._counted:
            return self
        for key, (path, holding) in end._holdings.items():
            before, kept = begun._holdings.get(key), merged.get(key)
            if (
                before is None
                or kept is None
                or not isinstance(holding, Attributes)
                or isinstance(holding.owner, nn.Module)
            ):
                continue
            names = holding.names.keys() - end._counted
            if isinstance(kept[1], Attributes) and isinstance(before[1], Attributes):
                merged[key] = path, kept[1].adopting(before[1], holding, names)
        return StateCopy(merged, self._counted)


class Copied:
    """Copies what objects hold."""

    def __init__(
        self, trial: bool, budget: int, sources: Collection[int], *, marks: bool = False
    ) -> None:
        """
        Args:
            trial: copy the containers that functions use, too.
            budget: bytes of blocks beside the data.
            sources: the ids of objects that a set-up fills, of which numbers alone are copied.
            marks: keep checksums of blocks alone, for comparing.
        """
        self._marks = marks
        self.holdings: dict[Key, tuple[str, Holding]] = {}
        self._ids: set[int] = set()
        self._functions: dict[int, types.FunctionType] = {}
        self._trial, self._budget, self._sources = trial, budget, sources
        self._data_budget = _DATA_BUDGET

    def take(self, objects: Iterable[Reached], *, data: bool) -> None:
        """Copy what these hold. data: they belong to a data set."""
        for reached in objects:
            self._functions.update(
                (id(function), function) for function in functions_of(reached.value)
            )
            holding = self._of(reached, data)
            if holding is not None:
                if self._marks and isinstance(holding, Content):
                    holding.forget()
                self.add(reached.value, reached.path, holding)
            # of a class of the user's own
            if isinstance(holding, Items) and has_state(reached.value):
                self.add(reached.value, reached.path, Attributes(reached.value))

    def add(self, owner: Any, path: str, holding: Holding) -> None:
        """Add a copy of what an object holds."""
        self.holdings[id(owner), type(holding)] = path, holding
        self._ids.add(id(owner))

    def has(self, value: Any) -> bool:
        """Whether there is a copy of what this object holds."""
        return id(value) in self._ids

    def all(self) -> StateCopy:
        """All copies, with those of the variables that functions set."""
        for function in self._functions.values():
            if variables_of(function):
                self.add(function, function.__qualname__, Variables(function))
        return StateCopy(self.holdings, counted_names(self._functions.values()))

    def _of(self, reached: Reached, data: bool) -> Holding | None:
        """What to copy of an object; None: it holds no state."""
        value = reached.value
        if is_generator(value):
            return Content(value, copied=True) if is_own(value) else None
        if may_be_log(value) and not (reached.attribute or self._trial):
            return None
        if is_block(value):
            return None if reached.ours else Content(value, copied=self._may_copy(value, data))
        if is_container(value):
            return Items(value) if not reached.ours and len(value) <= MOST_PARTS else None
        if isinstance(value, types.FunctionType):
            return Attributes(value) if is_own_code(value.__code__) else None
        if isinstance(value, nn.Module) or has_state(value):
            return Numbers(value) if data and id(value) in self._sources else Attributes(value)
        if type(value) is itertools.count and reached.attribute and not reached.path.endswith("]"):
            return None  # its owner gets another one
        if isinstance(value, (Iterator, io.IOBase)) and not (reached.ours or _is_written(value)):
            with contextlib.suppress(Exception):  # the user's object may raise anything
                return Content(value, copied=True)
        return None

    def _may_copy(self, value: Any, data: bool) -> bool:
        """Whether a block is small enough; beside the data a large one may be state, such as an
        average of the weights.
        """
        size = size_of(value)
        if size <= _SMALL:
            return True
        if (data or is_table(value)) and is_large(value):
            return False
        if size > (self._data_budget if data else self._budget):
            return False
        if data:
            self._data_budget -= size
        else:
            self._budget -= size
        return True


def _layers_of(owner: Any) -> frozenset[str]:
    return (
        frozenset({*owner._parameters, *owner._modules})
        if isinstance(owner, nn.Module)
        else frozenset()
    )


def _is_written(value: Any) -> bool:
    """Whether it is a file that is written: what was logged there stays."""
    return isinstance(value, io.IOBase) and not value.closed and value.writable()


def _same_items(container: Any, other: Any) -> bool:
    """Whether two containers of one length hold the same objects, or equal numbers and texts, in
    the same order.
    """
    return all(
        _alike(item, theirs) for item, theirs in zip(_flat(container), _flat(other), strict=True)
    )


def _flat(container: Any) -> Iterator[Any]:
    return (
        itertools.chain.from_iterable(container.items())
        if isinstance(container, dict)
        else iter(container)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _frozen(value: Any) -> Any:
    """The value; of an `itertools.count`, which moves when it is read, one that stands at the
    same number.
    """
    return copy_of_count(value) if type(value) is itertools.count else value


def copy_of_count(count: Any) -> Any:
    """Another `itertools.count` like this one, or like the one with this text; itself where its
    numbers are of an unusual kind.
    """
    try:
        numbers = ast.literal_eval(f"({str(count)[len('count(') : -1]},)")
    except (ValueError, SyntaxError):
        return count
    return itertools.count(*numbers)


def _alike(value: Any, other: Any) -> bool:
    """Whether two values are the same object, or equal numbers or texts."""
    if value is other and type(value) is not itertools.count:
        return True
    if type(value) is not type(other):
        return False
    if type(value) in (bool, int, float, complex, str, bytes, itertools.count):
        return repr(value) == repr(other)
    return isinstance(value, np.generic) and bool(value == other)


def _seed_of(value: Any) -> Any:
    """What shows that a generator has been seeded since: torch's seed, or the state of one that
    has drawn nothing yet; None: it has drawn.
    """
    if isinstance(value, torch.Generator):
        return value.initial_seed()
    if isinstance(value, random.Random):
        state = value.getstate()
        return state if state[1][-1] == _UNDRAWN else None
    if isinstance(value, np.random.RandomState):
        legacy: Any = value.get_state(legacy=True)
        return legacy[1].tobytes() if legacy[2] == _UNDRAWN else None
    return None
