"""Writes the calls of the hooks that an object defines, at their places; nothing for the others."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.inputs.collect import quoted
from workbench.export.program.lightning import trainer
from workbench.export.program.lines import call as written
from workbench.export.program.lines import indented
from workbench.export.script_spec import ScriptSpec


def called(r: ScriptSpec, name: str, *given: str, network: str = "network") -> list[str]:
    """The line that calls a hook; none where the object does not define it."""
    return [f"{call(r, name, *given, network=network)}"] if r.owns(name) else []


def call(r: ScriptSpec, name: str, *given: str, network: str = "network") -> str:
    """The expression that calls a hook."""
    owner = r.lightning.hooks[name].owner
    return f"{network if owner == 'network' else owner}.{name}({', '.join(_arguments(r, name, *given))})"


def _arguments(r: ScriptSpec, name: str, *given: str) -> list[str]:
    """A hook's arguments: those of Lightning 2, with Lightning 1's in between where the hook takes them."""
    arguments, left = [], list(given)
    for extra in r.lightning.hooks[name].arguments:
        if extra is None and not left:
            break
        arguments.append(left.pop(0) if extra is None else extra)
    return [*arguments, *left]


# ---- batches to the device --------------------------------------------------------------------------------------


def moved(r: ScriptSpec) -> str:
    """A function that moves a batch to the device with the object's batch-transfer hooks."""
    if not r.transfers:
        return ""
    own = f"batch = {call(r, 'transfer_batch_to_device', 'batch', 'device', '0')}" if r.owns("transfer_batch_to_device") else None
    lines = [
        *_passed(r, "on_before_batch_transfer"),
        own or "batch = send_to_device(batch, device, non_blocking=True)",
        *_passed(r, "on_after_batch_transfer"),
    ]
    lines[-1] = lines[-1].replace("batch = ", "return ", 1)
    doc = '"""The batch on the device, with what the object itself does on the way."""'
    return "\n".join(["def moved(batch, device):", f"    {doc}", *indented(lines)])


def _passed(r: ScriptSpec, name: str) -> list[str]:
    return [f"batch = {call(r, name, 'batch', '0')}"] if r.owns(name) else []


def to_device(r: ScriptSpec, device: str = "accelerator.device") -> str:
    """The line that moves a batch to the device."""
    return f"batch = moved(batch, {device})" if r.transfers else f"batch = send_to_device(batch, {device}, non_blocking=True)"


# ---- within an update -------------------------------------------------------------------------------------------


def batch_started(r: ScriptSpec) -> list[str]:
    """The lines that call `on_train_batch_start`, with which the object may leave out the rest of the epoch."""
    lines = called(r, "on_train_batch_start", "batch", "number")
    return [f"if {lines[0]} == -1:", "    break"] if lines and r.lightning.ends_epochs else lines


def batch_ended(r: ScriptSpec) -> list[str]:
    """The lines that call `on_train_batch_end`, after the update that the batch may have completed."""
    if not r.owns("on_train_batch_end"):
        return []
    result = "result" if r.manual else "training.result"
    outputs = f"outputs_of({', '.join([result, *_divided(r)])})" if r.reads_outputs else "None"
    return called(r, "on_train_batch_end", outputs, "batch", "number")


def _divided(r: ScriptSpec) -> list[str]:
    """The argument by which Lightning divides the loss that it passes to hooks: the number of batches of an update."""
    if r.manual or not r.accumulates:
        return []
    return [r.window]


def outputs_of(r: ScriptSpec) -> str:
    """A function for an object whose hook reads the output of its training step."""
    if not r.reads_outputs:
        return ""
    loss = "outputs[\"loss\"].detach()" + (" / batches" if _divided(r) else "")
    return dedent('''\
        def outputs_of(result@@):
            """What a training step returned, its loss detached."""
            outputs = dict(result) if isinstance(result, dict) else {} if result is None else {"loss": result}
            if "loss" in outputs:
                outputs["loss"] = @loss
            return outputs''').replace("@@", ", batches" if _divided(r) else "").replace("@loss", loss)


def left_out(r: ScriptSpec, lines: list[str]) -> list[str]:
    """These lines that take a loss, with a call of `on_train_batch_end` where there is no loss."""
    ended = batch_ended(r)
    if not ended or "    continue" not in lines:
        return lines
    place = lines.index("    continue")
    return [*lines[:place], *indented(ended), *lines[place:]]


def own_step(r: ScriptSpec, evaluated: str) -> list[str]:
    """The lines of an update for an object with an `optimizer_step` of its own, which gets a function that evaluates the batch."""
    number = "window[-1][0]" if r.accumulates else "number"
    arguments = ["epoch", number, "stepping", f"functools.partial(evaluate, {evaluated}, evaluations)"]
    return [
        *([] if r.accumulates else [to_device(r), *batch_started(r)]),
        "evaluations, stepping.taken = [], False",
        *written("", "network.optimizer_step", _arguments(r, "optimizer_step", *arguments), 12),
        "loss = evaluations[0]",
    ]


def stepping(r: ScriptSpec, clip: list[str]) -> list[str]:
    """The line that makes the optimizer which such an object gets."""
    if not _readies(r):
        return ["stepping = Stepping(optimizer)", ""]
    ready = [*called(r, "on_before_optimizer_step", "optimizer"), *clip]
    doc = '"""Run what happens between the gradients and the step."""'
    return ["def ready():", *indented([doc, *ready]), "", "stepping = Stepping(optimizer, ready)", ""]


