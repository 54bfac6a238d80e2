"""Writes `main`: set-up, then a loop with the techniques that were on."""

from __future__ import annotations

import re
from textwrap import dedent

from workbench.export.inputs.collect import Optimizer, quoted
from workbench.export.program import accumulation, checksums, distributed, loaders
from workbench.export.program.checkpoint import best, resume
from workbench.export.program.lightning import hooks, log, trainer
from workbench.export.program.lines import indented
from workbench.export.program.loop import loop
from workbench.export.program.optim import manual, multiple_optimizers, weight_averaging
from workbench.export.program.optim import schedule as block_schedule
from workbench.export.program.update import schedulers, set_lr
from workbench.export.program.validation import early_stopping
from workbench.export.script_spec import ScriptSpec


def main(r: ScriptSpec) -> str:
    """The whole function."""
    parts = [_model(r), _data(r), _optimizer(r), loop(r), _end(r)]
    body = "\n\n".join("\n".join(indented(lines)) for lines in parts)
    options = "" if resume.refusal(r) else ", resume=None"
    return f"def main(config, output, log_file=None{options}, tracker=None):\n{body}"


# ---- set-up -----------------------------------------------------------------------------------------------------


def _model(r: ScriptSpec) -> list[str]:
    # Several processes on CPUs find each other only if accelerate knows that there is no GPU to use.
    cpu = "True" if r.settings.accelerator == "cpu" else "not torch.accelerator.is_available()"
    lines = [threads(r)] if r.sets_threads else []
    lines += [
        f'accelerator = Accelerator(cpu={cpu}, mixed_precision="no", log_with=tracker, project_dir=output)',
        'if accelerator.distributed_type in ("FSDP", "DEEPSPEED"):',
        '    raise SystemExit("This script trains data-parallel: launch it with a config of type MULTI_GPU, not FSDP or DeepSpeed.")',
    ]
    if r.single_process_reason:
        lines += [
            "if accelerator.num_processes > 1:",
            f'    raise SystemExit("This script trains in one process: {r.single_process_reason}.")',
        ]
    lines += [*distributed.process_note(r), *checksums.begun(r)]
    # Before the seed: a tracker may draw random numbers.
    lines.append("accelerator.init_trackers(Path(__file__).stem, dataclasses.asdict(config))")
    if r.settings.deterministic:
        warns = ", warn_only=True" if r.settings.deterministic == "warn" else ""
        lines.append(f"torch.use_deterministic_algorithms(True{warns})")
    if r.settings.deterministic or r.settings.benchmark is not None:
        lines.append(f"torch.backends.cudnn.benchmark = {bool(r.settings.benchmark)}")
    if r.settings.detect_anomaly:
        lines.append("torch.autograd.set_detect_anomaly(True)")
    lines += trainer.made(r)
    for prepared in r.prepare:
        if prepared.endswith(".prepare_data()"):
            lines += ["with accelerator.main_process_first():", f"    {prepared}"]
        else:
            lines.append(prepared)
    if r.hooks is not None:
        lines += [f"{home} = config.{name}" for name, home in r.hooks.homes.items()]
        lines += log.listening(r)
    if r.weights is not None:
        lines += [
            f"start = Path(__file__).with_name({quoted(r.weights)})",
            "if start.exists():",
            *indented(_loaded(r)),
            "else:",
            '    accelerator.print(f"There is no {start}: it begins with the weights that its code makes, and losses may differ from the run\'s.")',
        ]
    if _LEAVES_GRADIENTS.search(r.sliced.code):
        lines += ["network.zero_grad()", *(["loss_function.zero_grad()"] if r.trains_loss else [])]
    return [*lines, *checksums.weights(r), "if not network.training:", "    network.train()"]


_LEAVES_GRADIENTS = re.compile(r"\.(backward|fit)\(")
"""What in the user's code may have trained the model before."""


