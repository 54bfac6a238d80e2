"""Makes all values that the templates read: the ScriptSpec of the run, and expressions derived
from it.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from workbench.events.columns import MARK, recorded_name
from workbench.export.inputs.collect import at, quoted
from workbench.export.program import data, hooks, optimizers, progress
from workbench.export.script_spec import ScriptSpec
from workbench.techniques.averaging import swa_first_epoch

THREADS = "torch.set_num_threads(config.threads)"
"""The line of `main` that sets the number of threads: after the user's code where that sets it,
else before.
"""
_LEAVES_GRADIENTS = re.compile(r"\.(backward|fit)\(")
"""Patterns of code that may have trained the model before."""


def values(r: ScriptSpec) -> dict[str, Any]:
    """The values by name; a value that is a function takes further arguments in the template."""
    about = (
        data.collate_of,
        data.given_options,
        data.of_stream,
        data.samples_in,
        data.val_batches_of,
        hooks.asked_to_end,
        hooks.asks,
        hooks.call,
        hooks.progress,
        hooks.step_schedule,
        optimizers.due,
        optimizers.set_lr,
        progress.check_arguments,
        progress.comes_late,
        progress.is_of_average,
        progress.ended_by_metric,
    )
    return {
        **{function.__name__: functools.partial(function, r) for function in about},
        **{function.__name__: function for function in (at, buffers_of, data.wraps, quoted, repr)},
        **data.values(r),
        **optimizers.values(r),
        **progress.values(r),
        **_of_update(r),
        "run": r,
        "partial": partial(r),
        "settings": r.settings,
        "train": r.train,
        "val": r.val,
        "threads": THREADS,
        "swa_first_epoch": (
            swa_first_epoch(r.settings) if r.settings.weight_averaging == "swa" else 0
        ),
        "compiles": bool(r.settings.compile) and not r.compiled,
        "leaves_gradients": _LEAVES_GRADIENTS.search(r.sliced.code) is not None,
        "toggles": any("toggle" in name for name in r.lightning.methods),
        "trainer_members": hooks.trainer_members(r),
        "broadcast": ", ".join(
            f"*{'model' if name == 'network' else name}.buffers()"
            for name in r.buffers
            if name != "metrics"
        ),
        "gathered": (
            "("
            + "".join(f"{quoted(name)}, " for name in r.metrics.gathered).rstrip(
                " " if len(r.metrics.gathered) == 1 else ", "
            )
            + ")"
        ),
        "average": _average(r),
        "average_update": "update_parameters(network)" if r.averages_with_torch else "update()",
        "own_weights": (
            f' | {{f"{r.loss_prefix}{{k}}": v for k, v in loss_function.state_dict().items()}}'
        ),
    }


def partial(r: ScriptSpec) -> bool:
    """Whether the script averages gradients itself, since DistributedDataParallel expects a
    gradient of each parameter in each update.
    """
    return r.partial or r.lightning.freezes


def buffers_of(holders: tuple[str, ...]) -> str:
    """The buffers of the network, of the loss, or of both, as an expression."""
    return (
        f"{holders[0]}.buffers()"
        if len(holders) == 1
        else f"[{', '.join(f'*{name}.buffers()' for name in holders)}]"
    )


def _average(r: ScriptSpec) -> str:
    """The expression that makes the average of the weights."""
    ema, own = r.settings.weight_averaging == "ema", r.given("avg_fn") is not None
    if not r.averages_with_torch:
        return f"Average(network{', config.ema_decay' * (ema and not own)})"
    # Without multi_avg_fn, AveragedModel rounds a mean on the CPU in another way than on a GPU.
    of_ema = (
        "warming_up(config.ema_decay)"
        if r.settings.ema_warmup
        else "swa_utils.get_ema_multi_avg_fn(config.ema_decay)"
    )
    multi = "multi_avg_fn=" + (of_ema if ema else "swa_utils.get_swa_multi_avg_fn()")
    return f"swa_utils.AveragedModel(network, {'avg_fn=averaged' if own else multi})"


# ---- a batch and its forward pass ----------------------------------------------------------------


def returned(r: ScriptSpec) -> list[str]:
    """The names of the values that a forward pass returns."""
    # a validation also uses the weight
    weighs = r.reports_weight or (r.hooks is None and r.step.reports_weight)
    names = ["loss", *(["weight"] if weighs else [])]
    names += ["output", "target"] if r.hooks is None and r.has_metrics else []
    names += ["hiddens"] if r.tbptt else []
    return [*names, *(["loss_parts"] if r.logged.parts and not r.manual else [])]


def _in_result(r: ScriptSpec, names: list[str]) -> list[str]:
    """The same as expressions of the `result` of the user's step or loss function."""
    in_dict = r.step.in_dict or "weight" in names or ("hiddens" in names and r.hooks is not None)
    loss = (
        'result["loss"] if isinstance(result, dict) else result'
        if r.hooks is not None
        else "result"
    )
    own = {
        "loss": 'result["loss"]' if in_dict else loss,
        "weight": 'result["weight"]',
        "loss_parts": "parts_of(result)",
    }
    own |= {"hiddens": 'result["hiddens"]'} if r.hooks is not None else {}
    return [own.get(name, name) for name in names]


