"""Calls the hooks that concern the data of a job: moving batches to the device, and a DataModule's state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from workbench.task.batch import to_device
from workbench.task.hooks import Hooks, Stage
from workbench.task.lightning.overrides import own_method
from workbench.task.lightning.setup import Preparation

_TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class Transfer(NamedTuple):
    """The hooks for moving a batch to the device; each is None where there is none."""

    before: Callable[..., Any] | None
    move: Callable[..., Any] | None
    after: Callable[..., Any] | None

    def __call__(self, batch: Any, device: torch.device) -> Any:
        if self.before is not None:
            batch = self.before(batch, 0)
        batch = to_device(batch, device) if self.move is None else self.move(batch, device, 0)
        return batch if self.after is None else self.after(batch, 0)


class DataHooks(Hooks):
    """The hooks of objects that bring the data. sources: by stage; a DataModule's hook wins over the module's."""

    def __init__(self, preparation: Preparation, sources: Mapping[str, Any], module: Any = None) -> None:
        self.preparation = preparation
        self._transfers: dict[str, Transfer] = {}
        for stage in ("train", "val", "test", "predict"):
            asked = [source for source in (sources.get(stage), module) if source is not None]
            found = [next(filter(None, (own_method(one, name) for one in asked)), None) for name in _TRANSFER]
            self._transfers[stage] = Transfer(*found)
        self.transfers = any(any(one) for one in self._transfers.values())

    def transfer(self, batch: Any, device: torch.device, stage: Stage) -> Any:
        return self._transfers[stage](batch, device)

    def fit_ended(self) -> None:
        self.preparation.over()

    def failed(self, error: BaseException) -> None:
        for source in self.preparation.data:
            hook = own_method(source, "on_exception")
            if hook is not None:
                hook(error)

    def unheard(self) -> contextlib.AbstractContextManager[None]:
        return self.preparation.log.unheard()

    def state(self) -> dict[str, Any]:
        states = {}
        for number, source in enumerate(self.preparation.data):
            give = own_method(source, "state_dict")
            own = None if give is None else give()
            if own:
                states[number] = own
        return {"data": states} if states else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for number, own in state.get("data", {}).items():
            take = own_method(self.preparation.data[number], "load_state_dict")
            if take is not None:
                take(own)
