"""Writes and reads weights and checkpoints.

Each is written into a temporary folder that is then renamed, so that a reader finds all of it or
nothing.

Weights are safetensors. A checkpoint is a directory (runs/checkpoints.py) with the weights to use,
all other state as plain containers and tensors (task/state/serialization.py), and `info.json`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from workbench.engine.checkpoint import archive
from workbench.engine.checkpoint.shards import (
    Read,
    StoredTensors,
    TensorFile,
    Ties,
    marks_in,
    put_back,
    whole_tensor,
)
from workbench.events import LARGEST
from workbench.runs.checkpoints import FORMAT, LARGEST_INFO, NAME, files_of, replaced
from workbench.runs.folder.files import (
    Folder,
    check_no_link,
    read_json,
    replace_by,
    to_disk,
)
from workbench.runs.printable import printable
from workbench.task.errors import TaskError
from workbench.task.modules import own_name
from workbench.task.state.contents import expanded
from workbench.task.state.serialization import check_extent, from_plain
from workbench.tracebacks import UserError
from workbench.values import shown

_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(
        (
            "step",
            "epoch",
            "batch_idx",
            "epoch_step",
            "pieces",
            "epochs_scheduled",
            "left_out",
            "world",
        ),
        (int,),
    ),
    **dict.fromkeys(("mid_epoch", "validation_due"), (bool,)),
    **dict.fromkeys(("seconds", "waited"), (float, int)),
    "samples": (int, type(None)),
    **dict.fromkeys(("settings", "held", "checks", "length", "metrics", "clip_next"), (dict,)),
    "optimizers": (list,),
}
"""The types of the entries of a fit's state. They are checked at once, since a wrong type would
raise an error deep inside the fit, or never.
"""
_PARTS: dict[str, dict[str, tuple[type, ...]]] = {
    "length": {"per_epoch": (int, type(None)), "ahead": (int,)},
    "checks": {"checked": (int,)},
    "settings": {"batch_size": (int,)},
}
"""The types within those entries that are needed before a fit begins."""
WEIGHTS = "model.safetensors"
"""The file of the weights in a checkpoint's directory; it may lie there in shards."""
_ASIDE = re.compile(rf"\.{NAME.pattern}\.\d+\.part")


Modules = nn.Module | Mapping[str, nn.Module]
"""A module, or several: a model and further ones by the prefix of their names
(`Task.trained_modules`).
"""


