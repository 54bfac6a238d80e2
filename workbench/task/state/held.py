"""Stores what the user's own objects hold in plain form, for a checkpoint or another process, and
restores it there.

What has changed since the fit began is stored: counters that forward() changes, averages,
statistics, generators, modes. The user may set all else, also between a run and the one that
continues it.
"""

from __future__ import annotations

import copy
import itertools
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from workbench.task.batch import leaves, to_device
from workbench.task.device.dtensor import in_shards
from workbench.task.modules import is_own_name, parts_of, slots_of
from workbench.task.rng import is_generator
from workbench.task.state.contents import (
    ARRAYS,
    checksum_of_tensors,
    content_of,
    has_plain_content,
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
    sample_mark,
)
from workbench.task.state.copies import copy_of_count
from workbench.task.state.places import (
    counted_names,
    delete_name,
    has_state,
    set_name,
    set_variable,
    state_names,
    variables_of,
)
from workbench.task.state.serialization import NotPlainError, to_plain
from workbench.task.state.walk import WIDE, Reached, functions_of, is_own_code, key_name, methods

_MANY_TEXTS = 1000
_FLAT = {types.NoneType, bool, int, float, complex, str, bytes}
_BY_ID = "_metric_attributes"
"""A LightningModule's names by the ids of objects, which differ in another process."""
Moved = set[tuple[str, str]]
"""Places, by the path of the object and the name in it, that a checkpoint restored: the next
checkpoint stores them too.
"""
Held = dict[str, dict[str, Any]]
"""The stored values, by the same."""


class Pickled(NamedTuple):
    """A value that a file cannot hold, on its way to another process of the same bench."""

    value: Any


class HeldState:
    """Remembers what some objects held; `state` returns what has changed since then."""

    def __init__(
        self,
        objects: Callable[[], Iterable[Reached]],
        moved: Moved,
        *,
        modules: Sequence[nn.Module] | None = None,
        earlier: HeldState | None = None,
        sent: bool = False,
    ) -> None:
        """
        Args:
            objects: finds the present objects.
            moved: the places that a checkpoint restored.
            modules: those of the task, whose weights are stored elsewhere; None: the objects are
                data, and what is large in them is not stored.
            earlier: one that has remembered what they held.
            sent: what has changed goes to another process of the same bench, and not into a file:
                tensors of any kind, and containers of any class with numbers and texts, too.
        """
        self._objects, self._modules, self._sent = objects, modules, sent
        self._tensors: dict[tuple[str, str], weakref.ref[Any]] = {}
        """The tensors and arrays that were there, by their places."""
        if earlier is None:
            self.moved = moved
            self._reported: set[str] = set()
            self._before: dict[tuple[str, str], Any] = {}
            for path, _, name, value, mark in self._now(self._present()):
                self._before[path, name] = mark
                if isinstance(value, ARRAYS):
                    self._tensors[path, name] = weakref.ref(value)
        else:
            self.moved, self._reported, self._before = (
                earlier.moved,
                earlier._reported,
                earlier._before,
            )
            self._tensors = earlier._tensors

    def state(self) -> tuple[Held, list[str]]:
        """The new or changed values, in plain form; and descriptions of those that cannot be
        stored, each once.
        """
        changed: Held = {}
        lost: list[str] = []
        seen: Moved = set()
        objects = self._present()
        for path, holder, name, value, mark in self._now(objects):
            slot = path, name
            seen.add(slot)
            if slot not in self.moved and self._before.get(slot) == mark:
                continue
            if not isinstance(mark, _Reference):
                kept = changed.setdefault(path, {})[name] = self._stored(value)
                if self._is_new(slot, value):
                    kept["new"] = True
            elif mark.counts:
                # an attribute, or the container that is one
                whole = path if is_container(holder) else f"{path}.{name}"
                if whole not in self._reported:
                    self._reported.add(whole)
                    lost.append(f"{_place_name(path, holder, name)} ({mark.what})")
        owners = (reached for reached in objects if _has_attributes(reached.value))
        holders = {reached.path: reached.value for reached in owners}
        for path, name in (self._before.keys() | self.moved) - seen:
            if path in holders and _is_gone(holders[path], name):
                changed.setdefault(path, {})[name] = {"gone": True}
        return changed, lost

    def _is_new(self, place: tuple[str, str], value: Any) -> bool:
        """Whether another tensor has taken the place of one, to which others may refer."""
        before = self._tensors.get(place)
        if before is None or not isinstance(value, ARRAYS) or isinstance(value, nn.Parameter):
            return False
        return before() is not value

    def _stored(self, value: Any) -> dict[str, Any]:
        """The value in the plain form that a checkpoint stores.

        Data stay as they are, since the caller packs them.
        """
        if has_plain_content(value):
            content = content_of(value)
            return {"content": content if self._modules is None else to_plain(content, "it")}
        if type(value) is itertools.count:
            return {"count": repr(value)}
        # A stored tensor is in host memory; it will be moved to the device of the old one.
        away = any(tensor.device.type != "cpu" for tensor in _tensors(value))
        if self._modules is None:
            return {"value": copy.deepcopy(value), "away": away}
        try:
            return {"value": to_plain(value, "it"), "away": away}
        except NotPlainError:  # it is sent
            sent = value.detach() if isinstance(value, Tensor) else copy.deepcopy(value)
            return {"value": Pickled(sent), "away": away}

    def _present(self) -> list[Reached]:
        return _with_methods(self._objects())

    def _now(self, objects: Iterable[Reached]) -> Iterator[tuple[str, Any, str, Any, Any]]:
        """Every value that is state: the path of its object, the object, its name there, itself,
        and a mark that changes with it.
        """
        holders = {id(reached.value) for reached in objects if _is_holder(reached)}
        parts = parts_of(self._modules or ())
        weights, modules = {id(tensor) for _, tensor in slots_of(parts)}, set(map(id, parts))
        data = self._modules is None
        marks = _Marks(weights, holders, data=data, sent=self._sent)
        stored: set[int] = set()
        for reached in objects:
            if _is_holder(reached):
                for name, value in _values_of(
                    reached, ours=id(reached.value) in modules, data=data
                ):
                    mark = marks.of(
                        value,
                        buffer=isinstance(reached.value, nn.Module)
                        and name in reached.value._buffers,
                    )
                    stored.update(id(item) for item in (value, *_tensors(value)))
                    if mark is not None:
                        yield reached.path, reached.value, name, value, mark
        for reached in objects:  # those that functions use as variables
            if _is_value(reached) and id(reached.value) not in stored:
                mark = marks.of(reached.value, buffer=False)
                if mark is not None:
                    yield reached.path, reached.value, "", reached.value, mark


