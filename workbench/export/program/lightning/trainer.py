"""Writes the stand-in for Lightning's Trainer: what the user's code reads of one, and no more."""

from __future__ import annotations

from workbench.export.inputs.collect import Data, quoted
from workbench.export.script_spec import ScriptSpec
from workbench.techniques.limits import is_whole

_SETTINGS = (
    "precision", "log_every_n_steps", "check_val_every_n_epoch", "val_check_interval", "limit_train_batches",
    "limit_val_batches", "limit_test_batches", "limit_predict_batches", "overfit_batches", "fast_dev_run",
)  # fmt: skip
_CONSTANT = {
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
    **dict.fromkeys(("loggers", "callbacks", "checkpoint_callbacks", "early_stopping_callbacks"), "[]"),
    **dict.fromkeys(("logger", "checkpoint_callback", "early_stopping_callback", "progress_bar_callback"), "None"),
}
_STAGES = {"training": "True", "validating": "False", "sanity_checking": "False", "evaluating": "False"}


def asks(r: ScriptSpec, *names: str) -> bool:
    """Whether the user's code reads one of these."""
    return not r.lightning.asks.isdisjoint(names)


def made(r: ScriptSpec) -> list[str]:
    """The lines that make the stand-in and give it to the objects that look for a trainer."""
    like = [f"network.{name} = {value}" for name, value in r.lightning.like.items()]
    if not r.lightning.asks:
        return like
    first = _first(r)
    members = [f"    {name}={first[name]}," for name in first if name in r.lightning.asks]
    return [*like, "trainer = SimpleNamespace(", *members, ")", *([f"{' = '.join(r.lightning.trainers)} = trainer"] if r.lightning.trainers else [])]


def progress(r: ScriptSpec, name: str, value: str) -> list[str]:
    """The line that updates its progress."""
    places = [f"trainer.{name}"] if asks(r, name) else []
    places += [f"network.{name}"] if name in r.lightning.like else []
    return [f"{' = '.join([*places, value])}"] if places else []


def _first(r: ScriptSpec) -> dict[str, str]:
    """The value of each of its members before the first epoch."""
    s = r.settings
    return {
        "current_epoch": "0",
        "global_step": "0",
        "should_stop": "False",
        "max_epochs": "config.max_epochs" if r.max_epochs is not None else repr(-1 if s.epochs is None else s.epochs),
        "max_steps": "config.max_steps" if r.ended_at is None and s.max_steps is not None else repr(s.max_steps or -1),
        "min_epochs": "config.min_epochs" if s.min_epochs else repr(s.min_epochs),
        "min_steps": "config.min_steps" if s.min_steps else repr(s.min_steps),
        "estimated_stepping_batches": 'float("inf")' if r.planned is None else "config.scheduled_steps",
        "num_training_batches": 'float("inf")',
        "num_val_batches": "[]" if r.val is None else '[float("inf")]',
        "accumulate_grad_batches": "window_size(0)" if r.windows is not None else repr(s.accumulate_grad_batches),
        "gradient_clip_val": "config.gradient_clip_val" if r.clips else "None",
        "gradient_clip_algorithm": quoted(s.gradient_clip_algorithm) if r.clips else "None",
        **{name: quoted(getattr(s, name)) for name in _SETTINGS},
        **_STAGES,
        **_CONSTANT,
        **_nodes(r),
        "datamodule": r.lightning.datamodule,
        "optimizers": "[]",
    }


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


def planned(r: ScriptSpec) -> list[str]:
    """The lines after the loaders are made: how long an epoch is."""
    lines = []
    if asks(r, "num_training_batches") and (r.train.sized or r.limits):
        lines.append(f"trainer.num_training_batches = {'limit' if r.limits else 'len(loader)'}")
    if asks(r, "num_val_batches") and r.val is not None:
        lines += _val_batches(r, r.val)
    return lines


def _val_batches(r: ScriptSpec, val: Data) -> list[str]:
    limit = r.settings.limit_val_batches
    if not r.validates:
        return ["trainer.num_val_batches = [0]"]
    if isinstance(limit, float):
        if not val.sized:
            return []
        part = "len(val_loader)" if is_whole(limit) else "int(len(val_loader) * config.limit_val_batches + 1e-9)"
        return [f"trainer.num_val_batches = [{part}]"]
    count = "min(config.limit_val_batches, len(val_loader))" if val.sized else "config.limit_val_batches"
    return [f"trainer.num_val_batches = [{count}]"]


def configured(r: ScriptSpec) -> list[str]:
    """The lines after the optimizers are made."""
    if not asks(r, "optimizers"):
        return []
    return [f"trainer.optimizers = {'list(optimizers)' if r.several else '[optimizer]'}"]


def epoch_begun(r: ScriptSpec) -> list[str]:
    """The lines at the start of an epoch."""
    if r.windows is None or not asks(r, "accumulate_grad_batches"):
        return []
    return ["trainer.accumulate_grad_batches = window_size(epoch)"]


def checking(r: ScriptSpec) -> list[str]:
    """The lines at the beginning of a validation."""
    now = {"training": "False", "evaluating": "True", "validating": "not trainer.sanity_checking"}
    return [f"trainer.{name} = {value}" for name, value in now.items() if asks(r, name)]


def checked(r: ScriptSpec) -> list[str]:
    """The lines after a validation."""
    now = {"training": "True", "evaluating": "False", "validating": "False"}
    return [f"trainer.{name} = {value}" for name, value in now.items() if asks(r, name)]
