"""A task of an object with `training_step` and `configure_optimizers`: a LightningModule as it is, or one like it.

The object's hooks are resolved here, once, by name; nothing else in the package looks anything up by string.
Lightning itself is never imported. A hook that is not served yet is refused by name rather than left out.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from workbench.settings import Settings
from workbench.task.batch import sample_count
from workbench.task.data import DataSpec, Parts, parts_of
from workbench.task.datasets import Batches
from workbench.task.protocol import Optimization, Progress, Schedule, Scores, Task, TaskError

# What Lightning would call and this task does not: silence would train something else than was written.
UNSERVED = (
    "on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start",
    "on_train_epoch_end", "on_train_batch_start", "on_train_batch_end", "on_validation_start",
    "on_validation_end", "on_validation_epoch_start", "on_validation_epoch_end",
    "on_validation_batch_start", "on_validation_batch_end", "on_before_batch_transfer",
    "on_after_batch_transfer", "transfer_batch_to_device", "on_before_zero_grad", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step", "optimizer_step", "optimizer_zero_grad",
    "lr_scheduler_step", "backward", "configure_gradient_clipping", "configure_model",
    "configure_callbacks", "configure_sharded_model", "on_sanity_check_start", "on_sanity_check_end",
)  # fmt: skip
LR_NAMES = ("lr", "learning_rate")


def looks_like(model: Any) -> bool:
    """Whether an object is trained by its own `training_step` and `configure_optimizers`."""
    return callable(getattr(model, "training_step", None)) and callable(getattr(model, "configure_optimizers", None))


def has_loader(data: Any, name: str = "train_dataloader") -> bool:
    """Whether `data` is an object that makes its own loaders."""
    return not isinstance(data, type) and _own(data, name) is not None


def refuse_unserved(source: Any) -> None:
    """Refuse, by name, a module or a DataModule that counts on something that is not done here."""
    name = type(source).__name__
    found = [hook for hook in UNSERVED if _own(source, hook) is not None]
    if found:
        raise TaskError(f"{name} defines {', '.join(found)}, which the workbench does not call yet.")
    if getattr(source, "automatic_optimization", True) is False:
        raise TaskError(f"{name}.automatic_optimization is False: manual optimisation is not served yet.")


class NotServed(TaskError, AttributeError):
    """Something of Lightning's Trainer that a module asked for and that is not here."""


class Trainer:
    """What a module finds as `self.trainer` while a job runs: how far it is, and an error for anything else."""

    progress: Progress | None = None
    is_global_zero = True
    global_rank = 0
    local_rank = 0
    world_size = 1

    @property
    def current_epoch(self) -> int:
        return self.progress.epoch if self.progress else 0

    @property
    def global_step(self) -> int:
        return self.progress.step if self.progress else 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotServed(f"self.trainer.{name} is not served yet; current_epoch and global_step are.")


