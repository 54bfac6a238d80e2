"""Builds the ScriptSpec of a run from its record and its bench; raises ExportError for what no
script supports.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench._version import __version__
from workbench.engine.checkpoint.files import peek, safetensors, tensors_of
from workbench.engine.data.checksums import BATCHES
from workbench.engine.runtime.restore_devices import restored_devices
from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.events import (
    SHARDED,
    Changed,
    Checksums,
    Logged,
    Message,
    RunStarted,
    Spiked,
    StepsDone,
    Validated,
)
from workbench.events.columns import MARK, recorded_name
from workbench.export.errors import ExportError, NotStandAlone
from workbench.export.inputs.collect import Hooks, LoggedNames, Metrics
from workbench.export.inputs.data import data_of, first_batch, held_out_of, layout_of
from workbench.export.inputs.hooks import (
    lightning_needs_of,
    sources_of,
    with_plain_base,
)
from workbench.export.inputs.optimizers import optimizers_of
from workbench.export.inputs.saved_data import SavedData
from workbench.export.inputs.step import step_of
from workbench.export.inputs.task import check_task
from workbench.export.resume_points import epoch_ends_of, resume_points_of
from workbench.export.script_spec import ScriptSpec
from workbench.export.source.capture import CallSite
from workbench.export.source.source import Sliced, slice_call
from workbench.export.supported import NOT_NEEDED, REFUSED, REPLAYED, SET, SUPPORTED
from workbench.runs.checkpoints import files_of, list_checkpoints, mode_of
from workbench.runs.read import read_header
from workbench.runs.run import Run
from workbench.settings import Settings
from workbench.task.data.rank_stream import shards_itself
from workbench.task.lightning.overrides import Step as HookStep
from workbench.task.lightning.task import LightningTask
from workbench.task.metrics.metrics import takes_pair
from workbench.task.modules import Modes, overrides_modes, own_name
from workbench.task.optim.group_checks import divides
from workbench.task.protocol import Task
from workbench.task.summary import ModelSummary
from workbench.task.supervised import Supervised
from workbench.techniques import limits
from workbench.techniques.averaging import has_batch_norm

_DATA = frozenset({"train", "val", "test"})
"""The arguments of a bench that hold its data."""
_CHECKSUM = re.compile("[0-9a-f]{8}")


def script_spec_of(
    path: Path,
    run: Run,
    site: CallSite,
    task: Task,
    weights: str | None,
    evidence: Sequence[str] = (),
    *,
    data_file: str | None = None,
    plain: bool = False,
) -> tuple[ScriptSpec, SavedData | None]:
    """The ScriptSpec of the script at `path`, and the data for `data_file` next to it, if there is
    to be one.

    plain: LightningModules inherit from nn.Module.
    """
    header = header_of(run)
    check_run(run, header, task)
    resume_points = resume_points_of(run)
    check_start(run, task)
    _check_settings(run.settings)
    _check_weights_whole(run)
    check_task(task)
    data = frozenset[str]() if data_file is None else _DATA
    sliced = slice_call(site, data | left_out(task, run.settings))
    sliced = with_plain_base(sliced, task) if plain else sliced
    if isinstance(task, Supervised) and task.one_collection:
        sliced.arguments["metrics"] = f'{{"metrics": {sliced.arguments["metrics"]}}}'
    started = next((e for e in run.outline if isinstance(e, RunStarted)), None)
    planned = None if started is None or started.updates is None else int(started.updates)
    ranks = int(started.ranks) if started else 1
    settings = limits.effective_settings(run.settings)
    sources = sources_of(task, sliced)
    saved = None
    if data_file is not None:
        saved = SavedData.of(data_file, task, sliced.arguments)
    _check_streams(task, ranks)
    lightning = lightning_needs_of(
        task, sources, sliced.code, plain
    )  # before the session, in which the objects get further attributes
    with _looked_at(task, run.settings) as session:
        spec = ScriptSpec(
            run=run.id,
            model=str(_recorded_task(header).get("model", type(task.model).__name__)),
            version=__version__,
            libraries=_libraries(header),
            script=path.name,
            sliced=sliced,
            kinds=site.kinds,
            settings=settings,
            ranks=ranks,
            threads=max(
                1,
                int(header.get("threads") or torch.get_num_threads())
                // (ranks // settings.num_nodes),
            ),
            weights=weights,
            data_file=data_file,
            checksums=_checksums(run),
            best=_best(run, settings),
            ended_at=_ended_at(run, settings),
            by_hand=run.status == "stopped",
            stopped_in_validation=_in_a_check(run),
            planned=planned,
            changes=_changes(run),
            sizes=_sizes(run),
            spikes=tuple(e.step for e in _spikes(run)),
            rolled_back=any(e.action == "rollback" for e in _spikes(run)),
            logged=_logged(run, task),
            epoch_ends=epoch_ends_of(run),
            resume_points=resume_points,
            lightning=lightning,
            evidence=tuple(evidence),
            **_of_task(session, sliced, settings, planned, saved),
        )
    return spec, saved


def left_out(task: Task, settings: Settings) -> frozenset[str]:
    """The arguments of the bench that a script does not need: `optimizer`, where the setting names
    another, or the bench has the usual one.
    """
    usual = isinstance(task, Supervised) and task.optimizer_factory.make is torch.optim.AdamW
    return frozenset({"optimizer"} if usual or settings.optimizer is not None else ())


def _checksums(run: Run) -> Checksums:
    """The checksums of the run's beginning. Entries of the record that are no checksums are
    dropped, since it may come from an untrusted source.
    """
    recorded = next((e for e in run.outline if isinstance(e, Checksums)), Checksums())
    texts = (recorded.weights, recorded.order, recorded.setup, *recorded.batches[:BATCHES])
    weights, order, setup, *batches = (text if _CHECKSUM.fullmatch(text) else "" for text in texts)
    return Checksums(weights, order, tuple(batches), setup)


def _best(run: Run, settings: Settings) -> tuple[str, str] | None:
    """The metric that chose the run's best checkpoint, if every validation had it, and whether
    lower is better.
    """
    name = settings.monitor or "val_loss"
    checks = [e.metrics for e in run.outline if isinstance(e, Validated) and not e.asked]
    is_monitored = settings.save_top_k and checks and all(name in metrics for metrics in checks)
    return (name, mode_of(name, settings.monitor_mode)) if is_monitored else None


def _ended_at(run: Run, settings: Settings) -> int | None:
    """The number of updates after which the run was stopped by hand or by the clock, or after
    which a run without a length ended. None: its length ended it.
    """
    no_number = settings.epochs is None and settings.max_steps is None
    if run.status != "stopped" and settings.max_time is None and not no_number:
        return None
    # If a metric ended the run, it ends the script too: the limit of one more update is not
    # reached.
    return int(run.step) + bool(run.ended_early)


def _in_a_check(run: Run) -> bool:
    """Whether it was stopped during the validation after an epoch, where its end was saved."""
    checkpoints = (
        list_checkpoints(run.folder) if run.status == "stopped" and run.folder is not None else []
    )
    if not (checkpoints and checkpoints[-1].end and checkpoints[-1].step == run.step):
        return False
    with contextlib.suppress(OSError, ValueError):
        return bool(peek(checkpoints[-1].path, "validation_due")["validation_due"])
    return False


def header_of(run: Run) -> Mapping[str, Any]:
    """What the record says of the run before its events; empty where it has no record."""
    return read_header(run.folder) if run.folder is not None and run.folder.is_dir() else {}


def _libraries(header: Mapping[str, Any]) -> str:
    versions = header.get("versions")
    if not isinstance(versions, Mapping):
        return ""
    # a build's suffix, as in 2.13.0+cpu, depends on the machine
    return ", ".join(
        f"{name} {str(versions[name]).partition('+')[0]}"
        for name in ("torch", "accelerate", "numpy")
        if name in versions
    )


def check_run(run: Run, header: Mapping[str, Any], task: Task) -> None:
    """Raise ExportError unless it is a fit of this task's model that ended."""
    if run.kind != "fit" or run.status not in ("finished", "stopped"):
        raise ExportError(
            f"run {run.id} is a {run.kind} that {run.status}: only a fit that ended can be"
            " repeated."
        )
    recorded = _recorded_task(header).get("parameters")
    here = sum(p.numel() for p in task.trained_parameters().values())
    if recorded not in (None, here):
        raise ExportError(
            f"run {run.id} trained a model of {recorded} parameters, and this bench has one of"
            f" {here}: export it from the bench that made it."
        )
    name, present = _recorded_task(header).get("model"), ModelSummary.of(task).name
    if name not in (None, present):
        raise ExportError(
            f"run {run.id} trained {name}, and this bench has {present}: export it from the bench"
            " that made it."
        )