def load(
    objects: Iterable[Reached],
    held: Mapping[str, Mapping[str, Any]],
    device: torch.device,
    *,
    sent: bool = False,
) -> tuple[Moved, list[str]]:
    """Restore what `HeldState.state` returned of these objects; returns the restored places, and
    the names of objects that no longer exist.

    sent: a process of the same bench has sent it. A file may come from anybody, and may not set
    everything.
    """
    if not held:
        return set(), []
    present = _with_methods(objects)
    holders = {
        reached.path: reached.value
        for reached in present
        if _is_holder(reached) or _is_value(reached)
    }
    counted = counted_names(
        function for reached in present for function in functions_of(reached.value)
    )
    moved: Moved = set()
    for path, values in held.items():
        for name, kept in values.items() if path in holders else ():
            if sent or _may_set(holders[path], name, kept, counted):
                _put(holders[path], name, kept, device)
                moved.add((path, name))
    return moved, [path.partition(":")[2] or path for path in held if path not in holders]


# ---- the values of an object ---------------------------------------------------------------------


def _with_methods(objects: Iterable[Reached]) -> list[Reached]:
    """These objects, and those of their methods that set variables outside of themselves."""
    all_objects = list(objects)
    functions = {
        id(reached.value)
        for reached in all_objects
        if isinstance(reached.value, types.FunctionType)
    }
    for reached in list(all_objects):
        if isinstance(reached.value, types.FunctionType):
            continue
        for name, function in methods(reached.value):
            if id(function) not in functions and variables_of(function):
                functions.add(id(function))
                all_objects.append(
                    Reached(f"{reached.path}.{name}", function, ours=False, attribute=True)
                )
    return all_objects


