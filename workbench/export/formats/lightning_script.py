"""Writes a script that trains with Lightning: a LightningModule, and a Trainer with the run's settings."""

from __future__ import annotations

import textwrap
from textwrap import dedent

from workbench.export.formats import lightning_refusals, lightning_trainer
from workbench.export.inputs.collect import Data, quoted
from workbench.export.program import loaders, loss
from workbench.export.program.lines import call, indented
from workbench.export.program.optim import schedule
from workbench.export.program.text import config_class, evidence, plain, rule, saved_data, with_users_code
from workbench.export.script_spec import ScriptSpec
from workbench.export.source.rewrite.layout import Import
from workbench.task.lightning.overrides import own_method
from workbench.task.lightning.task import LightningTask
from workbench.task.protocol import Task


def lightning_script(r: ScriptSpec, task: Task) -> str:
    """The text of the script. `ExportError` names what Lightning has no way to do."""
    package = _package(task)
    lightning_refusals.refuse(r, package)
    own = r.hooks is not None
    whole = _WHOLE_ORDER if not lightning_trainer.makes_loaders(r) and _orders(r, r.train) else ""
    parts = [loaders.datasets(r), whole, "" if own else schedule.schedule(r), "" if own else loss.forward(r), "" if own else _module(r), _main(r, _brings_callbacks(task)), _PARSE]
    program = "\n\n\n".join(part for part in parts if part)
    callbacks = "lightning.pytorch.callbacks" if package == "lightning" else f"{package}.callbacks"
    imports = [Import(package, None, "L"), *(Import(callbacks, name) for name in lightning_trainer.CALLBACKS)]
    imports += [Import(callbacks.replace("callbacks", "loggers"), "CSVLogger"), Import("torch.utils.data", "Sampler")]
    ours = f"{config_class(r, program)}\n\n\n{rule('the training')}\n\n\n{program}\n"
    return with_users_code(r, ours, _head(r, package), imports)


def _package(task: Task) -> str:
    """The package whose LightningModule the user's object is; "lightning" where the script makes one; "" where it is none."""
    if not isinstance(task, LightningTask):
        return "lightning"
    classes = [base for base in type(task.module).__mro__ if base.__name__ == "LightningModule"]
    return classes[0].__module__.partition(".")[0] if classes else ""


def _brings_callbacks(task: Task) -> bool:
    return isinstance(task, LightningTask) and own_method(task.module, "configure_callbacks") is not None


# ---- the head ---------------------------------------------------------------------------------------------------


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
    return f'"""Train {plain(r.model)} with Lightning, with the settings of run {plain(r.run)}.\n\n{text}\nWritten by Tuning Workbench {r.version}.\n"""'


# ---- the module -------------------------------------------------------------------------------------------------


def _module(r: ScriptSpec) -> str:
    """A LightningModule of the model, the loss and the optimizer that the bench was given."""
    assert r.train is not None
    held = ["self.config = config", "self.network = network", *(["self.loss_function = loss_function"] if r.loss_is_module else [])]
    held += ["self.updates = updates"] * _by_updates(r)
    parts = [
        [f"def __init__(self, config{', updates' * _by_updates(r)}):", *indented(["super().__init__()", *held])],
        ["def training_step(self, batch, batch_idx):", *indented(_training_step(r))],
    ]
    if r.validates:
        parts.append(["def validation_step(self, batch, batch_idx):", *indented(_validation_step(r))])
    parts.append(["def configure_optimizers(self):", *indented(_optimizers(r))])
    body = "\n\n".join("\n".join(indented(part)) for part in parts)
    return f'class Module(L.LightningModule):\n    """The model as Lightning trains it."""\n\n{body}'


def _forward(r: ScriptSpec, wanted: set[str], missing: str) -> list[str]:
    """The lines that take these of what the forward pass returns. missing: the line where there is no loss."""
    names = [name if name in wanted else "_" for name in loss.returned(r)]
    called = "forward(self.network, batch)"
    if not r.may_skip_batches:
        return [f"{', '.join(names)} = {called}" if set(names[1:]) != {"_"} else f"loss, *_ = {called}"]
    return [f"found = {called}", "if found is None:", f"    {missing}", f"{', '.join(names)} = found"]


