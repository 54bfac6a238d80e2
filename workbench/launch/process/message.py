"""Writes and reads messages between a process and its child: plain data and any number of packages, as segments."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from workbench.share.package import Package
from workbench.share.segment import Handle, Segment


def write(message: Any, parcels: Sequence[Package]) -> tuple[Segment, list[Handle]]:
    """Write `message` (plain data) and `packages`: returns the first segment, which the sender closes, and all
    handles.
    """
    about = [(len(parcel.segments), parcel.devices, parcel.elsewhere, parcel.note) for parcel in parcels]
    head = pickle.dumps((message, about))
    cover = Segment.place([head, *(parcel.code for parcel in parcels)])
    return cover, [cover.handle, *(segment.handle for parcel in parcels for segment in parcel.segments)]


def read(handles: Sequence[Handle]) -> tuple[Any, list[Package]]:
    """Read the message and its packages. File descriptors among `handles` belong to the result from here on."""
    cover, *rest = [Segment.attach(handle) for handle in handles]
    with cover:
        head, *codes = cover.views()
    message, about = pickle.loads(head)
    segments = iter(rest)
    parcels = [
        Package(bytes(code), tuple(next(segments) for _ in range(count)), *others)
        for code, (count, *others) in zip(codes, about, strict=True)
    ]
    return message, parcels