def _is_holder(reached: Reached) -> bool:
    """Whether the values in an object are state."""
    value = reached.value
    if isinstance(value, nn.Module) or (has_state(value) and not is_generator(value)):
        return True
    if isinstance(value, types.FunctionType):
        return is_own_code(value.__code__)
    return is_container(value) and reached.attribute and not reached.ours


def _is_value(reached: Reached) -> bool:
    """Whether it is a generator, or a block that is not too large to be state."""
    value = reached.value
    if is_generator(value):
        return True
    state = is_block(value) and (reached.attribute or not may_be_log(value))
    return state and not reached.ours and not is_large(value)


def _has_attributes(value: Any) -> bool:
    return isinstance(value, nn.Module) or (has_state(value) and not is_container(value))


def _is_gone(holder: Any, name: str) -> bool:
    """Whether an object has no attribute of this name any more."""
    if name[:1] in ("", "?", ":", "[") or name == "training":
        return False
    names = state_names(holder)
    if isinstance(holder, nn.Module):
        names |= {**holder._parameters, **holder._buffers, **holder._modules}
    return name not in names


def _values_of(reached: Reached, *, ours: bool, data: bool) -> Iterator[tuple[str, Any]]:
    """The values in an object by name. ours: it is a module of the task, whose weights are
    stored elsewhere.
    """
    value = reached.value
    if isinstance(value, nn.Module):
        yield from _of_module(value, ours=ours, data=data)
    elif isinstance(value, types.FunctionType):
        yield from vars(value).items()
        yield from ((f":{name}", variable) for name, variable in variables_of(value).items())
    elif not is_container(value):
        yield from state_names(value).items()
    else:
        yield from _of_container(value)


def _of_container(value: Any) -> Iterator[tuple[str, Any]]:
    """The items of a container, unless its owner stores it whole; and the attributes that a
    class of the user's gives it.
    """
    if has_state(value):
        yield from state_names(value).items()
    if len(value) <= WIDE and not _is_plain(value):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from (
            (f"[{key_name(key, number)}]", item) for number, (key, item) in enumerate(items)
        )


def _is_plain(value: Any) -> bool:
    try:
        to_plain(value, "it")
    except NotPlainError:
        return False
    return True


def _of_module(part: nn.Module, *, ours: bool, data: bool) -> Iterator[tuple[str, Any]]:
    """A module's own attributes, its mode, its non-persistent buffers, and which parameters
    train ("?name").
    """
    yield "training", part.training
    for name, value in vars(part).items():
        if _is_kept(name):
            yield name, value
    for name, buffer in part._buffers.items():
        if not ours or name in part._non_persistent_buffers_set:
            yield name, buffer
    for name, parameter in part._parameters.items():
        if parameter is not None and (ours or not data):
            yield f"?{name}", parameter.requires_grad
            if not ours:
                yield name, parameter


def _is_kept(name: str) -> bool:
    return is_own_name(name) and name != _BY_ID


def _place_name(path: str, holder: Any, name: str) -> str:
    """What a person calls a place: "Meter.values", "scale.calls", or the path of a container,
    whose items are too many to name.
    """
    number, _, within = path.partition(":")
    if number.isdigit():
        path = within.lstrip(".")
    if is_container(holder):
        return path
    owner = path if isinstance(holder, types.FunctionType) else type(holder).__name__
    return f"{owner}.{name.removeprefix(':')}"


# ---- marks ---------------------------------------------------------------------------------------


