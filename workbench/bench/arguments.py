"""Checks the arguments of a bench and its methods, and the values of its attributes."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from workbench.bench.overrides import OVERRIDES
from workbench.engine.validation.monitors import refuse_unreported
from workbench.settings import MODES, Settings, SettingsError, metadata_of
from workbench.settings.without_effect import without_effect
from workbench.task.data.loader_parts import Collate, Parts
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.lightning.callbacks.translate import any_from_lightning, translated, with_hooks
from workbench.task.lightning.overrides import has_loader, spec_of
from workbench.task.lightning.unsupported import refuse_callbacks
from workbench.task.protocol import Task
from workbench.techniques.cadence import refuse_no_interval
from workbench.values import shown

_OF_TRAINING = (
    "optimisation",
    "length",
    "validation",
    "early stopping",
    "averaging",
    "scheduled searches",
    "checkpoints",
)
"""Groups of settings that only training reads."""
_OF_MODELS = ("batch_size", "precision", "compile")
"""Groups of settings that all uses of a model share."""


_TAKE_CALLBACKS = ("Workbench", "set", "fit")


def settings_named(
    keywords: Mapping[str, Any],
    called: Callable[..., Any],
    name: str = "",
    others: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the settings among the keyword arguments of a method, with those of the command line;
    for any other name, `SettingsError` suggests the right one. others: more names that the method
    takes.

    Callbacks of Lightning's become settings, and the caller's line gets a warning that says which.
    """
    if "logger" in keywords:
        refuse_callbacks(keywords["logger"], "logger=")
    method = name or called.__name__
    refuse_backend(keywords)
    if "callbacks" in keywords and any_from_lightning(keywords["callbacks"]):
        if method not in _TAKE_CALLBACKS:
            raise SettingsError(
                f"callbacks= has no effect on {method}(): give them to the bench, or to fit()."
            )
        hooked = with_hooks(keywords["callbacks"])
        if hooked and method != "Workbench":
            name = type(hooked[0]).__name__
            raise SettingsError(
                f"callbacks=: {name} works by its hooks, which all jobs of a bench call: give it to"
                " the bench, wb.Workbench(…, callbacks=[…])."
            )
        keywords = _with_callbacks(keywords)
    parameters = [
        parameter
        for parameter, p in inspect.signature(called).parameters.items()
        if p.kind is not p.VAR_KEYWORD
    ]
    chosen = Settings.named(keywords, method, [*parameters, *others])
    return OVERRIDES.applied(chosen, method)


def _with_callbacks(keywords: Mapping[str, Any]) -> dict[str, Any]:
    settings, note = translated(keywords["callbacks"], "callbacks=")
    rest = {name: value for name, value in keywords.items() if name != "callbacks"}
    if twice := rest.keys() & settings.keys():
        name = min(twice)
        raise SettingsError(
            f"{name}={shown(rest[name])} is given, and callbacks= sets "
            f"{name}={shown(settings[name])}: leave one out."
        )
    if note:
        warnings.warn(note, stacklevel=4)
    return {**rest, **settings}


def refuse_unnamed(model: Any, unnamed: Sequence[Any]) -> None:
    """Raise TaskError for arguments of a new bench without a name, with the call that was
    probably meant.
    """
    if not unnamed:
        return
    arguments = (model, *unnamed)
    data = (
        "train=datamodule"
        if any(hasattr(argument, "train_dataloader") for argument in arguments)
        else "train=…, val=…"
    )
    loss = "" if any(hasattr(argument, "training_step") for argument in arguments) else ", loss=…"
    raise TaskError(
        f"wb.Workbench({', '.join(type(argument).__name__ for argument in arguments)}): the model "
        "comes first, and all other arguments are given by name: "
        f"wb.Workbench(model, {data}{loss})."
    )


def first_settings(task: Task, given: dict[str, Any]) -> Settings:
    """Return the settings of a new bench: what was given, else what the user's objects imply,
    else the defaults.
    """
    compiled = {} if task.compiler is None else {"compile": True}
    implied = dict(task.implied_by(given))
    task.own_lr = implied.get("lr", task.own_lr)
    if given.get("monitor", implied.get("monitor")) != implied.get("monitor"):
        implied.pop("monitor_mode", None)  # it was the mode of another monitor
    settings = Settings.make(**{**compiled, **implied, **given})
    task.refuse_optimizer(settings)
    refuse_without_effect(task, settings, given)
    task.refuse_unused(given)
    samples = task.train.samples if task.train is not None else None
    if (
        "batch_size" not in given
        and samples
        and settings.batch_size > samples
        and not settings.drop_last
    ):
        return settings.replace(batch_size=samples)  # no limit was set, and it is the same batch
    return settings


