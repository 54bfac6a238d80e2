"""Loaders, and data sets of what is none."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import torch
from accelerate.data_loader import BatchSamplerShard, prepare_data_loader
from accelerate.utils import find_batch_size
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)

from workbench.export.program.constants import (
    ACCUMULATES,
    DISTRIBUTED,
    DRAWS_TO_THE_END,
    DROP_LAST,
    LIMITS,
    MEAN,
    NUM_WORKERS,
    PERSISTENT_WORKERS,
    PIN_MEMORY,
    PREFETCH_FACTOR,
    SHUFFLE,
    SINGLE_PROCESS,
    SIZED,
    TRAIN_FORM,
    TRAIN_KIND,
    TRAIN_OWN,
    VAL_FORM,
    VAL_KIND,
    VAL_OWN,
    WINDOWS,
    WINDOWS_BY,
    WORKER_SEEDS,
)
from workbench.export.program.user import (
    collate,
    train_batch_sampler,
    train_generator,
    train_sampler,
    train_worker_init,
    val_batch_sampler,
    val_collate,
    val_generator,
    val_sampler,
    val_worker_init,
)


def training_loader(dataset, config, accelerator):
    """The training batches, from the beginning on."""
    if TRAIN_FORM == "columns":
        dataset = Columns(dataset)
    elif TRAIN_FORM == "batches":
        dataset = Batches(dataset)
    return make_loader(
        dataset,
        config,
        accelerator,
        train=True,
        ready=TRAIN_KIND == "batches",
        samples=TRAIN_KIND == "samples",
        sampler=train_sampler if "sampler" in TRAIN_OWN else None,
        batch_sampler=train_batch_sampler if "batch_sampler" in TRAIN_OWN else None,
        generator=train_generator if "generator" in TRAIN_OWN else None,
        collate_fn=collate if "collate_fn" in TRAIN_OWN else None,
        worker_init_fn=train_worker_init if "worker_init_fn" in TRAIN_OWN else None,
    )


def validation_loader(dataset, config, accelerator):
    """The batches of a validation set."""
    if VAL_FORM == "columns":
        dataset = Columns(dataset)
    elif VAL_FORM == "batches":
        dataset = Batches(dataset)
    return make_loader(
        dataset,
        config,
        accelerator,
        ready=VAL_KIND == "batches",
        samples=VAL_KIND == "samples",
        sampler=val_sampler if "sampler" in VAL_OWN else None,
        batch_sampler=val_batch_sampler if "batch_sampler" in VAL_OWN else None,
        generator=val_generator if "generator" in VAL_OWN else None,
        collate_fn=val_collate if "collate_fn" in VAL_OWN else None,
        worker_init_fn=val_worker_init if "worker_init_fn" in VAL_OWN else None,
    )


def make_loader(
    dataset,
    config,
    accelerator,
    train=False,
    ready=False,
    samples=True,
    sampler=None,
    batch_sampler=None,
    generator=None,
    collate_fn=None,
    worker_init_fn=None,
):
    """A loader with a generator of its own: nothing else moves the order of its samples."""
    if DISTRIBUTED or DRAWS_TO_THE_END:
        draws = generator or torch.Generator().manual_seed(config.seed)
    if DISTRIBUTED and samples:
        order = SequentialSampler(dataset)
        if train and SHUFFLE:
            order = RandomSampler(dataset, generator=draws)
        batches = batch_sampler or BatchSampler(
            sampler or order, config.batch_size, train and DROP_LAST
        )
        shares = Share(batches, accelerator, train and DROP_LAST and batch_sampler is None)
    if WORKER_SEEDS and samples:
        if DISTRIBUTED:
            batches = shares
        else:
            draws = generator or torch.Generator().manual_seed(config.seed)
            if sampler is not None:
                order = sampler
            elif SHUFFLE and train:
                order = RandomSampler(dataset, generator=draws)
            else:
                order = SequentialSampler(dataset)
            batches = batch_sampler or BatchSampler(order, config.batch_size, train and DROP_LAST)
            if accelerator.num_processes > 1:
                batches = BatchSamplerShard(
                    batches,
                    accelerator.num_processes,
                    accelerator.process_index,
                    even_batches=train,
                )
        if config.num_workers:
            dataset = SeededDataset(dataset)
            batches = SeededBatches(batches, config.seed, accelerator)
        return DataLoader(
            dataset,
            batch_sampler=batches,
            generator=draws,
            collate_fn=collate_fn,
            worker_init_fn=None if worker_init_fn is None else WorkerInit(worker_init_fn),
            num_workers=config.num_workers,
            persistent_workers=config.num_workers > 0 if PERSISTENT_WORKERS else False,
            prefetch_factor=PREFETCH_FACTOR if PREFETCH_FACTOR and config.num_workers else None,
            pin_memory=torch.cuda.is_available() if PIN_MEMORY else False,
        )
    if (DISTRIBUTED and samples) or batch_sampler is not None:
        loader = DataLoader(
            dataset,
            batch_sampler=shares if DISTRIBUTED else batch_sampler,
            generator=draws
            if DISTRIBUTED
            else generator or torch.Generator().manual_seed(config.seed),
            collate_fn=collate_fn,
            worker_init_fn=worker_init_fn,
            num_workers=config.num_workers if NUM_WORKERS else 0,
            persistent_workers=config.num_workers > 0 if PERSISTENT_WORKERS else False,
            prefetch_factor=PREFETCH_FACTOR if PREFETCH_FACTOR and config.num_workers else None,
            pin_memory=torch.cuda.is_available() if PIN_MEMORY else False,
        )
    else:
        loader = DataLoader(
            dataset,
            batch_size=None if ready else config.batch_size,
            shuffle=None if DRAWS_TO_THE_END else train and samples and SHUFFLE and sampler is None,
            sampler=WholeOrder(dataset, generator=draws) if DRAWS_TO_THE_END and train else sampler,
            drop_last=train and not ready and DROP_LAST,
            generator=draws
            if DRAWS_TO_THE_END
            else generator or torch.Generator().manual_seed(config.seed),
            collate_fn=collate_fn,
            worker_init_fn=worker_init_fn,
            num_workers=config.num_workers if NUM_WORKERS else 0,
            persistent_workers=config.num_workers > 0 if PERSISTENT_WORKERS else False,
            prefetch_factor=PREFETCH_FACTOR if PREFETCH_FACTOR and config.num_workers else None,
            pin_memory=torch.cuda.is_available() if PIN_MEMORY else False,
        )
    if not SINGLE_PROCESS and not DISTRIBUTED and accelerator.num_processes > 1:
        loader = prepare_data_loader(loader, even_batches=train)
    if DISTRIBUTED and not samples:
        loader = Share(loader, accelerator, train and not ready and DROP_LAST)
    return loader


def limited(loader, config):
    """The batches of an epoch."""
    if not LIMITS:
        return loader
    if SIZED:
        return first_of(loader, epoch_length(loader, config))
    return itertools.islice(loader, config.limit_train_batches)


def epoch_length(loader, config):
    """How many batches an epoch has."""
    if LIMITS == "fraction":
        return int(len(loader) * config.limit_train_batches + 1e-9)
    if LIMITS == "batches":
        return min(config.limit_train_batches, len(loader)) if SIZED else config.limit_train_batches
    return len(loader)


def updates_in_epoch(config, loader, epoch=0):
    """How many updates an epoch has."""
    batches = epoch_length(loader, config)
    return math.ceil(batches / window_size(config, epoch)) if ACCUMULATES else batches


def window_size(config, position):
    """How many batches make an update, in this epoch or at this update."""
    if WINDOWS is None:
        return config.accumulate_grad_batches
    return WINDOWS[max(first for first in WINDOWS if first <= position)]


def windows(batches, config, epoch, step, accelerator):
    """The batches of each update."""
    batches = iter(batches)
    while True:
        window = list(
            itertools.islice(batches, window_size(config, step if WINDOWS_BY == "step" else epoch))
        )
        if DISTRIBUTED:
            weights = [find_batch_size(batch) if MEAN else 1 for batch in window]
            counts = torch.tensor([sum(weights), len(window) > 0], dtype=torch.float64)
            total, processes = accelerator.reduce(counts.to(accelerator.device)).tolist()
            if not processes:
                return
            # The last windows may lack batches in some processes.
            yield window, weights, total, processes == accelerator.num_processes
        else:
            if not window:
                return
            yield window
        if WINDOWS_BY == "step":
            step += 1


def first_of(loader, count):
    """A loader's first batches; all of them to the very end, where a sampler may draw once more."""
    return iter(loader) if count >= len(loader) else itertools.islice(loader, count)


