"""Lists the features of Lightning that are not supported, each with a remedy, since a run that
ignored them would train differently.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workbench.task.errors import TaskError
from workbench.task.lightning.overrides import from_lightning, own_method

_REMOVED = "Lightning 2 does not call it either; {}"
UNSUPPORTED_HOOKS: Mapping[str, str] = {
    "configure_sharded_model": "make the layers in configure_model, or in __init__",
    "on_sanity_check_start": (
        "a hook of callbacks; on_validation_start is called there, with"
        " self.trainer.sanity_checking"
    ),
    "on_sanity_check_end": (
        "a hook of callbacks; on_validation_end is called there, with self.trainer.sanity_checking"
    ),
    "training_epoch_end": _REMOVED.format(
        "keep what the steps give on self, and write on_train_epoch_end"
    ),
    "validation_epoch_end": _REMOVED.format(
        "keep what the steps give on self, and write on_validation_epoch_end"
    ),
    "test_epoch_end": _REMOVED.format(
        "keep what the steps give on self, and write on_test_epoch_end"
    ),
    "training_step_end": _REMOVED.format("end training_step with it"),
    "validation_step_end": _REMOVED.format("end validation_step with it"),
    "test_step_end": _REMOVED.format("end test_step with it"),
    "on_epoch_start": _REMOVED.format("write on_train_epoch_start"),
    "on_epoch_end": _REMOVED.format("write on_train_epoch_end"),
    "on_batch_start": _REMOVED.format("write on_train_batch_start"),
    "on_batch_end": _REMOVED.format("write on_train_batch_end"),
    "on_pretrain_routine_start": _REMOVED.format("write on_fit_start"),
    "on_pretrain_routine_end": _REMOVED.format("write on_fit_start"),
}
"""Hooks that are not called, and what to do instead."""
_HOOKS = (
    "callbacks=[…] of wb.Workbench calls its hooks with a LightningModule; listeners=[f] gets every"
    " event of a run"
)
_RATE = "bench.find_lr(), or the setting find_lr_at={0, 5}"
CALLBACKS: Mapping[str, str] = {
    "ModelCheckpoint": "the settings checkpoint_every, save_top_k and monitor",
    "OnExceptionCheckpoint": "checkpoint_every=…; the last checkpoint stays, whatever ends the run",
    "Checkpoint": "the settings checkpoint_every, save_top_k and monitor",
    "EarlyStopping": "early_stopping=wb.EarlyStopping(monitor=…, patience=…)",
    "LearningRateMonitor": "nothing: rates are recorded anyway (run.history['lr'], run.plot('lr'))",
    "GradientAccumulationScheduler": "accumulate_grad_batches={0: 8, 4: 4}",
    "StochasticWeightAveraging": "weight_averaging='swa', with swa_lrs and swa_epoch_start",
    "EMAWeightAveraging": "weight_averaging='ema', with ema_decay",
    "WeightAveraging": "weight_averaging='ema' or 'swa', and avg_fn= for a way of your own",
    "LearningRateFinder": _RATE,
    "BatchSizeFinder": "bench.find_batch_size(), or the setting find_batch_size_at={0}",
    "Timer": "the setting max_time",
    "RichModelSummary": "nothing: bench.summary has it",
    "ModelSummary": "nothing: bench.summary has it",
    "ProgressBar": "nothing: the panel and result() show progress",
    "DeviceStatsMonitor": "nothing: the panel shows the device's memory",
    "ThroughputMonitor": "nothing: the panel shows updates a second",
    "ModelPruning": "torch.nn.utils.prune in the module's on_train_epoch_end",
    "BasePredictionWriter": (
        "what bench.predict().result() returns, or the module's on_predict_batch_end"
    ),
    "SpikeDetection": "the module's on_train_batch_end",
    "Callback": _HOOKS,
    "Logger": 'trackers=, which names the tracker ("tensorboard", "wandb", …)',
}
"""Lightning's callbacks and loggers, the more special one first, and what replaces them here."""
_OF_LOGGERS = (
    "experiment",
    "log_metrics",
    "log_hyperparams",
    "log_image",
    "log_text",
    "log_table",
    "log_graph",
    "watch",
)
_NO_LOGGER = (
    "self.logger is None, as with Lightning's logger=False: wb.Workbench(…, trackers='tensorboard')"
    " gives it a tracker; without one, log numbers with self.log, and ask `if self.logger is not"
    " None` before all else."
)


