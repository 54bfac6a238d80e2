"""Checks a file of weights or state before a library reads it: it may come from a stranger, and
claim any size.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from workbench.instruments.memory import available_memory
from workbench.units import size as in_units

SHARDING = "DCP_SHARDING_INFO"
"""The entry of a file's metadata with the place of each piece in its tensor, as
`torch.distributed.checkpoint.HuggingFaceStorageWriter` writes it.
"""
_HEADER, _TENSORS = 1 << 24, 1 << 17
"""The most bytes of the header of a file of weights, and how many tensors it may name."""
_DIRECTORY, _PICKLE = 1 << 25, 1 << 26
"""The most bytes of the list of contents of a state, and of its containers, which have no
tensors.
"""
_CONTAINERS = 1 << 21
"""How many containers these may be: an empty one is one byte there and seventy in memory."""
_END = 1 << 16
"""How far from its end an archive says where its contents are listed."""


class NotReadError(ValueError):
    """Raised for a file that is not read; the message says why, in a phrase."""


class Stored(NamedTuple):
    """A tensor, or some of its rows, in a file of safetensors."""

    dtype: str
    shape: tuple[int, ...]
    """The shape of what the file has."""
    start: int
    """The first row of it in the whole tensor."""


def tensors_in(path: Path) -> dict[str, Stored]:
    """The tensors in a file of safetensors, by its header. Raises NotReadError where that is too
    long, or no header.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > min(_HEADER, size - 8):
            raise NotReadError(
                f"its header has {length} bytes, and {max(0, min(_HEADER, size - 8))} are possible"
            )
        header = file.read(length)
    if header.count(b'"dtype"') > _TENSORS:
        raise NotReadError(f"it has more than {_TENSORS} tensors")
    try:
        tensors = json.loads(header)
        offsets = json.loads((tensors.pop("__metadata__", None) or {}).get(SHARDING, "{}"))
        stored = {
            name: Stored(tensor["dtype"], tuple(tensor["shape"]), _start(offsets.get(name)))
            for name, tensor in tensors.items()
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise NotReadError("its header is none") from error
    if not all(map(_is_plain, stored.values())):
        raise NotReadError("its header is none")
    return stored


def _start(place: Any) -> int:
    """The first row, by what a file says of the place of a tensor; None: it says nothing."""
    if place is None:
        return 0
    row, *others = place["saved_offsets"] or [0]
    if any(others):
        raise ValueError("only rows are split")
    start: int = row
    return start


def _is_plain(tensor: Stored) -> bool:
    return type(tensor.dtype) is str and all(
        type(size) is int and 0 <= size < 1 << 60 for size in (tensor.start, *tensor.shape)
    )


def check_state(path: Path) -> None:
    """Raise NotReadError for a file that `torch.save` has not written, or that would take much
    more memory than its size.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END))
        if _directory_size(file.read(_END)) > _DIRECTORY:
            raise NotReadError("the list of its contents is too long")
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                if (
                    any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
                    or sum(entry.file_size for entry in entries) > size
                ):
                    raise NotReadError(
                        "its contents are packed more tightly than torch.save does it"
                    )
                for entry in entries:
                    if entry.filename.endswith("data.pkl"):
                        entry.CRC = None  # type: ignore[assignment]  # torch may leave it out
                        _check_pickle(
                            b"" if entry.file_size > _PICKLE else archive.read(entry),
                            entry.file_size,
                        )
        except (
            zipfile.BadZipFile,
            EOFError,
            NotImplementedError,
            struct.error,
            UnicodeDecodeError,
            OSError,
            RuntimeError,
            IndexError,
        ) as error:
            raise NotReadError("torch.save has not written it, or it is incomplete") from error


def _check_pickle(data: bytes, size: int) -> None:
    if (
        size > _PICKLE
        or sum(data.count(sign) for sign in (b"]", b"}", b"\x85", b"\x86", b"\x87")) > _CONTAINERS
    ):
        raise NotReadError("it has more containers than any state")


def _directory_size(end: bytes) -> int:
    """The bytes of the list of contents, by the last bytes of an archive."""
    start = end.rfind(b"PK\5\6")
    if start < 0 or start + 16 > len(end):
        raise NotReadError("torch.save has not written it, or it is incomplete")
    large = end.rfind(b"PK\6\6", 0, start)
    if large >= 0 and large + 48 <= len(end):
        return max(
            int(struct.unpack_from("<Q", end, large + 40)[0]),
            int(struct.unpack_from("<I", end, start + 12)[0]) % 0xFFFFFFFF,
        )
    return int(struct.unpack_from("<I", end, start + 12)[0])


def check_memory(*paths: Path) -> None:
    """Raise NotReadError for files that are larger than the memory that is free."""
    size, free = sum(path.stat().st_size for path in paths), available_memory()
    if size > free:
        raise NotReadError(f"it has {in_units(size)}, and {in_units(free)} of memory are free")