class LightningLike(Task):
    """Runs an object's own hooks: `training_step`, `validation_step`, `test_step`, `configure_optimizers`, `log`."""

    def __init__(self, module: Any, *, train: DataSpec | None, val: DataSpec | None, test: DataSpec | None) -> None:
        self.module = module
        self.model = module if isinstance(module, nn.Module) else _parameters_of(module)
        self.train = train or spec_of("train", module)
        self.val = val or spec_of("val", module)
        self.test = test or spec_of("test", module)
        self._steps = {
            "train": _step(module, "training_step"),
            "val": _step(module, "validation_step"),
            "test": _step(module, "test_step"),
        }
        if self._steps["train"] is None:
            raise TaskError(f"{type(module).__name__} defines no training_step of its own: write one.")
        self._logged: dict[str, Tensor | float] = {}
        self._accumulates = False
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._reads_rate: bool | None = None if _homes(module, LR_NAMES) else False
        self._trainer = Trainer()
        if self._steps["val"] is None:
            self.val = None
        if self._steps["test"] is None:
            self.test = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_optimizer": None}

    @property
    def implied(self) -> dict[str, Any]:
        """The settings that the object itself carries: its learning rate and its loader's batch size."""
        found = dict(self.train.defaults) if self.train else {}
        homes = _homes(self.module, LR_NAMES)
        rates = [float(place[name]) for place, name in homes if isinstance(place[name], (int, float))]
        with self._attached():
            made = self._optimization().lr
            # Where two attributes differ, the one that was read; the code's own rate, where none is.
            rate = rates[0] if rates and made not in rates and self._reads(rates[0], made) else made
        if rate is not None and rate > 0:
            found["lr"] = rate
        return found

    @property
    def takes_index(self) -> bool:
        """Whether training_step takes the number of the batch beside the batch."""
        return _arguments(self.module.training_step) >= 2

    @property
    def homes(self) -> dict[str, str]:
        """Where `lr` and `batch_size` live on `network`, as the left of an assignment, for the exported script."""
        found = {}
        for setting, names in (("lr", LR_NAMES), ("batch_size", ("batch_size",))):
            places = [
                f"network.{name}" if place is vars(self.module) else f"network.hparams[{name!r}]"
                for place, name in _homes(self.module, names)
            ]
            if places:
                found[setting] = " = ".join(places)
        return found

    @contextlib.contextmanager
    def running(self, settings: Settings) -> Iterator[None]:
        """While a job runs, `lr` and `batch_size` are the job's, and `self.log` is heard; all is put back after."""
        self._accumulates = settings.accumulate_grad_batches > 1
        rate, size = _homes(self.module, LR_NAMES), _homes(self.module, ("batch_size",))
        with _written(rate, settings.lr), _written(size, settings.batch_size), self._attached():
            yield

    @contextlib.contextmanager
    def _attached(self) -> Iterator[None]:
        """The object logs to this task and finds our trainer; its own attributes are put back after."""
        attributes = vars(self.module)
        own = {name: attributes[name] for name in ("log", "log_dict", "_trainer") if name in attributes}
        for name, hear in (("log", self._log), ("log_dict", self._log_dict)):
            if callable(own.get(name, hear)):  # a list of its own, say, is no method that logs
                attributes[name] = hear
        if "_trainer" in own:
            # A LightningModule reads current_epoch and global_step from its trainer; without one it says 0.
            attributes["_trainer"] = self._trainer
        try:
            yield
        finally:
            attributes.pop("log", None)
            attributes.pop("log_dict", None)
            attributes.update(own)
            self._trainer.progress = None

    def follow(self, progress: Progress) -> None:
        self._trainer.progress = progress

    def _log(self, name: str, value: Any, *_: Any, **__: Any) -> None:
        self._logged[name] = value.detach() if isinstance(value, Tensor) else float(value)

    def _log_dict(self, values: Mapping[str, Any], *_: Any, **__: Any) -> None:
        for name, value in values.items():
            self._log(name, value)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        step = self._steps["train"]
        assert step is not None
        output = step(batch, batch_idx)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if self._accumulates and isinstance(output, Mapping) and "weight" in output:
            raise TaskError(
                "training_step returned a dict with 'weight', which is not served yet: with "
                "accumulate_grad_batches > 1 each batch counts the same. Leave it out, or accumulate 1."
            )
        if not isinstance(loss, Tensor):
            got = f"a dict with {sorted(output)}" if isinstance(output, Mapping) else f"{output!r}"
            raise TaskError(f"training_step returned {got}: it must return the loss, or a dict with 'loss'.")
        return loss

    def validation_step(self, batch: Any, batch_idx: int, stage: Literal["val", "test"] = "val") -> Scores:
        step = self._steps[stage]
        assert step is not None
        self._logged = {}
        output = step(batch, batch_idx)
        values: dict[str, Tensor | float] = dict(self._logged)
        loss = output.get("loss", output.get(f"{stage}_loss")) if isinstance(output, Mapping) else output
        if isinstance(loss, Tensor) and loss.numel() == 1:
            values.setdefault(f"{stage}_loss", loss)
        return Scores(values, float(sample_count(batch)))

    def configure(self, settings: Settings, updates: int | None) -> Optimization:
        found = self._optimization()
        if self._reads_rate is None and found.lr != settings.lr:
            self._reads(settings.lr, found.lr)
            found = self._optimization()  # the object may have kept what it made last
        if self._reads_rate is not False:
            found.lr = None  # the object has read the job's own rate, and made of it what it wants
        for group in found.optimizer.param_groups:
            if settings.weight_decay is not None and "weight_decay" in group:
                group["weight_decay"] = settings.weight_decay
        return found

    def _optimization(self) -> Optimization:
        found = _optimization(self.module)
        if self._optimizer is not None and self._optimizer() is found.optimizer:
            raise TaskError(
                f"{type(self.module).__name__}.configure_optimizers() returned the same optimizer again, with the "
                "state of the job before: make it in configure_optimizers, not in __init__."
            )
        self._optimizer = weakref.ref(found.optimizer)
        return found

    def _reads(self, rate: float, made: float | None) -> bool:
        """Whether `configure_optimizers` reads the object's rate: with twice `rate` there it makes another than `made`."""
        if self._reads_rate is None:
            with _written(_homes(self.module, LR_NAMES), 2 * rate):
                self._reads_rate = self._optimization().lr != made
        return self._reads_rate


def spec_of(name: str, source: Any) -> DataSpec | None:
    """The data that an object's `<name>_dataloader()` gives; None where it has no such method."""
    make = _own(source, f"{name}_dataloader")
    if make is None:
        return None

    setup = _own(source, "setup") if name == "test" else None  # `prepare` has done it for the other two

    def parts() -> Parts:
        if setup is not None:
            setup("test")
        loader = make()
        while isinstance(loader, Sequence) and len(loader) == 1 and isinstance(loader[0], DataLoader):
            loader = loader[0]
        if isinstance(loader, DataLoader):
            return parts_of(loader)
        if isinstance(loader, (Mapping, Sequence)) or loader is None:
            raise TaskError(f"{name}_dataloader() returned {type(loader).__name__}; one DataLoader is needed.")
        return Parts(Batches(loader), ready=True)

    return DataSpec(name, parts)


