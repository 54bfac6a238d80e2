"""Techniques and kinds of data drawn at random, cut off at random and resumed: what comes is the run that nothing has cut."""

import contextlib
import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    WeightedRandomSampler,
)

import workbench as wb
from tests.conftest import count
from tests.engine.learners import sentences
from tests.engine.problems import Augmented, Stream, labelled, stepped_by_hand
from tests.engine.resuming import same
from tests.engine.twins.test_pairs_against_twin import MAKERS, Case, as_settings, cases, made
from workbench.engine.checkpoint.files import read_state
from workbench.events import Message
from workbench.runs.checkpoints import list_checkpoints
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where a fit is cut off, and how the next one goes on from it.

    `how`: "stop" (a Stop comes behind the `at`-th step of an optimizer), "check" (it comes at the `at`-th sample of
    validation data), "kept" (it ends, and a checkpoint of those behind
    every `at`-th update is taken), "length" (`max_steps` is `at`). `same`: the same bench goes on, else a new one.
    """

    how: str = "stop"
    at: int = 1
    which: int = 0
    same: bool = False


@dataclasses.dataclass(frozen=True)
class Resumed:
    case: Case
    cuts: tuple[Cut, ...]
    data: str = "set"
    scheduler: str | None = None
    every: int = 1
    monitor: str = "val_loss"
    by_hand: bool = False
    shuffles: bool = False
    """The validation data come in another order at each check."""


class Unsteady(Dataset):
    """Validation data with noise of a generator of its own, if it is `noisy`; `read` is called for each sample."""

    read = staticmethod(lambda: None)

    def __init__(self, data, noisy):
        self.data, self.generator = data, torch.Generator().manual_seed(9) if noisy else None

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        self.read()
        x, y = self.data[index]
        return (
            (x, y)
            if self.generator is None
            else (x + 0.1 * torch.randn(x.shape, generator=self.generator), y)
        )


class ByHand(nn.Module):
    """Two optimizers stepped by hand, one of them every third batch, whose gradients add up until then."""

    automatic_optimization = False

    def __init__(self, make):
        super().__init__()
        torch.manual_seed(0)
        self.make = make
        self.a, self.mask, self.b = nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(self.mask(torch.tanh(self.a(x))))

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        if stepped_by_hand(self, loss, batch_idx):
            self.lr_schedulers().step()
        return loss

    def validation_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        one, two = self.make(self.a.parameters(), lr=0.05), self.make(self.b.parameters(), lr=0.05)
        return [one, two], [torch.optim.lr_scheduler.StepLR(two, 2, 0.5)]


def data_of(one):
    """The training data, and settings of theirs."""
    data = sentences(one.case.n) if one.case.texts else labelled(one.case.n)
    match one.data:
        case "augmented":
            return Augmented(data), {}
        case "sampler":
            sampler = WeightedRandomSampler(torch.arange(1.0, len(data) + 1), len(data))
            return DataLoader(Augmented(data), 8, sampler=sampler), {}
        case "batches":
            own = RandomSampler(data, replacement=True, generator=torch.Generator().manual_seed(3))
            return DataLoader(data, batch_sampler=BatchSampler(own, 8, drop_last=False)), {}
        case "stream" | "blind stream":
            return DataLoader(Stream(data, one.data == "stream"), 8), {}
        case "workers":
            return Augmented(data), {"num_workers": 2, "persistent_workers": True}
        case "steps of workers":
            return Augmented(data), {"num_workers": 1, "persistent_workers": False}
        case _:
            return data, {}


def scheduler_of(one):
    made = {
        "epochs": lambda optimizer, updates: wb.Schedule(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), "epoch"),
        "updates": lambda optimizer, updates: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        "cycle": lambda optimizer, updates: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
        "plateau": lambda optimizer, updates: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.3),
    }  # fmt: skip
    return made.get(one.scheduler)


def bench_of(one, root):
    """A bench with objects of its own, as another process would make it."""
    case = one.case
    model, loss = (ByHand(MAKERS[case.make]), None) if one.by_hand else made(case)
    data, own = data_of(one)
    # how far a generator is in workers that live on nobody can know
    noisy = not case.texts and one.data != "workers"
    val = Unsteady(sentences(9, seed=4) if case.texts else labelled(21, seed=5), noisy)
    if one.shuffles:
        val = DataLoader(
            val, 8, sampler=RandomSampler(val, generator=torch.Generator().manual_seed(2))
        )
    stopping = (
        []
        if case.patience is None
        else [wb.EarlyStopping(monitor="val_loss", patience=case.patience, min_delta=0.01)]
    )
    optimizer = {} if loss is None else {"optimizer": MAKERS[case.make]}
    return wb.Workbench(
        model, train=data, val=None if case.interval is None else val, loss=loss, scheduler=scheduler_of(one), root=root,
        accelerator="cpu", batch_size=8, lr=0.05, early_stopping=stopping, log_every_n_steps=one.every, monitor=one.monitor if case.interval is not None else None,
        **optimizer, **as_settings(case), **own,
    )  # fmt: skip


@st.composite
def drawn_cuts(draw):
    case = draw(cases())
    by_hand = case.kind == "hooks" and not case.picky and draw(st.booleans())
    if by_hand:
        case = dataclasses.replace(
            case, windows=1, schedule="constant", warmup=0, weighted=False, precision="32-true",
            make="adamw" if case.make == "lbfgs" else case.make, average=None, clip=None, max_steps=None,
        )  # fmt: skip
    kinds = [
        "set",
        "augmented",
        "sampler",
        "batches",
        "stream",
        "blind stream",
        "workers",
        "steps of workers",
    ]
    data = "set" if case.texts else draw(st.sampled_from(kinds))
    if data in ("sampler", "batches", "stream", "blind stream") and (
        case.schedule != "constant" or case.warmup or case.interval == 0.5
    ):
        data = "augmented"  # a loader of one's own has a length of its own
    if data == "stream":
        # what is not read to its end does not go on where it was left
        case = dataclasses.replace(case, limit=None)
    scheduler = None
    counted = "stream" not in data or case.max_steps is not None
    if (
        counted
        and case.kind in ("net", "noisy net")
        and case.schedule == "constant"
        and not case.warmup
        and case.swa_lr is None
    ):
        scheduler = draw(
            st.sampled_from(
                [None, "epochs", "updates", "cycle"] + ["plateau"] * (case.interval is not None)
            )
        )
    steps = max(2, min(case.updates, 30))
    hows = ["stop", "stop", "kept"] + ["check"] * (
        case.interval is not None and "workers" not in data
    )
    if (
        case.schedule == "constant"
        and not case.warmup
        and case.average != "swa"
        and case.interval in (None, 1.0)
    ):
        hows.append("length")  # else the check at the end of the shorter one may be one more
    cuts = draw(st.lists(
        st.builds(
            Cut, how=st.sampled_from(hows), at=st.integers(1, steps), which=st.integers(0, 9), same=st.booleans(),
        ),
        min_size=1, max_size=2,
    ))  # fmt: skip
    monitor = (
        draw(st.sampled_from(["val_loss", "val_loss_averaged"]))
        if case.average and case.interval
        else "val_loss"
    )
    return Resumed(
        case,
        tuple(cuts),
        data,
        scheduler,
        draw(st.sampled_from([1, 1, 2, 3])),
        monitor,
        by_hand,
        draw(st.booleans()),
    )


def test_whatever_is_cut_goes_on_as_it_would_have(tmp_path_factory):
    root = tmp_path_factory.mktemp("resumed")
    number = itertools.count()

    @settings(max_examples=count(20, 2000))
    @given(drawn_cuts())
    def drawn(one):
        goes_on(one, root / str(next(number)))

    drawn()


# What the draws have found, and cuts that they must not miss.
KNOWN = {
    "a best one, written behind its check": Resumed(Case(n=35, epochs=3, interval=3), (Cut("kept", 10, 2),), shuffles=True),
    "within the check at the end of an epoch": Resumed(Case(n=35, epochs=2, interval=1.0), (Cut("check", 30),), shuffles=True),
    "within a check in an epoch": Resumed(
        Case("noisy net", n=35, average="ema", epochs=2, interval=3), (Cut("check", 40, same=True),), shuffles=True,
    ),
    "within the check before the first update": Resumed(
        Case("noisy net", n=21, make="adam", average="swa", epochs=3, interval=1.0), (Cut("check", 6, same=True),),
    ),
    "windows by hand, twice": Resumed(
        Case("hooks", n=30, make="adam", epochs=3, interval=3), (Cut("stop", 4), Cut("kept", 2, 1)), "augmented", by_hand=True,
    ),
    "a plateau that a length cuts": Resumed(
        Case(n=40, epochs=3, interval=2), (Cut("length", 7), Cut("length", 12, same=True)), "sampler", "plateau",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_known(name, tmp_path):
    goes_on(KNOWN[name], tmp_path)


def goes_on(one, root):
    """The last of the runs that each begin where the one before was cut, against the run that nothing cuts."""
    bench = bench_of(one, root / "whole")
    whole = bench.fit().result()
    assert whole.status == "finished", whole.error
    streams = "stream" in one.data
    expected, end, weights = (
        Run.open(whole.folder),
        end_of(whole, streams),
        dict(bench.model.state_dict()),
    )

    bench = bench_of(one, root / "cut")
    start, last = "fresh", None
    for cut in one.cuts:
        last = cut_off(bench, cut, start, one.case.max_steps)
        start = begin_at(last, cut, whole, one.case.max_steps)
        if not cut.same:
            bench = bench_of(one, root / "cut")
        if start is None:  # it was over before
            break
    if start is not None:
        job = bench.fit(
            start=start, checkpoint_every=None, save_top_k=1, max_steps=one.case.max_steps
        )
        last = job.result()
        said = [
            event.text
            for event in job.events
            if isinstance(event, Message) and event.level == "warning"
        ]
        assert not [text for text in said if "exact" in text or "kept" in text or "lacks" in text]
        assert same(dict(bench.model.state_dict()), weights)
    elif last.status == "stopped":  # in the check behind the last update that it may take
        return
    assert (last.status, last.step) == ("finished", whole.step), last.error
    same_records(last, whole)
    same_records(Run.open(last.folder), expected)
    found = end_of(last, streams)
    assert [name for name in end if not same(found[name], end[name])] == []


def cut_off(bench, cut, start, length):
    """The run that is cut; of `length` updates, if it were not."""
    if cut.how in ("stop", "check"):
        with stopping(bench, cut):
            return bench.fit(start=start, max_steps=length).result()
    if cut.how == "kept":
        return bench.fit(
            start=start, checkpoint_every=cut.at, save_top_k=-1, max_steps=length
        ).result()
    try:
        return bench.fit(
            start=start, max_steps=cut.at if length is None else min(cut.at, length)
        ).result()
    except wb.SettingsError as error:
        if "nothing is left to do" not in str(error):  # it had come further already
            raise
        return cut_off(bench, dataclasses.replace(cut, how="stop"), start, length)


@contextlib.contextmanager
def stopping(bench, cut):
    """Inside, the job of the bench is stopped where it is to be cut."""
    times = itertools.count(1)

    def stop(*_):
        if next(times) == cut.at:
            bench.jobs[-1].stop()

    if cut.how == "check":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Unsteady, "read", staticmethod(stop))
            yield
        return
    hook = register_optimizer_step_post_hook(stop)
    try:
        yield
    finally:
        hook.remove()


def begin_at(run, cut, whole, most):
    """What the next one starts from; None: the run is over."""
    assert run.status in ("stopped", "finished"), run.error
    there = list_checkpoints(run.folder)
    assert all(point.resumable for point in there), [point.why for point in there]
    if cut.how == "kept":
        midway = [point for point in there if point.step < whole.step]
        return f"{run.id}@{midway[cut.which % len(midway)].name}" if midway else None
    validation_due = read_state(there[-1].path)["validation_due"]
    if run.step == whole.step and (
        run.status == "finished" or (run.step == most and not validation_due)
    ):
        return None
    return "continue" if cut.same else run.id


def end_of(run, streams):
    """All state at the end of a run, but for what was asked of it and how long it took."""
    state = read_state(list_checkpoints(run.folder)[-1].path)
    state["checks"]["cadence"].pop("seconds")
    # the loader draws a seed for workers when it begins, also where there are none that take it
    if streams:
        state["data"]["train"].pop("generator", None)
    return {
        name: value
        for name, value in state.items()
        if name not in ("seconds", "waited", "settings", "held")
    }


def same_records(run, other):
    for one, two in ((run.history, other.history), (run.validation, other.validation)):
        assert list(one) == list(two)
        for name in one:
            assert one[name].tobytes() == two[name].tobytes(), name