def _training_step(r: ScriptSpec) -> list[str]:
    both = ", on_step=True, on_epoch=True" if r.monitors_train_loss else ""
    arguments = ['"train_loss"', "loss", f"prog_bar=True{both}", f"batch_size={r.train.count}"]
    return [*_forward(r, {"loss"}, "return None"), *call("", "self.log", arguments, 8), "return loss"]


def _validation_step(r: ScriptSpec) -> list[str]:
    assert r.val is not None
    weighs = "weight" in loss.returned(r)
    wanted = {"loss", "weight", *(["output", "target"] if r.has_metrics else [])}
    size = "int(weight)" if weighs else r.val.count
    lines = [*_forward(r, wanted, "return"), *call("", "self.log", ['"val_loss"', "loss", "prog_bar=True", f"batch_size={size}"], 8)]
    if r.has_metrics:
        value = "torch.as_tensor(metric(output, target)).float().mean()"
        lines += ["for name, metric in metrics.items():", *indented(call("", "self.log", ['f"val_{name}"', value, f"batch_size={size}"], 12))]
    return lines


def _optimizers(r: ScriptSpec) -> list[str]:
    (optimizer,) = r.optimizers
    rate = ", lr=self.config.lr" if optimizer.takes_lr else ""
    decay = "" if r.settings.weight_decay is None else ", weight_decay=self.config.weight_decay"
    lines = [
        f"parameters = [p for p in {r.parameters} if p.requires_grad]",
        f"optimizer = make_optimizer(parameters{rate}{decay})",
    ]
    if optimizer.made_lr is not None and optimizer.made_lr != r.settings.lr:
        lines += [
            "for group in optimizer.param_groups:  # the ratios of parameter groups stay",
            f'    group["lr"] = self.config.lr if group["lr"] == {optimizer.made_lr!r} else group["lr"] * (self.config.lr / {optimizer.made_lr!r})',
        ]
    if r.built_in:
        lines += [line.replace("config", "self.config") for line in schedule.made(r, "self.updates")]
        return [*lines, 'return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}']
    if not optimizer.schedules:
        return [*lines, "return optimizer"]
    lines.append("made = make_scheduler(optimizer, self.updates)")
    listed = [_schedule(f"made{one.place}", one.interval, one.frequency, one.monitor, one.strict) for one in optimizer.schedules]
    if len(listed) == 1:
        return [*lines, f'return {{"optimizer": optimizer, "lr_scheduler": {listed[0]}}}']
    return [*lines, "return [optimizer], [", *(f"    {one}," for one in listed), "]"]


def _by_updates(r: ScriptSpec) -> bool:
    """Whether the schedule of the module that the script makes is told the number of updates."""
    return r.hooks is None and (schedule.takes_updates(r) if r.built_in else bool(r.optimizers[0].schedules))


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


def _schedule(made: str, interval: str, frequency: int, monitor: str | None, strict: bool) -> str:
    items = {"scheduler": made, "interval": quoted(interval)}
    items |= {"frequency": str(frequency)} if frequency != 1 else {}
    items |= {"monitor": quoted(monitor)} if monitor is not None else {}
    items |= {} if strict else {"strict": "False"}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in items.items()) + "}"


# ---- main -------------------------------------------------------------------------------------------------------


