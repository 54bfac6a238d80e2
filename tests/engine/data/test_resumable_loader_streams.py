"""A stream that takes a position: going on in the middle of a pass holds for that pass alone, and leaves the user's own as it is."""

import functools
import itertools

import datasets
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler

import workbench as wb
from tests.combinations import pairs
from workbench.events import Message, Validated
from workbench.launch.turns import alone

ROWS = 12


def hugging_face(shuffled=False):
    ds = datasets.Dataset.from_dict({"x": [float(i) for i in range(ROWS)]}).to_iterable_dataset(
        num_shards=2
    )
    return (ds.shuffle(seed=3, buffer_size=4) if shuffled else ds).with_format("torch")


class Numbers(IterableDataset):
    """As a stateful data set of torchdata: `load_state_dict` says where the next pass begins."""

    def __init__(self):
        self.at = self.begin = 0

    def __iter__(self):
        begin, self.begin = self.begin, 0
        for self.at in range(begin + 1, ROWS + 1):
            yield {"x": torch.tensor(float(self.at - 1))}

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = state["at"]


class Sticky(Numbers):
    """Where it was told to be, every pass begins."""

    def __iter__(self):
        begin = self.begin
        yield from super().__iter__()
        self.begin = begin


class InOrder(Sticky):
    """Begins at the first row whatever it has given before."""

    def __iter__(self):
        yield from super().__iter__()
        self.at = 0


class Uncopied(Numbers):
    def __deepcopy__(self, memo):
        raise TypeError("cannot copy an open file")


class Inside(IterableDataset):
    """Passes on the rows of a stream of Hugging Face, and has no state of its own."""

    def __init__(self):
        self.rows = hugging_face()

    def __iter__(self):
        yield from self.rows


class Delegates(Inside):
    """Has the state of that stream, and so the position that it keeps."""

    def state_dict(self):
        return {"rows": self.rows.state_dict()}

    def load_state_dict(self, state):
        self.rows.load_state_dict(state["rows"])


class Seen(nn.Module):
    """Remembers what it has been trained on."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.rows = []

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            self.rows.append(x.tolist())
        return {"loss": (self.weight * x).square().mean()}


def trained(data, root, steps, model, **given):
    settings = {
        "batch_size": 2,
        "max_epochs": 4,
        "lr": 1e-3,
        "accelerator": "cpu",
        "root": root,
        **given,
    }
    bench = wb.Workbench(model, train=data, optimizer=torch.optim.SGD, max_steps=steps, **settings)
    model.rows.clear()
    return bench


STREAMS = {
    "hugging face": hugging_face, "hugging face, shuffled": lambda: hugging_face(shuffled=True),
    "numbers": Numbers, "uncopied": Uncopied, "inside": Inside, "delegates": Delegates,
}  # fmt: skip


@pairs("kind, steps", list(STREAMS), [3, 6, 8])
def test_a_run_goes_on_in_the_middle_of_a_stream(kind, steps, tmp_path):
    """On the very object that the run was begun with: what is left of the epoch, then whole epochs; the user's own has all rows."""
    whole, model, data = Seen(), Seen(), STREAMS[kind]()
    trained(STREAMS[kind](), tmp_path / "whole", 24, whole).fit().result()
    bench = trained(data, tmp_path / "parts", steps, model)
    bench.fit().result()
    assert len(model.rows) == steps
    again = bench.fit(start="continue", max_steps=24)
    again.result()
    assert model.rows == whole.rows
    assert [len(epoch) for epoch in (whole.rows[:6], whole.rows[18:])] == [6, 6]
    assert len(list(data)) == ROWS
    assert len(list(data)) == ROWS


class Fails(Seen):
    """Its sixth step fails."""

    def forward(self, x):
        if len(self.rows) == 5:
            raise RuntimeError("a broken step")
        return super().forward(x)


