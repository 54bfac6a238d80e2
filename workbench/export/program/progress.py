"""Makes the values about a run's progress that the templates read: when it validates, when it
ends, what a checkpoint stores.
"""

from __future__ import annotations

from typing import Any

from workbench.export.inputs.collect import Data, at, quoted
from workbench.export.program import hooks, optimizers
from workbench.export.script_spec import ScriptSpec
from workbench.metric_mode import AVERAGED

Monitor = dict[str, Any]
"""The variables and conditions in `main` for one metric that may end the run."""


def values(r: ScriptSpec) -> dict[str, object]:
    """The values of the templates that count epochs, end the run and print its progress."""
    monitors = _monitors(r)
    resumes = not refusal(r)
    between = (
        r.owns("on_train_epoch_end")
        or bool(hooks.progress(r, "current_epoch", ""))
        or bool(r.logged.in_epochs)
    )
    looks = _counts_looks(r)
    noted = "logged.update" if r.logs_widely else "logged"
    kept = {"best": r.best is not None, "looked": r.may_skip_updates, "looks": looks}
    return {
        "monitors": monitors,
        "monitors_together": _together(r),
        "counts_looks": looks,
        "noted": noted,
        "noted_on_bar": (
            f"{noted}.items(){f' if name in {quoted(r.logged.on_bar)}' if len(r.logged.on_bar) < len(r.logged.in_updates) else ''}"
        ),
        "logs_after_batch": bool(r.logged.in_updates) and r.owns("on_train_batch_end"),
        "between": between,
        "nonlocals": [*(name for name, holds in kept.items() if holds), *_remembered(monitors)],
        "training_score": (
            "mean_of(losses)"
            if r.monitors_train_loss
            else (
                '{"loss": float(total) /'
                f" {'max(1, step - began)' if r.may_skip_updates else '(step - began)'}}}"
            )
        ),
        "check_in_epoch": _check_in_epoch(r),
        "check_after_epoch": _check_after_epoch(r, between) if r.validates_in_epoch else "",
        "check_due": (
            ""
            if r.settings.check_val_every_n_epoch in (1, None)
            else " or ".join(["(epoch + 1) % config.check_val_every_n_epoch == 0", *_last(r)])
        ),
        "epoch_ends": _epoch_ends(r),
        "ema_due": _ema_due(r),
        "swa_due": (
            "epoch >= config.swa_epoch_start"
            if r.given("should_update") is None
            else "should_average(step, epoch)"
        ),
        "replays_between_epochs": (
            any(step in r.resume_points.all for step, _ in r.changes)
            or (bool(r.changes) and (r.settings.find_lr_at or r.settings.find_batch_size_at))
        ),
        "replays_after_epoch": (
            r.epoch_ends
            and (
                r.has_swa_lrs
                or any(s.interval == "epoch" or s.monitor is not None for s in r.schedules)
            )
        ),
        "done": "epoch" if r.max_steps is not None else "first_epoch" if resumes else "",
        "resumes": resumes,
        "has_length": has_length(r),
        "keeps_gradients": _keeps_gradients(r),
        "stateful": _stateful(r),
        "generators": _generators(r),
        "started": [
            name
            for name, data in _loaders(r)
            if data.kind == "samples" and r.settings.num_workers and r.settings.persistent_workers
        ],
        "progress_of": _progress(r),
    }


# ---- validations and ends ------------------------------------------------------------------------


def _counts_looks(r: ScriptSpec) -> bool:
    """Whether the validations must be counted."""
    return any(s.monitor is not None and s.frequency > 1 for s in r.schedules)


def _monitors(r: ScriptSpec) -> list[Monitor]:
    """The metrics that may end the run, each with the variables and the conditions for it."""
    found = []
    for number, m in enumerate(r.monitors, 1):
        own = f"_{number}" if len(r.monitors) > 1 else ""
        lower = m.direction == "min"
        best, wait, checks = (
            f"{'lowest' if lower else 'highest'}{own}",
            f"wait{own}",
            f"checks{own}",
        )
        better, worse = ("<", ">") if lower else (">", "<")
        ends = [f"{wait} >= {max(1, m.patience)}"]
        ends += ["not math.isfinite(value)"] if m.check_finite else []
        ends += [] if m.stopping_threshold is None else [f"value {better} {m.stopping_threshold!r}"]
        ends += (
            [] if m.divergence_threshold is None else [f"value {worse} {m.divergence_threshold!r}"]
        )
        delta = f" {'+' if lower else '-'} {m.min_delta!r}" if m.min_delta else ""
        first = f'{"" if lower else "-"}float("inf")'
        found.append(
            {
                "metric": quoted(m.monitor),
                "best": best,
                "wait": wait,
                "checks": checks,
                "warmup": m.warmup,
                "finite": m.check_finite,
                "improves": f"value{delta} {better} {best}",
                "ends": " or ".join(ends),
                "begins": (
                    f"{best}, {wait}, {checks} = {first}, 0, 0"
                    if m.warmup
                    else f"{best}, {wait} = {first}, 0"
                ),
                "late": comes_late(r, m.monitor),
                "names": [best, wait, *([checks] if m.warmup else [])],
            }
        )
    return found