class _Marks:
    """Makes a mark of a value, which is equal to another one of the same value."""

    def __init__(self, weights: set[int], holders: set[int], *, data: bool, sent: bool) -> None:
        self._weights, self._holders, self._data, self._sent = weights, holders, data, sent

    def of(self, value: Any, *, buffer: bool) -> Any:
        """The mark; None: the value is no state, or data. buffer: the value is a buffer of a
        module, not a reference to one.
        """
        if type(value) is itertools.count:
            return repr(value)
        if has_plain_content(value) and not (self._data and is_block(value) and is_large(value)):
            content = content_of(value)
            return None if content is None else fingerprint(to_plain(content, "it"))
        if self._data and self._is_data(value):
            return None
        if (
            is_container(value)
            and len(value) > WIDE
            and any(type(item) not in _FLAT for item in _items(value))
        ):
            return None  # too wide to be entered, so that nothing restores it
        if not buffer and any(id(tensor) in self._weights for tensor in _tensors(value)):
            # a reference to the weights, such as an LSTM's list of them, has no value of its own
            return _Reference(value, "", counts=False)
        try:
            return fingerprint(to_plain(value, "it"))
        except NotPlainError as error:
            if self._sent and isinstance(value, Tensor):
                return type(value), id(value), sample_mark(value)
            if self._sent and is_plain(value):
                return type(value), repr(value)
            return self._of_object(value, str(error).removeprefix("it holds "))

    def _is_data(self, value: Any) -> bool:
        if is_block(value):
            return is_large(value) and not is_table(value)
        if not is_container(value):
            return False
        items = _items(value)
        # a vocabulary, or names of files
        texts = len(value) > _MANY_TEXTS and isinstance(next(iter(items)), (str, bytes))
        return texts or is_data(value) or any(is_block(item) and is_large(item) for item in items)

    def _of_object(self, value: Any, why: str) -> Any:
        """The mark of a value that no file can hold, whose own values are stored where they are."""
        if id(value) in self._holders and not is_container(value):
            return _Kind(value, why, counts=not callable(value))
        if id(value) in self._holders and all(self._has_places(item) for item in _items(value)):
            keys = (
                [key_name(key, number) for number, key in enumerate(value)]
                if isinstance(value, dict)
                else len(value)
            )
            return _Kind(value, why, counts=True, keys=keys)
        return _Reference(value, why, counts=not callable(value))

    def _has_places(self, item: Any) -> bool:
        """Whether an item of a container is stored where it is, or with what is in it."""
        return id(item) in self._holders or has_plain_content(item) or _is_plain(item)


def _items(container: Any) -> Iterable[Any]:
    return list(container.values()) if isinstance(container, dict) else list(container)


class _Reference:
    """A value that a checkpoint cannot store. Two are equal if they are the same object, or
    containers of the same objects.
    """

    def __init__(self, value: Any, what: str, *, counts: bool) -> None:
        """what: its kind, in words. counts: a change of it is one of the state."""
        self._value, self.what, self.counts = value, what, counts
        items: list[Any] = []
        if isinstance(value, dict):
            items = list(value.items())
        elif is_container(value):
            items = list(value)
        self._content = (
            [*itertools.chain.from_iterable(items)] if isinstance(value, dict) else items
        )
        self._sample = sample_mark(value) if is_table(value) else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Reference) or self._value is not other._value:
            return False
        if self._sample != other._sample:
            return False
        pairs = zip(self._content, other._content, strict=False)
        return len(self._content) == len(other._content) and all(
            mine is theirs for mine, theirs in pairs
        )

    __hash__ = None  # type: ignore[assignment]