class Drawing(Sticky):
    """Has a generator of its own, and an iterator that is half read between two passes."""

    def __init__(self):
        super().__init__()
        self.rng, self.rows = torch.Generator().manual_seed(0), iter(range(1000))

    def __iter__(self):
        next(self.rows)
        for row in super().__iter__():
            yield {"x": row["x"] + torch.rand((), generator=self.rng)}


@pytest.mark.parametrize("make", [Sticky, Drawing])
@pytest.mark.parametrize(
    ("model", "settings", "error"),
    [
        (Seen, {"max_steps": 24}, "begins each pass where"),
        (Fails, {"max_steps": 24}, "a broken step"),
        (Seen, {"max_steps": 4}, None),
        (Seen, {"max_epochs": 1, "max_steps": 24}, None),
    ],
    ids=["refused", "failed", "stopped within the pass", "ended after the pass"],
)  # fmt: skip
def test_the_users_own_stream_begins_where_it_began(make, model, settings, error, tmp_path):
    data, began = make(), make()
    bench = trained(data, tmp_path, 3, Seen())
    first = bench.fit().result()
    if make is Drawing:
        began.rng.set_state(data.rng.get_state())
    again = trained(data, tmp_path, None, model())
    job = again.fit(start=first.id, **settings)
    if error is None:
        assert job.result().status == "finished"
    else:
        with pytest.raises(Exception, match=error):
            job.result()
    rows = [row["x"].item() for row in data]
    assert rows == [row["x"].item() for row in began]
    assert len(rows) == ROWS


@pytest.mark.parametrize("steps", [3, 6])
def test_a_stream_that_never_returns_to_its_start_is_refused(steps, tmp_path):
    """The epochs after the resumed one would miss its first rows: after the middle of an epoch, and after its end."""
    bench = trained(Sticky(), tmp_path, steps, Seen())
    bench.fit().result()
    job = bench.fit(start="continue", max_steps=24)
    with pytest.raises(
        wb.TaskError,
        match=r"train \(Sticky\) begins each pass where load_state_dict\(\) has put it",
    ):
        job.result()


@pytest.mark.parametrize("kind", ["hugging face", "numbers"])
def test_in_worker_processes_too(kind, tmp_path):
    whole, model, data = Seen(), Seen(), STREAMS[kind]()
    trained(
        STREAMS[kind](), tmp_path / "whole", 14, whole, num_workers=1, persistent_workers=False
    ).fit().result()
    bench = trained(data, tmp_path / "parts", 8, model, num_workers=1, persistent_workers=False)
    bench.fit().result()
    bench.fit(start="continue", max_steps=14).result()
    assert model.rows == whole.rows
    assert len(list(data)) == ROWS


def test_a_look_at_the_validation_data_moves_nothing(tmp_path):
    """A check that a person asks for, over a part of a stream."""
    model, val = Seen(), InOrder()
    bench = wb.Workbench(model, train={"x": torch.zeros(8)}, val=val, batch_size=2, limit_val_batches=2, max_epochs=6, lr=0.0001,
                         accelerator="cpu", root=tmp_path)  # fmt: skip
    with alone():  # the job waits until it is asked
        job = bench.fit()
        job.validate()
    job.result()
    checks = [event.metrics["val_loss"] for event in job.events if isinstance(event, Validated)]
    assert len(checks) == 7
    # the mean square of the first four rows, each time
    assert all(value == pytest.approx(3.5, rel=0.01) for value in checks)
    assert len(list(val)) == ROWS


