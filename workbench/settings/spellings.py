"""Translates names and values of other libraries, mainly of Lightning's Trainer, or says what to
use instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from workbench.settings.optimizers import with_name
from workbench.values import SettingsError, plain, shown

T = TypeVar("T")

_BENCH = (
    "model", "train", "val", "test", "loss", "metrics", "groups", "batch_transform",
    "hooks", "collate_fn", "val_collate_fn",
    "avg_fn", "should_update",
    "listeners", "trackers", "root", "dry_run",
)  # fmt: skip
_START = "a fit continues from a checkpoint with bench.fit(start='0012-fit'), or start='continue'"
_EVALUATIONS = ("validate", "test", "predict")
_TRACKERS = "experiments are tracked with wb.Workbench(…, trackers='tensorboard')"
_ROOT = "all runs are recorded under wb.Workbench(…, root='.workbench')"
_FIND_LR = "bench.find_lr() finds a learning rate, and bench.set(lr=…) sets it"
_FIND_SIZE = "bench.find_batch_size() finds a batch size, and bench.set(batch_size=…) sets it"
_DATA = "data is given when the bench is made, wb.Workbench(…, train=…, val=…, test=…)"
# Names that are not settings here, and where they are given instead.
ELSEWHERE: Mapping[str, str] = {
    name: f"it is given when the bench is made, wb.Workbench(…, {name}=…)" for name in _BENCH
} | {
    "tracker": _TRACKERS,
    "log_with": _TRACKERS,
    "report_to": _TRACKERS,
    "ckpt_path": _START,
    "resume": _START,
    "resume_from": _START,
    "resume_from_checkpoint": _START,
    "start": _START,
    "default_root_dir": _ROOT,
    "output_dir": _ROOT,
    "dirpath": _ROOT,
    "datamodule": _DATA,
    "train_dataloaders": _DATA,
    "val_dataloaders": _DATA,
    "auto_lr_find": _FIND_LR,
    "auto_scale_batch_size": _FIND_SIZE,
    "validation_split": (
        "val= takes data of its own, and torch.utils.data.random_split(data, [0.9, 0.1]) splits a"
        " data set"
    ),
    "verbose": "enable_progress_bar=False prints no progress",
    "cbs": (
        "what callbacks do is settings here (early_stopping, checkpoint_every, …), and"
        " wb.Workbench(…, listeners=[f]) gets every event"
    ),
    "args": "settings are given by name, wb.Workbench(…, max_epochs=3, lr=1e-3)",
    "terminate_on_nan": (
        "on_nonfinite='stop' ends a run at numbers that are not finite, and is the default"
    ),
}

# Other libraries' words for an argument of the bench.
OBJECTS: Mapping[str, str] = {
    word: name
    for name, words in {
        "model": ("net", "network", "module", "nn", "learner"),
        "train": (
            "train_loader",
            "train_dataloader",
            "train_dataset",
            "train_data",
            "train_ds",
            "train_dl",
            "trainloader",
            "training_data",
            "dls",
            "data",
            "dataset",
            "dataloader",
            "dataloaders",
            "iterator_train",
            "train_set",
            "trainset",
        ),
        "val": (
            "val_loader",
            "val_dataloader",
            "val_dataset",
            "val_data",
            "val_ds",
            "val_dl",
            "valid_loader",
            "valid_dl",
            "valid_ds",
            "valid_data",
            "valloader",
            "validation_data",
            "validation_loader",
            "eval_dataset",
            "eval_loader",
            "eval_dataloader",
            "val_set",
            "valid",
            "validation",
            "dev",
        ),
        "test": (
            "test_loader",
            "test_dataloader",
            "test_dataset",
            "test_data",
            "test_ds",
            "test_dl",
            "testloader",
            "test_dataloaders",
            "test_set",
        ),
        "loss": ("criterion", "loss_fn", "loss_func", "loss_function", "objective", "compute_loss"),
        "metrics": ("metric", "compute_metrics", "scoring"),
        "collate_fn": ("collate", "data_collator", "collator"),
    }.items()
    for word in words
}

# Other libraries' words for the same setting, so that an error can name the setting that was meant.
SPOKEN: Mapping[str, str] = {
    "learning_rate": "lr",
    "opt": "optimizer",
    "optim": "optimizer",
    "optimizers": "optimizer",
    "opt_func": "optimizer",
    "optimizer_cls": "optimizer",
    "optimizer_class": "optimizer",
    "bs": "batch_size",
    "epochs": "max_epochs",
    "num_epochs": "max_epochs",
    "n_epoch": "max_epochs",
    "num_train_epochs": "max_epochs",
    "steps": "max_steps",
    "save_steps": "checkpoint_every",
    "every_n_train_steps": "checkpoint_every",
    "save_total_limit": "save_top_k",
    "metric_for_best_model": "monitor",
    "mode": "monitor_mode",
    "clip": "gradient_clip_val",
    "schedule": "lr_schedule",
    "min_lr": "min_lr_ratio",
    "min_lr_rate": "min_lr_ratio",
    "eta_min": "min_lr_ratio",
    "num_cycles": "restarts",
    "power": "lr_power",
    "decay_ratio": "decay_fraction",
    "scheduler": "lr_schedule",
    "mixed_precision": "precision",
    "amp": "precision",
    "warmup_steps": "warmup",
    "warmup_ratio": "warmup",
    "ema": "weight_averaging",
    "swa": "weight_averaging",
    "stochastic_weight_avg": "weight_averaging",
    "patience": "early_stopping",
    "tbptt_steps": "truncated_bptt_steps",
    "bptt": "truncated_bptt_steps",
    "eval_steps": "val_check_interval",
    "max_grad_norm": "gradient_clip_val",
    "clip_grad_norm": "gradient_clip_val",
    "gradient_accumulation_steps": "accumulate_grad_batches",
    "wd": "weight_decay",
    "device": "accelerator",
    "num_processes": "devices",
    "gpus": "devices",
    "num_gpus": "devices",
    "world_size": "devices",
    "nnodes": "num_nodes",
    "num_machines": "num_nodes",
    "config_file": "launch",
    "main_process_ip": "launch",
    "main_process_port": "launch",
    "machine_rank": "launch",
    "workers": "num_workers",
    "cudnn_benchmark": "benchmark",
}

_FINDER = {
    "start_lr": "min_lr",
    "init_lr": "min_lr",
    "initial_lr": "min_lr",
    "lr_min": "min_lr",
    "min_learning_rate": "min_lr",
    "start_value": "min_lr",
    "end_lr": "max_lr",
    "final_lr": "max_lr",
    "lr_max": "max_lr",
    "max_learning_rate": "max_lr",
    "end_value": "max_lr",
    "num_it": "num_training",
    "num_iter": "num_training",
    "iterations": "num_training",
    "steps": "num_training",
    "num_steps": "num_training",
    "n_steps": "num_training",
    "step_mode": "mode",
    "diverge_th": "early_stop_threshold",
    "stop_div": "early_stop_threshold",
    "threshold": "early_stop_threshold",
    "optimizer_idx": "optimizer",
}
_SIZES = {
    "start": "init_val",
    "init_batch_size": "init_val",
    "min_batch_size": "init_val",
    "starting_batch_size": "init_val",
    "min_val": "init_val",
    "steps": "steps_per_trial",
    "num_steps": "steps_per_trial",
    "n_steps": "steps_per_trial",
    "trials": "max_trials",
    "n_trials": "max_trials",
    "max_batch_size": "max_val",
    "max_size": "max_val",
    "memory": "max_memory",
    "margin": "headroom",
    "stage": "method",
}
_STUDY = {
    "n_trials": "budget",
    "trials": "budget",
    "num_trials": "budget",
    "max_trials": "budget",
    "num_samples": "budget",
    "timeout": "budget",
    "n_jobs": "workers",
    "search_space": "space",
    "param_space": "space",
    "hp_space": "space",
    "params": "space",
    "sampler": "method",
    "algorithm": "method",
    "search_alg": "method",
    "metric": "monitor",
    "direction": "monitor_mode",
    "study_name": "name",
}
_ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "find_lr": _FINDER,
    "find_batch_size": _SIZES,
    "study": _STUDY,
}
"""Other libraries' names for arguments of the bench's methods."""


# ---- arguments of Lightning's Trainer that are no settings ---------------------------------------

_NOTHING: tuple[Any, ...] = (None, False)
_ALIKE: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "logger": (
        _NOTHING,
        (
            "every fit has a record (bench.runs); wb.Workbench(…, trackers='tensorboard') logs to a"
            " tracker too"
        ),
    ),
    "callbacks": (
        (None, [], ()),
        (
            "what Lightning's callbacks do is settings here (early_stopping, checkpoint_every, …),"
            " and wb.Workbench(…, listeners=[f]) gets every event"
        ),
    ),
    "enable_checkpointing": (
        (None, True),
        (
            "every fit keeps its last checkpoint, from which it can continue; save_top_k=0 keeps no"
            " others"
        ),
    ),
    "enable_model_summary": ((None, True, False), ""),
    "inference_mode": ((None, True, False), ""),
    "use_distributed_sampler": (
        (None, True),
        (
            "the batches of every loader are divided among the processes of a job; a sampler of"
            " yours sees all samples"
        ),
    ),
    "profiler": (
        _NOTHING,
        "bench.profile() says what limits the speed, and makes a trace",
    ),
    "barebones": (
        _NOTHING,
        (
            "track_grad_norm=None, log_every_n_steps=… and num_sanity_val_steps=0 leave out what"
            " costs time"
        ),
    ),
    "plugins": ((None, [], ()), "precision=, strategy= and launch= are settings here"),
    "sync_batchnorm": (
        _NOTHING,
        (
            "convert the model before the bench is made,"
            " torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"
        ),
    ),
    "default_root_dir": ((None,), _ROOT),
    "enable_autolog_hparams": ((None, True), "the settings of a run are always in its record"),
    "model_registry": ((None,), "bench.load(run, 'best') gives the model the weights of a run"),
    "weights_summary": ((None,), "bench.summary describes the model"),
}
"""For each argument: the values that have no effect because they are true here anyway, and what
to use instead of others.
"""
NONE_IS_DEFAULT = (
    "precision",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "val_check_interval",
    "num_sanity_val_steps",
    "log_every_n_steps",
    "gradient_clip_algorithm",
    "deterministic",
    "enable_progress_bar",
)
"""The settings for which None means "the default" in Lightning's Trainer."""


