"""Techniques drawn at random and put together, against the slow twin: they must not get in each other's way."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from tests.conftest import count
from tests.engine.learners import (
    Learner,
    Speller,
    SpellingLearner,
    TwoSided,
    TwoSpellers,
    assert_same,
    checker,
    copied,
    fitted,
    letters_loss,
    runs_lstm_in_bfloat16,
    sentences,
    step_of,
    supervised,
)
from tests.engine.problems import adam, adamw, labelled, noisy_net, plain_net, sgd
from tests.reference import loop
from tests.reference.technique_parts import Average, Scheduled, multiplier, one_cycle, size_at
from tests.reference.techniques import train
from workbench.settings import Settings
from workbench.settings.without_effect import without_effect

MAKERS = {
    "sgd": sgd, "adam": adam, "adamw": adamw, "plain sgd": torch.optim.SGD,
    "lbfgs": functools.partial(torch.optim.LBFGS, max_iter=3),
}  # fmt: skip
LENGTH = 11  # of a text


@dataclasses.dataclass(frozen=True)
class Case:
    """What is put together. `kind`: "net", "noisy net" (supervised), "hooks", "two", "text", "text hooks", "two texts"."""

    kind: str = "net"
    n: int = 30
    make: str = "sgd"
    weighted: bool = False
    picky: bool = False
    """Some steps return None."""
    frequencies: tuple = ()
    pieces: int = 4
    windows: int | dict = 1
    schedule: str = "constant"
    warmup: int | float = 0
    clip: float | None = None
    clip_by: str = "norm"
    average: str | None = None
    swa_lr: float | None = None
    precision: str = "32-true"
    epochs: int = 2
    max_steps: int | None = None
    limit: int | None = None
    interval: int | float | None = None
    patience: int | None = None
    min_epochs: int = 0

    @property
    def texts(self):
        return "text" in self.kind

    @property
    def two(self):
        return self.kind.startswith("two")

    @property
    def batches(self):
        whole = -(-self.n // 8)
        return whole if self.limit is None else min(whole, self.limit)

    @property
    def per_batch(self):
        return -(-LENGTH // self.pieces) if self.texts else 1

    @property
    def planned(self):
        """The updates that a schedule counts on: with pieces in time nobody knows before, so max_steps says it."""
        return self.max_steps if self.texts else self.updates

    @property
    def updates(self):
        each = [
            -(-self.batches * self.per_batch // size_at(self.windows, e))
            for e in range(self.epochs)
        ]
        return sum(each) if self.max_steps is None else min(sum(each), self.max_steps)


@st.composite
def cases(draw):
    kind = draw(
        st.sampled_from(["net", "noisy net", "hooks", "two", "text", "text hooks", "two texts"])
    )
    two = kind.startswith("two")
    frequencies = draw(st.sampled_from([(), (1, 1), (2, 1)])) if two else ()
    windows = draw(st.one_of(
        st.integers(1, 4), st.dictionaries(st.integers(0, 2), st.integers(1, 4), min_size=1, max_size=2),
    ))  # fmt: skip
    average, interval = (
        draw(st.sampled_from([None, "ema", "swa"])),
        draw(st.sampled_from([None, None, 1.0, 0.5, 3])),
    )
    case = Case(
        kind, n=draw(st.integers(9, 40)), make=draw(st.sampled_from([*MAKERS])), frequencies=frequencies,
        weighted=draw(st.booleans()) and kind in ("hooks", "two", "text hooks"), pieces=draw(st.integers(3, 12)),
        windows=windows, clip=draw(st.sampled_from([None, 0.02, 0.3])), clip_by=draw(st.sampled_from(["norm", "value"])),
        average=average, swa_lr=draw(st.sampled_from([None, 0.01])),
        precision=draw(st.sampled_from(["32-true", "32-true", "bf16-mixed"])), epochs=draw(st.integers(1, 4)),
        limit=draw(st.sampled_from([None, None, 1, 3])), interval=interval, min_epochs=draw(st.integers(0, 3)),
    )  # fmt: skip
    if case.texts and not runs_lstm_in_bfloat16():
        case = dataclasses.replace(case, precision="32-true")
    if kind == "hooks" and not case.weighted and case.make != "lbfgs":
        case = dataclasses.replace(case, picky=draw(st.booleans()))
    if kind in ("noisy net", "hooks") and case.n % 8 == 1:
        case = dataclasses.replace(case, n=case.n + 1)  # BatchNorm learns nothing from one sample
    if case.texts and interval == 0.5:
        # half of an unknown number of pieces is refused
        case = dataclasses.replace(case, interval=1.0)
    if average == "swa":
        # the first that is averaged is the second
        case = dataclasses.replace(case, epochs=case.epochs + 1)
    elif draw(st.booleans()):
        # not with SWA: whether an epoch that max_steps cuts short is averaged is not said
        case = dataclasses.replace(case, max_steps=draw(st.integers(1, 2 * case.updates)))
    if case.interval is not None and draw(st.booleans()):
        case = dataclasses.replace(case, patience=draw(st.integers(0, 2)))
    if case.planned is not None and not frequencies:
        schedule = draw(st.sampled_from(["constant", "linear", "cosine", "one_cycle"]))
        warmup = draw(
            st.one_of(st.just(0), st.integers(0, case.planned - 1), st.sampled_from([0.1, 0.5]))
        )
        rise = round(warmup * case.planned) if isinstance(warmup, float) else warmup
        # torch's own divides by zero there
        if rise < case.planned and not (rise == 1 and schedule == "one_cycle"):
            case = dataclasses.replace(case, schedule=schedule, warmup=warmup)
    return case


def test_together(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("pairs")

    @settings(max_examples=count(25, 3000))
    @given(cases())
    def drawn(case):
        agree(case, root)

    try:
        drawn()
    finally:
        torch.set_num_threads(threads)


# What the draws have found, and pairs that they must not miss.
KNOWN = {
    "averages of a run that ends in the middle of an epoch": Case(
        "noisy net", average="ema", max_steps=5, interval=1.0
    ),
    "SWA where max_steps ends an epoch": Case(
        "noisy net", average="swa", max_steps=8, epochs=5, interval=1.0
    ),
    "SWA's rates behind one cycle": Case(
        average="swa", swa_lr=0.01, schedule="one_cycle", epochs=4
    ),
    "weights in bf16": Case("hooks", weighted=True, precision="bf16-mixed", windows=3, clip=0.02),
    "windows of pieces across batches": Case(
        "text", windows={0: 2, 1: 5}, clip=0.02, average="ema"
    ),
    "a check at the end of an epoch of unknown length": Case(
        "text", n=9, pieces=4, average="swa", interval=3
    ),
    "pieces of one and the other optimizer": Case("two texts", frequencies=(1, 1), windows=2),
    "nothing between two checks": Case("hooks", n=40, picky=True, interval=3, epochs=3),
    "pieces and closures": Case("text hooks", make="lbfgs", windows=2, clip=0.02),
    "stopped between two ends of epochs": Case(
        average="swa", epochs=4, interval=0.5, patience=0, min_epochs=1
    ),
}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", KNOWN)
def test_known(name, tmp_path):
    agree(KNOWN[name], tmp_path)


def agree(case, root):
    """The run of this case and its twin's: losses, rates, norms, checks and the weights at the end."""
    model, loss = made(case)
    twin = copied(model)
    data, val = (
        (sentences(case.n), sentences(9, seed=4))
        if case.texts
        else (labelled(case.n), labelled(21, seed=5))
    )
    stopping = (
        []
        if case.patience is None
        else [wb.EarlyStopping(monitor="val_loss", patience=case.patience, min_delta=0.01)]
    )
    run = fitted(
        model, data, root, loss=loss, optimizer=MAKERS[case.make], val=None if case.interval is None else val,
        early_stopping=stopping, shuffle=case.average is None, **as_settings(case),
    )  # fmt: skip
    optimizers = optimizers_of(twin, loss, case)
    record = train(
        twin, loop.loader_of(data, 8, shuffle=case.average is None), step_for(twin, loss, case), optimizers,
        stopping=stopping, **as_techniques(case, twin, loss, data, val, optimizers),
    )  # fmt: skip
    assert run.step == len(record.losses)
    norms = [name for name in record.columns if "grad_norm" in name]
    columns = [name for name in record.columns if name not in [*norms, "skipped"]]
    # Where a step has returned None, the rest of its window is divided here in another order than there.
    assert_same(run, record, model, columns=columns, exact=not case.picky, rtol=1e-3)
    for name in norms:  # with two optimizers norms of norms: their order is free
        # of one whose turn never came there is no column
        ours = run.history.get(name, np.full(run.step, np.nan))
        np.testing.assert_allclose(
            ours, record.columns[name], rtol=1e-3 if case.picky else 1e-6, err_msg=name
        )


