"""The batch-size search of other stages, at a kept effective batch, and over sequences."""

import bisect

import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.engine.learners import Speller, letters_loss, sentences
from tests.engine.problems import bench, labelled, noisy_net, plain_net, same_weights, weights
from workbench.events import SearchEnded, Trial
from workbench.runs.run import Run
from workbench.settings import Settings, SettingsError
from workbench.task.errors import TaskError
from workbench.tuners import trial as trying
from workbench.tuners.batch_size.batch_size_search import BatchSizes, NotEnoughData, search
from workbench.tuners.batch_size.effective_batch import accumulation, effective_batch, next_size

pytestmark = pytest.mark.usefixtures("one_thread")


class Watched:
    """A loss that notes the size of each batch, and whether it is trained on."""

    def __init__(self, seen):
        """seen: gets the notes. The loss does not hold it, since a trial restores what a loss holds."""
        self.note = lambda *found: seen.append(found)

    def __call__(self, output, y):
        self.note(len(y), torch.is_grad_enabled())
        return F.cross_entropy(output, y)


def made(root, model=None, **given):
    return wb.Workbench(model or noisy_net(), **{"train": labelled(30), "loss": F.cross_entropy, "root": root,
                                                 "accelerator": "cpu", "batch_size": 8, **given})  # fmt: skip


# -- other stages


@pytest.mark.parametrize(
    ("method", "name"), [("validate", "val"), ("test", "test"), ("predict", "test")]
)
def test_a_stage_is_tried_on_its_own_data_up_to_its_length(method, name, tmp_path):
    model = noisy_net()
    b = made(tmp_path, model, **{name: labelled(50, seed=3)})
    before = weights(model)
    found = b.find_batch_size(method=method, init_val=8).result()
    assert [t.size for t in found.trials] == [8, 16, 32, 50]  # more than the 30 samples to train on
    assert found.largest == 50
    assert all(t.ok and t.samples_per_second > 0 for t in found.trials)
    assert same_weights(before, weights(model))


@pytest.mark.parametrize(("method", "last"), [("validate", []), ("test", [(5, False)])])
def test_a_trial_of_a_stage_has_whole_batches_and_the_last_one_and_no_gradient(
    method, last, tmp_path
):
    seen = []
    b = made(
        tmp_path,
        loss=Watched(seen),
        val=labelled(25, 3),
        test=labelled(25, 4),
        limit_val_batches=0.5,
    )
    seen.clear()
    trial = trying.measure(b._task, b.settings, 10, 5, method)
    assert trial.ok
    assert len(seen) >= 5  # two batches to a pass over 25 samples
    # limit_val_batches leaves it out
    assert [batch for batch in seen if batch != (10, False)] == last


def test_predictions_are_tried_without_gradients(tmp_path):
    calls = []

    class Noted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(6, 3)

        def forward(self, x):
            calls.append((len(x), torch.is_grad_enabled(), self.training))
            return self.line(x)

    b = made(tmp_path, Noted(), test=labelled(25, 3))
    calls.clear()
    assert trying.measure(b._task, b.settings, 10, 3, "predict").ok
    assert [call for call in calls if call != (10, False, False)] == [(5, False, False)]


def test_stages_that_cannot_be_tried(tmp_path):
    b = made(tmp_path)
    for method, words in (("validate", "no val data: give val="), ("test", "no test data: give test="),
                          ("predict", "no data to predict")):  # fmt: skip
        with pytest.raises(TaskError, match=words):
            b.find_batch_size(method=method).result()
    with pytest.raises(
        SettingsError, match="method='train': give one of 'fit', 'validate', 'test', 'predict'"
    ):
        b.find_batch_size(method="train")
    x, y = labelled().tensors
    ready = made(tmp_path, val=wb.batches([(x[:4], y[:4])]), test=iter([(x[:4], y[:4])]))
    with pytest.raises(TaskError, match=r"cannot set the batch size of val: .*ready batches"):
        ready.find_batch_size(method="validate").result()
    with pytest.raises(TaskError, match="cannot set the batch size of test"):
        ready.find_batch_size(method="test").result()
    assert ready.find_batch_size(max_trials=2, min_updates_per_epoch=1).result().largest == 4


