"""Combines several training loaders into batches of batches, as Lightning's CombinedLoader does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from workbench.task.data.datasets import Batches
from workbench.task.errors import TaskError

MODES = ("max_size_cycle", "max_size", "min_size", "sequential")


class Combined:
    """The batches of several loaders side by side, in the dict, list or tuple in which the loaders
    are.

    mode: "max_size_cycle" begins short loaders again until the longest has ended; "max_size" gives
    None for those that have ended; "min_size" ends with the shortest; "sequential" gives single
    batches, one loader after another.
    """

    def __init__(self, loaders: Any, mode: str) -> None:
        if mode not in MODES:
            raise TaskError(
                f"a CombinedLoader has mode={mode!r}: the modes are {', '.join(MODES)}."
            )
        self.loaders, self.mode = loaders, mode
        self._flat = list(_leaves(loaders))

    def __iter__(self) -> Iterator[Any]:
        if self.mode == "sequential":
            for loader in self._flat:
                yield from loader
            return
        rests, ended = [iter(loader) for loader in self._flat], [False] * len(self._flat)
        while True:
            row: list[Any] = []
            for number, rest in enumerate(rests):
                batch = next(rest, _END)
                if batch is _END:
                    ended[number] = True
                    if self.mode == "min_size" or all(ended):
                        return
                    if self.mode == "max_size_cycle":
                        rests[number] = iter(self._flat[number])
                        batch = next(rests[number], _END)
                row.append(None if batch is _END else batch)
            yield _filled(self.loaders, iter(row))

    def __len__(self) -> int:
        lengths = [len(loader) for loader in self._flat]  # a TypeError where one has none
        if self.mode == "sequential":
            return sum(lengths)
        return min(lengths) if self.mode == "min_size" else max(lengths)

    def set_epoch(self, epoch: int) -> None:
        """Call set_epoch of each loader's samplers and data set, where they have it."""
        for loader in self._flat:
            inner = getattr(loader, "batch_sampler", None)
            parts = (
                getattr(loader, "sampler", None),
                inner,
                getattr(inner, "sampler", None),
                getattr(loader, "dataset", None),
            )
            for component in {id(component): component for component in parts}.values():
                tell = getattr(component, "set_epoch", None)
                if callable(tell):
                    tell(epoch)


class CombinedBatches(Batches):
    """The batches of several loaders as a data set, with their length."""

    def __len__(self) -> int:
        return len(self.users)  # type: ignore[arg-type]  # a Combined has one where all of its loaders have


_END = object()


def is_combined(data: Any) -> bool:
    """Whether it is Lightning's CombinedLoader."""
    kind = type(data)
    return kind.__name__ == "CombinedLoader" and kind.__module__.partition(".")[0] in (
        "lightning",
        "pytorch_lightning",
    )


def in_turn(data: Any) -> bool:
    """Whether it is Lightning's CombinedLoader that reads its loaders one after another."""
    return is_combined(data) and data._mode == "sequential"


def side_by_side(dataset: Any) -> bool:
    """Whether its batches are dicts or lists of the batches of several loaders."""
    return (
        isinstance(dataset, CombinedBatches)
        and isinstance(dataset.users, Combined)
        and dataset.users.mode != "sequential"
    )


def has_loaders(dataset: Any) -> bool:
    """Whether loaders of the user's make the batches."""
    return isinstance(dataset, Batches) and isinstance(dataset.users, (Combined, DataLoader))


def combined_in(data: Any) -> CombinedBatches | None:
    """The batches of a CombinedLoader, or of a dict, a list or a tuple of loaders; None: it is
    no such thing.
    """
    if is_combined(data):
        return CombinedBatches(Combined(data.iterables, data._mode))
    if (
        isinstance(data, (Mapping, list, tuple))
        and data
        and all(isinstance(loader, DataLoader) for loader in _leaves(data))
    ):
        return CombinedBatches(Combined(data, "max_size_cycle"))
    return None


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (Mapping, list, tuple)):
        for branch in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _leaves(branch)
    else:
        yield tree


def _filled(tree: Any, values: Iterator[Any]) -> Any:
    """A copy of nested containers with other leaves."""
    if isinstance(tree, Mapping):
        return {key: _filled(branch, values) for key, branch in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts: Iterable[Any] = [_filled(branch, values) for branch in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    return next(values)
