"""Observes what only the engine can see of a fit: what it begins with, and its health.

The latter are modules in evaluation mode, a data order that repeats, calls in the user's code that
make training wait, and options of the training loader that cost time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from workbench.engine.data.checksums import BATCHES, of_setup, of_weights
from workbench.engine.metrics.flush import Recorder
from workbench.engine.session import Session
from workbench.events import Checksums, Observed
from workbench.instruments.slow_calls import CallTimer, has_compiled

TIMED = range(20, 23)
"""The updates of a fit in which calls of the user's code are timed: the first ones take longer
than the others.
"""
MOST = 5
"""The most lines that are reported."""
FEWEST = 8
"""With fewer samples two random orders may be the same by chance (8! is 40,320)."""


class Observations:
    """Watches modules and passes of one fit; emits each fact when it is first seen."""

    def __init__(self, session: Session, recorder: Recorder) -> None:
        self._session, self._recorder = session, recorder
        self._modes: tuple[str, ...] = ()
        self._training = True
        self._order: tuple[int, int] | None = None
        self._repeats = False
        self._updates = 0
        self._calls = None if session.weights.sharded else CallTimer()
        self.calls_to_time: CallTimer | None = None
        """Surrounds the next update, if calls of the user's code are timed in it."""
        self._checksums: Checksums | None = None
        """What is known so far of the beginning; None: it is not looked at, or it has been
        emitted.
        """

    def begin(self) -> None:
        """Take the checksums of what a fit begins with, on rank 0: the weights here, the first
        batches when they are read.
        """
        session = self._session
        if session.ranks.first and not session.state.resumed:
            session.data.checksums = []
            weights = (
                "" if session.weights.sharded else of_weights(session.task.trained_modules.values())
            )
            self._checksums = Checksums(weights, session.data.order_checksum(), setup=self._setup())

    def _setup(self) -> str:
        """The checksum of how the modules are set up; "" where a script has other modules."""
        task, object_of_steps = self._session.task, getattr(self._session.task, "module", None)
        if self._session.weights.sharded or not isinstance(object_of_steps, nn.Module | None):
            return ""
        return of_setup(task.trained_modules.values(), with_trainer=object_of_steps is not None)

    def _emit_checksums(self) -> None:
        session, checksums = self._session, self._checksums
        if checksums is not None:
            self._checksums = None
            self._recorder.emit(replace(checksums, batches=tuple(session.data.checksums or ())))

    def after_update(self) -> None:
        """Look at all modules after the first update of an epoch, and when the whole model has
        changed its mode.
        """
        self._updates += 1
        if self._updates < TIMED.stop:
            self._after_first_updates()
        session, state, before = self._session, self._session.state, self._training
        self._training = session.task.model.training
        if state.step == state.epoch_step + 1 or self._training != before:
            modes = tuple(in_evaluation_mode(session.task.model))
            if modes and modes != self._modes:
                self._recorder.add(Observed(state.step, state.epoch, "evaluation_mode", modes))
            self._modes = modes

    def _after_first_updates(self) -> None:
        """Look at what the first updates show: options of the loader, the first batches, calls
        of the user's code.
        """
        session, state = self._session, self._session.state
        if self._updates == 1:
            for option in session.data.slow_options():
                self._recorder.add(Observed(state.step, state.epoch, "loader_option", option))
        if self._updates == BATCHES:
            self._emit_checksums()
        if (
            self._updates == TIMED.stop - 1
            and self._calls is not None
            and (slow := self._calls.found())
        ):
            self._recorder.add(Observed(state.step, state.epoch, "slow_calls", slow[:MOST]))
        # compiled code has no lines, and would be compiled again
        if self._updates == TIMED.start - 1 and has_compiled():
            self._calls = None
        self.calls_to_time = self._calls if self._updates + 1 in TIMED else None

    def after_pass(self) -> None:
        """Compare the order of the samples with the pass before, where it should differ."""
        self._emit_checksums()
        session, before = self._session, self._order
        self._order = session.data.order_read
        limited = session.settings.overfit_batches or session.settings.fast_dev_run
        if self._repeats or limited or before is None or self._order != before:
            return
        if session.data.shuffled(FEWEST):
            self._repeats = True
            self._recorder.add(Observed(session.state.step, session.state.epoch, "same_order"))


def in_evaluation_mode(model: nn.Module) -> Iterator[str]:
    """The outermost parts of a model in evaluation mode that would behave differently in training;
    "" is the whole model.

    Parts without a trainable weight were frozen on purpose and are left out; the whole model is
    not.
    """
    if not model.training:
        if any(_depends_on_mode(module) for module in model.modules()):
            yield ""
        return
    seen: set[str] = set()
    for name, module in model.named_modules():
        if module.training or any(name.startswith(f"{outer}.") for outer in seen):
            continue
        seen.add(name)
        parameters = list(module.parameters())
        trains = any(p.requires_grad for p in parameters) or not parameters
        if trains and any(_depends_on_mode(submodule) for submodule in module.modules()):
            yield name.removeprefix("_orig_mod.")


def _depends_on_mode(module: nn.Module) -> bool:
    """Whether a module computes something else in training, as far as its class shows."""
    if isinstance(module, nn.modules.batchnorm._NormBase):  # batch and instance normalisation
        return module.track_running_stats
    if isinstance(module, nn.RReLU):
        return True
    for name in ("p", "dropout", "drop_prob"):
        chance = getattr(module, name, None)
        if isinstance(chance, float | int) and not isinstance(chance, bool) and chance > 0:
            return "drop" in type(module).__name__.lower() or isinstance(
                module, nn.RNNBase | nn.MultiheadAttention
            )
    return False