class Share:
    """Of batches that all processes go through alike, those of this process."""

    def __init__(self, batches, accelerator, drop_last=False):
        self.batches = batches
        self.first, self.stride = accelerator.process_index, accelerator.num_processes
        if DROP_LAST:
            self.drop_last = drop_last

    def __len__(self):
        if DROP_LAST and self.drop_last:
            return len(self.batches) // self.stride
        return math.ceil(len(self.batches) / self.stride)

    def __iter__(self):
        batches = iter(self.batches)
        while shares := list(itertools.islice(batches, self.stride)):
            if DROP_LAST and self.drop_last and len(shares) < self.stride:
                continue
            # The last round may have fewer batches than there are processes.
            if len(shares) > self.first:
                yield shares[self.first]


class WholeOrder(RandomSampler):
    """Draws the order of an epoch to its end, where a RandomSampler draws once more: Lightning
    stops before that, and the next epoch would have another order.
    """

    def __iter__(self):
        return iter(list(super().__iter__()))


class Columns(Dataset):
    """A dict of arrays: sample i is row i of each."""

    def __init__(self, columns):
        self.columns = {name: torch.as_tensor(column) for name, column in columns.items()}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index):
        return {name: column[index] for name, column in self.columns.items()}


class Batches(IterableDataset):
    """Ready batches, read again in each epoch."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        if NUM_WORKERS:
            worker = get_worker_info()
            if worker is not None:
                return itertools.islice(self.batches, worker.id, None, worker.num_workers)
        return iter(self.batches)


class SeededDataset(Dataset):
    """Each batch is made with random numbers of its own, whichever worker makes it."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getitems__(self, keyed):
        seed, indices = keyed
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(indices)
        return [self.dataset[index] for index in indices]


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
            yield int(np.random.SeedSequence(entropy).generate_state(1)[0]), indices


class WorkerInit:
    """A worker_init_fn that finds the data set in `get_worker_info()`, without the seeds around
    it.
    """

    def __init__(self, init):
        self.init = init

    def __call__(self, worker_id):
        info = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)
        self.init(worker_id)