def prepare(source: Any) -> None:
    """Run an object's `prepare_data` and `setup("fit")`, which its loaders count on."""
    for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        hook = _own(source, name)
        if hook is not None:
            hook(*arguments)


def _own(source: Any, name: str) -> Callable[..., Any] | None:
    """A method that the user wrote: one that is not merely inherited from Lightning's own base classes."""
    if name in getattr(source, "__dict__", {}):
        found = source.__dict__[name]
        return found if callable(found) else None
    for base in type(source).__mro__:
        if name in vars(base):
            library = base.__module__.partition(".")[0] in ("lightning", "pytorch_lightning")
            if base is object or base is nn.Module or (library and ".demos." not in base.__module__):
                return None
            found = getattr(source, name)
            return found if callable(found) else None
    return None


def _step(module: Any, name: str) -> Callable[[Any, int], Any] | None:
    """The hook as a function of (batch, batch_idx), whether or not it takes the index."""
    hook = _own(module, name)
    if hook is None:
        return None
    return hook if _arguments(hook) >= 2 else lambda batch, _: hook(batch)


def _arguments(hook: Callable[..., Any]) -> int:
    return len([p for p in inspect.signature(hook).parameters.values() if p.kind is not p.VAR_KEYWORD])


def _homes(module: Any, names: Sequence[str]) -> list[tuple[Any, str]]:
    """Everywhere a setting lives on the object: (its `__dict__` or `hparams`, the name there)."""
    hparams = getattr(module, "hparams", None)
    places = [vars(module), *([hparams] if isinstance(hparams, Mapping) else [])]
    return [(place, name) for name in names for place in places if name in place]


@contextlib.contextmanager
def _written(homes: Sequence[tuple[Any, str]], value: Any) -> Iterator[None]:
    """Inside, `value` stands in all these places."""
    before = [place[name] for place, name in homes]
    try:
        for place, name in homes:
            place[name] = value
        yield
    finally:
        for (place, name), old in zip(homes, before, strict=True):
            place[name] = old


def _parameters_of(module: Any) -> nn.Module:
    """The networks of an object that is not one itself."""
    found = {name: value for name, value in vars(module).items() if isinstance(value, nn.Module)}
    if not found:
        raise TaskError(f"{type(module).__name__} has training_step but holds no nn.Module as an attribute.")
    return next(iter(found.values())) if len(found) == 1 else nn.ModuleDict(found)


def _optimization(module: Any) -> Optimization:
    """What `configure_optimizers` returned, in any of Lightning's forms, as one optimizer and its schedules."""
    made = module.configure_optimizers()
    name = type(module).__name__
    optimizers: list[Any]
    schedulers: Any = []
    if isinstance(made, Mapping):
        optimizers = [made.get("optimizer")]
        schedulers = made.get("lr_scheduler", [])
    elif isinstance(made, tuple) and len(made) == 2 and all(isinstance(part, (list, tuple)) for part in made):
        optimizers, schedulers = list(made[0]), made[1]
    else:
        optimizers = list(made) if isinstance(made, (list, tuple)) else [made]
    if len(optimizers) == 1 and isinstance(optimizers[0], Mapping):
        schedulers = optimizers[0].get("lr_scheduler", [])
        optimizers = [optimizers[0].get("optimizer")]
    if len(optimizers) > 1:
        raise TaskError(f"{name}.configure_optimizers() returned {len(optimizers)} optimizers; one is served so far.")
    if not isinstance(optimizers[0], Optimizer):
        raise TaskError(f"{name}.configure_optimizers() returned {made!r}: an optimizer is needed.")
    listed = schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]
    first = optimizers[0].param_groups[0]
    base = first.get("max_lr", first.get("initial_lr", first["lr"]))
    return Optimization(optimizers[0], tuple(_schedule(name, s) for s in listed), float(base))


def _schedule(name: str, given: Any) -> Schedule:
    # Lightning steps a scheduler once per epoch unless it is told otherwise.
    entry = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    scheduler = entry["scheduler"]
    if isinstance(scheduler, ReduceLROnPlateau) or entry.get("reduce_on_plateau"):
        raise TaskError(f"{name}: a scheduler that watches a metric (ReduceLROnPlateau) is not served yet.")
    if not isinstance(scheduler, LRScheduler):
        raise TaskError(f"{name}: {scheduler!r} is no torch.optim.lr_scheduler.LRScheduler.")
    interval = entry.get("interval", "epoch")
    if interval not in ("epoch", "step"):
        raise TaskError(f"{name}: scheduler interval={interval!r}: 'epoch' or 'step'.")
    return Schedule(scheduler, interval, int(entry.get("frequency", 1)))


