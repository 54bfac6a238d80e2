"""Makes the values about data that the templates read: options of each loader, expressions for
batches and their number.
"""

from __future__ import annotations

import textwrap

from workbench.engine.data.checksums import FIRST, OF_TRAINER
from workbench.export.inputs.collect import Data
from workbench.export.program import hooks
from workbench.export.script_spec import ScriptSpec
from workbench.techniques.limits import is_whole

CONVERTED = (
    "column if isinstance(column, torch.Tensor) else torch.as_tensor(np.array(column, dtype=kind))"
)
"""The expression for a tensor from a data frame, or from an array that torch does not accept
directly.
"""
_OPTIONS = ("batches", "sampler", "generator", "collate_fn", "worker_init_fn")


def values(r: ScriptSpec) -> dict[str, object]:
    """The values of the templates that read the data."""
    samples = samples_of(r)
    return {
        "checksums": checksums(r),
        "first_numbers": f"{FIRST:_}",
        "of_trainer": "\n".join(
            f'"{line}"' for line in textwrap.wrap(" ".join(OF_TRAINER), 88, drop_whitespace=False)
        ),
        "converted": CONVERTED,
        "converts_columns": any(data.columns and data.converted for data in r.loaders),
        "samples": samples,
        # batches, among processes or workers
        "shares": not r.single_process_reason or bool(r.settings.num_workers),
        "copies_counted": r.accumulates and r.train.reuses_memory and r.counts(r.train),
        "reuses_memory": any(data.reuses_memory and data.kind != "samples" for data in r.loaders),
        "loader_kind": (
            "CountingLoader" if any(r.counts(data) for data in r.loaders) else "DataLoader"
        ),
        "options": [name for name in _OPTIONS if _differs(r, samples, name)],
        "common": common(r),
        "windows": (
            ""
            if r.windows is None
            else ", ".join(f"{begin}: {size}" for begin, size in sorted(r.windows.items()))
        ),
        "with_set_epoch": _with_set_epoch(r),
        "batches": _batches(r),
        "batches_left": _batches(r) if r.tbptt or r.uses_batch_idx else f"iter({_batches(r)})",
        "batches_in_epoch": batches_in_epoch(r),
        "updates_in_epoch": updates_in_epoch(r),
        "total_updates": _total_updates(r),
        "refreshing_batches": (
            first(r.train, "training_batches()", "limit") if r.limits else "training_batches()"
        ),
        "sanity_batches": _sanity_batches(r),
        "val_sets": "given_val" if r.val is not None and r.val.before else "val_sets",
        "val_batches": hooks.val_batches(r, r.val),
    }


def checksums(r: ScriptSpec) -> dict[str, list[str]]:
    """The checksums of the run that its script can compare."""
    recorded = r.checksums
    shuffles = (
        r.train.kind == "samples"
        and r.settings.shuffle
        and not (r.train.sampler or r.train.batch_sampler)
    )
    found = {
        "weights": [recorded.weights],
        "setup": [recorded.setup],
        "order": [recorded.order] if shuffles else [],
        "batches": list(recorded.batches),
    }
    return {what: sums for what, sums in found.items() if sums and all(sums)}


# ---- loaders -------------------------------------------------------------------------------------


def samples_of(r: ScriptSpec) -> list[Data]:
    """The data that are read sample by sample."""
    return [data for data in r.loaders if data.kind == "samples"]


def wraps(data: Data) -> bool:
    """Whether the script makes a data set from ready batches."""
    return data.kind == "batches" and not data.iterable and ".dataset" not in data.dataset


def given_options(r: ScriptSpec, data: Data) -> list[str]:
    """The arguments of `make_loader` that differ between the loaders."""
    return [
        f"{name}={value}"
        for name, value in _options(r, data).items()
        if value and _differs(r, samples_of(r), name)
    ]


def of_stream(r: ScriptSpec, data: Data) -> list[str]:
    """The user's functions, as arguments of a DataLoader."""
    return [
        f"{name}={value}"
        for name, value in _options(r, data).items()
        if value and name in ("collate_fn", "worker_init_fn")
    ]


def _differs(r: ScriptSpec, samples: list[Data], option: str) -> bool:
    """Whether an option must be given for each loader."""
    if option == "collate_fn":
        return (
            any(data.collate not in (None, "collate") for data in samples)
            or len({collate_of(r, data) for data in samples}) > 1
        )
    return any(_options(r, data).get(option) for data in samples)


def _options(r: ScriptSpec, data: Data) -> dict[str, str | None]:
    return {
        "batches": data.batch_sampler,
        "sampler": None if data.batch_sampler else data.sampler,
        "generator": data.generator,
        "collate_fn": collate_of(r, data),
        "worker_init_fn": (
            f"WorkerInit({data.worker_init})"
            if data.kind == "samples" and data.worker_init
            else data.worker_init
        ),
    }


def collate_of(r: ScriptSpec, data: Data) -> str | None:
    """The user's collate function; wrapped in `Counted` where a batch's weight is the number of
    samples from which it was made.
    """
    return f"Counted({data.collate})" if r.counts(data) else data.collate


def samples_in(r: ScriptSpec, data: Data) -> str:
    """The expression for the number of samples in `batch`, before it is moved to the device."""
    return "CountingLoader.samples[id(batch)]" if r.counts(data) else data.count


