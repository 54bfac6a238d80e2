"""The functions of an exported script, block by block: one for each technique, written only where it was on."""

from __future__ import annotations

from textwrap import dedent, indent

from workbench.export.recipe import Data, Recipe

_WIDTH = 100


def changes(r: Recipe) -> str:
    """What was changed while the run went on."""
    if not r.changes:
        return ""
    rows: dict[int, list[str]] = {}
    for step, values in r.changes:
        rows.setdefault(step, []).extend(f'("{name}", {_number(value)})' for name, value in values.items())
    text = "".join(f"    {step}: [{', '.join(pairs)}],\n" for step, pairs in rows.items())
    return f"# What was changed by hand while it ran, and before which update.\nCHANGES = {{\n{text}}}"


def _number(value: float | None) -> str:
    return 'float("inf")' if value is None else repr(value)


# ---- data -------------------------------------------------------------------------------------------------------


def datasets(r: Recipe) -> str:
    """Classes for what is given in other forms than a Dataset."""
    parts = []
    if any(data.columns for data in r.loaders):
        parts.append(
            dedent('''\
            class Columns(Dataset):
                """A dict of arrays: sample i is row i of each."""

                def __init__(self, columns):
                    self.columns = {name: torch.as_tensor(column) for name, column in columns.items()}

                def __len__(self):
                    return len(next(iter(self.columns.values())))

                def __getitem__(self, index):
                    return {name: column[index] for name, column in self.columns.items()}''')
        )
    if any(data.kind == "batches" and not data.iterable and ".dataset" not in data.dataset for data in r.loaders):
        parts.append(
            dedent('''\
            class Batches(IterableDataset):
                """Ready batches, read again in each epoch."""

                def __init__(self, batches):
                    self.batches = batches

                def __iter__(self):
                    return iter(self.batches)''')
        )
    return "\n\n\n".join(parts)


def workers(r: Recipe) -> str:
    """With loader workers each batch has a seed of its own, as in `task.data`."""
    samples = [data for data in r.loaders if data.kind == "samples"]
    if not r.settings.num_workers or not samples:
        return ""
    fetch = "return [self.dataset[index] for index in indices]"
    if any(data.whole for data in samples):
        fetch = (
            'if hasattr(self.dataset, "__getitems__"):\n'
            "            return self.dataset.__getitems__(indices)\n        " + fetch
        )
    return dedent('''\
        class SeededDataset(Dataset):
            """Each batch is made with random numbers of its own, whichever worker makes it."""

            def __init__(self, dataset):
                self.dataset = dataset

            def __getitems__(self, keyed):
                seed, indices = keyed
                torch.manual_seed(seed)
                random.seed(seed)
                np.random.seed(seed)
                @@


        class SeededBatches:
            """Batches of indices, each with a seed that follows from the epoch and its number."""

            def __init__(self, batches, seed, accelerator):
                self.batches, self.seed, self.epoch = batches, seed, 0
                self.first, self.stride = accelerator.process_index, accelerator.num_processes

            def __len__(self):
                return len(self.batches)

            def __iter__(self):
                epoch, self.epoch = self.epoch, self.epoch + 1
                for number, indices in enumerate(self.batches):
                    entropy = [self.seed, epoch, self.first + number * self.stride]
                    yield int(np.random.SeedSequence(entropy).generate_state(1)[0]), indices''').replace("@@", fetch)


