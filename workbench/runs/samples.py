"""Keeps samples of predictions in a run's folder, and reads them: what the functions of
`bench.watch` returned at a validation.

    samples/
      00000552-0.json    of the first function, after 552 updates: pictures (PNG) and texts

The files may come from a stranger. Each is read up to `LARGEST` bytes, as JSON; its pictures are
PNG of at most `SIDE` pixels a side.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.events import Sampled
from workbench.runs.folder.files import Folder, make_folder, write_whole

SAMPLES = "samples"
"""The folder in a run's folder."""
FILE = re.compile(r"\d{8,16}-\d{1,3}\.json", re.ASCII)
"""The names of its files."""
LARGEST = 1 << 21
"""The most bytes of a file."""
ALL = 1 << 26
"""The most bytes of all files of a run; beyond it every second validation is removed."""
SIDE = 1024
"""The most pixels of a picture's side."""
MOST = 64
"""The most pictures and texts of a file."""
LONGEST = 20_000
"""The most characters of a text."""
_SHORT = 200
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Item:
    """A picture or a text, of a file of samples."""

    label: str
    png: bytes = b""
    """The picture; empty: it is a text."""
    text: str = ""
    note: str = ""
    """What is to be known of the picture: "values from -2.1 to 3.4"."""


@dataclass(frozen=True)
class Sample:
    """What one function of `bench.watch` returned at one validation. A notebook shows it.

    Attributes:
        step: the updates that had been taken.
        epoch: the epoch, counted from 0.
        name: the function's name.
        folder: the run's folder, in which the file is.
        file: the file's name there.
    """

    step: int
    epoch: int
    name: str
    folder: Path
    file: str

    @property
    def items(self) -> tuple[Item, ...]:
        """Its pictures and texts, in the order in which the function returned them. OSError or
        ValueError: the file is gone or damaged.
        """
        return self._content[0]

    @property
    def left_out(self) -> int:
        """How many more pictures and texts the function returned, for which the file has no room.
        OSError or ValueError: the file is gone or damaged.
        """
        return self._content[1]

    @cached_property
    def _content(self) -> tuple[tuple[Item, ...], int]:
        return read_items(self.folder, self.file)

    @property
    def images(self) -> dict[str, bytes]:
        """Its pictures by their labels, each the bytes of a PNG file:
        `PIL.Image.open(io.BytesIO(sample.images["0"]))`.
        """
        return {item.label: item.png for item in self.items if item.png}

    @property
    def texts(self) -> dict[str, str]:
        """Its texts by their labels."""
        return {item.label: item.text for item in self.items if not item.png}

    def __repr__(self) -> str:
        return f"<Sample {self.name!r} after {self.step} updates>"

    def _repr_html_(self) -> str:
        figures = "".join(map(_figure, self.items))
        head = html.escape(f"{self.name} after {self.step} updates")
        more = f"<p>{self.left_out} left out</p>" if self.left_out else ""
        row = f"<div style='display:flex;flex-wrap:wrap'>{figures}</div>"
        return f"<div><b>{head}</b>{row}{more}</div>"


def _figure(item: Item) -> str:
    label = html.escape(" ".join(filter(None, (item.label, item.note))))
    if not item.png:
        body = f"<pre style='max-width:40em;white-space:pre-wrap'>{html.escape(item.text)}</pre>"
    else:
        picture = base64.b64encode(item.png).decode()
        body = (
            f"<img alt='{label}' src='data:image/png;base64,{picture}'"
            " style='min-width:96px;max-width:20em;image-rendering:pixelated'>"
        )
    return f"<figure style='margin:4px'>{body}<figcaption>{label}</figcaption></figure>"


def file_of(step: int, number: int) -> str:
    """The name of the file of function `number` after so many updates."""
    return f"{step:08d}-{number}.json"