def refuse_unsupported(source: Any) -> None:
    """Raise TaskError for a module or a DataModule that uses a feature that is not supported."""
    name = type(source).__name__
    for hook, instead in UNSUPPORTED_HOOKS.items():
        if own_method(source, hook) is not None:
            raise TaskError(f"{name} defines {hook}, which is not called here: {instead}.")
    for method in ("log", "log_dict"):
        if from_lightning(source) and own_method(source, method) is not None:
            raise TaskError(
                f"{name} defines {method}, in place of Lightning's: give yours another name, and"
                f" call self.{method} there."
            )
    for step in ("training_step", "validation_step", "test_step", "predict_step"):
        function = own_method(source, step)
        if function is not None and "dataloader_iter" in inspect.signature(function).parameters:
            raise TaskError(
                f"{name}.{step} takes dataloader_iter, which is not supported: take a batch,"
                f" {step}(self, batch, batch_idx)."
            )


def refuse_removed_hooks(callback: Any, overrides: Callable[[Any, str], bool]) -> None:
    """Raise TaskError for a callback with a hook that Lightning 2 does not call. overrides:
    returns whether it has a hook of this name.
    """
    for hook, instead in UNSUPPORTED_HOOKS.items():
        if instead.startswith(_REMOVED.format("")) and overrides(callback, hook):
            raise TaskError(
                f"{type(callback).__name__} defines {hook}, which is not called here: {instead}."
            )


def kind_of(callback: Any) -> str:
    """The most specific name in `CALLBACKS` of one of Lightning's callbacks or loggers; "": it
    is not one of them.
    """
    names = [base.__name__ for base in type(callback).__mro__ if from_lightning(base)]
    return next((name for name in CALLBACKS if name in names), "")


def refuse_callbacks(objects: Any, where: str) -> None:
    """Raise TaskError for Lightning's callbacks and loggers, with what to use instead. where:
    where they were given.
    """
    listed: Iterable[Any] = objects if isinstance(objects, (list, tuple, set)) else [objects]
    for callback in listed:
        known = kind_of(callback)
        if known:
            kind = type(callback).__name__
            description = kind if known in (kind, "Callback", "Logger") else f"{kind}, a {known}"
            raise TaskError(
                f"{where}: {description} of Lightning's is not used here. Instead: "
                f"{CALLBACKS[known]}."
            )


_OF_CHECKPOINTS = frozenset(
    {
        "best_model_path",
        "best_model_score",
        "best_k_models",
        "kth_best_model_path",
        "kth_value",
        "last_model_path",
        "current_score",
        "dirpath",
        "filename",
        "format_checkpoint_name",
        "to_yaml",
        "monitor",
        "save_top_k",
        "every_n_epochs",
    }
)
_NO_CHECKPOINTS = (
    "self.trainer.checkpoint_callback is None: the bench writes the checkpoints itself, by the"
    " settings monitor, save_top_k and checkpoint_every. Afterwards run.checkpoints lists the"
    " files, and bench.load(run, 'best') takes the best."
)


def explain_no_logger(error: AttributeError) -> None:
    """Add a note to an error of the user's code that uses `self.logger` or Lightning's
    ModelCheckpoint where there is none.
    """
    if error.obj is None and error.name in _OF_LOGGERS:
        error.add_note(_NO_LOGGER)
    elif error.obj is None and error.name in _OF_CHECKPOINTS:
        error.add_note(_NO_CHECKPOINTS)