def settings_of(
    given: Mapping[str, Any],
    known: Collection[str],
    method: str = "",
    arguments: Collection[str] = (),
) -> dict[str, Any]:
    """Return those of the keyword arguments that are settings; arguments of Lightning's without an
    effect here are left out.

    Raises SettingsError for any other, with the nearest name. known: the names of the settings.
    method: the method of the
    bench that was called. arguments: the names of its arguments besides settings.
    """
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name in known:
            settings[name] = plain(value)
        elif name in _ALIKE:
            _refuse_other(name, value)
        else:
            raise SettingsError(_unknown(name, known, method, arguments))
    return with_name(settings) if "optimizer" in settings else settings


def _refuse_other(name: str, value: Any) -> None:
    """Raise SettingsError if this value of an argument of Lightning's Trainer would have an
    effect.
    """
    value, (alike, instead) = plain(value), _ALIKE[name]
    if not any(type(value) is type(harmless) and value == harmless for harmless in alike):
        raise SettingsError(f"{name}={shown(value)} is not used here: {instead}.")


def _unknown(name: str, known: Collection[str], method: str, arguments: Collection[str]) -> str:
    argument = _ARGUMENTS.get(method, {}).get(name)
    if argument is not None:
        return f"unknown argument {name!r} of {method}(). Did you mean {argument!r}?"
    problem = f"unknown setting {name!r}"
    if name in OBJECTS:
        meant = OBJECTS[name]
        here = method == "Workbench"
        return f"{problem}. Did you mean {meant!r}?" if here else f"{problem}: {ELSEWHERE[meant]}."
    if method in _EVALUATIONS and ELSEWHERE.get(name) == _START:
        return (
            f"{problem}: bench.load('0012-fit', 'best') gives the model the weights of a run or of "
            f"a checkpoint, then bench.{method}() uses them."
        )
    if name in ELSEWHERE:
        return f"{problem}: {ELSEWHERE[name]}."
    if method == "Workbench" and SPOKEN.get(name) is None:
        arguments = {*arguments, *_BENCH}
    spoken = {
        **{word: word for word in (*known, *arguments)},
        **SPOKEN,
        **_ARGUMENTS.get(method, {}),
    }
    if name not in spoken:
        other = next(
            (method_name for method_name, words in OF_METHODS.items() if name in words), None
        )
        if other is not None:
            return f"{problem}: it is an argument of bench.{other}()."
    near = difflib.get_close_matches(name, spoken, n=1, cutoff=0.6)
    if near:
        return f"{problem}. Did you mean {spoken[near[0]]!r}?"
    return f"{problem}. `bench.settings` shows the settings, and help(wb.Settings) explains them."