def tensors_of(modules: Modules) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; the tensors themselves, not copies."""
    return {
        prefix + own_name(name): value
        for prefix, module in _by_prefix(modules).items()
        for name, value in module.state_dict().items()
        if isinstance(value, Tensor)
    }


def _by_prefix(modules: Modules) -> Mapping[str, nn.Module]:
    return {"": modules} if isinstance(modules, nn.Module) else modules


def extra_state_of(model: nn.Module) -> dict[str, Any]:
    """The values of the model's `get_extra_state` methods that are not tensors, by their name in
    its state_dict.
    """
    return {
        own_name(name): value
        for name, value in model.state_dict().items()
        if not isinstance(value, Tensor)
    }


def save_weights(model: Modules, path: Path) -> None:
    """Write the parameters and persistent buffers; tied ones are stored once. Of sharded ones, this
    rank writes its shard.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_words(path.name):
        file = TensorFile.of(path.name, tensors_of(model))
        replace_by(path.with_name(file.name), file.write)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write whole tensors as `save_weights` does, at once into the file at this path."""
    TensorFile.of(path.name, tensors).write(path)


def load_weights(model: Modules, path: Path) -> None:
    """Put the weights of `save_weights` into the modules, in place, on any device."""
    left_out = _left_out(model, path)
    # before their numbers are read, which may be many
    wrong = mismatch(model, {**left_out, **_shapes(path)})
    if wrong is not None:
        raise RuntimeError(f"the weights in {path} are those of another model: {wrong}.")
    load_tensors(model, {**left_out, **_read_tensors(path)})


def _left_out(model: Modules, path: Path) -> dict[str, Tensor]:
    """The present values of weights that the task left out of this checkpoint
    (`on_save_checkpoint`).
    """
    try:
        removed = read_json(path.with_name("info.json"), LARGEST_INFO).get("removed", ())
    except (OSError, ValueError):
        return {}  # weights that belong to no checkpoint
    names = (
        {name for name in removed if isinstance(name, str)} if isinstance(removed, list) else set()
    )
    return {name: tensor for name, tensor in tensors_of(model).items() if name in names}


def mismatch(model: Modules, tensors: Mapping[str, Tensor], *, grown: bool = False) -> str | None:
    """Describe the first difference between modules and saved weights; None: they fit.

    grown: accept another shape of a buffer, since forward() may replace buffers. Weights of a run
    that did not train the loss have the model alone.
    """
    return Expected(model).mismatch(tensors, grown=grown)


class Expected:
    """The names and shapes of the weights of modules, read once to be compared with many saved
    ones.
    """

    def __init__(self, model: Modules) -> None:
        self._modules = _by_prefix(model)
        self._whose = type(next(iter(self._modules.values()))).__name__
        self._parts = {
            prefix: tensors_of({prefix: module}) for prefix, module in self._modules.items()
        }
        self.tensors = {
            name: value for tensors in self._parts.values() for name, value in tensors.items()
        }
        self._ties = Ties(self.tensors).names

    def mismatch(self, tensors: Mapping[str, Tensor], *, grown: bool = False) -> str | None:
        """Describe the first difference, as `mismatch` does; None: they fit."""
        known = [
            prefix for prefix in self._modules if any(name.startswith(prefix) for name in tensors)
        ] or list(self._modules)
        expected = {name: value for prefix in known for name, value in self._parts[prefix].items()}
        free = (
            {name for name, *_ in _buffers({prefix: self._modules[prefix] for prefix in known})}
            if grown
            else set()
        )
        for name, value in tensors.items():
            if name in free:
                continue
            if name not in expected:
                return f"they have {name!r}, which {self._whose} does not have"
            if value.shape != expected[name].shape:
                return (
                    f"{name!r} has shape {tuple(value.shape)} there and"
                    f" {tuple(expected[name].shape)} here"
                )
        for name in expected:
            if name not in free and not any(other in tensors for other in self._ties[name]):
                return f"{self._whose} has {name!r}, which they do not have"
        return None


def load_tensors(
    modules: Modules, tensors: Mapping[str, Tensor], extra: Mapping[str, Any] | None = None
) -> None:
    """Copy these weights into the modules, in place. For tied weights one of their names is enough.
    extra: the model's extra state.
    """
    model, *others = _by_prefix(modules).items()
    _fill(model[1], tensors, extra)
    for prefix, module in others:
        _fill(
            module,
            {
                name.removeprefix(prefix): value
                for name, value in tensors.items()
                if name.startswith(prefix)
            },
            None,
        )


def _fill(model: nn.Module, tensors: Mapping[str, Tensor], extra: Mapping[str, Any] | None) -> None:
    for name, module, attribute in _buffers(model):
        value, buffer = tensors.get(name), module._buffers[attribute]
        if value is not None and (buffer is None or buffer.shape != value.shape):
            module._buffers[attribute] = value.to(
                _device(model) if buffer is None else buffer.device, copy=True
            )
        elif value is not None and buffer is not None and expanded(buffer):
            # load_state_dict cannot write into an expanded tensor
            module._buffers[attribute] = buffer.clone()
    whole = dict(tensors)
    for name, others in Ties(tensors_of(model)).names.items():
        tied = [tensors[other] for other in others if other in tensors]
        if name not in whole and tied:
            whole[name] = tied[0]
    # Copied under their own names, whatever hooks a state_dict has; unknown extra state is not
    # touched.
    known = {own_name(name): name for name in model.state_dict()}
    values = {**whole, **(extra or {})}
    try:
        model.load_state_dict(
            {known.get(name, name): value for name, value in values.items()}, strict=False
        )
    except RuntimeError as error:
        # raised by a module's own loading: quantized layers of bitsandbytes cannot load weights
        # after a step
        raise TaskError(
            f"the weights that were saved cannot be put into this {type(model).__name__}: {error}"
            " Make the model anew, in the same way as for that run, with a new bench, and begin"
            " there with start='<run id>'."
        ) from error


def _buffers(modules: Modules) -> Iterator[tuple[str, nn.Module, str]]:
    """The buffers by name, with their modules; those without a value too."""
    for prefix, module in _by_prefix(modules).items():
        for path, submodule in module.named_modules(remove_duplicate=False):
            for name in submodule._buffers:
                yield prefix + own_name(f"{path}.{name}" if path else name), submodule, name


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def write(
    folder: Path, name: str, tensors: Mapping[str, Tensor], state: Any, info: Mapping[str, Any]
) -> None:
    """Write a checkpoint into `folder`: weights, state (plain; None: weights alone) and the
    contents of `info.json`.

    An older one of the same name is replaced only when the new one is complete. OSError: it could
    not be written, and nothing has changed.
    """
    aside = begin(folder, name)
    try:
        with in_words(name):
            write_files(aside, [TensorFile.of(WEIGHTS, tensors)], state, info)
        complete(aside, folder / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def begin(folder: Path, name: str) -> Path:
    """Make the temporary folder of a checkpoint of this name, after cleaning up what killed writers
    have left.
    """
    folder.mkdir(exist_ok=True)  # its parent is the run's folder, which is never made again
    check_no_link(folder)
    _clear_up(folder)
    aside = folder / f".{name}.{os.getpid()}.part"
    aside.mkdir()
    return aside


def write_files(
    aside: Path,
    tensor_files: Iterable[TensorFile],
    state: Any = None,
    info: Mapping[str, Any] | None = None,
) -> None:
    """Write what this process has of a checkpoint into its temporary folder, and to the disk."""
    paths = []
    for tensor_file in tensor_files:
        paths.append(aside / tensor_file.name)
        tensor_file.write(paths[-1])
    if state is not None:
        paths.append(aside / "state.pt")
        with paths[-1].open("wb") as file:
            torch.save(state, file)
    if info is not None:
        paths.append(aside / "info.json")
        paths[-1].write_text(json.dumps({**info, "format": FORMAT}), encoding="utf-8")
    for path in paths:
        to_disk(path)


def complete(aside: Path, path: Path) -> None:
    """Rename the temporary folder, in which all is written, to that of the checkpoint."""
    to_disk(aside)
    _put(aside, path)
    to_disk(path.parent)


def read_state(path: Path, read: Read = whole_tensor) -> dict[str, Any]:
    """All state of a checkpoint's directory, in host memory; its weights under "weights".

    read: reads the tensors of weights, and those of the state that lie in shards.
    """
    state = _unpacked(path / "state.pt", _packed_state(path / "state.pt"), read)
    return {**state, "weights": _read_tensors(path / WEIGHTS, read)}


def peek(path: Path, *names: str) -> dict[str, Any]:
    """Some plain parts of a checkpoint's state, without its tensors."""
    state = _packed_state(path / "state.pt", mmap=True)
    missing = ", ".join(name for name in names if name not in state)
    if missing:
        raise _unreadable(path / "state.pt", f"it lacks {missing}")
    return _unpacked(path / "state.pt", {name: state[name] for name in names})


