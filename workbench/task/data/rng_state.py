"""Saves and restores the random states and other states inside data sets and samplers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from workbench.task.rng import State, generator_state, is_generator, is_own, set_generator_state
from workbench.task.signature import fits
from workbench.task.state.copies import StateCopy
from workbench.task.state.held import HeldState, load
from workbench.task.state.places import is_machinery
from workbench.task.state.walk import Reached, library, walk

NO_STATE: Mapping[str, Any] = {"generators": {}, "states": {}, "held": {}}
"""What `DataRngState.state` returns where nothing has a state."""


class DataRngState:
    """Finds the generators, stateful parts and other state inside some objects, and saves and
    restores them.

    Each is identified by its path ("dataset.transform.rng"), which is the same in another process.
    A part with `state_dict` and `load_state_dict` says itself what its state is; of all other
    objects it is what they hold (`task/state/held.py`).
    """

    def __init__(
        self, *, earlier: DataRngState | None = None, beside: object = None, **roots: Any
    ) -> None:
        """earlier: that of the same roots, which remembers what they held when they were first
        looked at. beside: a generator that is saved elsewhere.
        """
        self._stateful: dict[str, Any] = {}
        self._samplers: list[str] = []
        self.lost: list[str] = []
        """What no file can hold of their state, as far as it has changed."""
        self._objects = list(walk(roots, closed=is_machinery))
        self.generators = {
            path: generator
            for path, generator in _generators(self._objects)
            if generator is not beside
        }
        for reached in self._objects:
            path, value = reached.path, reached.value
            if isinstance(value, (Dataset, Sampler)) or path in roots:
                if _has_state_dict(value):
                    self._stateful[path] = value
                elif isinstance(value, Sampler) and library(type(value)) not in (
                    "torch",
                    "workbench",
                ):
                    self._samplers.append(path)
        self._held: HeldState = HeldState(
            self._others, set(), earlier=None if earlier is None else earlier._held
        )

    @property
    def stateful(self) -> Mapping[str, Any]:
        """The parts with state_dict and load_state_dict, by their paths."""
        return self._stateful

    def _others(self) -> Iterator[Reached]:
        """The objects that are neither generators nor in a part that has a state of its own."""
        inside = {id(reached.value) for reached in walk(self._stateful)}
        return (
            reached
            for reached in self._objects
            if not is_generator(reached.value) and id(reached.value) not in inside
        )

    def state(self) -> State:
        """Return the present states."""
        held, lost = self._held.state()
        self.lost += lost
        return {
            "generators": {
                path: generator_state(generator) for path, generator in self.generators.items()
            },
            "states": {
                path: copy.deepcopy(stateful.state_dict())
                for path, stateful in self._stateful.items()
            },
            "held": held,
        }

    def put(self, state: Mapping[str, Any], states: bool = True) -> list[str]:
        """Restore the states (`states`: also those of parts that have one); return in words what
        could not be restored.
        """
        doubts = []
        moved, missing = load(self._others(), state.get("held", {}), torch.device("cpu"))
        self._held.moved |= moved
        doubts += [
            f"there is no {name} any more, whose state should be restored" for name in missing
        ]
        for path, value in state["generators"].items():
            try:
                set_generator_state(self.generators[path], value)
            except (KeyError, TypeError, ValueError, RuntimeError):
                doubts.append(
                    f"there is no generator like {path} any more, whose random numbers should"
                    " continue"
                )
        for path, value in state["states"].items() if states else ():
            if path in self._stateful:
                self._stateful[path].load_state_dict(copy.deepcopy(value))
            else:
                doubts.append(f"{path} takes no state any more (load_state_dict)")
        return doubts

    @contextlib.contextmanager
    def attributes_kept(self) -> Iterator[list[str]]:
        """Context manager in which another loader may read the same data: afterwards all objects
        hold what they held. The list gets the parts with an iterator that was read, which nothing
        puts back.
        """
        read_on: list[str] = []
        before = StateCopy.of_data(self._objects)
        try:
            yield read_on
        finally:
            lost = before.put()
            read_on += [
                path
                for path in (*self._stateful, *self._samplers)
                if any(lost_path.startswith(path) for lost_path in lost)
            ]


def generator_states(root: Any) -> dict[str, Any]:
    """The states of the generators in an object, by their paths."""
    return {
        path: generator_state(generator)
        for path, generator in _generators(walk({"": root}, closed=is_machinery))
    }


def _generators(objects: Iterable[Reached]) -> Iterator[tuple[str, Any]]:
    return (
        (reached.path, reached.value)
        for reached in objects
        if is_generator(reached.value) and is_own(reached.value)
    )


def _has_state_dict(stateful: Any) -> bool:
    """Whether it has torchdata's `state_dict()` and `load_state_dict(state)`; methods that need
    other arguments are another protocol's.
    """
    give, take = getattr(stateful, "state_dict", None), getattr(stateful, "load_state_dict", None)
    return callable(give) and callable(take) and fits(give) and fits(take, {})
