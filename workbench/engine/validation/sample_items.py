"""Turns what a function of `bench.watch` returns into pictures (PNG) and texts."""

from __future__ import annotations

import dataclasses
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from workbench.runs.samples import LONGEST, MOST, SIDE, Item, room_for_pictures
from workbench.task.errors import TaskError
from workbench.values import shown

_DEEPEST = 4
"""The most dicts and lists within one another."""
_CHANNELS = (1, 3, 4)
"""Grey, RGB, RGBA."""

_Draw = Callable[[int], bytes]
"""Makes the PNG file of a picture at 1, 1/2, 1/3 … of its size."""


def items_of(returned: Any, name: str) -> tuple[list[Item], int]:
    """The pictures and texts in what the function `name` returned, and how many were left out
    since there are too many. Pictures that have too many bytes together are made smaller.
    TaskError names what is neither.
    """
    items: list[Item] = []
    draws: list[_Draw | None] = []
    count = 0
    for label, value in _leaves(returned, name, "", 0):
        for item, draw in _items(value, label, name):
            count += 1
            if len(items) < MOST:
                items.append(item)
                draws.append(draw)
    most = _share([len(item.png) for item in items if item.png], room_for_pictures(items))
    items = [
        _smaller(item, draw, most) if draw and len(item.png) > most > 0 else item
        for item, draw in zip(items, draws, strict=True)
    ]
    return items, count - len(items)


def _share(sizes: list[int], room: int) -> int:
    """The most bytes of one of these pictures, with which all fit into the room: the small ones
    leave theirs to the large ones.
    """
    for rest, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
        if size > room // rest:
            return room // rest
        room -= size
    return max(sizes, default=0)


def _smaller(item: Item, draw: _Draw, most: int) -> Item:
    """The picture with at most so many bytes, as long as it has more than a few pixels."""
    png, divisor = item.png, 1
    while len(png) > most and divisor < SIDE // 8:
        divisor = max(divisor + 1, math.isqrt(divisor * divisor * len(png) // most))
        png = draw(divisor)
    note = f"{item.note}, at 1/{divisor} of its size".lstrip(", ")
    return dataclasses.replace(item, png=png, note=note)


def _leaves(value: Any, name: str, label: str, depth: int) -> Iterator[tuple[str, Any]]:
    """What is in the dicts and lists, each with the keys that lead to it."""
    if isinstance(value, Mapping):
        pairs: Any = value.items()
    elif isinstance(value, (list, tuple)):
        pairs = enumerate(value)
    else:
        yield label, value
        return
    if depth == _DEEPEST:
        raise TaskError(f"watch: {name} returned more than {_DEEPEST} containers in one another.")
    for key, inner in pairs:
        yield from _leaves(inner, name, f"{label}/{key}" if label else str(key), depth + 1)


def _items(value: Any, label: str, name: str) -> Iterator[tuple[Item, _Draw | None]]:
    """Each picture with what draws it smaller; a text has None."""
    if isinstance(value, str):
        cut = len(value) - LONGEST
        note = f"{cut} more characters" if cut > 0 else ""
        yield Item(label, text=value[:LONGEST], note=note), None
    elif hasattr(value, "savefig"):
        yield Item(label, _figure(value, 1)), partial(_figure, value)
    elif hasattr(value, "to_plotly_json"):
        yield Item(label, _plotly(value, name, 1)), partial(_plotly, value, name)
    elif hasattr(value, "getbands"):  # of PIL
        mode = "RGBA" if "A" in value.getbands() else "RGB"
        yield _image(np.asarray(value.convert(mode)), label)
    elif isinstance(value, Tensor):
        whole = value.detach().float() if value.is_floating_point() else value.detach()
        yield from _images(whole.cpu().numpy(), label, name, first=True)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "buif":
        yield from _images(value, label, name, first=False)
    else:
        where = f" under {label!r}" if label else ""
        raise TaskError(
            f"watch: {name} returned {shown(value)} ({type(value).__name__}){where}, which is"
            " neither an image nor a text. Return a tensor or array (CHW, HWC, NCHW), a PIL image,"
            " a figure, a str, or a list or dict of these; numbers belong into metrics=."
        )


def _images(
    array: NDArray[Any], label: str, name: str, *, first: bool
) -> Iterator[tuple[Item, _Draw]]:
    """The images in an array of 2 (HW), 3 or 4 dimensions (a batch). first: channels come first
    where both the first and the last dimension may be channels, as in a tensor.
    """
    if array.ndim == 4:
        for number, image in enumerate(array):
            inner = f"{label}/{number}" if label else str(number)
            yield from _images(image, inner, name, first=first)
        return
    leads, ends = (array.ndim == 3 and array.shape[at] in _CHANNELS for at in (0, -1))
    if array.size == 0 or (array.ndim != 2 and not leads and not ends):
        raise TaskError(
            f"watch: {name} returned an array of shape {tuple(array.shape)}"
            + (f" under {label!r}" if label else "")
            + ", which is no image: HW, CHW, HWC or a batch NCHW, NHWC, with 1, 3 or 4 channels."
            " Images without channels in a batch: x[:, None]."
        )
    if leads and (first or not ends):
        array = np.moveaxis(array, 0, -1)
    yield _image(array, label)


def _image(array: NDArray[Any], label: str) -> tuple[Item, _Draw]:
    """One image, HW or HWC, of at most `SIDE` pixels a side. Numbers other than bytes are taken
    from 0 to 1; where some are beyond that, from the smallest to the largest, with a note.
    """
    stride = -(-max(array.shape[:2]) // SIDE)
    array, note = array[::stride, ::stride], ""
    if array.dtype == np.bool_:
        array = array * np.uint8(255)
    elif array.dtype != np.uint8:
        wide = array.astype(np.float64)
        is_finite = np.isfinite(wide)
        low, high = (wide[is_finite].min(), wide[is_finite].max()) if is_finite.any() else (0, 1)
        if low < 0 or high > 1:
            note = f"values from {low:.3g} to {high:.3g}"
        else:
            low, high = 0, 1
        if not is_finite.all():
            note = f"{note}, {int((~is_finite).sum())} not finite".lstrip(", ")
        scaled = (np.where(is_finite, wide, low) - low) / ((high - low) or 1)
        array = np.rint(255 * scaled).astype(np.uint8)
    return Item(label, _png(array, 1), note=note), partial(_png, array)


def _png(array: NDArray[np.uint8], divisor: int) -> bytes:
    """The PNG file of an image, HW or HWC, thinned out."""
    array = array[::divisor, ::divisor]
    if array.ndim == 2:
        array = array[:, :, None]
    height, width, channels = array.shape
    rows = np.ascontiguousarray(array).reshape(height, width * channels)
    data = np.hstack([np.zeros((height, 1), np.uint8), rows]).tobytes()  # each row: no filter
    kind = {1: 0, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(data, 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))
        for tag, body in chunks
    )


def _figure(figure: Any, divisor: int) -> bytes:
    """A matplotlib figure, which has imported matplotlib, as PNG."""
    from workbench.plots.drawing.picture import closed_png

    return closed_png(figure, SIDE // divisor)


def _plotly(figure: Any, name: str, divisor: int) -> bytes:
    width, height = SIDE * 3 // 4, SIDE // 2
    try:
        png: bytes = figure.to_image("png", width=width, height=height, scale=1 / divisor)
    except (ValueError, ImportError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        raise TaskError(
            f"watch: {name} returned a plotly figure, of which plotly makes a picture with the"
            f" package kaleido only: pip install kaleido, or return a matplotlib figure. ({why})"
        ) from None
    return png