@contextlib.contextmanager
def restoring(path: Path) -> Iterator[None]:
    """Context manager in which a fit restores the state of this checkpoint's directory, or of this
    file of Lightning.

    Raises TaskError naming the path where the state has another structure than a fit of this model
    and these optimizers writes, or where the user's own `load_state_dict` or hook raised an error,
    which is then its cause.
    """
    try:
        yield
    except (UserError, torch.OutOfMemoryError, getattr(torch.distributed, "DistError", UserError)):
        # which a build may lack
        raise
    except OF_STRUCTURE as error:
        if path.is_file():
            raise TaskError(
                f"{path} cannot be restored ({_named(error)}): it is not what a Trainer writes for"
                " this model and these optimizers, or their own code refuses it."
                f" bench.load({str(path)!r}) takes the weights alone, then bench.fit()."
            ) from error
        raise TaskError(
            f"{path} cannot be restored ({_named(error)}): its state.pt is not what a fit of this"
            " model and these optimizers writes, or their own code refuses it. Take another"
            " checkpoint of the run (bench.runs), or begin anew with fit() without start."
        ) from error


OF_STRUCTURE = (
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
)
"""The errors that a list in place of a dict, a missing key or a tensor of another shape raises."""


def _named(error: Exception) -> str:
    lacks = isinstance(error, KeyError) and len(error.args) == 1
    return (
        f"it lacks {error}" if lacks else printable(f"{type(error).__name__}: {error}", lines=True)
    )