def _remembered(monitors: list[Monitor]) -> list[str]:
    """The variables whose values are kept from one validation to the next."""
    return [name for one in monitors for name in one["names"]]


def is_of_average(r: ScriptSpec, name: str) -> bool:
    """Whether a metric is that of the averaged weights, and not just one whose own name ends in
    the same way.
    """
    return r.averages and name.endswith(AVERAGED)


def comes_late(r: ScriptSpec, name: str) -> bool:
    """Whether a metric may have no value yet: before the first average, or if no loss of an
    epoch was recorded.
    """
    gaps = (
        r.may_skip_updates or r.settings.log_every_n_steps > 1 or r.settings.on_nonfinite == "skip"
    )
    return is_of_average(r, name) or ((name == "train_loss" or name in r.logged.in_epochs) and gaps)


def ended_by_metric(r: ScriptSpec, finished: str) -> str:
    """The condition under which a metric ends the run; for several metrics it is the variable
    "ended".
    """
    also = [
        *hooks.may_end(r, finished),
        *([at(r.resume_points.all, no=True)] if r.resume_points.all else []),
    ]
    verdict = "ended" if _together(r) else _monitors(r)[0]["ends"]
    return " and ".join([f"({verdict})" if also and " or " in verdict else verdict, *also])


def _together(r: ScriptSpec) -> bool:
    """Whether the verdict is made up of several, of which some may be missing."""
    return len(r.monitors) > 1 or any(comes_late(r, one.monitor) for one in r.monitors)


def _check_in_epoch(r: ScriptSpec) -> str:
    """The condition for a validation between two updates of an epoch; after the epoch's last
    update there is another one.
    """
    if not r.validates_in_epoch:
        return ""
    due = ["step > began", *(["step != looked"] if r.may_skip_updates else [])]
    if isinstance(r.settings.val_check_interval, float):
        due.append("(step - began) % stride == 0")
        if r.settings.check_val_every_n_epoch != 1:
            due.insert(0, "(epoch + 1) % config.check_val_every_n_epoch == 0")
    else:
        due.append("step % config.val_check_interval == 0")
    return " and ".join([*due, *([f"check({check_arguments(r, 'epoch')})"] if r.monitors else [])])


def _check_after_epoch(r: ScriptSpec, between: bool) -> str:
    """The condition for the validation after an epoch that has others in its middle."""
    due = "step % config.val_check_interval == 0"
    if isinstance(r.settings.val_check_interval, float):
        due = "updates_in_epoch % stride == 0"
        if r.settings.check_val_every_n_epoch != 1:
            due = f"(epoch + 1) % config.check_val_every_n_epoch == 0 and {due}"
    either = " or ".join([due, *_last(r)])
    conditions = ["looked != step"] if r.may_skip_updates else []
    called = [f"check({check_arguments(r, 'epoch + 1')})"] if r.monitors and not between else []
    return " and ".join([*conditions, f"({either})" if conditions or called else either, *called])


def check_arguments(r: ScriptSpec, finished: str) -> str:
    """The arguments of the script's `check`, which decides about the end after an epoch.
    finished: the number of epochs done, as an expression.
    """
    losses = "losses" if r.monitors_train_loss else "total / (step - began)"
    return f"epoch, {finished}, {losses}" if r.settings.min_epochs else f"epoch, {losses}"


def _last(r: ScriptSpec) -> list[str]:
    """The conditions under which the run ends after this epoch."""
    asked = hooks.asked_to_end(r, "epoch + 1")
    last = [] if r.max_epochs is None else ["epoch + 1 == config.max_epochs"]
    last += [] if r.max_steps is None else ["step == config.max_steps"]
    last += [f"({asked})" if " and " in asked else asked] if r.may_stop_itself else []
    return last + ([at(r.resume_points.last)] if r.resume_points.last else [])


def _epoch_ends(r: ScriptSpec) -> str:
    """The condition under which an epoch ends after this update, before its last."""
    ends = [] if r.max_steps is None else ["step == config.max_steps"]
    ends += [at(r.resume_points.cut)] if r.resume_points.cut else []
    ends += [hooks.asked_to_end(r, "epoch")] if r.may_stop_itself else []
    return (
        ends[0]
        if len(ends) == 1
        else " or ".join(f"({end})" if " and " in end else end for end in ends)
    )


