"""Packs any object for a process of another time: all code of the user by value, no secrets, at
most so many bytes.

A package of `share/package.py` goes to a process that lives at the same time: it imports the
user's modules as they are now, and shares the classes of a notebook. Here a module may have
changed since, a class was defined anew, a global has another value. So the code of the user's own
modules is pickled too, and unpacking makes classes and globals of its own.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as _cloudpickle

from workbench.secrets import HIDDEN, secrets_in, without_secrets
from workbench.share.package import PackageError
from workbench.share.pickle_diagnostics import explain
from workbench.share.pickling import Pickler, Unpickler
from workbench.share.segment import Segment, size_of

_registering = threading.Lock()
_LONGEST = 4096
"""Texts with more characters are no secrets."""
_WIDE = 1000
"""A dict with more items holds data, in which no secrets are looked for."""
_SHORTEST = 8
"""Texts with fewer characters stay: the same text may stand in other places."""
_SECONDS = 1.0
"""The most seconds of this thread for packing, where there is a limit."""
_BETWEEN = 256
"""After how many objects the time is looked at."""
_CACHED = type(functools.lru_cache(len))


class TooLargeError(Exception):
    """Raised for an object with more bytes than allowed, or of too many small ones. The message
    names the part.
    """


@dataclass
class Portable:
    """A packed object: a pickle, and a segment with a snapshot of the tensors and arrays (None:
    there are none).
    """

    code: bytes
    segment: Segment | None
    secrets: list[str]
    """The names of the secrets that were left out: their values arrive as "…"."""
    files: set[str]
    """The names of the files and cells that have the code."""
    imported: bool
    """Whether the user's modules are imported again when it is unpacked."""

    def buffers(self) -> Sequence[memoryview]:
        """The bytes of the tensors and arrays. Two that had the same memory have it here, too."""
        return [] if self.segment is None else self.segment.views()

    def close(self) -> None:
        """Free the segment; `buffers` that were read stay valid."""
        if self.segment is not None:
            self.segment.close()


def pack_portable(
    value: Any, parts: Mapping[str, Any], modules: Iterable[types.ModuleType], largest: int | None
) -> Portable:
    """Pack `value`.

    Args:
        value: any object.
        parts: the parts of it, by the names that the user knows, for errors.
        modules: the modules whose functions and classes are packed by value. Where one of them
            holds what cannot be packed, all of them are imported again when the package is
            unpacked.
        largest: the most bytes, which may take a second to pack; None: no limit.

    Raises TooLargeError, or PackageError for a part that cannot be packed.
    """
    try:
        with _by_value(modules):
            return _packed(value, parts, largest, imported=False)
    except (MemoryError, TooLargeError):
        raise
    except Exception:  # noqa: BLE001 - the second attempt raises it again
        pass
    try:
        return _packed(value, parts, largest, imported=True)
    except (MemoryError, TooLargeError):
        raise
    except Exception as error:
        raise PackageError(explain(error, parts, _fails)) from error


def _packed(
    value: Any, parts: Mapping[str, Any], largest: int | None, *, imported: bool
) -> Portable:
    buffers: list[Any] = []
    sizes = _Sizes(parts, largest)
    pickler = _PortablePickler(sizes, buffers.append)
    pickler.dump(value)
    if buffers and largest is not None and size_of(buffers) + sizes.written > largest:
        raise TooLargeError(sizes.too_large())
    segment = Segment.place(buffers) if buffers else None
    return Portable(
        sizes.file.getvalue(),
        segment,
        sorted(set(pickler.secrets.values())),
        pickler.files,
        imported,
    )


def unpack_portable(code: bytes, buffers: Iterable[Any]) -> Any:
    """A copy of what was packed, with classes and globals of its own. Tensors and arrays lie in
    the `buffers`.
    """
    return _PortableUnpickler(io.BytesIO(code), buffers).load()


@contextlib.contextmanager
def _by_value(modules: Iterable[types.ModuleType]) -> Iterator[None]:
    """Context manager in which cloudpickle packs the code of these modules by value."""
    with _registering:
        known = cloudpickle.list_registry_pickle_by_value()
        new = [module for module in modules if module.__name__ not in known]
        for module in new:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in new:
                cloudpickle.unregister_pickle_by_value(module)