def make_loader(r: Recipe) -> str:
    """The one function that makes loaders of samples."""
    samples = [data for data in r.loaders if data.kind == "samples"]
    if not samples:
        return ""
    options = [name for name in ("batches", "sampler", "generator", "collate_fn", "worker_init_fn") if _differs(samples, name)]
    lines = []
    seeded = "torch.Generator().manual_seed(config.seed)"
    if "generator" in options:
        if not all(data.generator for data in samples):
            lines += ["if generator is None:", f"    generator = {seeded}"]
    else:
        lines.append(f"generator = {seeded}")
    lines += _batches(r, samples, options)
    if r.settings.num_workers:
        lines += [
            "if config.num_workers:",
            "    dataset, batches = SeededDataset(dataset), SeededBatches(batches, config.seed, accelerator)",
        ]
    made = ["dataset", "batch_sampler=batches", "generator=generator", *common(r)]
    if "collate_fn" in options or any(data.collate for data in samples):
        made.append(f"collate_fn={'collate_fn' if 'collate_fn' in options else 'collate'}")
    if "worker_init_fn" in options:
        made.append("worker_init_fn=worker_init_fn")
    both = ["train=False"] if r.val in samples and r.train in samples else []
    signature = ["dataset", "config", "accelerator", *both, *(f"{name}=None" for name in options)]
    head = call("def ", "make_loader", signature, 1)
    return "\n".join(
        [
            *head[:-1],
            f"{head[-1]}:",
            '    """A loader with a generator of its own: nothing else moves the order of its samples."""',
            *("    " + line for line in [*lines, *call("return ", "DataLoader", made, 4)]),
        ]
    )


def _batches(r: Recipe, samples: list[Data], options: list[str]) -> list[str]:
    """The lines that make the batches of indices, and deal them out where there are several processes."""
    trains, validates = r.train in samples, r.val in samples
    plain, mixed = "SequentialSampler(dataset)", trains and validates
    sampler, last = plain, "False"
    if trains and r.settings.shuffle:
        sampler = "RandomSampler(dataset, generator=generator)" + (f" if train else {plain}" if mixed else "")
    if trains and r.settings.drop_last:
        last = "train" if mixed else "True"
    lines = [f"sampler = {sampler}"]
    if "sampler" in options:
        lines = ["if sampler is None:", f"    sampler = {sampler}"] if not all(d.sampler for d in samples) else []
    lines.append(f"batches = BatchSampler(sampler, config.batch_size, drop_last={last})")
    if "batches" in options:
        lines = [] if all(d.batch_sampler for d in samples) else ["if batches is None:", *_indented(lines)]
    even = "train" if mixed else str(trains)
    shard = ["batches", "accelerator.num_processes", "accelerator.process_index", f"even_batches={even}"]
    return [*lines, "if accelerator.num_processes > 1:", *_indented(call("batches = ", "BatchSamplerShard", shard, 8))]


def _differs(samples: list[Data], option: str) -> bool:
    """Whether an option must be given for each loader."""
    if option == "collate_fn":
        return any(data.collate not in (None, "collate") for data in samples) or (
            len({data.collate for data in samples}) > 1
        )
    return any(_options(data).get(option) for data in samples)


def _options(data: Data) -> dict[str, str | None]:
    return {
        "batches": data.batch_sampler,
        "sampler": None if data.batch_sampler else data.sampler,
        "generator": data.generator,
        "collate_fn": data.collate,
        "worker_init_fn": data.worker_init,
    }


def common(r: Recipe) -> list[str]:
    """Options that all loaders have."""
    s = r.settings
    found = []
    if s.num_workers:
        found.append("num_workers=config.num_workers")
        if s.persistent_workers:
            found.append("persistent_workers=config.num_workers > 0")
    if s.pin_memory is None and s.accelerator != "cpu":
        found.append("pin_memory=torch.cuda.is_available()")
    elif s.pin_memory:
        found.append("pin_memory=True")
    return found


