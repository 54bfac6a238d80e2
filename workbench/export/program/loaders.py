"""Writes how the script gets its batches: classes for what is not a Dataset, and the making of loaders."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.inputs.collect import Data, quoted
from workbench.export.program import checksums, distributed
from workbench.export.program.lines import call, indented
from workbench.export.script_spec import ScriptSpec
from workbench.techniques.limits import is_whole

CONVERTED = (
    'torch.as_tensor(np.array(column, dtype=np.asarray(column).dtype.newbyteorder("=")) if hasattr(column, "__array__") else column)'
)
"""A function that makes a tensor of a frame, or of an array that torch does not take directly."""


def datasets(r: ScriptSpec) -> str:
    """Classes for what is given in other forms than a Dataset."""
    parts = []
    if any(data.columns for data in r.loaders):
        converted = any(data.columns and data.converted for data in r.loaders)
        parts.append(
            dedent('''\
            class Columns(Dataset):
                """A dict of arrays: sample i is row i of each."""

                def __init__(self, columns):
                    self.columns = {name: @@ for name, column in columns.items()}

                def __len__(self):
                    return len(next(iter(self.columns.values())))

                def __getitem__(self, index):
                    return {name: column[index] for name, column in self.columns.items()}''').replace(
                "@@", CONVERTED if converted else "torch.as_tensor(column)"
            )
        )
    if any(map(_wraps, r.loaders)):
        each = "return iter(self.batches)"
        if r.settings.num_workers:
            each = (
                "worker = get_worker_info()\n        if worker is None:\n            return iter(self.batches)\n"
                "        return itertools.islice(self.batches, worker.id, None, worker.num_workers)"
            )
        parts.append(
            dedent('''\
            class Batches(IterableDataset):
                """Ready batches, read again in each epoch."""

                def __init__(self, batches):
                    self.batches = batches

                def __iter__(self):
                    @@''').replace("@@", each)
        )
    return "\n\n\n".join(parts)


def _wraps(data: Data) -> bool:
    """Whether ready batches are made a data set by the script."""
    return data.kind == "batches" and not data.iterable and ".dataset" not in data.dataset


_WORKER_INIT = dedent('''\
    class WorkerInit:
        """A worker_init_fn that finds the data set in `get_worker_info()`, without the seeds around it."""

        def __init__(self, init):
            self.init = init

        def __call__(self, worker_id):
            info = get_worker_info()
            object.__setattr__(info, "dataset", info.dataset.dataset)
            self.init(worker_id)


    ''')


def workers(r: ScriptSpec) -> str:
    """The classes that give each batch a seed of its own where there are loader workers, as `task/data/datasets.py` does."""
    samples = [data for data in r.loaders if data.kind == "samples"]
    if not r.settings.num_workers or not samples:
        return ""
    fetch = "return [self.dataset[index] for index in indices]"
    if any(data.whole for data in samples):
        fetch = (
            'if hasattr(self.dataset, "__getitems__"):\n'
            "            return self.dataset.__getitems__(indices)\n        " + fetch
        )
    init = _WORKER_INIT if any(data.worker_init for data in samples) else ""
    return init + dedent('''\
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


def make_loader(r: ScriptSpec) -> str:
    """The one function that makes loaders of samples."""
    samples = [data for data in r.loaders if data.kind == "samples"]
    if not samples:
        return ""
    options = [name for name in ("batches", "sampler", "generator", "collate_fn", "worker_init_fn") if _differs(r, samples, name)]
    lines = []
    seeded = "torch.Generator().manual_seed(config.seed)"
    if "generator" in options:
        if not all(data.generator for data in samples):
            lines += ["if generator is None:", f"    generator = {seeded}"]
    else:
        lines.append(f"generator = {seeded}")
    lines += checksums.order(r, mixed=r.val in samples)
    lines += _batches(r, samples, options)
    if r.settings.num_workers:
        lines += [
            "if config.num_workers:",
            "    dataset, batches = SeededDataset(dataset), SeededBatches(batches, config.seed, accelerator)",
        ]
    made = ["dataset", "batch_sampler=batches", "generator=generator", *common(r)]
    if "collate_fn" in options or any(data.collate for data in samples):
        made.append(f"collate_fn={'collate_fn' if 'collate_fn' in options else _collate(r, samples[0])}")
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


def _batches(r: ScriptSpec, samples: list[Data], options: list[str]) -> list[str]:
    """The lines that make the batches of indices, and shard them where there are several processes."""
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
        lines = [] if all(d.batch_sampler for d in samples) else ["if batches is None:", *indented(lines)]
    if r.distributed:
        alike = ["batches = Alike(batches, config.seed)"] if any(data.draws for data in samples) else []
        # The user's own batch sampler decides itself which batches to leave out.
        whole = "" if last == "False" or (r.train is not None and r.train.batch_sampler) else f", whole={last}"
        return [*lines, *alike, f"batches = Share(batches, accelerator{whole})"]
    even = "train" if mixed else str(trains)
    shard = ["batches", "accelerator.num_processes", "accelerator.process_index", f"even_batches={even}"]
    return [*lines, "if accelerator.num_processes > 1:", *indented(call("batches = ", "BatchSamplerShard", shard, 8))]


def _differs(r: ScriptSpec, samples: list[Data], option: str) -> bool:
    """Whether an option must be given for each loader."""
    if option == "collate_fn":
        return any(data.collate not in (None, "collate") for data in samples) or (
            len({_collate(r, data) for data in samples}) > 1
        )
    return any(_options(r, data).get(option) for data in samples)


def _options(r: ScriptSpec, data: Data) -> dict[str, str | None]:
    return {
        "batches": data.batch_sampler,
        "sampler": None if data.batch_sampler else data.sampler,
        "generator": data.generator,
        "collate_fn": _collate(r, data),
        "worker_init_fn": f"WorkerInit({data.worker_init})" if data.kind == "samples" and data.worker_init else data.worker_init,
    }


def _collate(r: ScriptSpec, data: Data) -> str | None:
    """The user's collate function; inside `Counted` where a batch's weight is the number of samples it was made of."""
    return f"{_COUNTED[_counts_of(r).index(data.count)]}({data.collate})" if _is_counted(r, data) else data.collate


_COUNTED = ("Counted", "CountedInValidation")


def _is_counted(r: ScriptSpec, data: Data) -> bool:
    return data.collate is not None and data.kind != "batches" and r.weighs(data)


def _counts_of(r: ScriptSpec) -> list[str]:
    """How the counted batches of training and validation are counted."""
    return list(dict.fromkeys(data.count for data in r.loaders if _is_counted(r, data)))


def counted(r: ScriptSpec) -> str:
    """Classes that compare a batch with the samples that were drawn for it: the run weighs by these, the script by the batch."""
    where = "the loss" if r.hooks is None else "validation_step"
    return "\n\n\n".join(
        dedent(f'''\
            class {name}:
                """A collate function; it raises where a batch would weigh otherwise than as the samples that it was made of."""

                def __init__(self, users):
                    self.users = users

                def __call__(self, samples):
                    batch = self.users(samples)
                    if batch is not None and (count := {count}) != len(samples):
                        raise ValueError(
                            f"collate_fn made a batch of {{count}} from {{len(samples)}} samples, and the run weighed it by the samples: "
                            "return {{'loss': ..., 'weight': n}} from {where}, and train again."
                        )
                    return batch''')
        for name, count in zip(_COUNTED, _counts_of(r), strict=False)
    )


def common(r: ScriptSpec) -> list[str]:
    """Options that all loaders have."""
    s = r.settings
    found = []
    if s.num_workers:
        found.append("num_workers=config.num_workers")
        if s.persistent_workers:
            found.append("persistent_workers=config.num_workers > 0")
        if s.prefetch_factor is not None:
            found.append(f"prefetch_factor={s.prefetch_factor} if config.num_workers else None")
    if s.pin_memory is None and s.accelerator != "cpu" and all(data.pinned for data in r.loaders):
        found.append("pin_memory=torch.cuda.is_available()")
    elif s.pin_memory:
        found.append("pin_memory=True")
    return found


def loader(r: ScriptSpec, data: Data, name: str) -> list[str]:
    """The lines that make one loader."""
    options = {option: value for option, value in _options(r, data).items() if value}
    if data.kind == "samples":
        samples = [other for other in r.loaders if other.kind == "samples"]
        dataset = f"Columns({data.dataset})" if data.columns else data.dataset
        train = ["train=True"] if data is r.train and r.val in samples else []
        given = [f"{option}={value}" for option, value in options.items() if _differs(r, samples, option)]
        made = call(f"{name} = ", "make_loader", [dataset, "config", "accelerator", *train, *given], 4)
        return [*data.before, *made]
    wrapped = not _wraps(data)
    arguments = [data.dataset if wrapped else f"Batches({data.dataset})"]
    if data.kind == "batches":
        arguments.append("batch_size=None")
    else:
        arguments.append("batch_size=config.batch_size")
        if data is r.train and r.settings.drop_last:
            arguments.append("drop_last=True")
    arguments.append(f"generator={data.generator or 'torch.Generator().manual_seed(config.seed)'}")
    arguments += [*common(r), *(f"{o}={options[o]}" for o in ("collate_fn", "worker_init_fn") if o in options)]
    if r.distributed and data.kind == "batches" and not data.iterable and wrapped:  # by number
        arguments.insert(1, f"sampler=Share(SequentialSampler({data.dataset}), accelerator)")
        return [*data.before, *call(f"{name} = ", "DataLoader", arguments, 4)]
    if r.distributed:
        made = call(f"{name} = ", "DataLoader", arguments, 4)
        return [*data.before, *made, *call(f"{name} = ", "Share", distributed.dealt(r, data, name), 4)]
    return [
        *data.before,
        *call(f"{name} = ", "DataLoader", arguments, 4),
        "if accelerator.num_processes > 1:",
        f"    {name} = accelerator.prepare({name})",
    ]


def saved(r: ScriptSpec) -> list[str]:
    """The lines that read the data beside the script; none where the user's code makes them."""
    if r.data_file is None:
        return []
    return [
        f"beside = Path(__file__).with_name({quoted(r.data_file)})",
        "if not beside.exists():",
        '    raise SystemExit(f"There is no {beside}, which holds the data of the run: put it there, or export the run again.")',
        "tensors = load_file(str(beside))",
        *(f"{data.dataset} = {data.saved}" for data in r.loaders if data is r.train or r.validates),
    ]


