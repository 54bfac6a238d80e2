"""Writes a script that trains with Lightning: a LightningModule, and a Trainer with the run's settings."""

from __future__ import annotations

import textwrap

from workbench.export.formats import lightning_refusals, lightning_trainer
from workbench.export.inputs.collect import Schedule, quoted
from workbench.export.program.optimizers import takes_updates
from workbench.export.program.render import rendered
from workbench.export.program.text import (
    config_class,
    evidence,
    parse_function,
    plain,
    rule,
    saved_data,
    with_users_code,
)
from workbench.export.program.unused import without_unused
from workbench.export.program.values import values
from workbench.export.script_spec import ScriptSpec
from workbench.export.source.origins import Import
from workbench.task.lightning.overrides import own_method
from workbench.task.lightning.task import LightningTask
from workbench.task.protocol import Task


def lightning_script(r: ScriptSpec, task: Task) -> str:
    """The text of the script. `ExportError` names what Lightning has no way to do."""
    package = _package(task)
    lightning_refusals.refuse(r, package)
    found = {**values(r), **_values(r, task)}
    main = rendered("lightning/main.py.jinja", found)
    program = "\n\n\n".join(part for part in (without_unused(rendered("lightning/functions.py.jinja", found), main), main) if part)
    callbacks = "lightning.pytorch.callbacks" if package == "lightning" else f"{package}.callbacks"
    imports = [Import(package, None, "L"), *(Import(callbacks, name) for name in lightning_trainer.CALLBACKS)]
    imports += [Import(callbacks.replace("callbacks", "loggers"), "CSVLogger"), Import("torch.utils.data", "Sampler")]
    config = config_class(found, program)
    parse = parse_function(r, found, config, _title(r), by_trainer=True)
    ours = f"{config}\n\n\n{rule('the training')}\n\n\n{program}\n\n\n{parse}\n"
    return with_users_code(r, ours, _head(r, package), imports)


def _values(r: ScriptSpec, task: Task) -> dict[str, object]:
    """What the template reads besides what the other script's read."""
    own = lightning_trainer.makes_loaders(r)
    shuffles = r.train.kind == "samples" and r.settings.shuffle and not r.train.sampler and not r.train.batch_sampler
    loaders = [] if own else ["loader", *(["val_loader"] if r.validates else [])]
    return {
        "makes_loaders": own,
        "orders_train": not own and shuffles and not r.limits,  # drawn to the end, as the run drew it
        "brings_callbacks": isinstance(task, LightningTask) and own_method(task.module, "configure_callbacks") is not None,
        "by_updates": _by_updates(r),
        "scheduled_updates": _updates(r),
        "lightning_schedules": [] if r.built_in else [_schedule(one) for one in r.optimizers[0].schedules],
        "trainer_arguments": lightning_trainer.arguments(r),
        "callbacks": lightning_trainer.callbacks(r),
        "fit_arguments": loaders if r.lightning.datamodule == "None" else [f"datamodule={r.lightning.datamodule}"],
    }


def _package(task: Task) -> str:
    """The package whose LightningModule the user's object is; "lightning" where the script makes one; "": it is not one."""
    if not isinstance(task, LightningTask):
        return "lightning"
    classes = [base for base in type(task.module).__mro__ if base.__name__ == "LightningModule"]
    return classes[0].__module__.partition(".")[0] if classes else ""


# ---- the head ---------------------------------------------------------------------------------------------------


def _title(r: ScriptSpec) -> str:
    return f"Train {plain(r.model)} with Lightning, with the settings of run {plain(r.run)}."


def _head(r: ScriptSpec, package: str) -> str:
    needed = ", ".join(["torch", package, *sorted(r.sliced.modules - {"torch", package})])
    start = "It begins with the weights that its code makes: the run's were not recorded."
    if r.weights is not None:
        start = f"It begins with the weights in {plain(r.weights)}, if that is there."
    notes = [
        start,
        *saved_data(r),
        f"Needs: {needed}.",
        *r.sliced.notes,
        *r.sliced.differs,
        *evidence(r),
        "What Lightning does otherwise than the run did:",
        *(f"- {line}" for line in lightning_trainer.differences(r)),
    ]
    text = "\n".join(textwrap.fill(plain(note), 98, subsequent_indent="  " if note[0] == "-" else "") for note in notes)
    return f'"""{_title(r)}\n\n{text}\nWritten by Tuning Workbench {r.version}.\n"""'


def _by_updates(r: ScriptSpec) -> bool:
    """Whether the schedule of the module that the script makes is told the number of updates."""
    return r.hooks is None and (takes_updates(r) if r.built_in else bool(r.optimizers[0].schedules))


def _updates(r: ScriptSpec) -> str:
    """The number of updates of the run, as an expression.

    Lightning's own estimate (`trainer.estimated_stepping_batches`) begins to read the loader, which moves its order.
    """
    known = r.ended_at is None and r.windows is None
    if known and r.max_epochs is None and r.max_steps is not None:
        return "config.max_steps"
    if not known or r.max_epochs is None or r.limits or not r.train.sized:
        return "config.scheduled_steps"
    total = f"config.max_epochs * {'-(-len(loader) // config.accumulate_grad_batches)' if r.accumulates else 'len(loader)'}"
    return total if r.max_steps is None else f"min(config.max_steps, {total})"


def _schedule(one: Schedule) -> str:
    items = {"scheduler": f"made{one.place}", "interval": quoted(one.interval)}
    items |= {"frequency": str(one.frequency)} if one.frequency != 1 else {}
    items |= {"monitor": quoted(one.monitor)} if one.monitor is not None else {}
    items |= {} if one.strict else {"strict": "False"}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in items.items()) + "}"
