"""Truncated backpropagation through time against the slow twin."""

import pytest
import torch

from tests.engine.learners import (
    Speller,
    SpellingLearner,
    TwoSpellers,
    assert_same,
    checker,
    copied,
    fitted,
    letters_loss,
    sentences,
    step_of,
    supervised,
    twin_run,
)
from tests.engine.problems import sgd
from tests.reference import loop
from tests.reference.techniques import train

pytestmark = pytest.mark.usefixtures("one_thread")


def spelled(tmp_path, *, cell="LSTM", windows=1, length=4, time_first=False, clip=None, exact=True):
    model, data = Speller(cell, batch_first=not time_first), sentences()
    collate = _time_first if time_first else None
    twin = copied(model)
    run = fitted(model, data, tmp_path, loss=letters_loss, truncated_bptt_steps=length, accumulate_grad_batches=windows,
                 tbptt_time_dim=0 if time_first else 1, gradient_clip_val=clip, collate_fn=collate)  # fmt: skip
    loader = loop.loader_of(data, 8, collate_fn=collate)
    record = train(
        twin, loader, supervised(twin, letters_loss, carries=True), [sgd(twin.parameters(), lr=0.05)], epochs=3,
        bptt=length, pieces_per_batch=-(-11 // length), time_dim=0 if time_first else 1, accumulate=windows, clip=clip,
        weigh=lambda batch: len(batch[0]),
    )  # fmt: skip
    assert_same(run, record, model, exact=exact)
    return run


def _time_first(samples):
    x, y = torch.utils.data.default_collate(samples)
    return x.T.contiguous(), y.T.contiguous()


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("windows", [1, 2, 5])
def test_pieces_in_time(cell, windows, tmp_path):
    """Texts of 11 in pieces of 4, 4 and 3; 3 batches (8, 8, 4) are 9 pieces an epoch, windows run across batches."""
    run = spelled(tmp_path, cell=cell, windows=windows)
    assert run.step == 3 * -(-9 // windows)


@pytest.mark.parametrize("length", [1, 11, 50])
def test_pieces_of_any_length(length, tmp_path):
    run = spelled(tmp_path, length=length, clip=0.1)
    assert run.step == 3 * 3 * -(-11 // length)


def test_time_comes_first(tmp_path):
    run = spelled(tmp_path, time_first=True)
    assert run.step == 27


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("windows", [1, 4])
def test_pieces_with_hooks(weighted, windows, tmp_path):
    model, data, val = SpellingLearner(weighted=weighted), sentences(), sentences(9, seed=4)
    twin = copied(model)
    run = fitted(
        model, data, tmp_path, val=val, truncated_bptt_steps=4, accumulate_grad_batches=windows
    )
    record = twin_run(
        twin, data, step_of(twin, ["hiddens"]), [twin.configure_optimizers()], bptt=4, pieces_per_batch=3,
        accumulate=windows, weigh=lambda batch: 1.0, check=checker(val, lambda m, b: m.validation_step(b, 0)),
    )  # fmt: skip
    assert_same(run, record, model)


@pytest.mark.parametrize("frequencies", [None, (1, 1), (2, 1)], ids=str)
def test_pieces_of_two_optimizers(frequencies, tmp_path):
    """Hidden state is carried whoever's turn it is: it is None at the first piece of a batch alone."""
    model, data = TwoSpellers(frequencies=frequencies), sentences()
    twin = copied(model)
    run = fitted(model, data, tmp_path, truncated_bptt_steps=3)
    made = twin.configure_optimizers()
    record = twin_run(
        twin, data, step_of(twin, ["optimizer_idx", "hiddens"]), made if frequencies is None else [m["optimizer"] for m in made],
        bptt=3, pieces_per_batch=4, frequencies=frequencies or (),
    )  # fmt: skip
    assert_same(run, record, model, columns=["loss", "loss.0", "loss.1", "lr"])


def test_ones_own_split(tmp_path):
    """Pieces that the user's hook makes: of 6 and the rest, whatever length is asked for."""

    class Own(SpellingLearner):
        def tbptt_split_batch(self, batch, split_size):
            return [tuple(t[:, :6] for t in batch), tuple(t[:, 6:] for t in batch)]

    model, data = Own(), sentences()
    twin = SpellingLearner()
    run = fitted(model, data, tmp_path, truncated_bptt_steps=3)
    record = twin_run(
        twin,
        data,
        step_of(twin, ["hiddens"]),
        [twin.configure_optimizers()],
        bptt=6,
        pieces_per_batch=2,
    )
    assert_same(run, record, model)