def first(data: Data | None, name: str, count: str) -> str:
    """The first batches of a loader, as an expression."""
    if data is not None and data.sized:
        return f"first_of({name}, {count})"
    return f"itertools.islice({name}, {count})"


def first_of(r: ScriptSpec) -> str:
    """The function that gives the first batches of a loader."""
    limits = ((r.train, r.settings.limit_train_batches), (r.val if r.validates else None, r.settings.limit_val_batches))
    tried = r.tries_validation and r.val is not None and r.val.sized and r.settings.num_sanity_val_steps > 0
    if not (tried or any(data is not None and data.sized and not is_whole(limit) for data, limit in limits)):
        return ""
    return dedent('''\
        def first_of(loader, count):
            """The first batches of a loader; all of them to its very end, where a sampler may draw a last number."""
            return iter(loader) if count >= len(loader) else itertools.islice(loader, count)''')


def remade(r: ScriptSpec, data: Data, name: str, kind: str) -> list[str]:
    """The lines of a function that makes a loader, for more than once, and of the loader."""
    lines = [line for line in loader(r, data, "made") if line not in data.before]
    if lines[0].startswith("made = ") and len(lines) == 1:
        lines = [f"return {lines[0].removeprefix('made = ')}"]
    else:
        lines.append("return made")
    return [
        *data.before,
        "",
        f"def {kind}_batches():",
        f'    """The {kind} batches from the beginning on."""',
        *indented(lines),
        "",
        f"{name} = {kind}_batches()",
    ]
