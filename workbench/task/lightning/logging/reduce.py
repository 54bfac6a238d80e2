"""Reduces the values that several ranks have logged: for epochs over all batches, for updates over
all ranks.

Where a rank has logged nothing under a name, since it had no batch, the values of the others count.
The result is the same on every rank, bit by bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from workbench.task.batch import on_host
from workbench.task.errors import TaskError
from workbench.task.lightning.logging.aggregate import LoggedValue, Value, number
from workbench.task.ranks import Communication

Key = tuple[str, str]
"""The hook, and the name that the module gave."""


@dataclass(slots=True)
class RankValues:
    """The values of one rank under one name. how: the reduction by name, "own" (a reduce_fx) or
    "metric".
    """

    names: list[str]
    """The names in the record."""
    how: str
    total: float | None = None
    weight: float = 0.0
    values: Sequence[float] = ()
    """All values, for a reduce_fx."""
    path: str = ""
    """The path of the metric on the module."""
    also: bool = False
    """Whether the rank has the metric from other ranks, and has logged nothing itself."""


def over_ranks(
    ranks: Communication, kept: dict[Key, LoggedValue], module: Any
) -> dict[Key, tuple[list[str], Value]]:
    """The reduced values by hook and name, with their names in the record.

    A metric that only other ranks have logged is found on the module and computed too, since it may
    gather its state from all ranks; it is then added to `kept`.
    """
    of_rank = _parts({key: logged for key, logged in kept.items() if logged.on_epoch}, module)
    of_all = ranks.all_gather_object(of_rank)
    keys = dict.fromkeys(key for parts in of_all for key in parts)
    by_key: dict[Key, list[RankValues]] = {
        key: [parts[key] for parts in of_all if key in parts] for key in keys
    }
    late = {key: parts for key, parts in by_key.items() if parts[0].how in ("own", "metric")}
    mine = {key: _computed(key, parts, kept, module, len(of_all)) for key, parts in late.items()}
    said = ranks.all_gather_object(mine) if late else []
    results: dict[Key, tuple[list[str], Value]] = {}
    for key, parts in by_key.items():
        value = (
            _agreed(key, [answers[key] for answers in said], of_all)
            if key in late
            else _whole(parts)
        )
        if value is not None:
            results[key] = parts[0].names, value
    return results


def _parts(kept: Mapping[Key, LoggedValue], module: Any) -> dict[Key, RankValues]:
    """Return this rank's values; waits for the device at most once."""
    parts: dict[Key, RankValues] = {}
    totals: dict[Key, Value] = {}
    for key, logged in kept.items():
        if logged.metric is not None:
            parts[key] = RankValues(
                logged.epoch_names, "metric", path=_path(logged.metric, module), also=logged.also
            )
        elif not isinstance(logged.how, str):
            parts[key] = RankValues(logged.epoch_names, "own", values=on_host(logged.values))
        elif (whole := logged.whole()) is not None:
            totals[key] = whole[0]
            parts[key] = RankValues(logged.epoch_names, logged.how, weight=whole[1])
    for key, total in zip(totals, on_host(list(totals.values())), strict=True):
        parts[key].total = total
    return parts


def _whole(parts: Sequence[RankValues]) -> float:
    totals = [rank_values.total for rank_values in parts if rank_values.total is not None]
    if parts[0].how == "min":
        return min(totals, key=_nan_first(least=True))
    if parts[0].how == "max":
        return max(totals, key=_nan_first(least=False))
    if parts[0].how == "sum":
        return sum(totals)
    weight = sum(rank_values.weight for rank_values in parts)
    return sum(totals) / weight if weight else float("nan")


def _nan_first(*, least: bool) -> Callable[[float], float]:
    """Return a sort key by which NaN is the minimum or maximum."""
    end = -float("inf") if least else float("inf")
    return lambda value: end if value != value else value