def common(r: ScriptSpec) -> list[str]:
    """Options that all loaders have."""
    s = r.settings
    found = []
    if s.num_workers:
        found.append("num_workers=config.num_workers")
        if s.persistent_workers:
            found.append("persistent_workers=config.num_workers > 0")
        if s.prefetch_factor is not None:
            found.append(f"prefetch_factor={s.prefetch_factor} if config.num_workers else None")
    if s.pin_memory is None and s.accelerator != "cpu" and all(data.pinned for data in r.loaders):
        found.append("pin_memory=torch.cuda.is_available()")
    elif s.pin_memory:
        found.append("pin_memory=True")
    return found


# ---- batches -------------------------------------------------------------------------------------


def first(data: Data | None, name: str, count: str) -> str:
    """The first batches of a loader, as an expression."""
    return (
        f"first_of({name}, {count})"
        if data is not None and data.sized
        else f"itertools.islice({name}, {count})"
    )


def _with_set_epoch(r: ScriptSpec) -> list[str]:
    """The samplers and data sets with a `set_epoch`."""
    read = [r.train, *([r.val] if r.val is not None and r.validates else [])]
    return list(dict.fromkeys(part for one in read for part in one.with_set_epoch))


def _batches(r: ScriptSpec) -> str:
    """The training batches of an epoch."""
    found = first(r.train, "loader", "limit") if r.limits else "loader"
    found = (
        f"map(copy.deepcopy, {found})"
        if r.accumulates and r.train.reuses_memory and not r.counts(r.train)
        else found
    )
    found = f"compared({found})" if "batches" in checksums(r) else found
    if r.tbptt:
        return (
            f"pieces({found},"
            f" config{', network' if r.hooks is not None and r.hooks.splits else ''})"
        )
    return f"enumerate({found})" if r.uses_batch_idx else found


def val_batches_of(r: ScriptSpec, loader: str) -> str:
    """The batches of a validation."""
    if r.val_sets:
        one = _limited_val(r, loader)
        return (
            "val_loaders"
            if one == loader
            else f"{{name: {one} for name, val_loader in val_loaders.items()}}"
        )
    return _limited_val(r, loader)


def _limited_val(r: ScriptSpec, loader: str) -> str:
    limit = r.settings.limit_val_batches
    if is_whole(limit):
        return loader
    if isinstance(limit, float):
        return f"first_of({loader}, int(len(val_loader) * config.limit_val_batches + 1e-9))"
    return first(r.val, loader, "config.limit_val_batches")


def _sanity_batches(r: ScriptSpec) -> str:
    """The batches of the sanity check."""
    if r.val_sets:
        return (
            f"{{name: {_sanity_batches_in(r, _kept(r, 'val_loader'))} for name, val_loader in"
            " validation_loaders().items()}"
        )
    return _sanity_batches_in(r, _kept(r, "validation_batches()"))


def _kept(r: ScriptSpec, loader: str) -> str:
    """A loader whose pass leaves samplers, and data with a state, as they were."""
    return f"kept_apart({loader})" if r.keeps_val_data else loader


def _sanity_batches_in(r: ScriptSpec, batches: str) -> str:
    number, limit = r.settings.num_sanity_val_steps, r.settings.limit_val_batches
    if number < 0:
        return _limited_val(r, batches)
    if isinstance(limit, float) and not is_whole(limit):
        return f"itertools.islice({_limited_val(r, batches)}, {number})"
    return first(r.val, batches, str(number if is_whole(limit) else min(number, int(limit))))


def batches_in_epoch(r: ScriptSpec) -> str:
    """The number of batches in an epoch."""
    limit = r.settings.limit_train_batches
    if not r.limits:
        return "len(loader)"
    if isinstance(limit, float):
        return "int(len(loader) * config.limit_train_batches + 1e-9)"
    return (
        "min(config.limit_train_batches, len(loader))"
        if r.train.sized
        else "config.limit_train_batches"
    )


def updates_in_epoch(r: ScriptSpec) -> str | None:
    """The number of updates in an epoch; None where it is unknown before the epoch."""
    if r.tbptt or not (r.train.sized or r.limits):
        return None
    batches = "limit" if r.limits else "len(loader)"
    return f"-(-{batches} // {r.window})" if r.accumulates else batches


def _total_updates(r: ScriptSpec) -> str:
    """The number of updates of the run, for the progress bar; "None" where it is unknown."""
    known, updates = updates_in_epoch(r), None if r.max_steps is None else "config.max_steps"
    if r.max_epochs is not None and known is not None and r.windows is None:
        epochs = f"config.max_epochs * {known}"
        updates = epochs if updates is None else f"min({updates}, {epochs})"
    return str(updates)


def scheduled_updates(r: ScriptSpec) -> str:
    """The number of updates that the scheduler is made for."""
    known = updates_in_epoch(r)
    if r.ended_at is not None or r.windows is not None or (known is None and r.max_steps is None):
        return "config.scheduled_steps"
    if r.max_epochs is None or known is None:
        return "config.max_steps"
    total = f"config.max_epochs * {known}"
    return total if r.max_steps is None else f"min(config.max_steps, {total})"
