"""The text of an exported script, block by block: one for each technique, written only where it was on."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from textwrap import dedent, indent
from typing import Any, Literal

from workbench.export.source import Sliced
from workbench.settings import Settings
from workbench.task.data import KeyedBatches, SeededBatches

CARRIED = {
    "lr", "weight_decay", "batch_size", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm",
    "max_epochs", "max_steps", "shuffle", "num_workers", "pin_memory", "persistent_workers", "drop_last",
    "check_val_every_n_epoch", "accelerator", "seed", "deterministic",
}  # fmt: skip
"""The settings that a block below carries."""


@dataclasses.dataclass(frozen=True)
class Data:
    """Where the script gets a data set: what kind of thing, the expression, an object to set up first."""

    kind: Literal["dataset", "loader", "arrays", "dict", "batches"]
    expression: str
    setup: str | None = None


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All that a script depends on."""

    run: str
    model: str
    version: str
    sliced: Sliced
    settings: Settings
    threads: int
    weights: str
    script: str
    stopped: bool
    changes: Mapping[int, Mapping[str, float | None]]
    train: Data
    val: Data | None
    collate: str | None
    batch: str
    mean: bool
    lightning: Mapping[str, str] | None
    """For an object with hooks of its own: where its lr and batch_size live, as assignable expressions."""

    @property
    def scheduled(self) -> bool:
        return self.lightning is not None or self.sliced.arguments.get("scheduler", "None") != "None"

    def argument(self, name: str, default: str = "None") -> str:
        return self.sliced.arguments.get(name, default)


