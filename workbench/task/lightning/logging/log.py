"""Collects what a module logs (`self.log`): values of single updates, and reduced values of epochs
and evaluations.

Names, defaults and reductions are Lightning's. Values stay on their device, so that nothing waits
for it before an epoch ends.
"""

from __future__ import annotations

import contextlib
import inspect
import numbers
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from workbench.events.columns import by_own_names
from workbench.task.batch import sample_count
from workbench.task.data.to_dataset import UNNAMED
from workbench.task.errors import TaskError
from workbench.task.lightning.logging.aggregate import LoggedValue, Value, reduction, step_value
from workbench.task.lightning.logging.reduce import Key, over_ranks, update_over_ranks
from workbench.task.protocol import Progress

CHUNK = 512
"""When a name has this many values, they are reduced to one."""


@dataclass(frozen=True, slots=True)
class LogTarget:
    """What the values logged in a hook belong to: updates, epochs, or evaluations."""

    evaluation: bool
    by_step: bool
    """Whether values of single batches may be logged in the hook."""
    on_step: bool
    """The default of the argument `on_step`; that of `on_epoch` is its opposite."""


_IN_UPDATES = (
    "training_step",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "on_before_backward",
    "backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "optimizer_step",
    "configure_gradient_clipping",
)
LOG_TARGETS: Mapping[str, LogTarget] = {
    **dict.fromkeys(_IN_UPDATES, LogTarget(False, True, True)),
    **dict.fromkeys(
        ("on_train_start", "on_train_epoch_start", "on_train_epoch_end"),
        LogTarget(False, False, False),
    ),
    **{
        hook: LogTarget(True, True, False)
        for stage in ("validation", "test")
        for hook in (f"{stage}_step", f"on_{stage}_batch_start", f"on_{stage}_batch_end")
    },
    **{
        hook: LogTarget(True, False, False)
        for stage in ("validation", "test")
        for hook in (f"on_{stage}_start", f"on_{stage}_epoch_start", f"on_{stage}_epoch_end")
    },
}
"""The hooks in which values may be logged."""
_KEPT = ("_session", "_module", "_synced", "_agreed", "dataloader_idx")
"""The attributes that are kept when logged values are discarded."""
_ENDS = {
    "on_train_epoch_end": False,
    **{f"on_{s}_{end}": True for s in ("validation", "test") for end in ("epoch_end", "end")},
}
"""The hooks in which all values are known, and whether the values are those of an evaluation."""


def suffix(dataloader_idx: int) -> str:
    """The end of the name of a value that is logged for one of several sets of data, as in
    Lightning.
    """
    return f"/{UNNAMED}{dataloader_idx}"


