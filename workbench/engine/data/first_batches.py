"""Reads the first batches of a loader, and ends its worker processes."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from typing import Any

from workbench.task.data.loader_parts import length_of
from workbench.task.data.spec import Loader


def first_batches(
    loader: Loader, count: int | None, batches: Iterator[Any] | None = None, taken: int = 0
) -> Generator[Any]:
    """The first batches of a loader; all of them if `count` is not reached, to the end, where some
    samplers draw a last number.

    `batches`: the rest of a pass of which `taken` are gone. Processes that live for one pass end
    with it, also where an
    error ends it: its traceback would keep them.
    """
    batches = iter(loader) if batches is None else batches
    try:
        whole = count is None or count == length_of(loader)
        yield from batches if whole else itertools.islice(batches, max(0, (count or 0) - taken))
    finally:
        if not loader.persistent_workers:
            end_workers(batches)


def close_workers(loader: Loader) -> None:
    """End a loader's persistent worker processes."""
    end_workers(getattr(loader, "_iterator", None))


def end_workers(batches: Any) -> None:
    """End the worker processes of a loader's iterator; None: there is no iterator."""
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()