@pairs("kind, steps", ["hugging face", "numbers"], [1, 3, 5])
def test_validation_streams_have_all_rows_in_a_resumed_run(kind, steps, tmp_path):
    """After the sanity check alone, and between two validations of one epoch."""

    def losses(root, *lengths):
        settings = {
            "batch_size": 2,
            "max_epochs": 2,
            "lr": 0.0001,
            "accelerator": "cpu",
            "root": root,
            "val_check_interval": 2,
        }
        bench = wb.Workbench(
            Seen(),
            train={"x": torch.ones(12)},
            val=STREAMS[kind](),
            num_sanity_val_steps=1,
            **settings,
        )
        for number, length in enumerate(lengths):
            run = bench.fit(start="continue" if number else "fresh", max_steps=length).result()
        return run.validation["val_loss"].tolist()

    found = losses(tmp_path / "parts", steps, 12)
    assert found == losses(tmp_path / "whole", 12)
    assert len(found) == 6


class Continues(Numbers):
    """Its position is an attribute that only the end of a pass resets, and it counts its passes; `kept` holds the two."""

    def __init__(self):
        super().__init__()
        self.kept = {"at": 0, "passes": 0}

    def __iter__(self):
        kept = self.kept
        while kept["at"] < ROWS:
            kept["at"] += 1
            yield {"x": torch.tensor(kept["at"] + 100.0 * kept["passes"])}
        self.kept = {"at": 0, "passes": kept["passes"] + 1}

    def state_dict(self):
        return dict(self.kept)

    def load_state_dict(self, state):
        self.kept = dict(state)


class Draws(IterableDataset):
    """Has no state, and a generator of its own."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)

    def __iter__(self):
        for _ in range(ROWS):
            yield {"x": torch.rand((), generator=self.generator)}


class OneIterator(IterableDataset):
    """Every pass goes on with one iterator, which only load_state_dict replaces."""

    def __init__(self):
        self.load_state_dict({"at": -1})

    def __iter__(self):
        for _ in range(ROWS):
            self.at = next(self.rows)
            yield {"x": torch.tensor(float(self.at))}

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at, self.rows = state["at"], (number for number in range(state["at"] + 1, 10_000))


class Normed(Seen):
    """Its statistics are collected again for averaged weights, in another pass over the training data."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x):
        return (
            super().forward(x)
            if not self.training
            else {"loss": super().forward(x)["loss"] + 0 * self.norm(x.reshape(-1, 1)).sum()}
        )


def seen(make, root, interval, lengths=(24,), **given):
    """The rows that a model was trained on, and the warnings."""
    model = Normed()
    settings = {
        "val": {"x": torch.ones(4)},
        "val_check_interval": interval,
        "max_epochs": 4,
        "lr": 1e-4,
        **given,
    }
    bench = trained(make(), root, lengths[0], model, **settings)
    said = []
    for number, length in enumerate(lengths):
        job = bench.fit(start="continue" if number else "fresh", max_steps=length)
        job.result()
        said += [
            event.text
            for event in job.events
            if isinstance(event, Message) and event.level == "warning"
        ]
    return model.rows, said


MAKERS = {**STREAMS, "continues": Continues, "draws": Draws}
OF_HUGGING_FACE = ("hugging face", "hugging face, shuffled")
PLACES = [(2, (24,)), (1.0, (24,)), (2, (9, 24))]


@pytest.fixture(scope="module")
def without_averages(tmp_path_factory):
    """The rows of a run whose weights are not averaged."""

    @functools.cache
    def rows(kind, interval):
        return seen(MAKERS[kind], tmp_path_factory.mktemp("plain"), interval)[0]

    return rows


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *itertools.product(("numbers", "continues", "draws"), PLACES),
        # each of these takes seconds: the two share the places
        *(
            pytest.param(kind, place, marks=() if often else pytest.mark.slow)
            for kind, place in itertools.product(OF_HUGGING_FACE, PLACES)
            for often in [(kind == "hugging face") != (place == PLACES[-1])]
        ),
    ],
)
def test_statistics_for_averaged_weights_move_no_stream(kind, place, without_averages, tmp_path):
    """In the middle of an epoch and at its end, also where a run continues."""
    interval, lengths = place
    make, plain = MAKERS[kind], without_averages(kind, interval)
    found, said = seen(make, tmp_path / "averaged", interval, lengths, weight_averaging="ema")
    assert found == plain
    assert not said