class Shared:
    """An object that a deep copy of a module shares with the original."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Log(Shared):
    """Implements `self.log` and `self.log_dict` of one module. `hook`: the name of the hook that
    runs.
    """

    def __init__(self) -> None:
        self.hook: str | None = None
        self.on_bar: frozenset[str] = frozenset()
        """The names that the progress line shows."""
        self.latest: dict[str, Value] = {}
        """The latest value of each name that was logged for single updates."""
        self._fresh: dict[str, Value] = {}
        self._kept: dict[bool, dict[Key, LoggedValue]] = {False: {}, True: {}}
        """What was logged in training (False) and in the current evaluation (True), by hook and
        name.
        """
        self.samples_in: Callable[[Any], int] = sample_count
        """Counts the samples of a batch."""
        self.batch: Any = None
        """The batch to which logged values belong; None: none."""
        self.batch_values: dict[str, Value] = {}
        """The latest values of single batches of evaluations, by their names in the record, which
        does not have them.
        """
        self._open: list[tuple[LoggedValue, int]] = []
        """The values of the current batch, whose weight is not known yet."""
        self._long: list[LoggedValue] = []
        self._session: Progress | None = None
        """The session of several ranks; None: there is one process."""
        self._module: Any = None
        self._of_epochs: set[str] = set()
        self._synced: dict[str, str] = {}
        """The names in the record of values logged for updates with sync_dist, each with its
        reduction.
        """
        self._agreed: dict[str, str] = {}
        """The entries of `_synced` that all ranks know."""
        self._so_far: dict[Key, tuple[list[str], Value]] = {}
        """The values over all ranks, gathered at the end of an epoch or an evaluation before the
        hooks that run then.
        """
        self.dataloader_idx: int | None = None
        """The number of the set that an evaluation reads, where there are several; None: there
        is one.
        """
        self._of_sets: dict[Key, tuple[list[str], Value]] = {}
        """The values over all ranks of the sets that the current evaluation has read."""

    def __getstate__(self) -> dict[str, Any]:
        self.end_batch()
        return {**vars(self), "_session": None, "_module": None, "_agreed": {}}

    def follow(self, progress: Progress, module: Any) -> None:
        """Note the session that has begun; on several ranks the logged values of all ranks are
        reduced to one.
        """
        self._session = progress if progress.ranks.several else None
        self._module = module
        self._agree()

    # -- what the module calls

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[[Any], Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
        **_: Any,
    ) -> None:
        """Log a number, a tensor that holds one, or an object with `compute()` and `reset()` (a
        metric).

        On several ranks, values of epochs and evaluations (`on_epoch`) are reduced over all ranks'
        batches, each with its weight, whether `sync_dist` is given or not. Values of single updates
        are rank 0's, or with `sync_dist=True` their mean (`reduce_fx`) over ranks. A metric is
        computed on every rank, and gathers its state itself, as those of torchmetrics do; for one
        that does not, the mean over ranks is recorded. rank_zero_only: only rank 0's values count.
        Arguments about loggers have no effect.
        """
        if rank_zero_only and self._session is not None and self._session.ranks.rank:
            return
        hook = self.hook
        target = LOG_TARGETS.get(hook or "")
        if hook is None or target is None:
            raise TaskError(
                f"self.log({name!r}) in {hook or 'no hook of a running job'}: nothing can be logged"
                " there."
            )
        asked = (prog_bar, on_step, on_epoch, reduce_fx, self.dataloader_idx)
        key, logged = (hook, name), self._kept[target.evaluation]
        if self.dataloader_idx is not None and add_dataloader_idx:
            key = (hook + suffix(self.dataloader_idx), name)
        kept = logged.get(key)
        if kept is None or kept.asked is None:
            kept = logged[key] = self._new(
                hook, name, target, asked, kept, add_dataloader_idx=add_dataloader_idx
            )
        elif kept.asked[:-1] == asked[:-1] and kept.asked != asked:
            raise TaskError(
                f"self.log({name!r}, add_dataloader_idx=False) in {hook}: several sets of data log"
                " it, and a value would be of one of them alone: leave add_dataloader_idx out, or"
                " put the set into the name."
            )
        elif kept.asked != asked:
            raise TaskError(
                f"self.log({name!r}) is called twice in {hook} with other arguments (prog_bar,"
                " on_step, on_epoch or reduce_fx): log it once, or under another name."
            )
        if sync_dist and kept.on_step and not target.evaluation:
            self._synced[kept.step_name] = kept.how if isinstance(kept.how, str) else "mean"
        self._take(kept, self._checked(name, value), batch_size, evaluation=target.evaluation)

    def log_dict(self, dictionary: Any, *arguments: Any, **options: Any) -> None:
        """Log each value by its key, with the same options for all."""
        take = dictionary.items
        # A MetricCollection copies the states of its metrics by default, which would only take
        # time.
        plain = (
            isinstance(dictionary, Mapping)
            or "copy_state" not in inspect.signature(take).parameters
        )
        for name, value in take() if plain else take(keep_base=False, copy_state=False):
            self.log(name, value, *arguments, **options)

    # -- what the task calls

    def begin_batch(self, batch: Any) -> None:
        """Begin a batch: the following values have its weight."""
        self.end_batch()
        self.batch = batch

    def end_batch(self) -> None:
        """End a batch."""
        if self._open:
            self.set_weight(float(self.samples_in(self.batch)))
        self.batch = None
        for kept in self._long:
            kept.fold()
        self._long.clear()

    def set_weight(self, weight: float) -> None:
        """Set the weight of the values logged for this batch so far, where the module gave none."""
        for kept, number in self._open:
            kept.weights[number] = weight
        self._open.clear()

    def has(self, name: str) -> bool:
        """Whether the current evaluation will have a value of this name for the present set of
        data.
        """
        present_suffix = "" if self.dataloader_idx is None else suffix(self.dataloader_idx)
        return any(
            name == kept.name and kept.on_epoch and kept.suffix == present_suffix
            for kept in self._kept[True].values()
        )

    def logs_in_training(self, name: str) -> bool:
        """Whether the module has logged a value of this name in this epoch of training."""
        return any(name == kept.name for kept in self._kept[False].values())

    @property
    def epoch_names(self) -> frozenset[str]:
        """The names in the record of values logged for whole epochs of training, in this epoch
        or an earlier one.
        """
        for kept in self._kept[False].values():
            if kept.on_epoch:
                self._of_epochs |= {*kept.epoch_names}
        return frozenset(self._of_epochs)

    # -- the results

    def steps(self) -> dict[str, Value]:
        """Return the values logged for single updates since the last call; all ranks call it
        together.
        """
        if self._agreed and self._session is not None:
            values = update_over_ranks(
                self._session.ranks, self._session.device, self._agreed, self._fresh
            )
            self._fresh.update(values)
            self.latest.update(values)
        if not self._fresh:
            return {}
        values, self._fresh = self._fresh, {}
        return values

    def reduced(self, *, evaluation: bool) -> dict[str, Value]:
        """Return the values logged for the epoch or for the current evaluation.

        A value with on_step and on_epoch is also returned by its plain name. On several ranks the
        values are reduced over all ranks at the end of the epoch or evaluation; before that they
        are this rank's.
        """
        self.end_batch()
        values: dict[str, Value] = {}
        for key, kept in self._kept[evaluation].items():
            if (
                kept.on_epoch
                and key not in self._so_far
                and key not in self._of_sets
                and (value := kept.result()) is not None
            ):
                values |= dict.fromkeys(kept.epoch_names, value)
        for names, value in (*self._of_sets.values(), *self._so_far.values()):
            values |= dict.fromkeys(names, value)
        return values

    def gather(self, *, evaluation: bool) -> None:
        """Gather the values of all ranks on each; all call it together."""
        self.end_batch()
        if self._session is not None:
            self._so_far = self._over_ranks(evaluation=evaluation)
            self._agree()

    def end_set(self) -> None:
        """Reduce the values of one of several sets of data, since the next set may update the same
        metric objects. All ranks call it together.
        """
        self.end_batch()
        if self._session is not None:
            self._of_sets |= self._over_ranks(evaluation=True)
            for kept in self._kept[True].values():
                kept.forget_result()
            return
        for key, kept in self._kept[True].items():
            if (
                kept.metric is not None
                and kept.on_epoch
                and key not in self._of_sets
                and (value := kept.result()) is not None
            ):
                self._of_sets[key] = kept.epoch_names, value

    def _over_ranks(self, *, evaluation: bool) -> dict[Key, tuple[list[str], Value]]:
        """The values over all ranks, except for those of sets that have ended."""
        assert self._session is not None
        open_ones = {
            key: kept for key, kept in self._kept[evaluation].items() if key not in self._of_sets
        }
        reduced = over_ranks(self._session.ranks, open_ones, self._module)
        self._kept[evaluation] |= open_ones  # includes metrics that only other ranks have logged
        return reduced

    def known(self) -> dict[str, Value]:
        """Return the latest values by the module's names; at the end of an epoch or evaluation
        also the reduced ones.
        """
        values = dict(self.latest)
        if self.hook in _ENDS:
            values |= self.reduced(evaluation=_ENDS[self.hook])
        return by_own_names(values)

    def end(self, *, evaluation: bool) -> dict[str, Value]:
        """Return the values `reduced` over all ranks, and drop them."""
        self.gather(evaluation=evaluation)
        values = self.reduced(evaluation=evaluation)
        self._so_far, self._of_sets = {}, {}
        # The plain name of a value with on_step and on_epoch has the latest value, which is now the
        # epoch's.
        self.latest.update({name: values[name] for name in values.keys() & self.latest.keys()})
        self._reset(evaluation)
        return values

    def forget(self) -> None:
        """Drop all logged values."""
        self.batch, self._fresh, self.latest, self._so_far, self._of_sets = None, {}, {}, {}, {}
        self._of_epochs, self.batch_values = set(), {}
        self._open.clear()
        self._long.clear()
        for evaluation in (False, True):
            self._reset(evaluation)

    @contextlib.contextmanager
    def discarding_logs(self) -> Iterator[None]:
        """Context manager in which logged values are discarded afterwards."""
        self.end_batch()
        before = dict(vars(self))
        vars(self).update({**vars(Log()), **{name: before[name] for name in _KEPT}})
        try:
            yield
        finally:
            vars(self).update({**before, "_agreed": self._agreed})

    def state(self) -> dict[str, Any]:
        """Return the values logged in training that are not reported yet, in plain containers."""
        self.end_batch()
        kept = [{"hook": hook, **logged.state()} for (hook, _), logged in self._kept[False].items()]
        return {"kept": kept, "latest": dict(self.latest)} if kept or self.latest else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.latest = dict(state.get("latest", {}))
        self._kept[False] = {
            (entry["hook"], entry["name"]): LoggedValue.of(entry) for entry in state.get("kept", ())
        }

    # -- inside

    def _agree(self) -> None:
        """Agree on the values of updates that ranks exchange; a new one is added at the next
        validation.
        """
        # else this rank runs a trial alone
        if self._session is not None and self._session.ranks.several:
            for known in self._session.ranks.all_gather_object(self._synced):
                self._synced |= known
            self._agreed = dict(sorted(self._synced.items()))

    def _new(
        self,
        hook: str,
        name: str,
        target: LogTarget,
        asked: Any,
        known: LoggedValue | None,
        *,
        add_dataloader_idx: bool,
    ) -> LoggedValue:
        """Make the value for a name that is logged for the first time; known: its value from a
        checkpoint, if any.
        """
        prog_bar, on_step, on_epoch, reduce_fx, number = asked
        on_step = target.on_step if on_step is None else bool(on_step)
        # By default a value is logged either for steps or for epochs.
        on_epoch = not target.on_step if on_epoch is None else bool(on_epoch)
        if not on_step and not on_epoch:
            raise TaskError(
                f"self.log({name!r}, on_step=False, on_epoch=False) logs nothing: leave out one of"
                " them."
            )
        if not target.by_step and (on_step or not on_epoch):
            raise TaskError(
                f"self.log({name!r}, on_step=True) in {hook}: it belongs to no step; leave on_step"
                " out."
            )
        if not isinstance(name, str):
            raise TaskError(f"self.log({name!r}, …): a name is needed, a string.")
        added = suffix(number) if number is not None and add_dataloader_idx else ""
        kept = LoggedValue(
            name,
            on_step,
            on_epoch,
            reduction(name, reduce_fx),
            fork=on_step and on_epoch,
            suffix=added,
        )
        if known is not None:
            kept.continue_from(known)
        kept.asked = asked
        if target.evaluation and not on_epoch:
            warnings.warn(
                f"self.log({name!r}, on_step=True, on_epoch=False) in {hook}: a record has one"
                " value for each validation, and this one is in self.trainer.logged_metrics alone;"
                " with on_epoch=True its mean is recorded.",
                stacklevel=4,
            )
        if prog_bar:
            shown = [kept.step_name] if kept.on_step and not target.evaluation else []
            self.on_bar |= {*shown, *(kept.epoch_names[:1] if on_epoch else [])}
        return kept

    def _checked(self, name: str, value: Any) -> Any:
        """Return a number, a copy of a scalar tensor, or a metric object."""
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise TaskError(
                    f"self.log({name!r}): the value has shape {tuple(value.shape)}, and one number"
                    " is needed: log its mean(), say."
                )
            return value.detach().clone().reshape(())  # the tensor may be changed in place later
        if isinstance(value, numbers.Real):
            return float(value)
        if callable(getattr(value, "compute", None)) and callable(getattr(value, "reset", None)):
            return value
        remedy = (
            "self.log_dict logs the values of a dict"
            if isinstance(value, Mapping)
            else "log a number or a tensor"
        )
        raise TaskError(f"self.log({name!r}): a {type(value).__name__} cannot be logged; {remedy}.")

    def _take(
        self, kept: LoggedValue, value: Any, batch_size: int | None, *, evaluation: bool
    ) -> None:
        if not isinstance(value, (Tensor, float)):
            kept.metric = value
            value = step_value(kept.name, value) if kept.on_step else None
        elif kept.on_epoch:
            weight = None if batch_size is None else float(batch_size)
            if weight is None and (self.batch is None or kept.how != "mean"):
                weight = 1.0
            elif weight is None:
                self._open.append((kept, len(kept.weights)))
                weight = 1.0
            kept.values.append(value)
            kept.weights.append(weight)
            if len(kept.values) == CHUNK:
                self._long.append(kept)
        if kept.on_step and value is not None and evaluation:
            self.batch_values[kept.step_name] = value
        elif kept.on_step and value is not None:
            self._fresh[kept.step_name] = self.latest[kept.step_name] = value
            if kept.on_epoch:
                self.latest[kept.epoch_names[-1]] = value

    def _reset(self, evaluation: bool) -> None:
        for kept in self._kept[evaluation].values():
            if kept.metric is not None:
                kept.metric.reset()
        self._kept[evaluation] = {}
