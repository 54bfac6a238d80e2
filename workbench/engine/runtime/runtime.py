"""Makes the accelerator of one job: accelerate chooses the device and prepares the model.

accelerate keeps its state in three process-wide dicts. A job's Accelerator and the trackers use
other dicts, which only their thread sees. So an Accelerator that the user made in the notebook
keeps working, and the notebook never sees one that the user did not make.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, DistributedType
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import GradientAccumulationPlugin

from workbench.engine.distributed import fsdp
from workbench.engine.distributed.fsdp_forward import FSDPForward
from workbench.engine.distributed.process_group import MultiProcessGroup, ProcessGroup
from workbench.settings import Settings, SettingsError
from workbench.task.device import xla
from workbench.task.ranks import RANK as RANK
from workbench.task.ranks import is_rank

_MARK = "_is_accelerate_prepared"
_USE_FSDP = "ACCELERATE_USE_FSDP"
_USE_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
"""accelerate sets both for the processes that it launches, and where the user gives an
Accelerator such a plugin.
"""
_LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"),
)
"""By these variables accelerate knows that a launcher started the process."""
FSDP_REMEDY = (
    "DeepSpeed is not supported. FSDP shards weights, gradients and optimizer states as ZeRO does:"
    " take strategy='launch' and a config with distributed_type: FSDP and, in fsdp_config,"
    " fsdp_version: 2 and fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, or launch={'use_fsdp':"
    " True, 'fsdp_version': 2, 'fsdp_auto_wrap_policy': 'TRANSFORMER_BASED_WRAP'} (docs/fsdp.md)"
)
_STATES = (PartialState, AcceleratorState, GradientState)


class OwnState:
    """A copy of accelerate's dicts, separate from the user's."""

    def __init__(self) -> None:
        self.dicts: tuple[dict[str, Any], ...] = tuple({} for _ in _STATES)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Context manager in which accelerate uses this state, in this thread alone; other
        threads do not wait.
        """
        _share()
        before, _thread.state = _thread.state, self
        try:
            yield
        finally:
            _thread.state = before


class _Thread(threading.local):
    """The state of each thread."""

    state: OwnState | None = None


_thread = _Thread()


class _Shared:
    """Replaces one of accelerate's dicts: a thread sees its own if it has one, else the original.

    accelerate does the same on TPUs, where each thread drives a device.
    """

    def __init__(self, index: int, users: Any) -> None:
        self._index = index
        self._users = users

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if _thread.state is not None:
            return _thread.state.dicts[self._index]
        return (
            self._users.__get__(instance, owner) if hasattr(self._users, "__get__") else self._users
        )


def _share() -> None:
    """Replace accelerate's dicts once for the process; again where other code has replaced one
    since.

    The replacement stays: removing it would need a lock, and a process that is forked while a
    thread holds the lock would hang.
    """
    for index, state in enumerate(_STATES):
        shared_state = vars(state)["_shared_state"]
        if not isinstance(shared_state, _Shared):
            state._shared_state = _Shared(index, shared_state)


class NoAccumulation(GradientAccumulationPlugin):  # type: ignore[misc]  # accelerate has no types
    """Tells accelerate to accumulate nothing, since the engine does. accelerate's own plugin
    empties `os.environ` for a moment, while other threads may read it.
    """

    def to_kwargs(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps}