def made(case):
    """The model, and its loss where it has no hooks of its own."""
    make = MAKERS[case.make]
    match case.kind:
        case "net":
            return plain_net(), F.cross_entropy
        case "noisy net":
            return noisy_net(), F.cross_entropy
        case "hooks":
            # Batches that are left out are none of BatchNorm's, and torch's update_bn reads them all.
            net = plain_net() if case.picky else noisy_net()
            return Learner(net, make=make, weighted=case.weighted, picky=case.picky), None
        case "two":
            return TwoSided(
                make=make, weighted=case.weighted, frequencies=case.frequencies or None
            ), None
        case "text":
            return Speller("GRU"), letters_loss
        case "text hooks":
            return SpellingLearner("LSTM", make=make, weighted=case.weighted), None
        case "two texts":
            return TwoSpellers(make=make, frequencies=case.frequencies or None), None


def as_settings(case):
    found = {
        "accumulate_grad_batches": case.windows, "lr_schedule": case.schedule, "warmup": case.warmup,
        "gradient_clip_val": case.clip, "gradient_clip_algorithm": case.clip_by, "precision": case.precision,
        "max_epochs": case.epochs, "max_steps": case.max_steps, "min_epochs": case.min_epochs,
        "weight_averaging": case.average, "ema_decay": 0.8, "averaging_every_n_steps": 2, "swa_epoch_start": 1,
        "swa_lrs": case.swa_lr, "annealing_epochs": 2, "val_check_interval": 1.0 if case.interval is None else case.interval,
    }  # fmt: skip
    if case.texts:
        found["truncated_bptt_steps"] = case.pieces
    if case.limit is not None:
        found["limit_train_batches"] = case.limit
    unused = without_effect(Settings.make(**found), found)
    return {name: value for name, value in found.items() if name not in unused}