def loader(r: Recipe, data: Data, name: str) -> list[str]:
    """The lines that make one loader."""
    options = {option: value for option, value in _options(data).items() if value}
    if data.kind == "samples":
        samples = [other for other in r.loaders if other.kind == "samples"]
        dataset = f"Columns({data.dataset})" if data.columns else data.dataset
        train = ["train=True"] if data is r.train and r.val in samples else []
        given = [f"{option}={value}" for option, value in options.items() if _differs(samples, option)]
        made = call(f"{name} = ", "make_loader", [dataset, "config", "accelerator", *train, *given], 4)
        return [*data.before, *made]
    wrapped = data.iterable or data.dataset.endswith(".dataset")
    arguments = [data.dataset if wrapped else f"Batches({data.dataset})"]
    if data.kind == "batches":
        arguments.append("batch_size=None")
    else:
        arguments.append("batch_size=config.batch_size")
        if data is r.train and r.settings.drop_last:
            arguments.append("drop_last=True")
    arguments.append(f"generator={data.generator or 'torch.Generator().manual_seed(config.seed)'}")
    arguments += [*common(r), *(f"{o}={options[o]}" for o in ("collate_fn", "worker_init_fn") if o in options)]
    return [
        *data.before,
        *call(f"{name} = ", "DataLoader", arguments, 4),
        "if accelerator.num_processes > 1:",
        f"    {name} = accelerator.prepare({name})",
    ]


# ---- the loss ---------------------------------------------------------------------------------------------------


def forward(r: Recipe) -> str:
    """How a batch becomes a loss."""
    if r.hooks is not None:
        return dedent('''\
            class TrainingStep(torch.nn.Module):
                """`training_step` as a forward pass, so that DistributedDataParallel can wrap it."""

                def __init__(self, module):
                    super().__init__()
                    self.module = module

                def forward(self, *batch):
                    loss = self.module.training_step(*batch)
                    return loss["loss"] if isinstance(loss, dict) else loss''')
    lines = _without_loss(r) if r.given("loss") is None else _with_loss(r)
    doc = "The loss of a batch, the output, and the target." if r.measures else "The loss of a batch."
    return "\n".join(["def forward(model, batch):", f'    """{doc}"""', *_indented(lines)])


def _with_loss(r: Recipe) -> list[str]:
    key = r.batch.removeprefix("dict:")
    if r.batch == "pair":
        lines, output = ["inputs, target = batch"], "model(inputs)"
    elif r.batch == "tuple":
        lines, output = ["*inputs, target = batch"], "model(*inputs)"
    else:
        lines = [
            f'inputs = {{name: value for name, value in batch.items() if name != "{key}"}}',
            f'target = batch["{key}"]',
        ]
        output = "model(**inputs)"
    if not r.measures:
        return [*lines, f"return loss_function({output}, target)"]
    return [*lines, f"output = {output}", "return loss_function(output, target), output, target"]


def _without_loss(r: Recipe) -> list[str]:
    key = r.batch.removeprefix("dict:")
    by_name = r.batch.startswith("dict:")
    arguments = "**batch" if by_name else "batch" if r.batch == "single" else "*batch"
    output, loss = f"output = model({arguments})", 'output["loss"] if isinstance(output, dict) else output.loss'
    if not r.measures:
        return [output, f"return {loss}"]
    target = "batch[-1]" if r.batch == "tuple" else f'batch["{key}"]' if by_name and key else "None"
    return [output, f"loss = {loss}", f"return loss, output, {target}"]


def set_lr(r: Recipe) -> str:
    """A new base rate, for live changes and for objects that make their own optimizer."""
    if not (r.changed("lr") or (r.hooks is not None and r.hooks.made_lr is not None)):
        return ""
    if not r.scheduled:
        return dedent('''\
            def set_lr(optimizer, old, new):
                """A new learning rate; the ratios of parameter groups stay."""
                for group in optimizer.param_groups:
                    group["lr"] = new if group["lr"] == old else group["lr"] * (new / old)''')
    return dedent('''\
        def set_lr(optimizer, schedulers, old, new):
            """A new base rate; schedules and the ratios of parameter groups multiply it."""

            def scaled(rate):
                return new if rate == old else rate * (new / old)

            for group in optimizer.param_groups:
                for key in ("lr", "initial_lr", "max_lr", "min_lr"):
                    if key in group:
                        group[key] = scaled(group[key])
            for scheduler in schedulers:  # it grows: a chain of schedulers holds others
                schedulers += getattr(scheduler, "_schedulers", ())
                if hasattr(scheduler, "base_lrs"):
                    scheduler.base_lrs = [scaled(rate) for rate in scheduler.base_lrs]''')


