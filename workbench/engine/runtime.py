"""The accelerator of one job: accelerate decides the device and prepares the model.

accelerate keeps its state in three process-wide dicts. A job's Accelerator is made and used with dicts of its
own, and the user's are put back, never reset: an Accelerator that they made in the notebook goes on working.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

from workbench.settings import Settings, SettingsError

_SWAP = threading.Lock()
_MARK = "_is_accelerate_prepared"
_STATES = (PartialState, AcceleratorState, GradientState)


class Runtime:
    """A device, and models prepared for it."""

    def __init__(self, settings: Settings) -> None:
        _check_device(settings.accelerator)
        self._own: list[object] = [{}, {}, {}]
        with self._swapped():
            self._accelerator = Accelerator(cpu=settings.accelerator == "cpu", mixed_precision="no")
        self.device: torch.device = self._accelerator.device

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model as accelerate wants it; on one device it is the same object, on that device."""
        with self._swapped(), _unmarked(model):
            prepared = self._accelerator.prepare_model(model)
        assert isinstance(prepared, torch.nn.Module)
        return prepared

    @contextlib.contextmanager
    def _swapped(self) -> Iterator[None]:
        with _SWAP:
            users = [state._shared_state for state in _STATES]
            for state, own in zip(_STATES, self._own, strict=True):
                state._shared_state = own
            try:
                yield
            finally:
                for state, user in zip(_STATES, users, strict=True):
                    state._shared_state = user


@contextlib.contextmanager
def _unmarked(model: torch.nn.Module) -> Iterator[None]:
    """Without accelerate's mark on prepared models.

    A model that bears it is handed back as it is: ours by the user's Accelerator, theirs by ours.
    """
    theirs = vars(model).pop(_MARK, None)
    try:
        yield
    finally:
        vars(model).pop(_MARK, None)
        if theirs is not None:
            vars(model)[_MARK] = theirs


def _check_device(wanted: str) -> None:
    if wanted in ("gpu", "cuda") and not torch.cuda.is_available() and not (
        wanted == "gpu" and torch.backends.mps.is_available()
    ):
        raise SettingsError(f"accelerator={wanted!r}: torch sees no such device here; take 'auto' or 'cpu'.")
    if wanted == "mps" and not torch.backends.mps.is_available():
        raise SettingsError("accelerator='mps': torch sees no such device here; take 'auto' or 'cpu'.")