def _loaded(r: ScriptSpec) -> list[str]:
    """The lines that load the weights that the run began with."""
    if not r.trains_loss:
        return [f"load_model({r.weights_of}, str(start))"]
    prefix = quoted(r.loss_prefix)
    return [
        f"load_model({r.weights_of}, str(start), strict=False)  # what begins with " + r.loss_prefix + " is the loss's",
        "own = {name: value for name, value in load_file(str(start)).items() if name.startswith(" + prefix + ")}",
        f"loss_function.load_state_dict({{name.removeprefix({prefix}): value for name, value in own.items()}})",
    ]


def threads(r: ScriptSpec) -> str:
    return f"torch.set_num_threads({r.threads})  # as in the run: with another number, sums are rounded otherwise"


def _data(r: ScriptSpec) -> list[str]:
    lines = [*loaders.saved(r), f"set_seed(config.seed{'' if r.distributed else ', device_specific=True'})"]
    if r.remakes_loader:
        lines += loaders.remade(r, r.train, "loader", "training")
    else:
        lines += loaders.loader(r, r.train, "loader")
    if r.limits:
        lines.append(f"limit = {accumulation.batches_in_epoch(r)}")
    if r.val is not None and (r.validates or r.val.before):
        again = r.tries_validation
        made = loaders.remade(r, r.val, "val_loader", "validation") if again else loaders.loader(r, r.val, "val_loader")
        lines += made if r.validates else list(r.val.before)
    if r.loss_is_module:
        lines.append("loss_function.to(accelerator.device)")
    if r.metrics.modules and r.has_metrics:
        lines += [
            "for metric in metrics.values():",
            "    if isinstance(metric, torch.nn.Module):",
            "        metric.to(accelerator.device)",
        ]
    if r.hooks is None:
        whole = "network"
        if r.trains_loss:
            lines += ["network.to(accelerator.device)", "training = Together(network, loss_function)"]
            whole = "training"
        lines += distributed.wrapped(r, whole) if r.distributed else [f"wrapped = accelerator.prepare_model({whole})"]
    elif r.manual:
        lines.append("network.to(accelerator.device)")
    else:
        training = "TrainingStep(network)"
        lines.append("network.to(accelerator.device)")
        if r.reads_outputs or r.distributed:
            lines.append(f"training = {training}")
            training = "training"
        lines += distributed.wrapped(r, training) if r.distributed else [f"wrapped = accelerator.prepare_model({training})"]
    return [*lines, *trainer.planned(r), *_compiled(r)]


def _compiled(r: ScriptSpec) -> list[str]:
    """The lines that compile the model in place: calls of it go through torch.compile."""
    wanted = r.settings.compile
    if not wanted or r.compiled:
        return []
    if r.hooks is None:
        return ["compile_calls(network)"]
    lists = "(torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)"
    return [
        f"holders = {lists}",
        "for part in [network, *network.children()]:",
        "    if type(part).forward is not torch.nn.Module.forward and not isinstance(part, holders):",
        "        compile_calls(part)",
    ]


def compile_calls(r: ScriptSpec) -> str:
    """A function that compiles a module in place, as engine/runtime/torch_compile.py does."""
    if not r.settings.compile or r.compiled:
        return ""
    backend = f", backend={quoted(r.settings.compile)}" if isinstance(r.settings.compile, str) else ""
    return dedent(f'''\
        def compile_calls(module):
            """Calls of the module go through torch.compile, which looks into torch's own classes only from a function."""

            def call(*args, **kwargs):
                return module._call_impl(*args, **kwargs)

            own = not type(module).forward.__module__.startswith("torch.")
            module._compiled_call_impl = torch.compile(module._call_impl if own else call{backend})''')


# ---- optimizers -------------------------------------------------------------------------------------------------