def validate(r: Recipe) -> str:
    """Validation, weighted by samples."""
    if r.val is None:
        return ""
    modules = "for part in model.modules()"
    if r.loss_is_module:
        modules = "for module in (model, loss_function) for part in module.modules()"
    lines = [
        f"modes = {{part: part.training {modules}}}",
        "model.eval()",
        *(["loss_function.eval()"] if r.loss_is_module else []),
        "total, samples = 0.0, 0" if _one_score(r) else "totals, samples = {}, 0",
        "with random_numbers_kept():",
        *_indented(_scores(r, r.val)),
        "for part, training in modes.items():",
        "    part.training = training",
        *_mean(r),
    ]
    logged = ", logged" if r.hooks is not None else ""
    kept = dedent('''\
        @contextlib.contextmanager
        def random_numbers_kept():
            """What is drawn inside is not missed outside."""
            state, numpy_state = random.getstate(), np.random.get_state()
            with torch.random.fork_rng(range(torch.cuda.device_count())):
                yield
            random.setstate(state)
            np.random.set_state(numpy_state)''')
    head = f'@torch.no_grad()\ndef validate(model, loader, device{logged}):\n    """Each metric\'s mean over the samples."""\n'
    return f"{kept}\n\n\n{head}" + indent("\n".join(lines), "    ")


def _one_score(r: Recipe) -> bool:
    """Whether the loss is all there is to report."""
    return r.hooks is None and not r.measures


def _mean(r: Recipe) -> list[str]:
    """The mean over the samples of all processes."""
    if _one_score(r):
        return [
            "shares = gather_object([(total, samples)])  # one from each process",
            'return {"val_loss": sum(total for total, _ in shares) / sum(samples for _, samples in shares)}',
        ]
    return [
        "shares = gather_object([(totals, samples)])  # one from each process",
        "samples = sum(samples for _, samples in shares)",
        "names = shares[0][0]",
        "return {name: sum(totals.get(name, 0.0) for totals, _ in shares) / samples for name in names}",
    ]


def _scores(r: Recipe, data: Data) -> list[str]:
    """The metrics of each batch, added up."""
    moved = "    batch = send_to_device(batch, device, non_blocking=True)"
    counted = [f"    count = {data.count}", "    samples += count"]
    if _one_score(r):
        added = "    total += forward(model, batch).item() * count"
        return ["for batch in loader:", moved, *counted, added]
    if r.hooks is None:
        lines = [
            "for batch in loader:",
            moved,
            "    loss, output, target = forward(model, batch)",
            '    scores = {f"val_{name}": metric(output, target) for name, metric in metrics.items()}',
            '    scores = {"val_loss": loss, **scores}',
        ]
    else:
        index = ", number" if r.hooks.val_index else ""
        lines = [
            "for number, batch in enumerate(loader):" if index else "for batch in loader:",
            moved,
            "    logged.clear()",
            f"    loss = model.validation_step(batch{index})",
            "    if isinstance(loss, dict):",
            '        loss = loss.get("loss", loss.get("val_loss"))',
            "    scores = dict(logged)",
            "    if isinstance(loss, torch.Tensor) and loss.numel() == 1:",
            '        scores.setdefault("val_loss", loss)',
        ]
    return [
        *lines,
        *counted,
        "    for name, value in scores.items():",
        "        mean = torch.as_tensor(value).float().mean().item()",
        "        totals[name] = totals.get(name, 0.0) + mean * count",
    ]


# ---- text -------------------------------------------------------------------------------------------------------


def call(start: str, function: str, arguments: list[str], column: int) -> list[str]:
    """A call in one line, or in several where it is long."""
    line = f"{start}{function}({', '.join(arguments)})"
    if column + len(line) <= _WIDTH:
        return [line]
    inner = f"    {', '.join(arguments)}"
    if column + len(inner) <= _WIDTH:
        return [f"{start}{function}(", inner, ")"]
    return [f"{start}{function}(", *(f"    {argument}," for argument in arguments), ")"]


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
