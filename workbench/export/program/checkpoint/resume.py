"""Writes the checkpoint of a script after each epoch, and `--resume`, which continues from it to the last bit.

One file and torch's own `state_dict`s, not accelerate's `save_state`: that has no generator of a loader, continues silently
where random states cannot be restored, and writes a folder, which cannot replace the former one in one step.
"""

from __future__ import annotations

import json
from textwrap import dedent

from workbench.export.inputs.collect import Data, quoted
from workbench.export.program import checksums
from workbench.export.program.lightning import trainer
from workbench.export.program.lines import indented
from workbench.export.program.optim import weight_averaging
from workbench.export.program.optim.schedule import takes_updates
from workbench.export.program.update import counts_taken, counts_turns, schedulers
from workbench.export.program.validation import validation_schedule
from workbench.export.script_spec import ScriptSpec


def refusal(r: ScriptSpec) -> str:
    """Why a killed script could not continue to the last bit; "" where it can."""
    s, workers = r.settings, bool(r.settings.num_workers)
    streams = any(data.kind != "samples" for data in r.loaders)
    positions = [data.unkept for data in r.loaders if data.unkept]
    reasons = {
        f"no checkpoint keeps where {', '.join(positions)} stands after an epoch": bool(positions),
        "an optimizer holds another one, whose state is in no state_dict": any(o.holds_another for o in r.optimizers),
        "its batch size changes on the way": r.changed("batch_size"),
        "the state of a scheduler is not plain data, which torch.load(weights_only=True) could read": any(not s.restores for o in r.optimizers for s in o.schedules),
        "its model steps schedulers within accumulated updates": r.manual and r.accumulates and r.scheduled,
        "workers that stay alive keep random numbers of their own (persistent_workers)": workers and streams and bool(s.persistent_workers),
        "several processes read a stream with workers": workers and streams and r.distributed,
        "several processes share the random numbers of a sampler": r.distributed and any(data.draws for data in r.loaders),
    }
    return next((why for why, holds in reasons.items() if holds), "") or r.state


def functions(r: ScriptSpec) -> str:
    """The functions that write a checkpoint and read it."""
    if refusal(r):
        return ""
    return dedent('''\
        def save_checkpoint(accelerator, path, settings, stateful, generators, progress):
            """All that the rest of the run depends on, for --resume."""
            device = torch.get_device_module(accelerator.device)
            on_device = device.get_rng_state() if hasattr(device, "get_rng_state") else None
            name, keys, *rest = np.random.get_state()
            numbers = random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state(), on_device
            state = {
                "settings": settings,
                "parts": [type(part).__name__ for part in stateful],
                "stateful": [part.state_dict() for part in stateful],
                "trained": [p.requires_grad for p in stateful[0].parameters()],
                "generators": [generator.get_state() for generator in generators],
                "random": gather_object([numbers]),  # one from each process
                "progress": progress,
            }
            save(accelerator, state, path)


        def load_checkpoint(accelerator, path, settings, stateful, generators):
            """Restore what `save_checkpoint` wrote; returns the progress."""
            places = {"cuda:0": str(accelerator.device)}  # the first process wrote it
            try:
                state = torch.load(path, map_location=places, weights_only=True)
            except Exception as error:  # of many types
                raise SystemExit(f"{path} is no checkpoint: torch.load cannot read it ({type(error).__name__}).") from error
            parts = [type(part).__name__ for part in stateful]
            keys = {"settings", "parts", "stateful", "trained", "generators", "random", "progress"}
            if not isinstance(state, dict) or state.keys() != keys or state["parts"] != parts or state["settings"].keys() != settings.keys():
                raise SystemExit(
                    f"{path} is no checkpoint of this script: another program or script wrote it. "
                    "Name a checkpoint.pt of this script, or leave --resume out to begin anew."
                )
            if len(state["random"]) != accelerator.num_processes:
                raise SystemExit(f"{path} was written by {len(state['random'])} processes: resume with as many.")
            for name, value in state["settings"].items():
                if settings[name] != value@free:
                    raise SystemExit(f"{name} is {settings[name]}, and {path} was trained with {value}: resume with --{name} {value}.")
            try:
                for part, value in zip(stateful, state["stateful"]):
                    part.load_state_dict(value)
            except (RuntimeError, ValueError) as error:
                raise SystemExit(f"{path} is a checkpoint of another script: {error}") from error
            for parameter, value in zip(stateful[0].parameters(), state["trained"]):
                parameter.requires_grad_(value)
            for generator, value in zip(generators, state["generators"]):
                generator.set_state(value)
            python, numpy, cpu, on_device = state["random"][accelerator.process_index]
            random.setstate(python)
            np.random.set_state(numpy)
            torch.set_rng_state(cpu)
            if on_device is not None:
                torch.get_device_module(accelerator.device).set_rng_state(on_device)
            return state["progress"]''').replace("@free", "" if _has_length(r) else ' and name not in ("max_epochs", "max_steps")')


