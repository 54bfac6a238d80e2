"""Makes the values about the user's LightningModule that the templates read: calls of its hooks,
and the replacement of its Trainer.
"""

from __future__ import annotations

from workbench.export.inputs.collect import Data, quoted
from workbench.export.script_spec import ScriptSpec
from workbench.techniques.limits import is_whole

_SETTINGS = (
    "precision",
    "log_every_n_steps",
    "check_val_every_n_epoch",
    "val_check_interval",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "overfit_batches",
    "fast_dev_run",
)
_CONSTANT = {
    "training": "True",
    **dict.fromkeys(("validating", "sanity_checking", "evaluating"), "False"),
    "is_global_zero": "accelerator.is_main_process",
    "global_rank": "accelerator.process_index",
    "local_rank": "accelerator.local_process_index",
    "world_size": "accelerator.num_processes",
    "num_devices": "accelerator.num_processes",
    "node_rank": "0",
    "num_nodes": "1",
    "print": "accelerator.print",
    "lightning_module": "network",
    "model": "network",
    "default_root_dir": "str(Path.cwd())",
    "log_dir": "str(Path.cwd())",
    **dict.fromkeys(("testing", "predicting", "interrupted", "received_sigterm"), "False"),
    **dict.fromkeys(
        ("loggers", "callbacks", "checkpoint_callbacks", "early_stopping_callbacks"), "[]"
    ),
    **dict.fromkeys(
        ("logger", "checkpoint_callback", "early_stopping_callback", "progress_bar_callback"),
        "None",
    ),
}


def call(r: ScriptSpec, name: str, *given: str, network: str = "network") -> str:
    """The call of a hook. network: the name of the object in that function."""
    owner = r.lightning.hooks[name].owner
    return f"{network if owner == 'network' else owner}.{name}({', '.join(arguments(r, name, *given))})"


def arguments(r: ScriptSpec, name: str, *given: str) -> list[str]:
    """A hook's arguments: those of Lightning 2, with Lightning 1's in between where the hook
    takes them.
    """
    found, left = [], list(given)
    for extra in r.lightning.hooks[name].arguments:
        if extra is None and not left:
            break
        found.append(left.pop(0) if extra is None else extra)
    return [*found, *left]


def step_schedule(r: ScriptSpec, scheduler: str, metric: str = "") -> str:
    """The line that steps a scheduler."""
    if r.owns("lr_scheduler_step"):
        return call(r, "lr_scheduler_step", scheduler, metric or "None")
    return f"{scheduler}.step({metric})"


def asks(r: ScriptSpec, *names: str) -> bool:
    """Whether the user's code reads one of these attributes of its trainer."""
    return not r.lightning.asks.isdisjoint(names)


def asked_to_end(r: ScriptSpec, finished: str) -> str:
    """The condition that the object has asked for the end of the run. finished: the expression
    for the epochs that are over.
    """
    return " and ".join(["trainer.should_stop", *may_end(r, finished)])


def may_end(r: ScriptSpec, finished: str) -> list[str]:
    """The conditions under which the run is long enough to end."""
    s = r.settings
    return [
        *([f"{finished} >= config.min_epochs"] if s.min_epochs else []),
        *(["step >= config.min_steps"] if s.min_steps else []),
    ]


def progress(r: ScriptSpec, name: str, value: str) -> str:
    """The line that updates the progress that the user's code reads."""
    places = [f"trainer.{name}"] if asks(r, name) else []
    places += [f"network.{name}"] if name in r.lightning.like else []
    return " = ".join([*places, value]) if places else ""


def trainer_members(r: ScriptSpec) -> dict[str, str]:
    """The value before the first epoch of each member of a Trainer that the user's code reads."""
    s = r.settings
    found = {
        "current_epoch": "0",
        "global_step": "0",
        "should_stop": "False",
        "is_last_batch": "False",
        "max_epochs": (
            "config.max_epochs"
            if r.max_epochs is not None
            else repr(-1 if s.epochs is None else s.epochs)
        ),
        "max_steps": (
            "config.max_steps"
            if r.ended_at is None and s.max_steps is not None
            else repr(s.max_steps or -1)
        ),
        "min_epochs": "config.min_epochs" if s.min_epochs else repr(s.min_epochs),
        "min_steps": "config.min_steps" if s.min_steps else repr(s.min_steps),
        "estimated_stepping_batches": (
            'float("inf")' if r.planned is None else "config.scheduled_steps"
        ),
        "num_training_batches": 'float("inf")',
        "num_val_batches": "[]" if r.val is None else '[float("inf")]',
        "accumulate_grad_batches": (
            "window_size(0)" if r.windows is not None else repr(s.accumulate_grad_batches)
        ),
        "gradient_clip_val": "config.gradient_clip_val" if r.clips else "None",
        "gradient_clip_algorithm": quoted(s.gradient_clip_algorithm) if r.clips else "None",
        **{name: quoted(getattr(s, name)) for name in _SETTINGS},
        **_CONSTANT,
        **_nodes(r),
        "datamodule": r.lightning.datamodule,
        "optimizers": "[]",
    }
    return {name: value for name, value in found.items() if name in r.lightning.asks}


def _nodes(r: ScriptSpec) -> dict[str, str]:
    """The members about ranks, of a run on several machines."""
    if r.settings.num_nodes == 1:
        return {}
    local = f"accelerator.num_processes // {r.settings.num_nodes}"
    return {
        "num_nodes": str(r.settings.num_nodes),
        "num_devices": local,
        "node_rank": f"accelerator.process_index // ({local})",
    }


def val_batches(r: ScriptSpec, val: Data | None) -> str:
    """The number of batches of a validation; "" where it is not known before the first."""
    limit = r.settings.limit_val_batches
    if val is None or not r.validates:
        return "" if val is None else "0"
    if not isinstance(limit, float):
        return (
            "min(config.limit_val_batches, len(val_loader))"
            if val.sized
            else "config.limit_val_batches"
        )
    if not val.sized:
        return ""
    return (
        "len(val_loader)"
        if is_whole(limit)
        else "int(len(val_loader) * config.limit_val_batches + 1e-9)"
    )