def _ema_due(r: ScriptSpec) -> str:
    """The condition under which weights are averaged after an update; "" where they always are."""
    s = r.settings
    if r.given("should_update") is not None:
        return "should_average(step, epoch)"
    when = ["step > config.averaging_start"] if s.averaging_start else []
    when += ["step % config.averaging_every_n_steps == 0"] if s.averaging_every_n_steps != 1 else []
    when += ["epoch >= config.averaging_start_epoch"] if s.averaging_start_epoch else []
    return " and ".join(when)


# ---- checkpoints ---------------------------------------------------------------------------------


def refusal(r: ScriptSpec) -> str:
    """Why a killed script could not continue bit by bit; "": it can."""
    s, workers = r.settings, bool(r.settings.num_workers)
    streams = any(data.kind != "samples" for data in r.loaders)
    positions = dict.fromkeys(data.unkept for data in r.loaders if data.unkept)
    reasons = {
        f"no checkpoint keeps where {', '.join(positions)} stands after an epoch": bool(positions),
        "an optimizer holds another one, whose state is in no state_dict": any(
            o.holds_another for o in r.optimizers
        ),
        "its batch size changes on the way": r.changed("batch_size"),
        "the state of a scheduler is not plain data, which torch.load(weights_only=True) could read": any(
            not s.restores for s in r.schedules
        ),
        "its model steps schedulers within accumulated updates": (
            r.manual and r.accumulates and r.scheduled
        ),
        "workers that stay alive keep random numbers of their own (persistent_workers)": (
            workers and streams and bool(s.persistent_workers)
        ),
        "several validation sets are read by workers": workers and bool(r.val_sets),
        "several processes read a stream with workers": workers and streams and r.distributed,
        "several processes share the random numbers of a sampler": (
            r.distributed and any(data.draws for data in r.loaders)
        ),
    }
    return next((why for why, holds in reasons.items() if holds), "") or r.state


def has_length(r: ScriptSpec) -> bool:
    """Whether a schedule is made for the length of the training, which then cannot change."""
    return (r.built_in and optimizers.takes_updates(r)) or any(s.has_length for s in r.schedules)


def _loaders(r: ScriptSpec) -> list[tuple[str, Data]]:
    """The loaders by their names in the script."""
    return [
        ("loader", r.train),
        *([("val_loader", r.val)] if r.val is not None and r.validates and not r.val_sets else []),
    ]


def _stateful(r: ScriptSpec) -> list[str]:
    """The objects with a `state_dict`."""
    names = [name for own in optimizers.schedulers(r) for name in own]
    own = ["*schedulers"] if r.built_in and r.several else names
    return [
        r.weights_of,
        *(["loss_function"] if r.loss_is_module else []),
        "*optimizers" if r.several else "optimizer",
        *own,
        *(["average"] if r.averages_with_torch else []),
        *(["scaler"] if r.scales else []),
    ]


def _generators(r: ScriptSpec) -> list[str]:
    """The generators that advance from epoch to epoch."""
    found = [
        f"{name}.generator"
        for name, data in _loaders(r)
        if r.settings.num_workers or (data is r.train and data.kind == "samples")
    ]
    return [*found, *(generator for _, data in _loaders(r) for generator in data.generators)]


def _progress(r: ScriptSpec) -> dict[str, str]:
    """Further state of the loop that is kept from epoch to epoch: each variable, and the
    expression for its value.
    """
    there = {
        "updates": optimizers.counts_taken(r),
        "counts": optimizers.counts_turns(r),
        "best": r.best is not None,
        "looked": r.validates_in_epoch and r.may_skip_updates,
        "looks": _counts_looks(r),
        "average.weights": r.averages and not r.averages_with_torch,
        "average.count": r.averages and not r.averages_with_torch,
        **{f"config.{name}": r.changed(name) for name in ("lr", "gradient_clip_val")},
    }
    found = {name: name for name, holds in there.items() if holds}
    found |= {name: name for name in _remembered(_monitors(r))}
    # each has batches that count the epochs, unless it is started without workers
    if r.settings.num_workers:
        counted = [f"{name}.batch_sampler" for name, data in _loaders(r) if data.kind == "samples"]
        found |= {f"{name}.epoch": f'getattr({name}, "epoch", 0)' for name in counted}
    found |= {"gradients": f"[p.grad for p in {r.parameters}]"} if _keeps_gradients(r) else {}
    found |= {"buffers": f"list({r.weights_of}.buffers())"} if r.unsaved_buffers else {}
    if r.has_swa_lrs:
        every = "[schedule.state_dict() for schedule in annealing or ()]"
        found["annealed"] = every if r.several else "annealing and annealing.state_dict()"
    return found


def _keeps_gradients(r: ScriptSpec) -> bool:
    """Whether gradients may be left over after an update."""
    return r.manual or r.owns("optimizer_zero_grad")