def write_items(run: Path, file: str, items: Sequence[Item], left_out: int) -> int:
    """Write the pictures and texts of one function into the run's folder; returns the file's
    bytes. What does not fit into `LARGEST` bytes, or could not be read again, is left out, and
    counted.
    """
    rows: list[dict[str, str]] = []
    size = 200
    for item in items:
        row = {"label": item.label[:_SHORT], "note": item.note[:_SHORT]}
        if item.png:
            row["png"] = base64.b64encode(item.png).decode()
        else:
            row["text"] = item.text
        more = len(json.dumps(row)) + 2
        is_readable = not item.png or _is_picture(item.png)
        if size + more > LARGEST or len(rows) == MOST or not is_readable:
            left_out += 1
            continue
        size += more
        rows.append(row)
    data = json.dumps({"items": rows, "left_out": left_out}).encode()
    write_whole(make_folder(run / SAMPLES) / file, data)
    return len(data)


def sizes(run: Path) -> dict[int, dict[str, int]]:
    """The bytes of each file of samples, by the update of its validation."""
    by_step: dict[int, dict[str, int]] = {}
    folder = make_folder(run / SAMPLES)
    for path in folder.iterdir():
        if FILE.fullmatch(path.name):
            step = int(path.name.partition("-")[0])
            by_step.setdefault(step, {})[path.name] = path.lstat().st_size
    return by_step


def remove(run: Path, file: str) -> None:
    """Remove a file of samples."""
    with Folder.opened(run / SAMPLES) as folder:
        folder.remove(file)


def read_items(run: Path, file: str) -> tuple[tuple[Item, ...], int]:
    """The pictures and texts in a file of samples, and how many were left out. OSError or
    ValueError: there is no such file, or it is not one of ours.
    """
    if not FILE.fullmatch(file):
        raise ValueError(f"{file!r:.80} names no file of samples")
    with Folder.opened(run) as outer, Folder.opened(run / SAMPLES, outer) as folder:
        content = folder.read_json(file, LARGEST)
    rows, left_out = content.get("items"), content.get("left_out")
    if not isinstance(rows, list) or type(left_out) is not int:
        raise ValueError(f"{file} has no samples")
    return tuple(_item(row) for row in rows[:MOST]), left_out


def _item(row: Any) -> Item:
    fields = row if isinstance(row, Mapping) else {}
    label, note, text = (str(fields.get(key, "")) for key in ("label", "note", "text"))
    label, note = label[:_SHORT], note[:_SHORT]
    if "png" not in fields:
        return Item(label, text=text[:LONGEST], note=note)
    try:
        png = base64.b64decode(str(fields["png"]), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a picture is not base64") from None
    if not _is_picture(png):
        raise ValueError(f"a picture is no PNG of at most {SIDE} pixels a side")
    return Item(label, png, note=note)


def _is_picture(png: bytes) -> bool:
    """Whether this is a PNG of at most `SIDE` pixels a side."""
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    return png.startswith(_PNG) and 0 < width <= SIDE and 0 < height <= SIDE


def room_for_pictures(items: Sequence[Item]) -> int:
    """How many bytes of pictures fit beside the labels and texts of these items."""
    said = sum(len(json.dumps(item.label + item.note + item.text)) + 150 for item in items)
    return (LARGEST - 200 - said) * 3 // 4  # base64 has 4 characters for 3 bytes


def kept(events: Sequence[Any], run: Path | None) -> tuple[Sample, ...]:
    """The samples of a run whose files are still there, oldest first; of several validations at
    one update the last one counts.
    """
    if run is None:
        return ()
    try:
        with Folder.opened(run) as outer, Folder.opened(run / SAMPLES, outer) as folder:
            files = set(folder.names())
    except OSError:
        return ()
    by_file = {event.file: event for event in events if isinstance(event, Sampled)}
    return tuple(
        Sample(event.step, event.epoch, event.name, run, event.file)
        for event in by_file.values()
        if event.file in files and FILE.fullmatch(event.file)
    )