def _main(r: ScriptSpec, callbacks: bool) -> str:
    """The function that trains. callbacks: whether the module brings its own."""
    lines = ["torch.autograd.set_detect_anomaly(True)"] if r.settings.detect_anomaly else []
    if r.hooks is not None:
        lines += [f"{home} = config.{name}" for name, home in r.hooks.homes.items()]
    if r.weights is not None:
        lines += [
            f"start = Path(__file__).with_name({quoted(r.weights)})",
            "if start.exists():",
            *indented(_loaded(r)),
            "else:",
            '    print(f"There is no {start}: it begins with the weights that its code makes.")',
        ]
    lines += ["network.train()", "", *loaders.saved(r), "L.seed_everything(config.seed)"]
    data: list[str] = []
    if r.lightning.datamodule != "None":
        data = [f"datamodule={r.lightning.datamodule}"]
    elif not lightning_trainer.makes_loaders(r):
        lines += _loader(r, r.train, "loader")
        data = ["loader"]
        if r.val is not None and r.validates:
            lines += _loader(r, r.val, "val_loader")
            data.append("val_loader")
    if r.settings.compile and not r.compiled:
        backend = f"backend={quoted(r.settings.compile)}" if isinstance(r.settings.compile, str) else ""
        lines.append(f"network.compile({backend})")
    if callbacks:
        lines.append("network.configure_callbacks = list  # what they asked for is in the trainer's, which they would replace")
    lines += call("trainer = ", "L.Trainer", lightning_trainer.arguments(r), 4)
    module = "network" if r.hooks is not None else f"Module(config{f', {_updates(r)}' * _by_updates(r)})"
    lines += [*call("", "trainer.fit", [module, *data], 4), 'trainer.save_checkpoint(output / "last.ckpt")']
    return "\n".join(["def main(config, output):", *indented(lines)])


def _loaded(r: ScriptSpec) -> list[str]:
    """The lines that load the weights that the run began with."""
    if not r.trains_loss:
        return [f"load_model({r.weights_of}, str(start))"]
    prefix = quoted(r.loss_prefix)
    return [
        f"load_model({r.weights_of}, str(start), strict=False)  # what begins with {r.loss_prefix} is the loss's",
        f"own = {{name: value for name, value in load_file(str(start)).items() if name.startswith({prefix})}}",
        f"loss_function.load_state_dict({{name.removeprefix({prefix}): value for name, value in own.items()}})",
    ]


def _loader(r: ScriptSpec, data: Data, name: str) -> list[str]:
    """The lines that make a loader with a generator of its own: nothing else moves the order of its samples."""
    trains = data is r.train
    if data.kind == "batches":
        made = [data.dataset if data.iterable or ".dataset" in data.dataset else f"Batches({data.dataset})", "batch_size=None"]
    elif data.batch_sampler:
        made = [data.dataset, f"batch_sampler={data.batch_sampler}"]
    else:
        made = [f"Columns({data.dataset})" if data.columns else data.dataset, "batch_size=config.batch_size"]
        made += ["drop_last=True"] * (trains and r.settings.drop_last)
        if data.sampler:
            made.append(f"sampler={data.sampler}")
        elif trains and _shuffles(r, data):
            made.append("sampler=order" if _orders(r, data) else "shuffle=True")
    made += [f"collate_fn={data.collate}"] * bool(data.collate) + [f"worker_init_fn={data.worker_init}"] * bool(data.worker_init)
    generator = data.generator or "torch.Generator().manual_seed(config.seed)"
    before: list[str] = []
    if trains and _orders(r, data):
        before = [f"generator = {generator}", f"order = WholeOrder(RandomSampler({made[0]}, generator=generator))"]
        generator = "generator"
    return [*before, *call(f"{name} = ", "DataLoader", [*made, f"generator={generator}", *loaders.common(r)], 4)]


def _shuffles(r: ScriptSpec, data: Data) -> bool:
    """Whether the script shuffles it, and not a sampler of the user's."""
    return data.kind == "samples" and r.settings.shuffle and not data.sampler and not data.batch_sampler


def _orders(r: ScriptSpec, data: Data) -> bool:
    """Whether its order of an epoch must be drawn to the end, as the run drew it."""
    return _shuffles(r, data) and not r.limits


_WHOLE_ORDER = dedent('''\
    class WholeOrder(Sampler):
        """The order of an epoch, drawn to its end at once: Lightning does not ask for the end, where a sampler draws once more."""

        def __init__(self, sampler):
            self.sampler = sampler

        def __len__(self):
            return len(self.sampler)

        def __iter__(self):
            return iter(list(self.sampler))''')


_PARSE = dedent("""\
    def parse():
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        for one in dataclasses.fields(Config):
            parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default, help="(%(default)s)")
        folder = Path(__file__).with_name(Path(__file__).stem + "-output")
        parser.add_argument("--output", type=Path, default=folder, help="the folder for logs and checkpoints (%(default)s)")
        options = vars(parser.parse_args())
        output = options.pop("output")
        return Config(**options), output


    if __name__ == "__main__":
        main(*parse())""")