class Runtime:
    """The device of a job and its accelerator, which prepares models."""

    def __init__(self, settings: Settings) -> None:
        check_device(settings.accelerator)
        check_environment()
        self._own = OwnState()
        several = is_rank()
        # Without `cpu=True`, accelerate joins several processes only on GPUs.
        alone = settings.accelerator == "cpu" or (several and not torch.accelerator.is_available())
        options = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
        if settings.accelerator == "tpu" and isinstance(settings.devices, int):
            xla.use_cores(settings.devices)
        hidden = [_USE_FSDP, *(() if several else _LAUNCHERS)]
        if settings.accelerator == "cpu":
            hidden.append("ACCELERATE_TORCH_DEVICE")
        with self._own.here(), _hidden(*hidden):
            self._accelerator = Accelerator(
                cpu=alone,
                mixed_precision="no",
                gradient_accumulation_plugin=NoAccumulation(num_steps=1),
                kwargs_handlers=[options] if several else None,
            )
            if xla.is_xla(self._accelerator.device) and settings.accelerator != "tpu":
                self._leave_xla()
        self.device: torch.device = self._accelerator.device
        self.ranks: ProcessGroup = ProcessGroup()
        """The processes that do this job together."""
        asked = os.environ.get(fsdp.ENVIRONMENT) if several else None
        self.shards = asked if asked == fsdp.NAME else None
        """`fsdp.NAME` if the ranks shard the weights; else None."""
        if several:
            local = int(os.environ.get("LOCAL_WORLD_SIZE", self._accelerator.num_processes))
            kind = FSDPForward if self.shards else MultiProcessGroup
            self.ranks = kind(self._accelerator.local_process_index, local)

    def _leave_xla(self) -> None:
        """Set the accelerator's device to torch's own: where torch_xla is installed, accelerate
        always takes the TPU.
        """
        device = (
            torch.accelerator.current_accelerator()
            if torch.accelerator.is_available() and not self._accelerator.state._cpu
            else None
        )
        for state in self._own.dicts:
            if "device" in state:
                state["device"], state["distributed_type"] = (
                    device or torch.device("cpu"),
                    DistributedType.NO,
                )

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Prepare the model with accelerate: in one process the same object, on the device; else
        wrapped in DDP.
        """
        with self._own.here(), _unmarked(model):
            prepared = self._accelerator.prepare_model(model)
        assert isinstance(prepared, torch.nn.Module)
        return prepared


@contextlib.contextmanager
def _hidden(*names: str) -> Iterator[None]:
    """Context manager that hides environment variables from accelerate: the FSDP option, since the
    engine shards the model itself; a launcher's, where this process trains alone.
    """
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


@contextlib.contextmanager
def _unmarked(model: torch.nn.Module) -> Iterator[None]:
    """Context manager in which the model is without accelerate's mark on prepared models.

    accelerate returns a marked model unchanged: ours to the user's Accelerator, theirs to ours.
    """
    theirs = vars(model).pop(_MARK, None)
    try:
        yield
    finally:
        vars(model).pop(_MARK, None)
        if theirs is not None:
            vars(model)[_MARK] = theirs


def check_device(wanted: str) -> None:
    """Raise SettingsError for a kind of device that this machine does not have."""
    if (
        wanted in ("gpu", "cuda")
        and not torch.cuda.is_available()
        and not (wanted == "gpu" and torch.backends.mps.is_available())
    ):
        raise SettingsError(
            f"accelerator={wanted!r}: torch sees no such device here; take 'auto' or 'cpu'."
        )
    if (wanted == "mps" and not torch.backends.mps.is_available()) or (
        wanted == "xpu" and not torch.xpu.is_available()
    ):
        raise SettingsError(
            f"accelerator={wanted!r}: torch sees no such device here; take 'auto' or 'cpu'."
        )
    if wanted == "tpu" and not xla.installed():
        raise SettingsError(
            "accelerator='tpu': torch_xla is not installed. Install the release that is made for"
            f" this torch, {torch.__version__}, or take 'auto' or 'cpu'."
        )


def check_environment() -> None:
    """Raise SettingsError where the environment asks for DeepSpeed: by hand, or by an
    Accelerator with its plugin.
    """
    value = os.environ.get(_USE_DEEPSPEED, "false")
    if value.lower() == "true":
        raise SettingsError(
            f"{_USE_DEEPSPEED}={value!r} in the environment (an Accelerator with a DeepSpeedPlugin"
            f" sets it, too): {FSDP_REMEDY}. To train without sharding: del"
            f" os.environ[{_USE_DEEPSPEED!r}]."
        )
