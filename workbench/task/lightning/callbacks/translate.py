"""Translates Lightning's callbacks into settings: for `callbacks=[EarlyStopping("val_loss")]` a fit
has a setting of its own.

A subclass, which may do something else, and an option without a counterpart are refused with the
remedy. The hooks of other callbacks are called (callback_hooks.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workbench.metric_mode import known_mode
from workbench.task.errors import TaskError
from workbench.task.lightning.overrides import from_lightning
from workbench.task.lightning.unsupported import CALLBACKS, kind_of, refuse_callbacks
from workbench.values import EarlyStopping, shown

_NOTHING = "nothing: "
"""The beginning of the remedy for callbacks whose work every fit does anyway."""


def translated(callbacks: Any, where: str) -> tuple[dict[str, Any], str]:
    """The settings that replace these callbacks of Lightning, and a sentence about which callback
    became which setting.

    where: where they were given, for errors. Raises TaskError for one that has no counterpart and
    for an object that is not Lightning's; the callbacks of `with_hooks` are left out.
    """
    settings: dict[str, Any] = {}
    sentences = []
    others = with_hooks(callbacks)
    for callback in _listed(callbacks):
        if any(callback is other for other in others):
            continue
        name = type(callback).__name__
        exact = from_lightning(type(callback))
        if exact and name in _TRANSLATIONS:
            callback_settings, notes = _TRANSLATIONS[name](callback, f"{where}: {name}")
            _add(settings, callback_settings, f"{where}: {name}")
            text = (
                ", ".join(
                    f"{key}={_typed(value)}"
                    for key, value in callback_settings.items()
                    if value is not None
                )
                or "what a fit does anyway"
            )
            sentences.append(f"{name} became {text}" + (f" ({', '.join(notes)})" if notes else ""))
        elif exact and (remedy := _remedy(callback)).startswith(_NOTHING):
            sentences.append(f"{name} is not needed, since {remedy.removeprefix(_NOTHING)}")
        else:
            refuse_callbacks([callback], where)
            raise TaskError(
                f"{where}: {shown(callback)} is not a callback of Lightning. Give listeners=[f], "
                "which get every event of a run."
            )
    _refuse_monitors_of_averages(settings, where)
    return settings, f"{where}: {'; '.join(sentences)}." if sentences else ""


def with_hooks(callbacks: Any) -> list[Any]:
    """The callbacks of Lightning whose hooks are called, because they act through their hooks
    alone.
    """
    return [callback for callback in _listed(callbacks) if kind_of(callback) == "Callback"]


def any_from_lightning(callbacks: Any) -> bool:
    """Whether one of these objects is Lightning's, or inherits from one."""
    return any(map(from_lightning, _listed(callbacks)))


def _listed(callbacks: Any) -> Iterable[Any]:
    return callbacks if isinstance(callbacks, (list, tuple, set)) else [callbacks]


def _remedy(callback: Any) -> str:
    names = [base.__name__ for base in type(callback).__mro__]
    return next((text for name, text in CALLBACKS.items() if name in names), "")


def _add(settings: dict[str, Any], additions: Mapping[str, Any], where: str) -> None:
    for name, value in additions.items():
        if name == "early_stopping":
            value = (*settings.get(name, ()), *value)
        elif settings.get(name, value) != value:
            raise TaskError(
                f"{where} asks for {name}={value!r}, and another callback for "
                f"{name}={settings[name]!r}: a fit has one. Leave one out."
            )
        settings[name] = value


def _refuse_monitors_of_averages(settings: Mapping[str, Any], where: str) -> None:
    """Raise TaskError for a monitor together with an EMA: in Lightning the monitor is of the
    averaged weights, and that metric has another name here.
    """
    watched = [stopping.monitor for stopping in settings.get("early_stopping", ())]
    watched += [settings["monitor"]] if "monitor" in settings else []
    if watched and settings.get("weight_averaging") == "ema":
        raise TaskError(
            f"{where}: together with EMAWeightAveraging, Lightning's {watched[0]!r} is that of the"
            f" averaged weights, which has the name '{watched[0]}_averaged' here. Give settings:"
            f" weight_averaging='ema', ema_decay={settings['ema_decay']!r}, and"
            f" early_stopping=wb.EarlyStopping('{watched[0]}_averaged') or"
            f" monitor='{watched[0]}_averaged'."
        )


def _typed(value: Any) -> str:
    if isinstance(value, tuple):
        return _typed(value[0]) if len(value) == 1 else f"[{', '.join(map(_typed, value))}]"
    if isinstance(value, EarlyStopping):
        arguments = value.model_dump(exclude_defaults=True)
        typed = ", ".join(f"{key}={argument!r}" for key, argument in arguments.items())
        return f"wb.EarlyStopping({typed})"
    return repr(value)


def _refuse(where: str, option: str, remedy: str) -> None:
    raise TaskError(f"{where}({option}) has no counterpart: {remedy}.")


_Translated = tuple[dict[str, Any], list[str]]
"""Settings, and what differs from the callback."""