def script(r: Recipe) -> str:
    """The whole file."""
    parts = [
        _head(r),
        _imports(r),
        f"THREADS = {r.threads}  # of the run: with another number sums are rounded differently\n"
        "torch.set_num_threads(THREADS)",
        "# ---- the code of the run " + "-" * 70,
        r.sliced.code.strip(),
        "# ---- its settings " + "-" * 77,
        _config(r),
        _changes(r),
        "# ---- the loop " + "-" * 81,
        _seeding(),
        _workers(r),
        _loaders(r),
        _forward(r),
        _set_lr(r),
        _configure(r),
        _validate(r),
        _main(r),
        _parse(),
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _head(r: Recipe) -> str:
    stopped = " It was stopped there; max_steps says where." if r.stopped else ""
    return dedent(f'''\
        """Train {_plain(r.model)} as the run {r.run} did.{stopped}

        Written by Tuning Workbench {r.version}. Runs as it is:

            python {_plain(r.script)}
            accelerate launch {_plain(r.script)}      (or torchrun, on every device you have)

        Every setting has an option: --lr 1e-3. The weights that the run began with are taken from
        {_plain(r.weights)}, if that file is there.
        """''')


def _imports(r: Recipe) -> str:
    ours = [
        "import argparse",
        "import dataclasses",
        "import json",
        "import random",
        "from pathlib import Path",
        "",
        "import numpy as np",
        "import torch",
        "from accelerate import Accelerator",
        "from safetensors.torch import load_model",
        "from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler",
    ]
    if r.train.kind == "arrays" or (r.val and r.val.kind == "arrays"):
        ours[-1] += "\nfrom torch.utils.data import TensorDataset"
    if not r.settings.num_workers:
        ours[-1] = ours[-1].replace("BatchSampler, ", "").replace(", RandomSampler, Sampler, SequentialSampler", "")
    theirs = r.sliced.imports.strip().splitlines()
    future = [line for line in theirs if line.startswith("from __future__")] or ["from __future__ import annotations"]
    if not any(line.startswith("from __future__") for line in theirs):
        future = []  # annotations in their code may be read at run time
    rest = [line for line in theirs if line not in future and line not in ours]
    return "\n".join([*future, *([""] if future else []), *ours, *([""] if rest else []), *rest])


def _config(r: Recipe) -> str:
    s = r.settings
    lines = [f"    lr: float = {s.lr!r}"]
    if s.weight_decay is not None:
        lines.append(f"    weight_decay: float = {s.weight_decay!r}")
    lines.append(f"    batch_size: int = {s.batch_size}")
    if s.accumulate_grad_batches > 1:
        lines.append(f"    accumulate_grad_batches: int = {s.accumulate_grad_batches}  # batches in one update")
    if _clips(r):
        value = float("inf") if s.gradient_clip_val is None else s.gradient_clip_val
        text = 'float("inf")' if value == float("inf") else repr(value)
        lines.append(f"    gradient_clip_val: float = {text}")
    if s.epochs is not None:
        lines.append(f"    max_epochs: int = {s.epochs}")
    if s.max_steps is not None:
        lines.append(f"    max_steps: int = {s.max_steps}  # updates")
    if s.num_workers:
        lines.append(f"    num_workers: int = {s.num_workers}")
    lines.append(f"    seed: int = {s.seed}")
    return "@dataclasses.dataclass\nclass Config:\n" + "\n".join(lines)


def _changes(r: Recipe) -> str:
    if not r.changes:
        return ""
    rows = "".join(f"    {step}: {dict(values)!r},\n" for step, values in sorted(r.changes.items()))
    return f"# What was changed while it ran, and from which update on.\nCHANGES = {{\n{rows}}}"


def _seeding() -> str:
    return dedent("""\
        def seed_everything(seed):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)


        def random_state():
            return random.getstate(), np.random.get_state(), torch.get_rng_state()


        def set_random_state(state):
            random.setstate(state[0])
            np.random.set_state(state[1])
            torch.set_rng_state(state[2])""")


def _workers(r: Recipe) -> str:
    """With loader workers each batch is seeded by its number: the classes are the workbench's own."""
    if not r.settings.num_workers:
        return ""
    text = "\n\n".join(inspect.getsource(cls) for cls in (SeededBatches, KeyedBatches))
    for written, bare in (
        ("Dataset[Any]", "torch.utils.data.Dataset"), ("Sampler[tuple[int, list[int]]]", "Sampler"),
        (": tuple[int, list[int]]", ""), (" -> Iterator[tuple[int, list[int]]]", ""), (": Iterable[list[int]]", ""),
        ("  # type: ignore[arg-type]", ""), (" -> Any", ""), (" -> None", ""), (" -> int", ""), (": int", ""),
        ("dataset: torch.utils.data.Dataset", "dataset"),
    ):  # fmt: skip
        text = text.replace(written, bare)
    return text


_SOURCES = {
    "dataset": "{0}",
    "loader": "{0}.dataset",
    "arrays": "TensorDataset(*(torch.as_tensor(column) for column in {0}))",
    "dict": "[dict(zip({0}, row)) for row in zip(*(torch.as_tensor(column) for column in {0}.values()))]",
}


def _loaders(r: Recipe) -> str:
    s = r.settings
    pin = "torch.cuda.is_available()" if s.pin_memory is None else repr(s.pin_memory)
    common = f"generator=generator, collate_fn=collate_fn, pin_memory={pin}"
    if s.num_workers:
        body = f"""
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
            batches = BatchSampler(sampler, config.batch_size, drop_last)
            return DataLoader(
                SeededBatches(dataset), batch_sampler=KeyedBatches(batches, config.seed),
                num_workers=config.num_workers, persistent_workers={s.persistent_workers} and config.num_workers > 0,
                {common},
            )"""
    else:
        body = f"""
            return DataLoader(
                dataset, batch_size=config.batch_size, shuffle=shuffle, drop_last=drop_last,
                {common},
            )"""
    return dedent(f'''\
        def make_loader(dataset, config, *, shuffle=False, drop_last=False, collate_fn=None, given=None):
            """A loader with a generator of its own: nothing else moves the order of its samples."""
            generator = torch.Generator().manual_seed(config.seed)
            if given is not None and given.generator is not None:
                generator.set_state(given.generator.get_state()){body}''')


def _make(r: Recipe, data: Data, name: str, train: bool) -> Iterator[str]:
    """The lines of main() that make one loader."""
    if data.setup:
        yield f"for hook, arguments in (('prepare_data', ()), ('setup', ('fit',))):"
        yield f"    getattr({data.setup}, hook, lambda *_: None)(*arguments)"
    if data.kind == "batches":
        yield f"{name} = {data.expression}"
        return
    options = [f"shuffle={r.settings.shuffle}", f"drop_last={r.settings.drop_last}"] if train else []
    collate = r.collate
    given = data.expression
    if data.kind == "loader":
        given = f"given_{name}"
        yield f"{given} = {data.expression}"
        options.append(f"given={given}")
        collate = collate or f"{given}.collate_fn"
    if collate and collate != "None":
        options.append(f"collate_fn={collate}")
    arguments = ", ".join([_SOURCES[data.kind].format(_closed(given)), "config", *options])
    yield f"{name} = make_loader({arguments})"


def _forward(r: Recipe) -> str:
    if r.lightning is not None:
        return ""
    loss, kind = r.argument("loss"), r.batch
    key = kind.removeprefix("dict:")
    if loss == "None":
        call = "model(**batch)" if kind.startswith("dict") else "model(*batch)" if kind == "tuple" else "model(batch)"
        target = f"batch[{key!r}]" if kind.startswith("dict:") and key else "batch[-1]" if kind == "tuple" else "None"
        body = f"output = {call}\n    return output.loss, output, {target}"
    elif kind.startswith("dict"):
        body = (
            f"target = batch[{key!r}]\n"
            f"    output = model(**{{name: value for name, value in batch.items() if name != {key!r}}})\n"
            f"    return ({_closed(loss)})(output, target), output, target"
        )
    else:
        body = f"*inputs, target = batch\n    output = model(*inputs)\n    return {_closed(loss)}(output, target), output, target"
    return f'def forward(model, batch):\n    """The loss of a batch, with the output and the target."""\n    {body}'


def _set_lr(r: Recipe) -> str:
    if not (r.lightning is not None or any("lr" in values for values in r.changes.values())):
        return ""
    return dedent('''\
        def set_lr(optimizer, schedulers, old, lr):
            """A new base rate; schedules and the ratios of parameter groups multiply it."""

            def scaled(value):
                return lr if value == old else value * (lr / old)

            for group in optimizer.param_groups:
                for key in ("lr", "initial_lr", "max_lr", "min_lr"):
                    if key in group:
                        group[key] = scaled(group[key])
            for scheduler in schedulers:
                for part in (scheduler, *getattr(scheduler, "_schedulers", ())):
                    if hasattr(part, "base_lrs"):
                        part.base_lrs = [scaled(value) for value in part.base_lrs]
            return lr''')


def _configure(r: Recipe) -> str:
    if r.lightning is None:
        return ""
    return dedent('''\
        def configured(made):
            """The optimizer and the (scheduler, interval, frequency) of any form that configure_optimizers() returns."""
            schedulers = []
            if isinstance(made, tuple) and len(made) == 2 and all(isinstance(part, (list, tuple)) for part in made):
                (made,), schedulers = made
            elif isinstance(made, (list, tuple)):
                (made,) = made
            if isinstance(made, dict):
                made, schedulers = made["optimizer"], made.get("lr_scheduler", [])
            if not isinstance(schedulers, (list, tuple)):
                schedulers = [schedulers]
            entries = [entry if isinstance(entry, dict) else {"scheduler": entry} for entry in schedulers]
            return made, [(e["scheduler"], e.get("interval", "epoch"), e.get("frequency", 1)) for e in entries]''')


def _validate(r: Recipe) -> str:
    if r.val is None:
        return ""
    metrics = r.argument("metrics")
    if r.lightning is not None:
        score = dedent("""\
            logged.clear()
            result = model.validation_step(batch, number)
            scores = dict(logged)
            loss = result.get("loss", result.get("val_loss")) if isinstance(result, dict) else result
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                scores.setdefault("val_loss", loss)""")
        names, extra = "model, loader, accelerator, logged", ""
    else:
        more = "" if metrics == "None" else f"\nfor name, metric in ({metrics}).items():\n    scores[f'val_{{name}}'] = metric(output, target)"
        score = f"loss, output, target = forward(model, batch)\nscores = {{'val_loss': loss}}{more}"
        names, extra = "model, loader, accelerator", ""
    text = dedent(f'''\
        @torch.no_grad()
        def validate({names}):
            """Each metric's mean over the samples; training modes and random states are as before."""
            modes, state = [(part, part.training) for part in model.modules()], random_state()
            model.eval()
            sums, samples = {{}}, 0
            for number, batch in enumerate(loader):
                batch = to_device(batch, accelerator.device)
        @@
                count = samples_in(batch)
                samples += count
                for name, value in scores.items():
                    sums[name] = sums.get(name, 0.0) + float(value) * count
            for part, training in modes:
                part.training = training
            set_random_state(state)
            if accelerator.num_processes > 1:
                names = sorted(sums)
                both = torch.tensor([*(sums[name] for name in names), samples], device=accelerator.device)
                *totals, samples = accelerator.reduce(both).tolist()
                sums = dict(zip(names, totals))
            return {{name: value / samples for name, value in sums.items()}}{extra}''')
    return text.replace("@@", indent(score, " " * 8))


def _helpers(r: Recipe) -> str:
    return dedent('''\
        def to_device(batch, device):
            if isinstance(batch, torch.Tensor):
                return batch.to(device, non_blocking=True)
            if isinstance(batch, dict):
                return {name: to_device(value, device) for name, value in batch.items()}
            if isinstance(batch, (tuple, list)):
                return [to_device(value, device) for value in batch]
            return batch


        def samples_in(batch):
            """The length of a batch's first tensor."""
            if isinstance(batch, torch.Tensor):
                return len(batch) if batch.ndim else 1
            values = batch.values() if isinstance(batch, dict) else batch
            return next((samples_in(value) for value in values if isinstance(value, (torch.Tensor, dict, list, tuple))), 1)''')


def _main(r: Recipe) -> str:
    body = "\n\n".join(indent("\n".join(part), "    ") for part in (_setup(r), _train(r)) if part)
    return f"{_helpers(r)}\n\n\ndef main(config, log=None, output=None):\n{body}"


def _setup(r: Recipe) -> list[str]:
    s = r.settings
    cpu = "cpu=True, " if s.accelerator == "cpu" else ""
    lines = [f'accelerator = Accelerator({cpu}mixed_precision="no")']
    if s.deterministic:
        lines.append("torch.use_deterministic_algorithms(True)")
    if r.lightning is not None:
        lines += _lightning_setup(r)
    else:
        lines.append(f"network = {r.argument('model')}")
    lines += [
        f"start = Path(__file__).with_name({r.weights!r})",
        "if start.exists():",
        "    load_model(network, str(start))",
        "if not network.training:",
        "    network.train()",
        "seed_everything(config.seed)",
        *_make(r, r.train, "loader", True),
    ]
    if r.val is not None:
        lines += _make(r, r.val, "val_loader", False)
    loss = r.argument("loss")
    if r.lightning is None:
        if loss != "None":
            lines.append(f"if isinstance({_closed(loss)}, torch.nn.Module):")
            lines.append(f"    ({loss}).to(accelerator.device)")
        lines.append("model = accelerator.prepare_model(network)")
    else:
        lines.append("model = network.to(accelerator.device)")
    lines += [
        "if accelerator.num_processes > 1:",
        "    loader = accelerator.prepare(loader)",
        *(["    val_loader = accelerator.prepare(val_loader)"] if r.val is not None else []),
        "parameters = [p for p in network.parameters() if p.requires_grad]",
    ]
    return lines + _optimizer(r)


def _lightning_setup(r: Recipe) -> list[str]:
    assert r.lightning is not None
    lines = [f"network = {r.argument('model')}", "logged = {}", "network.log = lambda name, value, *_, **__: logged.update({name: value})"]
    lines.append("network.log_dict = lambda values, *_, **__: logged.update(values)")
    for name, home in r.lightning.items():
        lines.append(f"{home} = config.{name}")
    lines += [
        "for hook, arguments in (('prepare_data', ()), ('setup', ('fit',))):",
        "    getattr(network, hook, lambda *_: None)(*arguments)",
    ]
    return lines


def _optimizer(r: Recipe) -> list[str]:
    s = r.settings
    if r.lightning is not None:
        lines = [
            "optimizer, schedules = configured(network.configure_optimizers())",
            "base_lr = optimizer.param_groups[0].get('initial_lr', optimizer.param_groups[0]['lr'])",
            "if base_lr != config.lr:",
            "    base_lr = set_lr(optimizer, [scheduler for scheduler, _, _ in schedules], base_lr, config.lr)",
        ]
        if s.weight_decay is not None:
            lines += [
                "for group in optimizer.param_groups:",
                "    if 'weight_decay' in group:",
                "        group['weight_decay'] = config.weight_decay",
            ]
        return lines
    decay = "" if s.weight_decay is None else ", weight_decay=config.weight_decay"
    lines = [f"optimizer = {_closed(r.argument('optimizer', 'torch.optim.AdamW'))}(parameters, lr=config.lr{decay})"]
    if r.scheduled:
        windows = "len(loader)" if s.accumulate_grad_batches == 1 else "-(-len(loader) // config.accumulate_grad_batches)"
        if s.epochs is None:
            total = "config.max_steps"
        else:
            total = f"config.max_epochs * {windows}"
            total = f"min(config.max_steps, {total})" if s.max_steps is not None else total
        lines.append(f"scheduler = ({r.argument('scheduler')})(optimizer, {total})")
    if any("lr" in values for values in r.changes.values()):
        lines.append("base_lr = config.lr")
    return lines


def _train(r: Recipe) -> list[str]:
    s = r.settings
    window = s.accumulate_grad_batches > 1
    lines = ["record = open(log, 'w') if log and accelerator.is_main_process else None", "step = epoch = 0"]
    lines.append(_while(s))
    body = ["seen = loss_sum = 0.0", "batches = enumerate(loader)", "while True:"]
    take = "config.accumulate_grad_batches" if window else "1"
    update = [
        f"window = [pair for pair, _ in zip(batches, range({take}))]" if False else f"window = take(batches, {take})",
        "if not window:",
        "    break",
        *_apply_changes(r),
        *_backward(r),
        *_clip(r),
        "optimizer.step()",
        "optimizer.zero_grad()",
        *_step_schedule(r),
        "if record:",
        "    record.write(json.dumps({'step': step, 'loss': loss.item(), 'lr': lr}) + '\\n')",
        "step += 1",
        "seen, loss_sum = seen + 1, loss_sum + loss",
    ]
    if s.max_steps is not None:
        update += ["if step == config.max_steps:", "    break"]
    body += ["    " + line for line in update]
    body += _after_epoch(r)
    lines += ["    " + line for line in body]
    lines += [
        "if record:",
        "    record.close()",
        "if output and accelerator.is_main_process:",
        "    torch.save(network.state_dict(), output)",
        "accelerator.end_training()",
    ]
    return lines


def _while(s: Settings) -> str:
    conditions = []
    if s.epochs is not None:
        conditions.append("epoch < config.max_epochs")
    if s.max_steps is not None:
        conditions.append("step < config.max_steps")
    return f"while {' and '.join(conditions)}:"


def _apply_changes(r: Recipe) -> list[str]:
    lines: list[str] = []
    if r.changes:
        lines.append("change = CHANGES.get(step, {})")
    if any("lr" in values for values in r.changes.values()):
        names = "[scheduler]" if r.scheduled and r.lightning is None else "[]"
        names = "[scheduler for scheduler, _, _ in schedules]" if r.lightning is not None else names
        lines += ["if 'lr' in change:", f"    base_lr = set_lr(optimizer, {names}, base_lr, change['lr'])"]
    if any("gradient_clip_val" in values for values in r.changes.values()):
        lines += ["if 'gradient_clip_val' in change:", "    config.gradient_clip_val = change['gradient_clip_val'] or float('inf')"]
    return [*lines, "lr = optimizer.param_groups[0]['lr']"]


def _backward(r: Recipe) -> list[str]:
    call = "model.training_step(batch, number)" if r.lightning is not None else "forward(model, batch)[0]"
    if r.settings.accumulate_grad_batches == 1:
        lines = ["[(number, batch)] = window", "batch = to_device(batch, accelerator.device)", f"loss = {call}"]
        if r.lightning is not None:
            lines.append("loss = loss['loss'] if isinstance(loss, dict) else loss")
        lines += ["loss.backward()", "loss = loss.detach()"]
    else:
        weigh = "samples_in(batch)" if r.mean else "1.0"
        lines = [
            f"weights = [float({weigh}) for _, batch in window]" if r.mean else "weights = [1.0] * len(window)",
            "loss = None",
            "for (number, batch), weight in zip(window, weights):",
            "    batch = to_device(batch, accelerator.device)",
            f"    part = {call}",
            *(["    part = part['loss'] if isinstance(part, dict) else part"] if r.lightning is not None else []),
            "    part = part * (weight / sum(weights))  # a short window is divided by its true length",
        ]
        if r.lightning is None:
            lines += [
                "    last = number == window[-1][0]",
                "    with contextlib.nullcontext() if last else accelerator.no_sync(model):",
                "        part.backward()",
            ]
        else:
            lines.append("    part.backward()")
        lines.append("    loss = part.detach() if loss is None else loss + part.detach()")
    if r.lightning is not None:
        lines += [
            "if accelerator.num_processes > 1:",
            "    for p in parameters:",
            "        if p.grad is not None:",
            "            p.grad = accelerator.reduce(p.grad, 'mean')",
        ]
    return lines


def _clips(r: Recipe) -> bool:
    return r.settings.gradient_clip_val is not None or any("gradient_clip_val" in v for v in r.changes.values())


def _clip(r: Recipe) -> list[str]:
    if not _clips(r):
        return []
    how = "norm" if r.settings.gradient_clip_algorithm == "norm" else "value"
    line = f"torch.nn.utils.clip_grad_{how}_(parameters, config.gradient_clip_val)"
    if any("gradient_clip_val" in values for values in r.changes.values()):
        return ["if config.gradient_clip_val != float('inf'):", f"    {line}"]
    return [line]


def _step_schedule(r: Recipe) -> list[str]:
    if r.lightning is not None:
        return [
            "for scheduler, interval, frequency in schedules:",
            "    if interval == 'step' and (step + 1) % frequency == 0:",
            "        scheduler.step()",
        ]
    return ["scheduler.step()"] if r.scheduled else []


def _after_epoch(r: Recipe) -> list[str]:
    s = r.settings
    lines = ["epoch += 1"]
    if r.lightning is not None:
        lines += [
            "for scheduler, interval, frequency in schedules:",
            "    if interval == 'epoch' and epoch % frequency == 0:",
            "        scheduler.step()",
        ]
    lines.append("scores = {'loss': float(loss_sum) / max(seen, 1)}")
    if r.val is not None:
        due = "True" if s.check_val_every_n_epoch == 1 else f"epoch % {s.check_val_every_n_epoch} == 0"
        call = "validate(model, val_loader, accelerator" + (", logged)" if r.lightning is not None else ")")
        if due == "True":
            lines.append(f"scores |= {call}")
        else:
            ended = _while(s).removeprefix("while ").rstrip(":")
            lines += [f"if {due} or not ({ended}):", f"    scores |= {call}"]
    lines.append(
        "accelerator.print(f'epoch {epoch - 1}: ' + '  '.join(f'{name} {value:.4f}' for name, value in scores.items()))"
    )
    return lines


def _parse() -> str:
    return dedent('''\
        def take(batches, count):
            """The next `count` batches with their numbers, fewer at the end."""
            return [pair for _, pair in zip(range(count), batches)]


        def parse():
            parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
            for field in dataclasses.fields(Config):
                kind = type(field.default)
                parser.add_argument(f"--{field.name}", type=kind, default=field.default, help="default: %(default)s")
            parser.add_argument("--log", help="write one JSON line for each update to this file")
            parser.add_argument("--output", help="save the trained weights to this file")
            options = vars(parser.parse_args())
            return options.pop("log"), options.pop("output"), Config(**options)


        if __name__ == "__main__":
            log, output, config = parse()
            main(config, log, output)''')


def _closed(expression: str) -> str:
    """An expression that can be called or indexed as it stands."""
    return expression if expression.replace(".", "").replace("_", "").isalnum() else f"({expression})"


def _plain(text: Any) -> str:
    """Text that cannot end a docstring."""
    return str(text).replace("\\", "/").replace('"', "'")