def _marked_part(r: ScriptSpec) -> str:
    """The name of a part in the record, as an expression."""
    marked = tuple(name for name in r.logged.parts if recorded_name(name) != name)
    return f'f"{{name}}{MARK}" if name in {quoted(marked)} else name' if marked else "name"


def _of_update(r: ScriptSpec) -> dict[str, object]:
    names = returned(r)
    needed = {"hiddens", "loss_parts", *(["weight"] if r.reports_weight else [])}
    several_batches, in_turns = (
        r.accumulates or r.distributed,
        r.several and not r.manual and not r.optimizers_alternate,
    )
    item = ", ".join(
        [*(["number"] if r.uses_batch_idx else []), *(["first"] if r.tbptt else []), "batch"]
    )
    steps_apart = r.hooks is not None and not r.manual and (r.reads_outputs or r.distributed)
    clips, algorithm = (
        ("config.gradient_clip_val", quoted(r.settings.gradient_clip_algorithm))
        if r.clips
        else ("None", "None")
    )
    return {
        "returned": names,
        "forward_gives": _forward_gives(r, names),
        "forward_call": _forward_call(r),
        "taken_too": [
            (
                "of_batch"
                if name == "loss_parts" and several_batches
                else name
                if name in needed
                else "_"
            )
            for name in names[1:]
        ],
        "marked_part": _marked_part(r),
        "in_result": _in_result(r, names),
        "in_turns": in_turns,
        "noted_parts": (
            ("(value, _)" if several_batches else "value")
            + " in "
            + ("all_parts" if in_turns else "loss_parts")
        ),
        "gives_loss_alone": set(names[1:]) <= {"output", "target"},
        "splits": r.hooks is not None and r.hooks.splits,
        "item": item,
        "within": f"({item})" if "," in item else item,
        "only_batch": ", ".join("batch" if name == "batch" else "_" for name in item.split(", ")),
        "samples_in_batch": " * ".join(
            [
                *([data.samples_in(r, r.train)] if r.mean else []),
                *([r.train.steps] if r.tbptt else []),
            ]
        ),
        "steps_apart": steps_apart,
        "trained_module": (
            "training"
            if r.trains_loss or steps_apart
            else "network"
            if r.hooks is None
            else "TrainingStep(network)"
        ),
        "holds_graph": not (
            r.distributed
            or r.accumulates
            or r.several
            or r.closure
            or r.manual
            or r.owns("optimizer_step")
        ),
        "alone": "network" if r.hooks is None and not r.trains_loss else "training",
        "evaluated": (
            "window" if r.accumulates else "number, batch" if r.uses_batch_idx else "batch"
        ),
        "readies": r.clips or r.owns("on_before_optimizer_step", "configure_gradient_clipping"),
        "clip_arguments": (f"gradient_clip_val={clips}", f"gradient_clip_algorithm={algorithm}"),
        "optimizer_step_arguments": _optimizer_step_arguments(r),
    }


def _forward_gives(r: ScriptSpec, names: list[str]) -> str:
    """A phrase that names what a forward pass returns."""
    words = {
        "output": "the output",
        "target": "the target",
        "hiddens": "the state after it",
        "loss_parts": "the parts of the loss",
    }
    listed = [
        "loss and weight of a batch" if "weight" in names else "loss of a batch",
        *(words[name] for name in names if name in words),
    ]
    said = (
        listed[0]
        if len(listed) == 1
        else f"{', '.join(listed[:-1])}{',' if len(listed) > 2 else ''} and {listed[-1]}"
    )
    return f"{said}{'; None where there is none' if r.may_skip_batches else ''}"


def _forward_call(r: ScriptSpec) -> str:
    """The forward pass of a training batch."""
    state = "hiddens" if r.may_skip_batches else "None if first else hiddens"
    alone = "network" if r.hooks is None and not r.trains_loss else "training"
    model = "wrapped" if not r.distributed else alone if partial(r) else "through"
    if r.trains_loss:
        return f"{model}(batch{', ' + state if r.tbptt else ''})"
    if r.hooks is None:
        return f"forward({model}, batch{', ' + state if r.tbptt else ''})"
    given = {"optimizer_idx": "turn", "hiddens": state}
    more = [f"{name}={given[name]}" for name in r.extra_arguments]
    return (
        f"{model}({', '.join(['batch', *(['number'] if r.step_takes_batch_idx else []), *more])})"
    )


def _optimizer_step_arguments(r: ScriptSpec) -> list[str]:
    if not r.owns("optimizer_step"):
        return []
    evaluated = "window" if r.accumulates else "number, batch" if r.uses_batch_idx else "batch"
    given = [
        "epoch",
        "window[-1][0]" if r.accumulates else "number",
        "stepping",
        f"functools.partial(evaluate, {evaluated}, evaluations)",
    ]
    return hooks.arguments(r, "optimizer_step", *given)