def _unpacked(file: Path, packed: dict[str, Any], read: Read = whole_tensor) -> dict[str, Any]:
    """Unpack what `to_plain` packed, read what lies in shards, and check its types."""
    try:
        check_extent(packed)
        state: dict[str, Any] = from_plain(_with_shards(file, packed, read))
    except OF_STRUCTURE as error:
        if isinstance(error, UnreadableError):
            raise
        raise _unreadable(file, _named(error)) from error
    _check_types(file, state)
    return state


def _with_shards(file: Path, packed: dict[str, Any], read: Read) -> dict[str, Any]:
    names = set(marks_in(packed))
    if not names:
        return packed
    with safetensors(file.with_suffix(".safetensors"), whole=read is whole_tensor) as stored:
        whole: dict[str, Any] = put_back(packed, {name: read(stored, name) for name in names})
        return whole


def _check_types(file: Path, state: dict[str, Any]) -> None:
    """Check the types, since a file may come from anywhere: with a NaN as epoch a fit would
    never end.
    """
    for name in state.keys() & _TYPES.keys():
        value, kinds = state[name], _TYPES[name]
        counted = type(value) is int and not 0 <= value <= LARGEST
        if (
            type(value) not in kinds
            or counted
            or (type(value) is float and not math.isfinite(value))
        ):
            raise _unreadable(file, f"its {name} is {shown(value)}")
        for entry, types in _PARTS.get(name, {}).items():
            if type(value.get(entry, file)) not in types:
                raise _unreadable(
                    file,
                    f"its {name} has {shown(value[entry]) if entry in value else 'nothing'} as"
                    f" {entry}",
                )


def _packed_state(file: Path, *, mmap: bool = False) -> dict[str, Any]:
    """Read the plain state: containers and tensors alone, since a file may come from anywhere."""
    with opened(file) as path:
        try:
            archive.check_state(path)
            if not mmap:
                archive.check_memory(path)
            state = torch.load(str(path), map_location="cpu", weights_only=True, mmap=mmap)
        except archive.NotReadError as error:
            raise _unreadable(file, str(error)) from None
        except MemoryError as error:
            raise _unreadable(file, "there is not enough memory for it") from error
        except pickle.UnpicklingError as error:
            # torch's own message proposes to run whatever the file contains
            raise _unreadable(
                file, "it is not a pickle, or holds more than containers and tensors"
            ) from error
        except (RuntimeError, EOFError, OSError) as error:
            raise _unreadable(file, str(error).partition(". ")[0]) from error
    if not isinstance(state, dict):
        raise _unreadable(file, f"it holds a {type(state).__name__}")
    return state


def _read_tensors(file: Path, read: Read = whole_tensor) -> dict[str, Tensor]:
    with safetensors(file, whole=read is whole_tensor) as stored:
        # an earlier version stored the names of a compiled model
        return {own_name(name): read(stored, name) for name in stored.shapes}


@contextlib.contextmanager
def safetensors(file: Path, *, whole: bool = False, mapped: bool = True) -> Iterator[StoredTensors]:
    """Context manager with an open file of weights, or with its shards. Raises RuntimeError where
    it cannot be read, or is larger than the memory if it is read `whole`.

    mapped: False reads the headers alone, for the shapes.
    """
    with contextlib.ExitStack() as stack:
        try:
            paths = [stack.enter_context(opened(shard)) for shard in files_of(file) or [file]]
            contents = [archive.tensors_in(path) for path in paths]
            if whole:
                archive.check_memory(*paths)
            files = [
                stack.enter_context(safe_open(str(path), framework="pt"))
                for path in (paths if mapped else ())
            ]
            stored = StoredTensors(files, contents)
        except FileNotFoundError as error:
            if error.filename == str(file):
                raise
            raise _unreadable(file, f"{error.strerror}: {error.filename}") from error
        except UnreadableError:
            raise
        except (SafetensorError, archive.NotReadError, RuntimeError, MemoryError) as error:
            # RuntimeError: it cannot be mapped
            raise _unreadable(file, str(error) or "there is not enough memory for it") from error
        try:
            yield stored
        except SafetensorError as error:
            raise _unreadable(file, str(error)) from error
        except MemoryError as error:
            raise _unreadable(file, "there is not enough memory for it") from error