def _has_length(r: ScriptSpec) -> bool:
    """Whether a schedule is made for the length of the training, which then cannot change."""
    return (r.built_in and takes_updates(r)) or any(s.has_length for o in r.optimizers for s in o.schedules)


# ---- lines of main ----------------------------------------------------------------------------------------------


def cleared(r: ScriptSpec) -> list[str]:
    """The lines that remove what an earlier run of the script has left, but for what this one continues."""
    again = ["last.pt", *(["best.pt"] if r.best else []), *([] if refusal(r) else ["checkpoint.pt"])]
    names = json.dumps(again) if refusal(r) else f'["last.pt"] if resume else {json.dumps(again)}'
    return [
        "if accelerator.is_main_process:",
        "    output.mkdir(parents=True, exist_ok=True)",
        f"    for name in {names}:",
        "        (output / name).unlink(missing_ok=True)",
        f"if log and log.exists():{'' if refusal(r) else '  # without what followed the checkpoint'}",
        "    log.unlink()" if refusal(r) else "    os.truncate(log, sum(map(len, log.read_bytes().splitlines(True)[:step])))",
    ]


def restored(r: ScriptSpec, epoch: str) -> list[str]:
    """The lines before the first epoch. epoch: the variable for the number of epochs that are over."""
    if refusal(r):
        return []
    targets = ", ".join([epoch, "step", *(target for target, _ in _progress(r))])
    loaded = "load_checkpoint(accelerator, resume, settings, stateful, generators)"
    fits = len(f"{targets} = {loaded}") < 99
    return [
        "settings = dataclasses.asdict(config)  # before live changes" if r.changes else "settings = dataclasses.asdict(config)",
        f"stateful = [{', '.join(_parts(r))}]",
        f"generators = [{', '.join(_generators(r))}]",
        "if resume:",
        *indented(_started(r)),
        *indented([f"{targets} = {loaded}"] if fits else [f"progress = {loaded}", f"{targets} = progress"]),
        *indented(_refused_at_end(r, epoch)),
        *indented(_put_back(r)),
        *(["    RUN.clear()  # it does not begin where the run began"] if checksums.run(r) else []),
        *indented(trainer.progress(r, "current_epoch", epoch)),
        *indented(trainer.progress(r, "global_step", "step")),
        f'    accelerator.print(f"Continuing after {_where(r, epoch)} from {{resume}}.")',
    ]


def _started(r: ScriptSpec) -> list[str]:
    """The lines that start workers which stay alive: with their first epoch, a number is drawn that later epochs do not draw."""
    if not (r.settings.num_workers and r.settings.persistent_workers):
        return []
    loaders = [name for name, data in _loaders(r) if data.kind == "samples"]
    return [f"for started in [{', '.join(loaders)}]:  # draws a number from its generator, which is restored then", "    iter(started)"] if loaders else []


def _loaders(r: ScriptSpec) -> list[tuple[str, Data]]:
    """The loaders by their names in the script."""
    return [("loader", r.train), *([("val_loader", r.val)] if r.val is not None and r.validates else [])]


def _refused_at_end(r: ScriptSpec, epoch: str) -> list[str]:
    """The lines for a checkpoint after which nothing is left to train. A script that was killed before it saved `last.pt` saves it."""
    ends, anew = [], "Leave --resume out to train anew." if _has_length(r) else ""
    if r.max_epochs is not None:
        saved = f'{epoch} == config.max_epochs and (output / "last.pt").exists()'
        ends.append((f"{epoch} > config.max_epochs or ({saved})", "epochs", epoch, "max_epochs"))
    if r.max_steps is not None:
        ends.append(("step >= config.max_steps", "updates", "step", "max_steps"))
    return [
        line
        for condition, what, done, name in ends
        for line in [
            f"if {condition}:",
            f'    text = f"{{resume}} was trained for {{{done}}} {what}, and {name} is {{config.{name}}}: nothing is left to train."',
            f'    raise SystemExit(f"{{text}} {anew or f"Resume with a larger --{name}."}")',
        ]
    ]


def _where(r: ScriptSpec, epoch: str) -> str:
    """The place in the run, as the text of an f-string."""
    epochs = "" if r.max_epochs is None else " of {config.max_epochs}"
    updates = "" if r.max_steps is None else " of {config.max_steps}"
    return f"epoch {{{epoch}}}{epochs} (update {{step}}{updates})"