class _Sizes:
    """The file that a pickler writes. It counts the bytes of each part, and raises TooLargeError
    beyond the limit.
    """

    def __init__(self, parts: Mapping[str, Any], largest: int | None) -> None:
        self.file = io.BytesIO()
        self.written = self.beside = 0
        self.names = {id(obj): name for name, obj in parts.items()}
        """The parts that have not begun, by their `id`."""
        self._largest = largest
        self._began: list[tuple[str, int]] = []
        self._until = time.thread_time() + _SECONDS

    def write(self, data: Any) -> int:
        self.written += memoryview(data).nbytes
        if self._largest is not None and self.written > self._largest:
            raise TooLargeError(self.too_large())
        return self.file.write(data)

    def begin(self, value: Any) -> None:
        """Note that the bytes from here on belong to this part."""
        self._began.append((self.names.pop(id(value)), self.written + self.beside))

    def check_time(self) -> None:
        """Raise TooLargeError for an object of too many parts."""
        if self._largest is not None and time.thread_time() > self._until:
            name = self._began[-1][0] if self._began else "it"
            raise TooLargeError(f"{name} takes more than {_SECONDS:g} s to pack")

    def too_large(self) -> str:
        """The largest part so far, with its size."""
        end = self.written + self.beside
        sizes = [
            (after - begin, name)
            for (name, begin), (_, after) in itertools.pairwise([*self._began, ("", end)])
        ]
        size, name = max(sizes, default=(end, "it"))
        return f"{name} has {size / 1e6:.0f} MB or more"


class _PortablePickler(Pickler):
    """Pickles without secrets, and with the caches of functions emptied."""

    def __init__(self, sizes: _Sizes, keep: Callable[[Any], object]) -> None:
        super().__init__(sizes, self._keep)
        self._sizes, self._take = sizes, keep
        self._calls = 0
        self.files: set[str] = set()
        self.secrets: dict[int, str] = {}
        """By the `id` of each text that is a secret, the name under which it was found."""

    def _keep(self, buffer: Any) -> None:
        self._sizes.beside += buffer.raw().nbytes
        self._take(buffer)

    def persistent_id(self, obj: Any) -> Any:
        # It is called for every object, so the most frequent kinds come first.
        kind = type(obj)
        if kind is int or kind is float:
            return None
        if kind is str:
            return "secret" if id(obj) in self.secrets else None
        self._calls += 1
        if self._calls % _BETWEEN == 0:
            self._sizes.check_time()
        if kind is dict and len(obj) <= _WIDE:
            for name, value in obj.items():
                if type(value) is str and type(name) is str:
                    self._look(name, value)
        if self._sizes.names and id(obj) in self._sizes.names:
            self._sizes.begin(obj)
        return None

    def _look(self, name: str, value: str) -> None:
        if _SHORTEST <= len(value) <= _LONGEST and secrets_in(value, name):
            self.secrets[id(value)] = name

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            self.files.add(obj.co_filename)
            texts = secrets_in(obj.co_consts)
            if texts:
                self.secrets.update((id(text), obj.co_name) for text in texts)
                obj = obj.replace(co_consts=without_secrets(obj.co_consts))
            return _cloudpickle._code_reduce(obj)
        if isinstance(obj, types.FunctionType):
            for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # an empty cell
                    if type(cell.cell_contents) is str:
                        self._look(name, cell.cell_contents)
        if type(obj) is _CACHED and not _cloudpickle._should_pickle_by_reference(obj.__wrapped__):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """The function with an empty cache, as `functools.lru_cache` makes it."""
    return functools.lru_cache(**parameters)(function)


class _PortableUnpickler(Unpickler):
    """Unpickles with classes of its own: cloudpickle would take a notebook's class that has the
    same mark.
    """

    def persistent_load(self, pid: Any) -> Any:
        """Return what stands in the place of a secret."""
        return HIDDEN

    def find_class(self, module: str, name: str) -> Any:
        resolved = super().find_class(module, name)
        return functools.partial(_untracked, resolved) if resolved in _SKELETONS else resolved


_SKELETONS = (_cloudpickle._make_skeleton_class, _cloudpickle._make_skeleton_enum)


def _untracked(make: Callable[..., type], *arguments: Any) -> type:
    """Make a class without the mark by which cloudpickle finds the class again."""
    *others, _, extra = arguments
    return make(*others, None, extra)


def _fails(value: Any) -> bool:
    try:
        _PortablePickler(_Sizes({}, None), lambda buffer: None).dump(value)
    except Exception:  # noqa: BLE001 - that it fails is the answer
        return True
    return False