def _early_stopping(callback: Any, where: str) -> _Translated:
    if not callback.strict:
        _refuse(
            where, "strict=False", "every validation has to report the monitor; leave strict out"
        )
    known = known_mode(callback.monitor)
    monitor = EarlyStopping(
        callback.monitor,
        mode=callback.mode,
        patience=callback.patience,
        # the callback stores it with a sign
        min_delta=callback.min_delta if callback.mode == "max" else -callback.min_delta,
        check_finite=callback.check_finite,
        stopping_threshold=callback.stopping_threshold,
        divergence_threshold=callback.divergence_threshold,
    )
    notes = ["it looks at the metric after each validation"]
    if known not in (None, callback.mode):
        notes.append(
            f"a {'lower' if callback.mode == 'min' else 'higher'} {callback.monitor} counts as"
            f" better, as in Lightning: is mode={known!r} meant?"
        )
    return {"early_stopping": (monitor,)}, notes


def _checkpoints(callback: Any, where: str) -> _Translated:
    updates, time, epochs = (
        callback._every_n_train_steps,
        callback._train_time_interval,
        callback._every_n_epochs,
    )
    if epochs > 1:
        _refuse(
            where,
            f"every_n_epochs={epochs}",
            "give every_n_train_steps, or the setting checkpoint_every=500 (updates)",
        )
    settings: dict[str, Any] = {}
    if callback.monitor is not None:
        # None replaces that of another monitor
        mode = None if known_mode(callback.monitor) == callback.mode else callback.mode
        settings = {
            "monitor": callback.monitor,
            "monitor_mode": mode,
            "save_top_k": callback.save_top_k,
        }
    elif callback.save_top_k < 1:
        settings = {"save_top_k": callback.save_top_k}
    if updates:
        settings["checkpoint_every"] = updates
    elif time is not None:
        settings["checkpoint_every"] = {"seconds": time.total_seconds()}
    notes = ["run.checkpoints lists the files", "dirpath and filename are not used"]
    notes += ["they hold optimizers too"] if callback.save_weights_only else []
    notes += ["the last one is always kept"] if callback.save_top_k == 0 else []
    return settings, notes


def _accumulation(callback: Any, where: str) -> _Translated:
    return {"accumulate_grad_batches": {0: 1, **callback.scheduling}}, []


def _average(callback: Any, where: str) -> _Translated:
    if callback.update_starting_at_epoch is not None:
        _refuse(
            where,
            f"update_starting_at_epoch={callback.update_starting_at_epoch}",
            "averaging_start_epoch=… averages every update from an epoch on, where Lightning adds"
            " one at the end of each epoch",
        )
    if set(callback._kwargs) != {"avg_fn"}:
        _refuse(
            where,
            ", ".join(f"{name}=…" for name in callback._kwargs if name != "avg_fn"),
            "give avg_fn= to the bench",
        )
    decay = inspect.getclosurevars(inspect.unwrap(callback._kwargs["avg_fn"])).nonlocals["decay"]
    settings = {"weight_averaging": "ema", "ema_decay": decay, "ema_warmup": False}
    notes = ["its metrics have names of their own, val_loss_averaged"]
    if callback._use_buffers:
        notes.append("buffers, such as batch-norm statistics, are not averaged")
    if callback.update_every_n_steps != 1:
        settings["averaging_every_n_steps"] = callback.update_every_n_steps
        notes.append("of every n-th update it takes n, 2n, …, Lightning 1, n + 1, …")
    if callback.update_starting_at_step:
        settings["averaging_start"] = callback.update_starting_at_step
    return settings, notes


def _swa(callback: Any, where: str) -> _Translated:
    rates, start = callback._swa_lrs, callback._swa_epoch_start
    if isinstance(rates, list) and len({*rates}) > 1:
        _refuse(where, f"swa_lrs={rates}", "swa_lrs is one rate for all groups of parameters")
    if callback._avg_fn is not callback.avg_fn:
        _refuse(where, "avg_fn=…", "give avg_fn= to the bench")
    if not isinstance(start, int):
        _refuse(
            where,
            f"swa_epoch_start={start}",
            "Lightning begins one epoch before that share of max_epochs. Give the epoch as an int,"
            " from 1; or the settings weight_averaging='swa',"
            f" swa_lrs={rates[0] if isinstance(rates, list) else rates}, swa_epoch_start={start}",
        )
    return {
        "weight_averaging": "swa",
        "swa_lrs": rates[0] if isinstance(rates, list) else rates,
        "swa_epoch_start": max(start - 1, 0),  # Lightning counts from 1
        "annealing_epochs": callback._annealing_epochs,
        "annealing_strategy": callback._annealing_strategy,
    }, ["it averages at the ends of epochs, Lightning at their starts"]


def _timer(callback: Any, where: str) -> _Translated:
    if callback._interval != "step":
        _refuse(
            where,
            f"interval={str(callback._interval)!r}",
            "max_time ends a fit after an update; leave interval out",
        )
    return {} if callback._duration is None else {"max_time": {"seconds": callback._duration}}, []


_TRANSLATIONS: Mapping[str, Callable[[Any, str], _Translated]] = {
    "EarlyStopping": _early_stopping,
    "ModelCheckpoint": _checkpoints,
    "GradientAccumulationScheduler": _accumulation,
    "EMAWeightAveraging": _average,
    "StochasticWeightAveraging": _swa,
    "Timer": _timer,
}