def test_data_without_a_length_ends_a_stages_search(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(labelled(21, seed=5))

    b = made(tmp_path, val=Stream())
    with pytest.raises(NotEnoughData, match="fewer than 22"):
        trying.measure(b._task, b.settings, 22, 1, "validate")
    found = b.find_batch_size(method="validate", init_val=4).result()
    assert [t.size for t in found.trials] == [4, 8, 16]
    assert found.ended == "the data holds fewer than 32 samples"


def test_limits_and_schedules_do_not_disturb_a_trial(tmp_path):
    """At other sizes there are other numbers of batches: a fraction of them may be none, a warm-up too long."""
    b = made(tmp_path, val=labelled(30, 3), limit_train_batches=0.3, limit_val_batches=0.3, warmup=3, max_epochs=4,
             lr_schedule="cosine")  # fmt: skip
    assert b.find_batch_size(init_val=16).result().largest == 30
    assert b.find_batch_size(init_val=16, fast_dev_run=2).result().largest == 30


# -- a kept effective batch


def test_what_the_effective_batch_is():
    assert effective_batch(Settings(batch_size=8, accumulate_grad_batches=3)) == 24
    assert effective_batch(Settings(batch_size=8, accumulate_grad_batches={0: 3})) == 24
    assert effective_batch(Settings(batch_size=8, accumulate_grad_batches={0: 3, 5: 3})) == 24
    for several in ({0: 3, 4: 2}, {4: 2}):
        with pytest.raises(SettingsError, match="changes during the fit"):
            effective_batch(Settings(batch_size=8, accumulate_grad_batches=several))


@pytest.mark.parametrize(
    ("effective", "size", "count"),
    [(96, 32, 3), (97, 32, 3), (100, 64, 2), (100, 80, 1), (7, 100, 1)],
)
def test_the_nearest_number_of_batches(effective, size, count):
    assert accumulation(effective, size) == count
    near = min(range(1, effective + 1), key=lambda n: abs(n * size - effective))
    assert abs(count * size - effective) == abs(near * size - effective)


def test_sizes_that_divide_are_tried():
    assert [next_size(n, None) for n in (2, 3)] == [4, 6]
    assert [next_size(n, 96) for n in (2, 32, 48)] == [4, 48, 96]
    assert next_size(2, 15) == 3
    tried = []

    def trial(size):
        tried.append(size)
        return Trial(size, True, 0.1, float(size))

    search(trial, effective=96)
    assert tried == [2, 4, 8, 16, 32, 48, 96]
    for size in tried:
        assert 96 % size == 0


@pytest.mark.parametrize("mode", ["power", "binsearch"])
@pytest.mark.parametrize("effective", [60, 96, 100, 63])
@pytest.mark.parametrize("limit", [5, 17, 47, 1000])
def test_the_effective_batch_is_kept_exactly_where_a_size_that_passed_allows_it(
    mode, effective, limit
):
    found = search(
        lambda size: Trial(size, size <= limit, 0.1, float(size)), mode=mode, effective=effective
    )
    passed = [t.size for t in found.trials if t.ok]
    assert max(t.size for t in found.trials) <= effective
    assert found.best in passed
    if any(effective % size == 0 for size in passed):
        assert found.best * found.accumulate_grad_batches == effective
    assert found.largest == max(passed)


def test_where_it_cannot_be_kept_the_end_says_so():
    found = search(lambda size: Trial(size, size <= 40, 0.1, float(size)), effective=97)
    assert (found.best, found.accumulate_grad_batches) == (32, 3)
    assert found.ended == "64 did not fit; 97 is not a multiple of 32: 3 of them make 96"


def test_a_trial_runs_with_the_batches_that_make_the_effective_batch(tmp_path):
    b = made(tmp_path, train=labelled(200), batch_size=8, accumulate_grad_batches=6)
    job = b.find_batch_size(keep_effective=True, init_val=8, steps_per_trial=1)
    found = job.result()
    assert [t.size for t in found.trials] == [8, 16, 24, 48]
    assert found.best * found.accumulate_grad_batches == 48
    assert found.ended == "stopped at the effective batch (48)"
    assert f"best {found.best} x {found.accumulate_grad_batches} batches" in repr(found)
    assert BatchSizes.from_events(Run.open(job.folder.path).events) == found
    assert [e.accumulate_grad_batches for e in job.events if isinstance(e, SearchEnded)] == [
        found.accumulate_grad_batches
    ]
    run = b.fit(
        batch_size=found.best, accumulate_grad_batches=found.accumulate_grad_batches, max_steps=1
    ).result()
    assert run.step == 1


def test_the_batches_of_a_trial_are_so_many(tmp_path):
    from workbench.tuners.batch_size.batch_size_finder import BatchSizeRequest

    seen = []
    b = made(
        tmp_path, train=labelled(60), loss=Watched(seen), batch_size=12, accumulate_grad_batches=2
    )
    settings = BatchSizeRequest(keep_effective=True).settings_at(b.settings, 4)
    assert settings.accumulate_grad_batches == 6
    seen.clear()
    trial = trying.measure(b._task, settings, 4, 2)
    assert set(seen) == {(4, True)}
    assert len(seen) % 6 == 0
    assert trial.samples_per_second == pytest.approx(24 / trial.seconds)


def test_what_keeping_refuses(tmp_path):
    b = made(tmp_path, val=labelled(20, 3), accumulate_grad_batches={0: 2, 3: 1})
    with pytest.raises(SettingsError, match="changes during the fit"):
        b.find_batch_size(keep_effective=True)
    with pytest.raises(SettingsError, match="method='validate' takes none"):
        b.find_batch_size(keep_effective=True, method="validate")
    assert b.jobs == []


def test_a_rate_is_rescaled_only_when_asked():
    found = BatchSizes(64, 128, (), "done")
    assert found.lr(0.1, from_size=16) == pytest.approx(0.4)
    assert found.lr(0.1, 16, "sqrt") == pytest.approx(0.2)
    assert found.lr(0.1, 16, "none") == 0.1
    assert found.lr(0.1, 128) == pytest.approx(0.05)
    # the effective batch is what it was
    assert BatchSizes(64, 128, (), "done", 4).lr(0.1, 16) == 0.1
    assert BatchSizes(None, None, (), "stopped").lr(0.1, 16) == 0.1
    with pytest.raises(SettingsError, match="rule='square'"):
        found.lr(0.1, 16, "square")
    with pytest.raises(SettingsError, match="from_size=0"):
        found.lr(0.1, 0)


# -- memory and sequences


def test_sizes_count_sequences(tmp_path):
    """Eleven letters in pieces of four are three updates: a third of the batch each."""
    b = wb.Workbench(Speller(), train=sentences(24), loss=letters_loss, root=tmp_path, accelerator="cpu", batch_size=4,
                     truncated_bptt_steps=4, val=sentences(10, seed=2))  # fmt: skip
    trial = trying.measure(b._task, b.settings, 12, 3)
    assert trial.samples_per_second == pytest.approx(12 / 3 / trial.seconds)
    found = b.find_batch_size(init_val=6, steps_per_trial=2, min_updates_per_epoch=1).result()
    assert [t.size for t in found.trials] == [6, 12, 24]


@pytest.mark.slow  # ten searches in 100 MB each
def test_averaged_weights_have_their_place_in_a_trial(tmp_path):
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 2_000_000, bias=False), torch.nn.Linear(2_000_000, 3, bias=False)
    )
    b = bench(model, labelled(), tmp_path, torch.optim.SGD, max_epochs=2)

    def passes(memory, **settings):
        found = b.find_batch_size(
            max_val=2, steps_per_trial=1, max_memory=memory * 2**20, **settings
        )
        try:
            return found.result().largest == 2
        except RuntimeError:
            return False

    # 69 MB of weights: a copy of them, gradients, and what else there is; the average is as much again.
    enough = 150 + 10 * bisect.bisect_left(
        range(135), True, key=lambda tens: passes(150 + 10 * tens)
    )
    assert not passes(enough, weight_averaging="ema")
    assert passes(enough + 150, weight_averaging="ema")


def test_plain_sizes_have_no_accumulation(tmp_path):
    found = bench(plain_net(), labelled(), tmp_path).find_batch_size(max_trials=1).result()
    assert found.accumulate_grad_batches is None
    assert " x " not in repr(found).splitlines()[0]
