"""Tells the user, in words, why a resumed fit may not have the data that it would have had."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.runs.checkpoints import UNSTORED


def read_once(name: str) -> str:
    """An iterator, of which a batch that was read cannot be read again."""
    return (
        f"{name} can be read only once, so that its middle cannot be reached again: give a Dataset,"
        " a DataLoader, or wb.batches(list)"
    )


def not_stored(name: str, places: Iterable[str]) -> str:
    """State of the data for which a file has no form."""
    return (
        f"{name}: {', '.join(places)} {UNSTORED}, and has its value at the beginning: give the data"
        " set state_dict() and load_state_dict()"
    )


def drawn_in_workers(name: str, moving: Iterable[str]) -> str:
    """Generators and counters of the data set, in the middle of a pass that loader workers read."""
    return (
        f"{name}: {', '.join(moving)} changes in the loader's workers, where its state cannot be"
        " read (the random numbers of torch, numpy and python themselves can be repeated there)"
    )


def advanced_in_workers(name: str, moving: Iterable[str]) -> str:
    """Random numbers and counters of loader workers that live from one pass to the next."""
    which = ", ".join(moving) or "random numbers that the data set draws"
    return (
        f"{name}: with persistent_workers=True, {which} advanced in the loader's workers, where"
        " nobody can read how far (exact with persistent_workers=False)"
    )


def left_early(name: str) -> str:
    """A stream with a state_dict whose pass a limit cut."""
    return (
        f"{name} was not read to its end in the epoch before, so that its state does not tell where"
        " the next epoch begins: it is read as new data"
    )


def read_further(name: str) -> str:
    """Data that this process has read beyond the position."""
    return f"{name} had been read further than it was used, and was not read back"


def moved(name: str, paths: Iterable[str]) -> str:
    """Say that data were read once more within a pass, and could not be moved back to their
    place in it.
    """
    return (
        f"{name}: {', '.join(paths)} was read once more for the statistics of batch normalisation,"
        " and cannot be moved back in the middle of an epoch: keep what a pass changes in numbers,"
        " lists, dicts or small arrays, or validate at the ends of epochs alone"
    )


def another_batch(name: str, number: int) -> str:
    """Data that were read again, and are not those of then."""
    return (
        f"{name} read again from the beginning of the epoch gives another batch {number} than it"
        " gave: what follows is not what it would have been. Give the data set a generator of its"
        " own, or state_dict() and load_state_dict()"
    )