def as_techniques(case, twin, loss, data, val, optimizers):
    found = {
        "epochs": case.epochs, "max_steps": case.max_steps, "min_epochs": case.min_epochs, "accumulate": case.windows,
        "clip": case.clip, "clip_by": case.clip_by, "precision": case.precision, "frequencies": case.frequencies,
        "pieces_per_batch": case.per_batch, "bptt": case.pieces if case.texts else None,
        "limit": case.limit if case.limit is not None and case.limit < -(-case.n // 8) else None,
        "weigh": lambda batch: 1.0 if loss is None else len(batch[0]),
    }  # fmt: skip
    if case.schedule == "one_cycle":
        found["schedules"] = [
            Scheduled(one_cycle(o, case.planned, case.warmup)) for o in optimizers
        ]
    elif case.schedule != "constant" or case.warmup:
        found["multiplier"] = multiplier(case.schedule, case.planned, case.warmup)
    if case.average:

        def batches():
            part = list(loop.loader_of(data, 8, shuffle=False))
            return part[: case.limit]

        parts = (
            {"decay": 0.8, "every": 2}
            if case.average == "ema"
            else {"start": 1, "lr": case.swa_lr, "epochs": 2}
        )
        found["average"] = Average(case.average, batches, **parts)
    if case.interval is not None:
        found |= {"check": checker(val, loss_for(loss, case)), "check_interval": case.interval}
    return found


def optimizers_of(twin, loss, case):
    if loss is not None:
        return [MAKERS[case.make](twin.parameters(), lr=0.05)]
    found = twin.configure_optimizers()
    if not case.two:
        return [found]
    return [entry["optimizer"] for entry in found] if case.frequencies else found


def step_for(twin, loss, case):
    if loss is not None:
        return supervised(twin, loss, carries=case.texts)
    return step_of(twin, ["optimizer_idx"] * case.two + ["hiddens"] * case.texts)


def loss_for(loss, case):
    if loss is None:
        return lambda model, batch: model.validation_step(batch, 0)
    if case.texts:
        return lambda model, batch: loss(model(batch[0])[0], batch[1])
    return lambda model, batch: loss(model(batch[0]), batch[1])