def _optimizer(r: ScriptSpec) -> list[str]:
    lines = _own_optimizers(r) if r.hooks is not None else _given_optimizer(r)
    lines += ["optimizer.train()"] if r.schedule_free else []
    lines += trainer.configured(r)
    lines += hooks.members(r, [name for names in schedulers(r) for name in names])
    lines += manual.made(r, [name for names in schedulers(r) for name in names])
    if r.scales:
        lines.append("scaler = torch.amp.GradScaler(accelerator.device.type)")
    lines += early_stopping.made(r) if r.monitors else []
    return [*lines, *weight_averaging.made(r), *distributed.seeded(r)]


def _given_optimizer(r: ScriptSpec) -> list[str]:
    rate = ", lr=config.lr" if r.optimizers[0].takes_lr else ""
    decay = "" if r.settings.weight_decay is None else ", weight_decay=config.weight_decay"
    lines = [
        f"parameters = [p for p in {r.parameters} if p.requires_grad]",
        f"optimizer = make_optimizer(parameters{rate}{decay})",
        *_own_rate(r),
        *_parameters(r, made=True),
    ]
    if r.built_in:
        lines += block_schedule.made(r, _updates(r))
    elif r.optimizers[0].schedules:
        lines += _placed(f"make_scheduler(optimizer, {_updates(r)})", r.optimizers, schedulers(r))
    return lines


def _own_rate(r: ScriptSpec) -> list[str]:
    """A function that makes the optimizer at a rate of its own: set the run's rate before it is scheduled."""
    own = r.optimizers[0].made_lr
    return [] if own is None else [f"set_lr(optimizer, {'[], ' if r.scheduled else ''}{own!r}, config.lr)"]


def _placed(made: str, optimizers: tuple[Optimizer, ...], names: list[list[str]]) -> list[str]:
    """The lines that take the schedulers which a function of the user's returned."""
    placed = [
        (name, schedule.place)
        for optimizer, own in zip(optimizers, names, strict=True)
        for schedule, name in zip(optimizer.schedules, own, strict=True)
    ]
    if len(placed) == 1:
        return [f"{placed[0][0]} = {made}{placed[0][1]}"]
    return [f"made = {made}", *(f"{name} = made{place}" for name, place in placed)]


def _parameters(r: ScriptSpec, made: bool) -> list[str]:
    """The line that lists the parameters which the loop reads. made: the script has made them all already."""
    if r.several or r.manual or not multiple_optimizers.needs_parameters(r):
        return []
    if not r.optimizers[0].whole:
        return ["parameters = parameters_of(network, optimizer)"]
    return [] if made else ["parameters = [p for p in network.parameters() if p.requires_grad]"]


def _own_optimizers(r: ScriptSpec) -> list[str]:
    """The lines that take the optimizers and schedulers which the user's object makes."""
    made = "network.configure_optimizers()"
    own = [["" for _ in optimizer.schedules] for optimizer in r.optimizers] if r.built_in else schedulers(r)
    places = [schedule.place for optimizer in r.optimizers for schedule in optimizer.schedules]
    optimizer = r.optimizers[0].place
    if r.several and _is_pair(r, places):
        schedules = ", ".join(name for names in own for name in names) + ("," if len(places) == 1 else "")
        lines = [f"optimizers, ({schedules}) = {made}" if places else f"optimizers = {made}"]
    elif r.several:
        lines = [f"made = {made}", f"optimizers = [{', '.join(f'made{one.place}' for one in r.optimizers)}]"]
        if places:
            lines += [line for line in _placed("made", r.optimizers, own) if line != "made = made"]
    elif not optimizer:
        lines = [f"optimizer = {made}"]
    elif optimizer == "[0][0]" and places == ["[1][0]"]:
        lines = [f"(optimizer,), (scheduler,) = {made}"]
    else:
        lines = [f"made = {made}", f"optimizer = made{optimizer}"]
        lines += [f"{name} = made{place}" for name, place in zip(own[0], places, strict=True)]
    lines += _parameters(r, made=False)
    lines += _decay(r)
    lines += multiple_optimizers.made(r)
    if r.built_in:
        lines += block_schedule.made(r, _updates(r))
    return [*lines, *_rates(r)]