def _recorded_task(header: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entries of a header about the model; empty where they do not have the form that the
    workbench writes.
    """
    task = header.get("task")
    return task if isinstance(task, Mapping) else {}


def start_of(run: Run) -> Path | None:
    """The file of the weights with which a run began; None: it has no record."""
    return None if run.folder is None else run.folder / "checkpoints" / "start.safetensors"


def check_start(run: Run, task: Task) -> None:
    """Raise ExportError unless the starting weights exist and fit the task's model."""
    start, weights = start_of(run), tensors_of(task.trained_modules)
    if start is None:
        return
    if not files_of(start):
        raise ExportError(
            f"the starting weights of run {run.id} are gone ({start} was removed, or could not be"
            " written), so no script can begin where it began: fit again, and raise keep_runs if"
            " runs are removed too early."
        )
    with safetensors(start) as file:
        tied = file.metadata()  # names of weights that are stored under another name
        saved = file.shapes
    here = {name: tuple(value.shape) for name, value in weights.items() if name not in tied}
    for name in [*here, *saved]:
        if saved.get(name) != here.get(name):
            raise ExportError(
                f"run {run.id} began with {name} of shape {saved.get(name)}, and in the model of"
                f" this bench it is {here.get(name)}: export it from the bench that made it."
            )


def _check_settings(settings: Settings) -> None:
    changed = settings.changed()
    for name, why in REFUSED.items():
        if name in changed:
            raise NotStandAlone(
                f"a stand-alone script does not support {name}={changed[name]!r}: {why}."
            )
    missing = [name for name in changed if name not in SUPPORTED | NOT_NEEDED]
    if missing:
        named = ", ".join(f"{name}={getattr(settings, name)!r}" for name in missing)
        raise NotStandAlone(f"a stand-alone script does not support {named}.")
    if settings.seed >= 2**32:
        raise NotStandAlone(
            f"a stand-alone script does not support seed={settings.seed}, which is not below 2**32."
        )


def _check_streams(task: Task, ranks: int) -> None:
    """Raise NotStandAlone where several processes read shares of a stream of their own."""
    for spec in (task.train, task.val) if ranks > 1 else ():
        sets = () if spec is None else spec.sets
        for data in sets:
            if shards_itself(data.parts.dataset):
                raise NotStandAlone(
                    f"{data.name} is a stream of which each process read its own share, and in a"
                    " stand-alone script each reads it whole."
                )


def _check_weights_whole(run: Run) -> None:
    """Raise NotStandAlone for a run whose processes shared the weights among them."""
    messages = [event.text for event in run.outline if isinstance(event, Message)]
    if any(text.startswith(SHARDED) for text in messages):
        raise NotStandAlone(
            f"a stand-alone script is data-parallel, and run {run.id} sharded its weights (FSDP)."
        )


def _logged(run: Run, task: Task) -> LoggedNames:
    """The names in the record of the values that the model logged."""
    rows = [e for e in run.outline if isinstance(e, StepsDone)]
    recorded = {name for e in rows for name in e.logged}
    parts = {recorded_name(name) for name in task.loss_part_names}
    in_updates = recorded - parts if isinstance(task, LightningTask) else set()
    in_epochs = {name for e in run.outline if isinstance(e, Logged) for name in e.metrics}
    validated = {name for e in run.outline if isinstance(e, Validated) for name in e.metrics}
    marked = {
        name.removesuffix(MARK)
        for name in in_updates | in_epochs | validated
        if name.endswith(MARK)
    }
    return LoggedNames(
        in_updates=frozenset(in_updates),
        in_epochs=frozenset(in_epochs),
        in_training_alone=frozenset((in_updates | in_epochs) - validated),
        marked=tuple(sorted(name for name in marked if recorded_name(name) != name)),
    )


def _changes(run: Run) -> tuple[tuple[int, Mapping[str, float | None]], ...]:
    """The live changes that were followed by an update, in order, except for those of
    accumulate_grad_batches.
    """
    changes = [
        (e.step, {name: value for name, value in e.values.items() if name not in NOT_NEEDED})
        for e in _followed(run)
    ]
    for _, values in changes:
        if unknown := sorted(set(values) - REPLAYED):
            raise NotStandAlone(
                f"{', '.join(unknown)} was changed during run {run.id}, which a stand-alone script"
                " does not replay."
            )
    kept = [
        (step, {name: value for name, value in values.items() if name in SET})
        for step, values in changes
    ]
    return tuple((int(step), values) for step, values in kept if values)


def _sizes(run: Run) -> tuple[tuple[int, int], ...]:
    """The live changes of accumulate_grad_batches, each with its update; of several at one
    update the last counts.
    """
    name = "accumulate_grad_batches"
    return tuple(
        {int(e.step): int(e.values[name] or 1) for e in _followed(run) if name in e.values}.items()
    )


def _spikes(run: Run) -> list[Spiked]:
    """The spikes whose updates were left out."""
    return [e for e in run.outline if isinstance(e, Spiked) and e.action != "report"]


def _followed(run: Run) -> list[Changed]:
    """The live changes that were followed by an update."""
    return [change for change in run.changes if change.step < run.step]


# ---- the task ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _looked_at(task: Task, settings: Settings) -> Iterator[Session]:
    """Context manager with a session like the run's, in which the user's objects are set up as
    in the run; it trains nothing.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(restored_devices(task))
        try:
            session = stack.enter_context(open_session(task, settings.replace(compile=False)))
        except Exception as error:
            raise NotStandAlone(
                f"the fit cannot be set up for reading: {type(error).__name__}: {error}"
            ) from error
        yield session


def _of_task(
    session: Session,
    sliced: Sliced,
    settings: Settings,
    updates: int | None,
    saved: SavedData | None,
) -> dict[str, Any]:
    task = session.task
    assert isinstance(task, (Supervised, LightningTask))
    assert task.train is not None
    session.unfreeze()  # the optimizer is made with all parameters
    several = task.val is not None and task.val.several
    sets = {} if saved is None else saved.sets
    train = data_of(task.train, "train", sliced, settings, sets.get("train"))
    batch = first_batch(task.train, settings)
    fields: dict[str, Any] = {
        "train": train,
        "val": (
            None if task.val is None else held_out_of(task.val, sliced, settings, sets.get("val"))
        ),
        "val_sets": (
            tuple(data_set.key for data_set in task.val.sets)
            if several and task.val is not None
            else ()
        ),
        "step": step_of(session, batch, settings),
        "optimizers": optimizers_of(task, settings, updates),
        "partial": task.partial,
        "double": session.meter.double,
        "batch_norm": has_batch_norm([task.model]),
        "frozen_modes": _freezes_modes(session),
        "overrides_modes": any(
            overrides_modes(child) for module in task.modules for child in module.modules()
        ),
        "sparse": bool(task.sparse_layer),
        "compiled": task.compiler is not None,
        "compiled_parts": any(own_name(name) != name for name, _ in task.model.named_parameters()),
        "unsaved_buffers": (
            not task.model.state_dict().keys() >= {name for name, _ in task.model.named_buffers()}
        ),
        "buffers": tuple(_with_buffers(task)),
        "changed_by_validation": _changed_by_validation(session, settings),
    }
    if isinstance(task, LightningTask):
        none = {
            "batch": "own",
            "mean": False,
            "loss_is_module": False,
            "loss_prefix": "",
            "metrics": Metrics(),
            "divides": False,
            "freezes": False,
        }
        return {**fields, **none, "hooks": _hooks(task)}
    return {
        **fields,
        "batch": _layout(task, batch, sliced, settings),
        "mean": task.loss_is_mean,
        "loss_is_module": task.loss_is_module,
        "loss_prefix": list(task.trained_modules)[-1],
        "metrics": _metrics_of(task),
        "divides": divides(task.rules),
        "freezes": task.freezes,
        "hooks": None,
    }


def _layout(task: Supervised, batch: Any, sliced: Sliced, settings: Settings) -> str:
    """The kind of the batches. Raises NotStandAlone where training and validation differ, since
    a script has one forward pass for both.
    """
    has_loss = sliced.arguments.get("loss", "None") != "None"
    train = layout_of(batch, has_loss)
    if task.val is None or settings.limit_val_batches == 0:
        return train
    val = next(
        (
            layout
            for spec in task.val.sets
            if (layout := layout_of(first_batch(spec, settings), has_loss)) != train
        ),
        train,
    )
    if train == val:
        return train
    if {train, val} == {"pair", "tuple"}:
        return "tuple"
    if (
        not has_loss
        and train.startswith("dict")
        and val.startswith("dict")
        and not (task.metrics or task.epoch_metrics)
    ):
        return train
    raise NotStandAlone(
        f"a batch of train is {_in_words(train)} and one of val is {_in_words(val)}: "
        "a script has one forward pass for both. Give val in the form of train to export it."
    )


def _in_words(layout: str) -> str:
    kind, _, key = layout.partition(":")
    if kind == "dict":
        return f"a dict with the target {key!r}" if key else "a dict"
    return {"single": "a single tensor"}.get(kind, "a tuple")


def _metrics_of(task: Supervised) -> Metrics:
    """The description of a task's metrics for a script."""
    functions, objects = task.metrics, task.epoch_metrics
    return Metrics(
        functions=bool(functions),
        modules=any(
            isinstance(metric, nn.Module) for metric in (*functions.values(), *objects.values())
        ),
        objects=bool(objects),
        pairs=tuple(name for name, metric in objects.items() if takes_pair(metric)),
        dicts=task.names_its_metrics
        or any(callable(getattr(metric, "keys", None)) for metric in objects.values()),
    )


def _freezes_modes(session: Session) -> bool:
    """Whether parts of the model may be in eval mode while it trains."""
    task = session.task
    modes = Modes.of(task.modules)
    session.train_mode()
    frozen = any(overrides_modes(module) or not module.training for module in task.model.modules())
    modes.restore()
    return frozen


def _with_buffers(task: Task) -> Iterator[str]:
    """The names in the script of the modules that hold buffers."""
    is_loss = isinstance(task, Supervised) and task.loss_is_module
    names = ["network", *(["loss_function"] if is_loss else [])]
    for name, module in zip(names, task.modules, strict=False):
        if any(True for _ in module.buffers()):
            yield name
    if any(True for module in task.modules[len(names) :] for _ in module.buffers()):
        yield "metrics"


def _changed_by_validation(session: Session, settings: Settings) -> bool:
    """Whether a validation step changes buffers of the model or of the loss, such as a count: it
    is run on a few samples.
    """
    task = session.task
    assert isinstance(task, (Supervised, LightningTask))

    def buffers() -> list[Tensor]:
        return [buffer for module in task.trained_modules.values() for buffer in module.buffers()]

    before = [buffer.clone() for buffer in buffers()]
    if task.val is None or settings.limit_val_batches == 0 or not before:
        return False
    try:
        with scratch(session), torch.no_grad():
            for module in task.modules:
                module.eval()
            for spec in task.val.sets:
                task.dataloader_idx = spec.index
                batch = first_batch(spec, settings)
                if batch is not None:
                    task.validation_step(session.to_device(batch, "val"), 0)
            return any(
                now.shape != old.shape or not torch.equal(now, old)
                for now, old in zip(buffers(), before, strict=True)
            )
    except Exception:  # noqa: BLE001 - the step may need a whole validation around it; then the script has the sanity check, as the run
        return True
    finally:
        task.dataloader_idx = None


def _hooks(task: LightningTask) -> Hooks:
    return Hooks(
        homes={name: home.replace("'", '"') for name, home in task.homes.items()},
        train_index=task.takes_index,
        val_index=task.val is not None and HookStep(task.module.validation_step).takes_index,
        manual=task.manual,
    )