class _Kind(_Reference):
    """An object whose own values are stored. Two are equal if a new process makes the same one:
    of the same class, or with the same keys.
    """

    def __init__(self, value: Any, what: str, *, counts: bool, keys: Any = None) -> None:
        super().__init__(None, what, counts=counts)
        self._kind = type(value).__module__, type(value).__qualname__, keys

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and self._kind == other._kind

    __hash__ = None


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in a value and its containers; none where one contains itself."""
    try:
        return [tensor for _, tensor in leaves(value)]
    except RecursionError:
        return []


def fingerprint(packed: Any) -> Any:
    """Fingerprint of a plain value, without its tensors."""
    if in_shards(packed):  # each rank has other rows
        return packed.dtype, packed.shape
    if isinstance(packed, Tensor):
        return packed.dtype, packed.shape, packed.layout, checksum_of_tensors([packed.to_dense()])
    if isinstance(packed, dict):
        return type(packed), [(key, fingerprint(value)) for key, value in packed.items()]
    if isinstance(packed, (list, tuple)):
        return type(packed), [fingerprint(value) for value in packed]
    return type(packed), repr(packed)  # a NaN is equal to itself, and True is not 1


# ---- restored ------------------------------------------------------------------------------------


def _may_set(holder: Any, name: str, kept: Mapping[str, Any], counted: frozenset[str]) -> bool:
    """Whether a file may set this: it may name anything, and a text may be the path of a file
    that the user's code opens.
    """
    if isinstance(holder, nn.Module):
        if name == "training" or name[:1] == "?":
            return type(kept.get("value")) is bool
        if not _is_kept(name):
            return False
    if name.startswith("__") or callable(getattr(type(holder), name, None)):
        return False
    if name[:1] in ("", ":", "["):
        return True
    return name in counted or not _has_text(kept.get("value"))


def _has_text(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_text, value.values()))
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return any(map(_has_text, value))
    return isinstance(value, (str, bytes))


_CONTENTS = ("content", "random", "place")
"""The key of what `put_content` restores; earlier checkpoints have the other two."""


def _put(holder: Any, name: str, kept: Mapping[str, Any], device: torch.device) -> None:
    present = _present(holder, name)
    if "gone" in kept:
        if name in state_names(holder):
            delete_name(holder, name)
        return
    content = next((kept[key] for key in _CONTENTS if key in kept), None)
    if content is not None:
        if has_plain_content(present) and type(content_of(present)) is type(content):
            put_content(present, content)
        return
    if "count" in kept:
        value = copy_of_count(str(kept["count"]))
    else:
        value = kept["value"].value if isinstance(kept["value"], Pickled) else kept["value"]
        value = to_device(value, device) if kept["away"] else value
    if name[:1] == "?":
        if isinstance(present, Tensor):
            present.requires_grad_(value)
    else:
        result = value if "new" in kept else _overwritten(present, value)
        if result is not present and name:
            _set(holder, name, result)


def _overwritten(present: Any, value: Any) -> Any:
    """The present tensor, array or container with this value, since others may refer to it; the
    value itself where it is of another kind.
    """
    if (
        isinstance(present, Tensor)
        and isinstance(value, Tensor)
        and present.grad_fn is None
        and _alike(present, value)
    ):
        with torch.no_grad():
            overwrite(present, value)
    elif (
        isinstance(present, np.ndarray)
        and isinstance(value, np.ndarray)
        and present.flags.writeable
        and _alike(present, value)
    ):
        np.copyto(present, value)
    elif type(present) is not type(value) or not is_container(present):
        return value
    elif isinstance(value, dict):
        refill(present, {key: _overwritten(present.get(key), item) for key, item in value.items()})
    elif isinstance(value, (list, deque)):
        earlier = [*present, *[None] * (len(value) - len(present))]
        refill(
            present, [_overwritten(old, item) for old, item in zip(earlier, value, strict=False)]
        )
    else:
        refill(present, value)
    return present


def _alike(value: Any, other: Any) -> bool:
    return bool(value.shape == other.shape and value.dtype == other.dtype)


def _present(holder: Any, name: str) -> Any:
    """The value that an object has under a name now; None: none. "": the object itself."""
    if not name:
        return holder
    if isinstance(holder, nn.Module):
        if name[0] == "?":
            return holder._parameters.get(name[1:])
        return next(
            (names[name] for names in (holder._buffers, holder._parameters) if name in names),
            vars(holder).get(name),
        )
    if isinstance(holder, types.FunctionType):
        return variables_of(holder).get(name[1:]) if name[0] == ":" else vars(holder).get(name)
    if is_container(holder):
        return next(
            (
                item
                for number, (key, item) in enumerate(_pairs(holder))
                if f"[{key_name(key, number)}]" == name
            ),
            None,
        )
    return state_names(holder).get(name)


def _pairs(container: Any) -> list[tuple[Any, Any]]:
    return list(container.items()) if isinstance(container, dict) else list(enumerate(container))


def _set(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, nn.Module):
        if name in holder._buffers:
            holder._buffers[name] = value
        elif name not in holder._parameters and name not in holder._modules:
            vars(holder)[name] = value
    elif isinstance(holder, types.FunctionType):
        if name[0] != ":":
            vars(holder)[name] = value
        elif name[1:] in variables_of(holder):
            set_variable(holder, name[1:], value)
    elif is_container(holder):
        for number, (key, _) in enumerate(_pairs(holder)):
            if f"[{key_name(key, number)}]" == name and not isinstance(holder, (set, frozenset)):
                holder[key] = value
    else:
        set_name(holder, name, value)
