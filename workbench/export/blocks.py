"""The functions of an exported script, block by block: one for each technique, written only where it was on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from textwrap import dedent, indent

from workbench.export.recipe import Data, Recipe
from workbench.settings import Settings
from workbench.task.data import KeyedBatches, SeededBatches


def changes(r: Recipe) -> str:
    """What was changed while the run went on."""
    if not r.changes:
        return ""
    rows = "".join(f"    {step}: {dict(values)!r},\n" for step, values in sorted(r.changes.items()))
    return f"# What was changed while it ran, and from which update on.\nCHANGES = {{\n{rows}}}"


def seeding(r: Recipe) -> str:
    """Random numbers: seeded once, and kept where validation must not move them."""
    text = dedent("""\
        def seed_everything(seed):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
        """)
    if r.val is not None:
        text += dedent("""

            def random_state():
                return random.getstate(), np.random.get_state(), torch.get_rng_state()


            def set_random_state(state):
                random.setstate(state[0])
                np.random.set_state(state[1])
                torch.set_rng_state(state[2])""")
    return text


def workers(r: Recipe) -> str:
    """With loader workers each batch is seeded by its number: the classes are the workbench's own."""
    if not r.settings.num_workers:
        return ""
    text = "\n\n".join(inspect.getsource(cls) for cls in (SeededBatches, KeyedBatches))
    for annotated, bare in (
        ("Dataset[Any]", "torch.utils.data.Dataset"), ("Sampler[tuple[int, list[int]]]", "torch.utils.data.Sampler"),
        (": tuple[int, list[int]]", ""), (" -> Iterator[tuple[int, list[int]]]", ""), (": Iterable[list[int]]", ""),
        ("  # type: ignore[arg-type]", ""), (" -> Any", ""), (" -> None", ""), (" -> int", ""), (": int", ""),
        ("dataset: torch.utils.data.Dataset", "dataset"),
    ):  # fmt: skip
        text = text.replace(annotated, bare)
    return text


def loaders(r: Recipe) -> str:
    """The one function that makes loaders."""
    s = r.settings
    pin = "torch.cuda.is_available()" if s.pin_memory is None else repr(s.pin_memory)
    common = f"generator=generator, collate_fn=collate_fn, pin_memory={pin},"
    given, used = "", ""
    if any(data is not None and data.kind == "loader" for data in (r.train, r.val)):
        given = ", given=None"
        used = (
            "    if given is not None and given.generator is not None:\n"
            "        generator.set_state(given.generator.get_state())\n"
        )
    if s.num_workers:
        made = dedent(f"""\
            sampler_of = torch.utils.data.RandomSampler if shuffle else torch.utils.data.SequentialSampler
            sampler = sampler_of(dataset, generator=generator) if shuffle else sampler_of(dataset)
            batches = torch.utils.data.BatchSampler(sampler, config.batch_size, drop_last)
            return DataLoader(
                SeededBatches(dataset),
                batch_sampler=KeyedBatches(batches, config.seed),
                num_workers=config.num_workers,
                persistent_workers={s.persistent_workers},
                {common}
            )""")
    else:
        made = dedent(f"""\
            return DataLoader(
                dataset,
                batch_size=config.batch_size,
                shuffle=shuffle,
                drop_last=drop_last,
                {common}
            )""")
    return (
        f"def make_loader(dataset, config, *, shuffle=False, drop_last=False, collate_fn=None{given}):\n"
        '    """A loader with a generator of its own: nothing else moves the order of its samples."""\n'
        "    generator = torch.Generator().manual_seed(config.seed)\n" + used + indent(made, "    ")
    )


_DATASETS = {
    "dataset": "{0}",
    "loader": "{0}.dataset",
    "arrays": "TensorDataset(*(torch.as_tensor(column) for column in {0}))",
    "dict": "[dict(zip({0}, row)) for row in zip(*(torch.as_tensor(column) for column in {0}.values()))]",
}


def make_loader(r: Recipe, data: Data, name: str, given: str, train: bool) -> Iterator[str]:
    """The lines that make one loader, of what `given` names."""
    if data.setup:
        yield from setup_lines(given)
    if data.kind == "batches":
        yield f"{name} = {given}"
        return
    options = [f"shuffle={r.settings.shuffle}", f"drop_last={r.settings.drop_last}"] if train else []
    collate = "collate_fn" if r.given("collate_fn") else None
    if data.kind == "loader":
        if data.call:
            yield f"given_loader = {given + data.call if data.call.startswith('.') else data.call}"
            given = "given_loader"
        options.append(f"given={given}")
        collate = collate or f"{given}.collate_fn"
    if collate:
        options.append(f"collate_fn={collate}")
    arguments = ", ".join([_DATASETS[data.kind].format(given), "config", *options])
    yield f"{name} = make_loader({arguments})"