def callback_note(task: Task, given: Mapping[str, Any], typed: Mapping[str, Any]) -> str:
    """Say which settings the module's own callbacks became; "" where it has none.

    given: the settings of the call, of which `typed` has the arguments as they were written.
    SettingsError: `callbacks=` and the module want different values, where Lightning would take the
    module's.
    """
    if task.preparation is None or not task.preparation.callback_note:
        return ""
    from_callbacks = task.preparation.callback_settings
    overridden = sorted(
        name for name in from_callbacks.keys() & given.keys() if given[name] != from_callbacks[name]
    )
    clash = next((name for name in overridden if name not in typed), None)
    if clash is not None:
        raise SettingsError(
            f"callbacks= sets {clash}={shown(given[clash])}, and the module's configure_callbacks "
            f"sets {clash}={shown(from_callbacks[clash])}: leave one out."
        )
    return task.preparation.callback_note + (
        f" Given instead: {', '.join(overridden)}." if overridden else ""
    )


def refuse_unfit(task: Task, settings: Settings) -> None:
    """Raise an error for settings that no fit of this bench could have, above all a monitor that
    nothing reports.
    """
    try:
        refuse_no_interval(settings)
    except TaskError as error:
        raise SettingsError(str(error)) from None
    task.refuse_optimizer(settings)
    refuse_unreported_monitor(task, settings)


def refuse_unreported_monitor(task: Task, settings: Settings) -> None:
    """Raise SettingsError for a monitor that nothing reports."""
    try:
        refuse_unreported(task, settings)
    except TaskError as error:
        raise SettingsError(str(error)) from None


def refuse_of_training(kind: str, given: Mapping[str, Any]) -> None:
    """Raise SettingsError for a setting that only training reads, in a job that trains nothing."""
    for name, value in given.items():
        if metadata_of(name).group in _OF_TRAINING and name not in _OF_MODELS:
            raise SettingsError(
                f"{name}={shown(value)} has no effect on {kind}(), which trains nothing. Leave"
                f" {name} out."
            )


def refuse_without_effect(task: Task, settings: Settings, names: Iterable[str]) -> None:
    """Raise SettingsError for one of these settings, which the user gave, that has no effect
    beside the others.
    """
    for text in given_without_effect(task, settings, names).values():
        raise SettingsError(text)


def given_without_effect(task: Task, settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """Those of these settings that have no effect beside the others, each with the reason."""
    reasons = without_effect(settings, names)
    if task.hooks is not None:  # its configure_gradient_clipping gets the algorithm in any case
        reasons.pop("gradient_clip_algorithm", None)
    return reasons


def refuse_backend(given: Mapping[str, Any]) -> None:
    """Raise SettingsError for a `compile` that is the name of no backend of torch.compile."""
    wanted = given.get("compile")
    name = wanted.get("backend") if isinstance(wanted, dict) else wanted
    if not isinstance(name, str) or name in MODES:
        return
    import torch._dynamo as dynamo  # takes seconds, and only such a setting needs it

    try:
        dynamo.lookup_backend(name)
    except Exception as error:
        known = ", ".join(map(repr, [*MODES, *dynamo.list_backends()]))
        raise SettingsError(
            f"compile={wanted!r}: should be True, False, or a mode or backend of torch.compile"
            f" ({known})."
        ) from error


PUBLIC = ("model", "root", "summary", "jobs", "studies")
"""Attributes that are set when a bench is made, and are read-only afterwards."""


def why_not_set(bench: type, name: str, value: Any) -> str:
    """Say what to write instead of `bench.name = value`, as text for an error. bench: its class."""
    text = shown(value) if isinstance(value, (bool, int, float, str, type(None))) else "…"
    if name in Settings.model_fields:
        return (
            f"bench.{name} = {text} would change nothing: settings are changed by"
            f" bench.set({name}={text})."
        )
    if name == "settings":
        return "bench.settings cannot be set: bench.set(lr=…) replaces some of them."
    if name in inspect.signature(bench).parameters:
        return (
            f"bench.{name} cannot be set: {name} is given when a bench is made, wb.Workbench(…,"
            f" {name}=…). Make another bench."
        )
    if name in PUBLIC or isinstance(getattr(bench, name, None), property):
        return f"bench.{name} cannot be set: it is read-only."
    near = difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=0.6)
    hint = (
        f" Did you mean bench.set({near[0]}={text})?"
        if near
        else " Settings are changed by bench.set(…)."
    )
    return f"bench.{name} = {text} would do nothing: a bench has no attribute of that name.{hint}"


def spec_to_predict(data: Any, collate_fn: Collate | None) -> DataSpec:
    """Return the spec of the data for a prediction: anything that the bench takes as data, or a
    single array of inputs.
    """
    if has_loader(data, "predict_dataloader"):
        spec = spec_of("predict", data)
        assert spec is not None
        return spec
    if isinstance(data, (Tensor, np.ndarray)):
        if data.ndim == 0:
            raise TaskError(
                "data holds a single number; an array needs a first dimension of samples."
            )
        if not len(data):
            raise TaskError("data is empty: it has 0 samples, and at least one is needed.")
        return DataSpec("data", Parts(data))  # type: ignore[arg-type]  # its rows are the samples
    # A loader makes its own batches; the bench's setting is for samples.
    return DataSpec.of("data", data, None if isinstance(data, DataLoader) else collate_fn)