def _shapes(file: Path) -> dict[str, Tensor]:
    """Tensors of the shapes in a file of weights, without their numbers."""
    with safetensors(file, mapped=False) as stored:
        try:
            return {
                own_name(name): torch.empty(shape, device="meta")
                for name, shape in stored.shapes.items()
            }
        except RuntimeError as error:  # more elements than a tensor may have
            raise _unreadable(file, str(error)) from error


def read_weights(file: Path, read: Read = whole_tensor) -> dict[str, Tensor]:
    """The tensors of `save_weights`, tied ones under each of their names."""
    tensors = _read_tensors(file, read)
    with safetensors(file) as stored:
        ties = {own_name(name): own_name(first) for name, first in stored.metadata().items()}
    return {
        **tensors,
        **{
            name: tensors[first]
            for name, first in ties.items()
            if first in tensors and name not in tensors
        },
    }


@contextlib.contextmanager
def opened(file: Path) -> Iterator[Path]:
    """Context manager that gives a path at which a library can open this file of a run's
    checkpoints.

    Raises RuntimeError where it is a link or no regular file, or where a folder between the run's
    folder and the file is a link.
    """
    with contextlib.ExitStack() as stack:
        folders = [file.parents[1], file.parent] if NAME.search(file.parent.name) else [file.parent]
        try:
            folder: Folder | None = None
            for path in folders:
                folder = stack.enter_context(Folder.opened(path, folder))
            assert folder is not None
            opened_path = stack.enter_context(folder.path_of(file.name))
        except (FileNotFoundError, PermissionError) as error:
            raise type(error)(error.errno, error.strerror, str(file)) from None
        except (OSError, ValueError) as error:
            link = next((path for path in (*folders, file) if path.is_symlink()), None)
            if link is None:
                raise _unreadable(file, "it is not a regular file") from error
            name = "it" if link == file else link
            raise _unreadable(file, f"{name} is a link, and links are not followed") from error
        yield opened_path


class UnreadableError(RuntimeError):
    """Raised for a file of a checkpoint that cannot be read; the message has the remedy."""


def _unreadable(file: Path, why: str) -> UnreadableError:
    return UnreadableError(
        f"{file} cannot be read ({why}): it is damaged, or was not written here. Take another"
        " checkpoint of the run (bench.runs), or begin anew with fit() without start."
    )


def remove(path: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that no reader finds it half deleted."""
    aside = (
        path.with_name(f".{path.name}.{os.getpid()}.part") if NAME.fullmatch(path.name) else path
    )
    path.rename(aside)
    shutil.rmtree(aside)


def _put(aside: Path, path: Path) -> None:
    """Rename a finished checkpoint from `aside` to `path`. Meanwhile readers find an older one
    of that name at `replaced(path)`.
    """
    older = replaced(path)
    if path.exists():
        shutil.rmtree(older, ignore_errors=True)
        path.rename(older)
    try:
        aside.rename(path)
    except OSError:
        if older.exists():
            older.rename(path)
        raise
    shutil.rmtree(older, ignore_errors=True)


def _clear_up(folder: Path) -> None:
    """Clean up after killed writers: delete half-written checkpoints, restore one that was about
    to be replaced.
    """
    for path in list(folder.iterdir()):
        if _ASIDE.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
    for older in folder.glob(".*.old"):
        path = folder / older.name.removeprefix(".").removesuffix(".old")
        if not NAME.fullmatch(path.name):
            continue
        if path.exists():
            shutil.rmtree(older, ignore_errors=True)
        else:
            older.rename(path)


@contextlib.contextmanager
def in_words(name: str) -> Iterator[None]:
    """Turn every error in writing (a full disk, for example) into an OSError, whichever library
    raised it.
    """
    try:
        yield
    except (SafetensorError, ValueError, KeyError) as error:
        # ValueError, KeyError: also for a kind of tensor that safetensors lacks
        code = re.search(r" \(os error (\d+)\)", str(error))
        if code is not None:
            said = str(error)[: code.start()].rpartition("\n")[2]
            raise OSError(int(code[1]), f"{said}, writing {name}") from error
        raise OSError(f"{name} could not be written: {error}") from error
    except RuntimeError as error:  # torch.save's error for a file that ended too early
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        if "PytorchStreamWriter" not in str(error) and "inline_container" not in str(error):
            raise
        raise OSError(f"{name} could not be written: {str(error).splitlines()[0]}") from error
