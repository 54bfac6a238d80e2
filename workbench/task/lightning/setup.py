"""Runs `prepare_data`, `setup` and `teardown` of modules and DataModules around a job."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from workbench.settings import Settings
from workbench.task.lightning.callbacks.callback_hooks import CallbackHooks, joined
from workbench.task.lightning.callbacks.translate import translated, with_hooks
from workbench.task.lightning.logging.log import Log
from workbench.task.lightning.overrides import call_with_stage, own_method, with_attributes
from workbench.task.lightning.trainer import Trainer
from workbench.task.lightning.unsupported import refuse_unsupported
from workbench.task.protocol import Phase, Progress
from workbench.task.ranks import barrier, rank_of_job
from workbench.task.rng import seed

_PHASES: Mapping[str, tuple[Phase, ...]] = {
    "train": ("fit",), "val": ("fit", "validate"), "test": ("test",), "predict": ("predict",),
}  # fmt: skip
"""For each kind of data, the stages whose `setup` makes it; if none has run, the first one is
run.
"""
_DONE: weakref.WeakKeyDictionary[Any, set[Phase]] = weakref.WeakKeyDictionary()
"""The stages for which each object is set up. Several benches may share an object, so a teardown
by one counts for all.
"""


class Preparation:
    """Sets up the objects that make a bench's data, and its module, in Lightning's order:
    DataModules first.

    setup("fit") runs when the bench is made, and again after a teardown. The ranks of a job get
    copies of the objects in that state, so that all have the same data; further setups and
    teardowns of a rank act on its copies.
    """

    def __init__(
        self,
        module: Any,
        data: Sequence[Any],
        callbacks: Sequence[Any] = (),
        network: nn.Module | None = None,
    ) -> None:
        """module: a Lightning-like one, else None. data: objects that make loaders, that of the
        training data first. callbacks: those that only have hooks. network: a plain model that is
        trained, which callbacks get then.
        """
        self.log = Log()
        self.trainer = Trainer(module, self.log)
        self.data = tuple(data)
        self._module = module
        self._trained = network if module is None else module
        """What is trained, for callbacks."""
        self.sources = (*self.data, *(() if module is None else (module,)))
        self._done = [_done_of(source) for source in self.sources]
        self._given_callbacks = callbacks
        self.callbacks = CallbackHooks()
        """The callbacks whose hooks are called."""
        self.callback_settings: dict[str, Any] = {}
        """The settings that replace the module's own callbacks."""
        self.callback_note = ""
        """A sentence about which callback became which setting."""
        self._over = self._fitted = self._failed = False
        if self.data:
            self.trainer.set_datamodule(self.data[0])

    def begin(self, settings: Settings) -> None:
        """Prepare a new bench: refuse what is not supported, prepare the data, set up for fits,
        make the layers.
        """
        for source in self.sources:
            refuse_unsupported(source)
        with self.attached(), self.trainer.planned(settings):
            self.callback_settings, self.callback_note = self._callbacks()
            self._prepare()
            for done in self._done:
                done.clear()  # this bench may have other settings than the last one
            try:
                self._set_up(("fit",), callbacks=True)
                _call(self._module, "configure_model")
            finally:
                self.callbacks.tear_down("fit")
                self.callbacks.note_left()

    def follow(self, progress: Progress) -> None:
        """Note the session that has begun, of a task without hooks of its own."""
        self.trainer.follow(progress)
        self.trainer.set_optimizers(progress.optimizations)

    @contextlib.contextmanager
    def around(self, phase: Phase, settings: Settings) -> Iterator[None]:
        """Set up for a job, and tear down after it, unless an error ends it, or it is a search
        or trial.
        """
        with (
            self.attached(),
            self.trainer.running_phase(phase),
            self.trainer.planned(settings),
            self._which_train(),
            self._callbacks_around(phase),
        ):
            here = rank_of_job()
            if here.nodes > 1:  # the machine of the bench has its data; others must prepare theirs
                self._prepare()
            if here.several:
                seed(settings.seed)  # a setup with a random split gives the same split on all ranks
            self._set_up((phase,), again=phase != "fit", callbacks=True)
            before, self._over = self._over, phase != "fit"
            try:
                yield
                if self._over:
                    self._tear_down(phase)
            finally:
                self._over = before

    @contextlib.contextmanager
    def _callbacks_around(self, phase: Phase) -> Iterator[None]:
        """Context manager in which callbacks are set up; afterwards none is. A fit gets them as
        they were when the bench was made. After a search or trial they are as before it.
        """
        callbacks = self.callbacks
        if not callbacks.objects or callbacks.ready:
            yield
            return
        put_back = callbacks.keep()
        self._failed = False
        if phase == "fit":
            callbacks.begin_fit()
        try:
            yield
        except BaseException as error:
            try:
                callbacks.tear_down(phase)
            except Exception as second:  # noqa: BLE001  # a note, so that the first error is raised
                error.add_note(f"and teardown failed as well: {type(second).__name__}: {second}")
            raise
        else:
            callbacks.tear_down(phase)
        finally:
            if phase == "fit" and not self._fitted and not self._failed:
                put_back()
            callbacks.note_left()

    @contextlib.contextmanager
    def _which_train(self) -> Iterator[None]:
        """Restore, after a job, which layers are frozen, except after a fit that ended: callbacks
        may freeze layers in their setup, and unfreeze them in a fit.
        """
        module, submodules = self._trained, list[nn.Module]()
        if self.callbacks.objects:
            for network in (module,) if isinstance(module, nn.Module) else vars(module).values():
                submodules += network.modules() if isinstance(network, nn.Module) else ()
        before = [
            (p, p.requires_grad)
            for submodule in submodules
            for p in submodule.parameters(recurse=False)
        ]
        statistics = [
            (submodule, submodule.track_running_stats)
            for submodule in submodules
            if hasattr(submodule, "track_running_stats")
        ]
        self._fitted = False
        try:
            yield
        finally:
            if not self._fitted:
                for parameter, trains in before:
                    parameter.requires_grad_(trains)
                for submodule, tracks in statistics:
                    submodule.track_running_stats = tracks

    def failed(self) -> None:
        """Note that a fit (not a search or a trial) has failed."""
        self._failed = True

    def fit_ended(self) -> None:
        """Note that a fit (not a search or a trial) has ended."""
        self._over = self._fitted = True

    @contextlib.contextmanager
    def serving(self, name: str) -> Iterator[None]:
        """Context manager in which an object makes its loader of this kind of data, for which it
        is set up.
        """
        with self.attached():
            self._set_up(_PHASES[name])
            yield

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Context manager in which the module and the DataModules have their trainer; their own
        attributes are restored afterwards.
        """
        with contextlib.ExitStack() as stack:
            for source in self.sources:
                for holder in _with_trainer(source):
                    stack.enter_context(
                        with_attributes(holder, {_home_of_trainer(holder): self.trainer})
                    )
            yield

    def _prepare(self) -> None:
        """Call `prepare_data` on one rank of each machine, or on one of all ranks; the others
        wait.
        """
        here = rank_of_job()
        for source in self.sources:
            each = bool(getattr(source, "prepare_data_per_node", True))
            if (here.local_rank if each else here.rank) == 0:
                _call(source, "prepare_data")
            if own_method(source, "prepare_data") is not None:
                barrier()

    def _set_up(
        self, phases: tuple[Phase, ...], *, again: bool = False, callbacks: bool = False
    ) -> None:
        """Set up for the first of these phases, unless `setup` has run for one of them. again: run
        it even then, as Lightning
        does to evaluate. callbacks: also set up the callbacks, between the data and the module.
        """
        for source, done in zip(self.sources, self._done, strict=True):
            if callbacks and source is self._module:
                self.callbacks.set_up(phases[0])
            if again or not done.intersection(phases):
                done.add(phases[0])
                _call(source, "setup", phases[0])
        if callbacks and self._module is None:
            self.callbacks.set_up(phases[0])

    def _tear_down(self, phase: Phase) -> None:
        """Call `teardown`, which may undo all setups of the object."""
        for source, done in zip(self.sources, self._done, strict=True):
            if source is self._module:
                self.callbacks.tear_down(phase)
            if _call(source, "teardown", phase):
                done.clear()

    def _callbacks(self) -> tuple[dict[str, Any], str]:
        """Store the callbacks with hooks. Returns the settings that replace the module's other
        callbacks, and a sentence about them.
        """
        configure = own_method(self._module, "configure_callbacks")
        configured = None if configure is None else configure()
        self.callbacks = CallbackHooks(
            joined(self._given_callbacks, with_hooks(configured)), self._trained, self.trainer
        )
        self.trainer.set_callbacks(self.callbacks.objects)
        return (
            translated(configured, f"{type(self._module).__name__}.configure_callbacks()")
            if configured
            else ({}, "")
        )


def _done_of(source: Any) -> set[Phase]:
    try:
        return _DONE.setdefault(source, set())
    except TypeError:  # it has no hash, or no weak references
        return set()


def _call(source: Any, name: str, stage: str | None = None) -> bool:
    """Call a hook that the user wrote; returns whether there is one."""
    hook = own_method(source, name)
    if hook is not None and stage is None:
        hook()
    elif hook is not None and stage is not None:
        call_with_stage(hook, stage)
    return hook is not None


def _with_trainer(source: Any) -> list[Any]:
    """The object, and those inside it, that have an attribute for a trainer."""
    inside = source.modules() if isinstance(source, nn.Module) else ()
    parts = [
        source,
        *(holder for holder in inside if holder is not source and "_trainer" in vars(holder)),
    ]
    return [holder for holder in parts if hasattr(holder, "__dict__") and _home_of_trainer(holder)]


def _home_of_trainer(holder: Any) -> str:
    """Return the attribute for an object's trainer; "": the user has set another value there."""
    if "_trainer" in vars(holder):
        return "_trainer"
    return "trainer" if getattr(holder, "trainer", None) is None else ""