OF_METHODS: Mapping[str, tuple[str, ...]] = {
    "find_lr": (
        "min_lr",
        "max_lr",
        "num_training",
        "early_stop_threshold",
        "group",
        "race",
        "race_updates",
    ),
    "find_num_workers": ("seconds_per_trial",),
    "find_recipe": ("recipes",),
    "find_precision": ("try_compile", "tolerance"),
    "find_batch_size": (
        "init_val",
        "steps_per_trial",
        "max_trials",
        "max_val",
        "headroom",
        "max_memory",
        "keep_effective",
        "min_updates_per_epoch",
        "longest",
    ),
}
"""Arguments that only one method of the bench has."""


# ---- names of attributes -------------------------------------------------------------------------

_SAVED = (
    "every fit saves checkpoints, bench.load('0001-fit', 'best') loads one, and "
    "torch.save(bench.model.state_dict(), path) saves weights alone"
)
_OF_RUN = (
    "run = bench.fit().result() has run.history, run.validation, run.metrics and run.plot(), and "
    "bench.runs has all runs"
)
_NO_MODEL = (
    "bench.load(run, 'best') gives bench.model the weights of a run, which itself has no model;"
    " after a fit bench.model has its last weights"
)
_IN_FOLDER = (
    "everything is saved already, in run.folder; save_pretrained(path) writes the weights,"
    " to_csv(path) the history"
)
_SERIES = (
    "history has the values of each update, validation those of each validation, and metrics the"
    " last ones"
)
ATTRIBUTES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "bench": {
        "find_lr() finds a learning rate": (
            "lr_find", "lr_finder", "lr_range_test", "range_test", "find_learning_rate",
            "auto_lr_find",
        ),
        "find_batch_size() finds a batch size": (
            "scale_batch_size", "batch_size_finder", "auto_scale_batch_size",
            "find_executable_batch_size",
        ),
        "fit() trains": (
            "train", "train_model", "fit_one_cycle", "fine_tune", "partial_fit", "fit_loop", "run",
            "trainer",
        ),
        "validate() and test() evaluate the model": (
            "evaluate", "eval", "score", "evaluate_model", "check",
        ),
        "predict(data) gives the model's outputs": (
            "predict_proba", "get_preds", "forward", "infer", "inference", "predict_step",
        ),
        "model is the model, with the weights that training left": (
            "module", "module_", "net", "network", "learner", "weights", "parameters",
            "unwrap_model",
        ),
        _SAVED: (
            "save", "save_model", "save_weights", "save_checkpoint", "save_params",
            "save_pretrained", "state_dict", "checkpoint",
        ),
        "load(run, 'best') loads the weights of a run": (
            "load_model", "load_weights", "load_checkpoint", "load_from_checkpoint",
            "load_state_dict", "load_params",
        ),
        _OF_RUN: (
            "plot", "plots", "plot_loss", "plot_metrics", "recorder", "history", "history_",
            "metrics", "logged_metrics", "callback_metrics", "losses",
        ),
        "set(lr=…) changes settings, and bench.settings shows them": (
            "configure", "set_params", "get_params", "hparams", "config", "args", "learning_rate",
        ),
        "set(optimizer='sgd') changes it, and bench.settings shows it": (
            "optimizer", "optimizers", "opt",
        ),
        "it is given when the bench is made, wb.Workbench(…, loss=…, train=…)": (
            "criterion", "loss", "loss_fn", "loss_func", "dls",
            "data", "datamodule", "train_dataloader", "train_loader",
        ),
    },
    "run": {
        _NO_MODEL: (
            "model", "module", "net", "network", "weights", "state_dict", "load", "load_state_dict",
            "restore", "best_model", "predict", "evaluate", "test",
        ),
        "checkpoints has its checkpoints, the best one too": (
            "best", "best_model_path", "best_checkpoint", "ckpt_path", "checkpoint",
            "last_model_path",
        ),
        _IN_FOLDER: (
            "save", "save_model",
        ),
        "bench.export('train.py', run) writes a script that repeats it, and"
        " bench.export('run.html', run) a page": (
            "export", "to_script", "script", "to_html", "html", "share",
        ),
        "plot() draws it": (
            "plots", "plot_loss", "plot_metrics", "recorder", "show", "plot_history",
        ),
        _SERIES: (
            "losses", "loss", "train_loss", "val_loss", "history_", "logs", "log_history",
            "results", "callback_metrics", "logged_metrics", "log_metrics",
        ),
        "bench.fit(start=run.id) continues it": ("resume", "continue_", "fit", "train"),
    },
    "curve": {
        "suggestion is the recommended rate, a number: bench.set(lr=curve.suggestion)": (
            "suggest", "lr", "best", "best_lr", "optimal_lr", "learning_rate", "valley", "steep",
            "steepest", "minimum", "slide", "new_lr",
        ),
        "lrs, losses and smoothed are its points": (
            "results", "history", "points", "loss", "lr_losses",
        ),
    },
    "sizes": {
        "best is the recommended size, a number: bench.set(batch_size=sizes.best)": (
            "suggestion", "batch_size", "size", "suggest", "optimal", "new_batch_size",
        ),
    },
    "job": {
        "stop() ends it at its next update and keeps the results so far": (
            "cancel", "kill", "terminate", "abort", "interrupt", "end_job", "quit",
        ),
        "done() says whether it is over": (
            "finished", "is_done", "isdone", "complete", "completed", "ready", "is_alive",
        ),
        "status is 'queued', 'running', 'paused', 'finished', 'stopped' or 'failed'": (
            "state", "running", "is_running", "queued", "paused", "is_paused", "cancelled",
            "canceled", "stopped", "failed", "phase",
        ),
        "wait() waits until it is over": ("join", "block"),
        "result() gives what it found": ("get", "results", "value", "run", "output_value", "fetch"),
        "exception() gives the error that it failed with": ("error", "traceback"),
        "resume() continues after a pause": ("unpause", "continue_", "proceed", "restart"),
        "output is what its processes printed, and events what they reported": (
            "log", "logs", "stdout", "stderr", "print",
        ),
        "change(lr=…) changes settings of a fit while it runs": ("set", "update", "set_lr"),
        "checkpoint() writes a checkpoint before the next update": ("save", "save_checkpoint"),
        "wb.Workbench(…, listeners=[f]) gets every event of its jobs": (
            "add_done_callback", "subscribe", "on_end", "callbacks",
        ),
    },
}  # fmt: skip
"""By what has the attribute: what to use instead, and other libraries' names for it."""


def with_hints(kind: str) -> Callable[[type[T]], type[T]]:
    """Decorator of a class: where an attribute is missing, the error of its objects names the
    right one.
    """

    def decorate(owner: type[T]) -> type[T]:
        def missing(self: T, name: str) -> Any:
            hint = attribute_hint(kind, name, owner)
            said = f"{owner.__name__!r} object has no attribute {name!r}.{hint}"
            raise AttributeError(said, name=name, obj=self)

        # Within the class it would hide every attribute from type checkers.
        owner.__getattr__ = missing  # type: ignore[attr-defined]
        return owner

    return decorate


def attribute_hint(kind: str, name: str, owner: type) -> str:
    """The remedy, after a space, for an attribute that an object of this kind does not have.

    "": none is known. owner: its class.
    """
    remedies = (remedy for remedy, names in ATTRIBUTES[kind].items() if name.lower() in names)
    meant = next(remedies, None)
    if meant is not None:
        return f" Instead: {meant}."
    public = [word for word in dir(owner) if not word.startswith("_")]
    near = difflib.get_close_matches(name, public, n=1, cutoff=0.75)
    return f" Did you mean {near[0]!r}?" if near and not name.startswith("_") else ""