def stepper(r: ScriptSpec) -> str:
    """The class of that optimizer."""
    if not r.owns("optimizer_step"):
        return ""
    text = dedent('''\
        class Stepping:
            """An optimizer as `optimizer_step` sees it: it remembers whether it has stepped."""

            def __init__(self, optimizer, ready):
                self.optimizer, self.ready, self.taken = optimizer, ready, False

            @property  # type: ignore[misc]
            def __class__(self):
                return type(self.optimizer)

            def __getattr__(self, name):
                return getattr(self.optimizer, name)

            def step(self, closure=None, **options):
                result = closure() if closure is not None else None
                self.ready()
                self.optimizer.step(**options)
                self.taken = True
                return result''')
    if _readies(r):
        return text
    text = text.replace("optimizer, ready):", "optimizer):").replace("        self.ready()\n", "")
    return text.replace("self.ready, ", "").replace("= optimizer, ready, False", "= optimizer, False")


def _readies(r: ScriptSpec) -> bool:
    """Whether anything happens between the gradients and such a step."""
    return r.clips or r.owns("on_before_optimizer_step", "configure_gradient_clipping")


def members(r: ScriptSpec, schedulers: list[str]) -> list[str]:
    """Lightning's methods that an object calls on itself, for an object whose optimizers the script steps."""
    if r.manual:
        return []
    made = "optimizers" if r.several else "optimizer"
    found = schedulers[0] if len(schedulers) == 1 else f"[{', '.join(schedulers)}]" if schedulers else "None"
    lines = [f"network.optimizers = lambda use_pl_optimizer=True: {made}"] if "optimizers" in r.lightning.methods else []
    lines += [f"network.lr_schedulers = lambda: {found}"] if "lr_schedulers" in r.lightning.methods else []
    lines += ["network.clip_gradients = functools.partial(clip_gradients, config)"] if _clips_itself(r) else []
    return lines


def _clips_itself(r: ScriptSpec) -> bool:
    return "clip_gradients" in r.lightning.methods and not r.manual


def clip_gradients(r: ScriptSpec) -> str:
    """A function for an object that calls `self.clip_gradients`."""
    if not _clips_itself(r):
        return ""
    value = "config.gradient_clip_val" if r.clips else "0.0"
    return dedent('''\
        def clip_gradients(config, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            """Clip the gradients of an optimizer; arguments that are left out are those of the settings."""
            value = @@ if gradient_clip_val is None else gradient_clip_val
            clip = {"norm": torch.nn.utils.clip_grad_norm_, "value": torch.nn.utils.clip_grad_value_}
            if value:
                clip[(gradient_clip_algorithm or "@algorithm").lower()](parameters_of(network, optimizer), value)''').replace(
        "@@", value
    ).replace("@algorithm", r.settings.gradient_clip_algorithm)


def limits(r: ScriptSpec) -> list[str]:
    """The lines that let the object clip."""
    algorithm = quoted(r.settings.gradient_clip_algorithm) if r.clips else "None"
    value = "config.gradient_clip_val" if r.clips else "None"
    arguments = _arguments(r, "configure_gradient_clipping", "optimizer")
    arguments += [f"gradient_clip_val={value}", f"gradient_clip_algorithm={algorithm}"]
    return written("", "network.configure_gradient_clipping", arguments, 16)


def zeroed(r: ScriptSpec) -> list[str]:
    """The lines that zero the gradients of the update before."""
    own = called(r, "optimizer_zero_grad", "epoch", "number", "optimizer")
    return [*called(r, "on_before_zero_grad", "optimizer"), *(own or ["optimizer.zero_grad()"])]


def backward(r: ScriptSpec, loss: str, options: str = "") -> list[str]:
    """The lines of a loss's backward, with the object's hooks before and after."""
    own = called(r, "backward", loss, *([options] if options else []))
    around = called(r, "on_before_backward", loss), called(r, "on_after_backward")
    return [*around[0], *(own or [f"{loss}.backward({options})"]), *around[1]]


def stepped(r: ScriptSpec, scheduler: str, metric: str = "") -> str:
    """The line that steps a scheduler."""
    if r.owns("lr_scheduler_step"):
        return call(r, "lr_scheduler_step", scheduler, metric or "None")
    return f"{scheduler}.step({metric})"


# ---- epochs and validations -------------------------------------------------------------------------------------


def epoch_ended(r: ScriptSpec) -> list[str]:
    """The lines after an epoch and its validation, before its metrics are judged."""
    return [*called(r, "on_train_epoch_end"), *trainer.progress(r, "current_epoch", "epoch + 1")]


def asked_to_end(r: ScriptSpec, finished: str) -> str:
    """The condition that the object has asked for the end of the run."""
    s = r.settings
    met = [f"{finished} >= config.min_epochs"] if s.min_epochs else []
    met += ["step >= config.min_steps"] if s.min_steps else []
    return " and ".join(["trainer.should_stop", *met])


def check_begins(r: ScriptSpec) -> list[str]:
    """The lines before a validation (not the sanity check)."""
    if r.owns("on_validation_model_zero_grad"):
        return called(r, "on_validation_model_zero_grad")
    return ["network.zero_grad()"] if r.owns("optimizer_zero_grad") else []


def sanity(r: ScriptSpec, check: str) -> list[str]:
    """The lines of the sanity check."""
    if not trainer.asks(r, "sanity_checking"):
        return [check]
    return ["trainer.sanity_checking = True", check, "trainer.sanity_checking = False"]