def _is_pair(r: ScriptSpec, places: list[str]) -> bool:
    """Whether optimizers are returned as a plain list, or as two lists (optimizers, schedulers), in their order."""
    at = "[0]" if places else ""
    optimizers = [optimizer.place for optimizer in r.optimizers]
    listed = optimizers == [f"{at}[{n}]" for n in range(len(optimizers))]
    return listed and places == [f"[1][{n}]" for n in range(len(places))]


def _decay(r: ScriptSpec) -> list[str]:
    """The lines that apply the setting weight_decay: parameter groups keep their ratios, and those without decay stay without."""
    if r.settings.weight_decay is None:
        return []
    optimizer, indent = ("one", "    ") if r.several else ("optimizer", "")
    lines = [
        f'leading = next((group["weight_decay"] for group in {optimizer}.param_groups if group.get("weight_decay")), None)',
        f"for group in {optimizer}.param_groups:",
        '    if "weight_decay" in group:',
        '        share = group["weight_decay"] / leading if leading else 1.0',
        '        group["weight_decay"] = share * config.weight_decay',
    ]
    return [*(["for one in optimizers:"] if r.several else []), *(indent + line for line in lines)]


def _rates(r: ScriptSpec) -> list[str]:
    """The lines that set the run's rate, for objects that make their optimizers at a rate of their own."""
    if r.optimizers[0].made_lr is None:
        return []
    first = next((one.made_lr for one in r.optimizers if one.made_lr), 0.0)
    lines = [set_lr(r, repr(first), "config.lr", begun=False)]
    for number, optimizer in enumerate(r.optimizers[1:], 1):
        new = "config.lr" if optimizer.made_lr == first else f"{optimizer.made_lr!r} * (config.lr / {first!r})"
        lines.append(set_lr(r, repr(optimizer.made_lr), new, number, begun=False))
    return lines


def _updates(r: ScriptSpec) -> str:
    """The expression for the number of updates that the scheduler is made for."""
    known = accumulation.updates_in_epoch(r)
    if r.ended_at is not None or r.windows is not None or (known is None and r.max_steps is None):
        return "config.scheduled_steps"
    if r.max_epochs is None or known is None:
        return "config.max_steps"
    total = f"config.max_epochs * {known}"
    return total if r.max_steps is None else f"min(config.max_steps, {total})"


# ---- the end ----------------------------------------------------------------------------------------------------


def save() -> str:
    """A function that writes weights."""
    return dedent('''\
        def save(accelerator, weights, path):
            """Write weights, whole or not at all."""
            if accelerator.is_main_process:
                torch.save(weights, path.with_suffix(".part"))
                path.with_suffix(".part").replace(path)''')


def _end(r: ScriptSpec) -> list[str]:
    # A script that is resumed into another folder may find no better weights.
    best_too = r.best and not resume.refusal(r)
    files = "{' and '.join(saved)}" if best_too else "{output / 'last.pt'}" + (" and {output / 'best.pt'}" if r.best else "")
    return [
        *weight_averaging.handed_over(r),
        *(["optimizer.eval()"] if r.schedule_free else []),
        *hooks.called(r, "on_fit_end"),
        best.saved(r, "last"),
        *(['saved = [str(path) for path in (output / "last.pt", output / "best.pt") if path.exists()]'] if best_too else []),
        f'accelerator.print(f"Saved {files}")',
        *r.teardown,
        *_parted(r),
    ]


def _parted(r: ScriptSpec) -> list[str]:
    """The lines that end trackers and processes. `end_training` would end the process group before the wrapped model goes."""
    if r.single_process_reason:
        return ["accelerator.end_training()"]
    return ["for used in accelerator.trackers:  # not end_training, which ends the processes too early", "    used.finish()", "accelerator.wait_for_everyone()"]