def test_a_stream_that_nothing_moves_back_is_named(tmp_path):
    """In the middle of an epoch, once; at its end it gets its state for the next one."""
    plain, _ = seen(OneIterator, tmp_path / "plain", 2)
    found, said = seen(OneIterator, tmp_path / "ends", 1.0, weight_averaging="ema")
    assert found == plain
    assert not said
    found, said = seen(OneIterator, tmp_path / "middle", 2, weight_averaging="ema")
    assert found != plain
    assert len(said) == 1
    assert (
        "train: dataset was read once more for the statistics of batch normalisation, and cannot be moved back in the middle of an epoch"
        in said[0]
    )


class BeginsAnew(Numbers):
    """The state of its end is to it that of its beginning."""

    def load_state_dict(self, state):
        self.begin = state["at"] % ROWS


def test_a_stream_that_begins_the_pass_anew_at_the_state_of_its_end_is_refused(tmp_path):
    """Its samples would be seen twice: a run that ends with an epoch's last batch has not seen yet that the data have ended."""
    bench = trained(BeginsAnew(), tmp_path, 12, Seen())
    bench.fit().result()
    job = bench.fit(start="continue", max_steps=24)
    with pytest.raises(
        wb.TaskError,
        match=r"train \(BeginsAnew\) begins the pass anew where load_state_dict\(\) has put it",
    ):
        job.result()


class Repeats(Numbers):
    """Has no end: after its last row it begins again, and its state does not tell how often it did."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while True:
            self.at = self.at % ROWS + 1
            yield {"x": torch.tensor(float(self.at))}

    def state_dict(self):
        return {"at": self.at % ROWS}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize(
    ("cuts", "limit"), [((12,), 1.0), ((12, 24), 1.0), ((30,), 18), ((12, 24, 30), 18)]
)
def test_a_stream_without_an_end_is_resumed_where_its_samples_begin_again(cuts, limit, tmp_path):
    whole, model = Seen(), Seen()
    trained(Repeats(), tmp_path / "whole", 54, whole, limit_train_batches=limit).fit().result()
    bench = trained(Repeats(), tmp_path / "parts", cuts[0], model, limit_train_batches=limit)
    bench.fit().result()
    for steps in (*cuts[1:], 54):
        bench.fit(start="continue", max_steps=steps).result()
    assert model.rows == whole.rows


class Sharded(IterableDataset):
    """As a stream of MosaicML: its state depends on how many samples were used."""

    def __iter__(self):
        yield from ({"x": torch.tensor(float(n))} for n in range(ROWS))

    def state_dict(self, num_samples, from_beginning):
        raise AssertionError("nobody knows these numbers")

    def load_state_dict(self, state):
        raise AssertionError("there is no state")


class TakesMore(Sharded):
    def state_dict(self):
        return {}

    def load_state_dict(self, state, strict):
        raise AssertionError("nobody knows whether")


class Ordered(Sampler):
    def __len__(self):
        return ROWS

    def __iter__(self):
        return iter(range(ROWS))

    def state_dict(self, rank):
        raise AssertionError("it has none")

    load_state_dict = Sharded.load_state_dict


@pytest.mark.parametrize(
    "make", [Sharded, TakesMore, lambda: DataLoader([{"x": float(n)} for n in range(ROWS)], sampler=Ordered())], ids=["stream", "load", "sampler"],
)  # fmt: skip
def test_a_state_dict_that_needs_arguments_is_none(make, tmp_path):
    """Such data are resumed as those without one."""
    whole, model = Seen(), Seen()
    trained(make(), tmp_path / "whole", 24, whole).fit().result()
    bench = trained(make(), tmp_path / "parts", 8, model)
    bench.fit().result()
    bench.fit(start="continue", max_steps=24).result()
    assert model.rows == whole.rows