def saved(r: ScriptSpec) -> list[str]:
    """The lines at the end of an epoch; an epoch that `max_steps` cuts short has none."""
    if refusal(r):
        return []
    values = ["epoch + 1", "step", *(value for _, value in _progress(r))]
    lines = [
        f"progress = {', '.join(values)}",
        'save_checkpoint(accelerator, output / "checkpoint.pt", settings, stateful, generators, progress)',
    ]
    return lines if r.max_steps is None else ["if step < config.max_steps:", *indented(lines)]


def option(r: ScriptSpec) -> list[str]:
    """The line of the parser."""
    why = refusal(r)
    if why:
        return ['parser.add_argument("--resume", nargs="?", const=True, help="not possible for this script")']
    about = "continue from FILE (default: the checkpoint of the last epoch)"
    return [f'parser.add_argument("--resume", nargs="?", const="", metavar="FILE", help="{about}")']


def chosen(r: ScriptSpec) -> list[str]:
    """The lines after the options are parsed."""
    why = refusal(r)
    if why:
        return ["if resume:", f"    parser.error({quoted(f'--resume is not possible: {why}.')})"]
    return [
        'resume = output / "checkpoint.pt" if resume == "" else resume',
        "if resume and not os.path.exists(resume):",
        '    parser.error(f"there is no {resume}: name the checkpoint, or leave --resume out to begin anew.")',
    ]


def _parts(r: ScriptSpec) -> list[str]:
    """What has a `state_dict`."""
    optimizers = ["*optimizers" if r.several else "optimizer"]
    own = [name for names in schedulers(r) for name in names] if r.built_in or any(o.schedules for o in r.optimizers) else []
    own = ["*schedulers"] if r.built_in and r.several else own
    return [r.weights_of, *(["loss_function"] if r.loss_is_module else []), *optimizers, *own, *(["scaler"] if r.scales else [])]


def _generators(r: ScriptSpec) -> list[str]:
    """The generators that move on from epoch to epoch."""
    found = [f"{name}.generator" for name, data in _loaders(r) if r.settings.num_workers or (data is r.train and data.kind == "samples")]
    return [*found, *(generator for _, data in _loaders(r) for generator in data.generators)]


def _progress(r: ScriptSpec) -> list[tuple[str, str]]:
    """What else the loop remembers from epoch to epoch: each variable, and the expression for its value."""
    names = ["updates"] if counts_taken(r) else []
    names += ["counts"] if counts_turns(r) else []
    names += ["best"] if r.best is not None else []
    names += ["looked"] if r.validates_in_epoch and r.may_skip_updates else []
    names += ["looks"] if validation_schedule.counts_looks(r) else []
    names += ["average.weights", "average.count"] if r.averages else []
    names += [f"config.{name}" for name in ("lr", "gradient_clip_val") if r.changed(name)]
    found = [(name, name) for name in names]
    found += [("waits", "[vars(monitor) for monitor in monitors]")] if r.monitors else []
    if r.settings.num_workers:  # each has batches that count the epochs, unless it is started without workers
        counted = [f"{name}.batch_sampler" for name, data in _loaders(r) if data.kind == "samples"]
        found += [(f"{name}.epoch", f'getattr({name}, "epoch", 0)') for name in counted]
    found += [("gradients", f"[p.grad for p in {r.parameters}]")] if _keeps_gradients(r) else []
    found += [("buffers", f"list({r.weights_of}.buffers())")] if r.unsaved_buffers else []
    if r.has_swa_lrs:
        every = "[schedule.state_dict() for schedule in annealing or ()]"
        found += [("annealed", every if r.several else "annealing and annealing.state_dict()")]
    return found


def _keeps_gradients(r: ScriptSpec) -> bool:
    """Whether gradients may be left over after an update."""
    return r.manual or r.owns("optimizer_zero_grad")


def _put_back(r: ScriptSpec) -> list[str]:
    """The lines for what cannot be assigned in one go."""
    lines = ["for monitor, wait in zip(monitors, waits):", "    vars(monitor).update(wait)"] if r.monitors else []
    if _keeps_gradients(r):
        lines += [f"for parameter, gradient in zip({r.parameters}, gradients):", "    parameter.grad = gradient"]
    if r.unsaved_buffers:
        lines += [f"for buffer, value in zip({r.weights_of}.buffers(), buffers):", "    buffer.data.copy_(value)"]
    return [*lines, *weight_averaging.annealed_again(r)]