def setup_lines(owner: str) -> list[str]:
    """What an object's loaders count on."""
    return [
        "for hook, arguments in (('prepare_data', ()), ('setup', ('fit',))):",
        f"    getattr({owner}, hook, lambda *_: None)(*arguments)",
    ]


def forward(r: Recipe) -> str:
    """How a batch becomes a loss; an object with hooks of its own does that itself."""
    if r.lightning is not None:
        return ""
    key = r.batch.removeprefix("dict:")
    if r.given("loss") is None:
        call = {"tuple": "model(*batch)", "single": "model(batch)"}.get(r.batch, "model(**batch)")
        target = "batch[-1]" if r.batch == "tuple" else f"batch[{key!r}]" if key and r.batch != "single" else "None"
        body = f"output = model_output\nreturn output.loss, output, {target}".replace("model_output", call)
    elif r.batch.startswith("dict"):
        body = (
            f"inputs = {{name: value for name, value in batch.items() if name != {key!r}}}\n"
            f"target, output = batch[{key!r}], model(**inputs)\n"
            "return loss_function(output, target), output, target"
        )
    else:
        body = "*inputs, target = batch\noutput = model(*inputs)\nreturn loss_function(output, target), output, target"
    return (
        'def forward(model, batch):\n    """The loss of a batch, with the output and the target."""\n'
        + indent(body, "    ")
    )


def set_lr(r: Recipe) -> str:
    """A new base rate, for live changes and for objects that make their own optimizer."""
    if not (r.lightning is not None or r.changed("lr")):
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


def configured(r: Recipe) -> str:
    """What `configure_optimizers()` returned, in any of its forms."""
    if r.lightning is None:
        return ""
    return dedent('''\
        def configured(made):
            """The optimizer and its (scheduler, interval, frequency), from what configure_optimizers() returned."""
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


def validate(r: Recipe) -> str:
    """Validation, weighted by samples."""
    if r.val is None:
        return ""
    if r.lightning is not None:
        signature = "model, loader, accelerator, logged"
        score = dedent("""\
            logged.clear()
            result = model.validation_step(batch, number)
            scores = dict(logged)
            loss = result.get("loss", result.get("val_loss")) if isinstance(result, dict) else result
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                scores.setdefault("val_loss", loss)""")
    else:
        signature = "model, loader, accelerator"
        score = "loss, output, target = forward(model, batch)\nscores = {'val_loss': loss}"
        if r.given("metrics"):
            score += "\nfor name, metric in metrics.items():\n    scores[f'val_{name}'] = metric(output, target)"
    text = dedent(f'''\
        @torch.no_grad()
        def validate({signature}):
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
                both = torch.tensor([*sums.values(), samples], device=accelerator.device)
                *totals, samples = accelerator.reduce(both).tolist()
                sums = dict(zip(sums, totals))
            return {{name: value / samples for name, value in sums.items()}}''')
    return text.replace("@@", indent(score, " " * 8))


def helpers(r: Recipe) -> str:
    """Small functions on batches."""
    text = dedent("""\
        def to_device(batch, device):
            if isinstance(batch, torch.Tensor):
                return batch.to(device, non_blocking=True)
            if isinstance(batch, dict):
                return {name: to_device(value, device) for name, value in batch.items()}
            if isinstance(batch, (tuple, list)):
                return [to_device(value, device) for value in batch]
            return batch""")
    accumulates = r.settings.accumulate_grad_batches > 1
    if r.val is not None or (accumulates and r.mean):
        text += "\n\n\n" + dedent('''\
            def samples_in(batch):
                """The length of a batch's first tensor."""
                if isinstance(batch, torch.Tensor):
                    return len(batch) if batch.ndim else 1
                values = batch.values() if isinstance(batch, dict) else batch
                kinds = (torch.Tensor, dict, list, tuple)
                return next((samples_in(value) for value in values if isinstance(value, kinds)), 1)''')
    if accumulates:
        text += "\n\n\n" + dedent('''\
            def windows(batches, size):
                """The batches in windows of `size`, the last one as long as what is left."""
                window = []
                for batch in batches:
                    window.append(batch)
                    if len(window) == size:
                        yield window
                        window = []
                if window:
                    yield window''')
    return text


def running(s: Settings) -> str:
    """The condition under which the run goes on."""
    conditions = []
    if s.epochs is not None:
        conditions.append("epoch < config.max_epochs")
    if s.max_steps is not None:
        conditions.append("step < config.max_steps")
    return " and ".join(conditions)