def _computed(
    key: Key, parts: Sequence[RankValues], kept: dict[Key, LoggedValue], module: Any, world: int
) -> float | None:
    """Return this rank's value where a reduce_fx or a metric computes it; None: it has none."""
    logged = kept.get(key)
    if parts[0].how == "own":
        if logged is None or isinstance(logged.how, str):
            return None
        values: list[Any] = []
        rounds = itertools.zip_longest(*(rank_values.values for rank_values in parts))
        for of_ranks in rounds:  # in the order that one process would have
            values += [value for value in of_ranks if value is not None]
        if not values:
            return None
        return _float(number(logged.name, logged.how(torch.tensor(values, dtype=torch.float64))))
    if logged is None:
        path = parts[0].path
        if not path:
            raise TaskError(
                f"self.log({key[1]!r}) in {key[0]}: {len(parts)} of {world} ranks have logged this"
                " metric, and the others do not find it, to compute it with them: keep it as an"
                " attribute of the module."
            )
        logged = kept[key] = LoggedValue.borrowed(key[1], parts[0].names, _at(module, path))
    reporting = sum(not rank_values.also for rank_values in parts)
    if reporting < world and any(
        isinstance(state, list) for state in getattr(logged.metric, "metric_state", {}).values()
    ):
        raise TaskError(
            f"self.log({key[1]!r}) in {key[0]}: {type(logged.metric).__name__} keeps a list, and "
            "torchmetrics cannot gather that "
            f"where only {reporting} of {world} ranks had a batch: take more samples, smaller "
            "batches or fewer devices."
        )
    try:
        value = logged.result()
    except Exception:
        if logged.also:  # without values, which some metrics warn about or refuse
            return None
        raise
    return None if value is None else _float(value)


def _agreed(
    key: Key, said: Sequence[float | None], of_all: Sequence[Mapping[Key, RankValues]]
) -> float | None:
    """Return the value for all ranks: the value that all ranks with data have, else their mean."""
    logged = [
        v
        for v, parts in zip(said, of_all, strict=True)
        if v is not None and key in parts and not parts[key].also
    ]
    if not logged:
        return None
    return logged[0] if all(value == logged[0] for value in logged) else sum(logged) / len(logged)


def update_over_ranks(
    ranks: Communication, device: torch.device, names: Mapping[str, str], own: Mapping[str, Value]
) -> dict[str, Value]:
    """Reduce the values of one update over the ranks that have any. names: the reductions by
    name, equal on all ranks.
    """
    wide = torch.float32 if device.type == "mps" else torch.float64
    has = [float(name in own) for name in names]
    table = torch.zeros(ranks.world, len(names), dtype=wide, device=device)
    for column, name in enumerate(names):
        if name in own:
            table[ranks.rank, column] = torch.as_tensor(own[name]).to(device, wide)
    rows = [0.0] * (ranks.world * len(names))
    rows[ranks.rank * len(names) : (ranks.rank + 1) * len(names)] = has
    if device.type == "cpu":  # one all-reduce for all
        sums = torch.tensor(ranks.sums([*rows, *table.flatten().tolist()]), dtype=wide)
        rows, table = sums[: len(rows)].tolist(), sums[len(rows) :].reshape(table.shape)
    else:  # the host knows which ranks have a value, so that nothing waits for the device
        rows = ranks.sums(rows)
        ranks.all_reduce(table)
    reduced: dict[str, Value] = {}
    for column, (name, how) in enumerate(names.items()):
        reporting = [rank for rank in range(ranks.world) if rows[rank * len(names) + column]]
        if reporting:
            values = (
                table[:, column]
                if len(reporting) == ranks.world
                else torch.stack([table[rank, column] for rank in reporting])
            )
            reduced[name] = getattr(values, how)()
    return reduced


def _float(value: Value) -> float:
    return float(value)


def _path(metric: Any, module: Any) -> str:
    """The path of attributes from the module to a metric; "": the module does not have it."""
    named = getattr(module, "named_modules", None)
    if named is not None:
        path = next((name for name, candidate in named() if candidate is metric), "")
        if path:
            return path
    return next((name for name, candidate in vars(module).items() if candidate is metric), "")


def _at(module: Any, path: str) -> Any:
    target = module
    for name in path.split("."):
        target = getattr(target, name)
    return target
