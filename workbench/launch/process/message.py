"""Writes and reads messages between a process and its child: plain data and any number of packages, as segments."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from workbench.share.package import Package
from workbench.share.segment import Handle, Segment


def write(message: Any, packages: Sequence[Package]) -> tuple[Segment, list[Handle]]:
    """Write `message` (plain data) and `packages`: returns the first segment, which the sender closes, and all
    handles.
    """
    about = [(len(package.segments), package.devices, package.elsewhere, package.note) for package in packages]
    head = pickle.dumps((message, about))
    cover = Segment.place([head, *(package.code for package in packages)])
    return cover, [cover.handle, *(segment.handle for package in packages for segment in package.segments)]


def read(handles: Sequence[Handle]) -> tuple[Any, list[Package]]:
    """Read the message and its packages. File descriptors among `handles` belong to the result from here on."""
    cover, *rest = [Segment.attach(handle) for handle in handles]
    with cover:
        head, *codes = cover.views()
    message, about = pickle.loads(head)
    segments = iter(rest)
    packages = [
        Package(bytes(code), tuple(next(segments) for _ in range(count)), *others)
        for code, (count, *others) in zip(codes, about, strict=True)
    ]
    return message, packages
