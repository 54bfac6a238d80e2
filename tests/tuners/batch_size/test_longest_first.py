"""find_batch_size(longest=…): the longest samples are tried, so that a size which passes fits any batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

import workbench as wb
from tests.engine.problems import bench, labelled, plain_net, same_weights, weights
from tests.on_ranks import on_ranks
from workbench.settings import Settings, SettingsError
from workbench.task.errors import TaskError
from workbench.tuners.batch_size.longest_first import longest_first

pytestmark = pytest.mark.usefixtures("one_thread")
LONG = 17


class Sentences(Dataset):
    """200 sentences of 1 to 9 words, and three long ones in between."""

    def __init__(self):
        self.lengths = [1 + i % 9 for i in range(200)]
        for place in (20, 90, 150):
            self.lengths[place] = LONG

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        torch.rand(1)  # an augmentation, say
        return torch.ones(self.lengths[i], 4), i % 3


def padded(samples):
    x = nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)
    return x, torch.tensor([y for _, y in samples])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.shapes = nn.Linear(4, 3), []

    def forward(self, x):
        self.shapes.append(tuple(x.shape))
        return self.out(x.mean(1))


def reader_bench(root, model, data=None, **settings):
    return wb.Workbench(
        model,
        train=data or Sentences(),
        val=Sentences(),
        loss=F.cross_entropy,
        collate_fn=padded,
        root=root,
        accelerator="cpu",
        **settings,
    )


def batches(task, method, size=8):
    spec = {"fit": task.train, "validate": task.val}[method]
    return [
        tuple(x.shape)
        for x, _ in spec.loader(Settings.make(batch_size=size, shuffle=True), train=method == "fit")
    ]


def test_the_longest_come_first_and_nothing_else_changes(tmp_path):
    b = reader_bench(tmp_path, Reader())
    before, random = [*map(tuple, batches(b._task, "fit"))], torch.get_rng_state()
    task = longest_first(b._task, "fit", lambda sample: len(sample[0]))
    assert torch.equal(random, torch.get_rng_state()), (
        "reading the samples draws nothing from the user's generator"
    )
    for method in ("fit", "validate"):
        found = batches(task, method)
        assert found[0] == (8, LONG, 4)
        assert [shape[1] for shape in found] == sorted((shape[1] for shape in found), reverse=True)
        assert len(found) == 25
    assert batches(b._task, "fit") == before
    assert longest_first(b._task, "fit", None) is b._task


def test_a_size_passes_only_with_the_longest(tmp_path):
    """A batch needs memory by its longest sample: there is room for 15 samples of the usual lengths, and for 8 with a long one."""

    class Hungry(Reader):
        def forward(self, x):
            if x.numel() > 8 * LONG * 4:
                raise MemoryError("out of memory")
            return super().forward(x)

    model = Hungry()
    before = weights(model)
    longest = (
        reader_bench(tmp_path, model)
        .find_batch_size(longest=lambda s: len(s[0]), max_val=64)
        .result()
    )
    assert longest.largest == 8
    assert longest.noise_scale is None
    assert "longest samples" in longest.noise_reason
    assert same_weights(before, weights(model))
    job = reader_bench(tmp_path / "val", model).find_batch_size(
        longest=lambda s: len(s[0]), max_val=64, method="validate"
    )
    assert job.result().largest == 8
    assert job.events[0].request["longest"] is True


def test_a_sampler_that_knows_lengths_needs_no_function(tmp_path):
    class ByLength(Sampler):
        def __init__(self, lengths):
            self.lengths = lengths

        def __iter__(self):
            return iter(range(len(self.lengths)))

        def __len__(self):
            return len(self.lengths)

    data = Sentences()
    loader = DataLoader(data, batch_size=8, sampler=ByLength(data.lengths), collate_fn=padded)
    b = wb.Workbench(Reader(), train=loader, loss=F.cross_entropy, root=tmp_path, accelerator="cpu")
    assert batches(longest_first(b._task, "fit", None), "fit")[0] == (8, LONG, 4)


def test_ranks_try_them_too():
    def work():
        from pathlib import Path

        from tests.tuners.batch_size.test_longest_first import Reader, reader_bench

        b = reader_bench(Path("unused"), Reader(), dry_run=False)
        task = longest_first(b._task, "fit", lambda sample: len(sample[0]))
        return batches(task, "fit")[0]

    assert on_ranks(2, work) == [(8, LONG, 4), (8, 9, 4)], (
        "each rank begins with the longest of its share"
    )


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.ones(3, 4), 1)] * 50)


def test_bad_input_is_named(tmp_path):
    b = reader_bench(tmp_path, Reader())
    with pytest.raises(SettingsError, match="longest=3"):
        b.find_batch_size(longest=3)
    for wrong in (lambda sample: "long", lambda sample: None, lambda sample: float("nan")):
        with pytest.raises(TaskError, match=r"longest= returned .* for sample 0 of train"):
            b.find_batch_size(longest=wrong).result()
    with pytest.raises(TaskError, match=r"longest=: train .*: give a Dataset"):
        reader_bench(tmp_path, Reader(), Stream()).find_batch_size(
            longest=lambda s: len(s[0])
        ).result()
    ready = wb.batches([(torch.ones(8, 6), torch.ones(8).long())] * 9)
    with pytest.raises(TaskError, match=r"longest=: train is not sorted|batch size"):
        wb.Workbench(plain_net(), train=ready, loss=F.cross_entropy, root=tmp_path).find_batch_size(
            longest=len
        ).result()


def test_samples_of_one_length_give_the_search_without_it(tmp_path):
    found = (
        bench(plain_net(), labelled(64), tmp_path)
        .find_batch_size(longest=lambda sample: len(sample[0]), max_val=16)
        .result()
    )
    assert found.largest == 16
