"""What the user's own objects hold: equal fits are equal, a search leaves no trace, and a run that another bench continues equals a whole one."""

from __future__ import annotations

import functools
import gc
import itertools
import multiprocessing
import random
import types
import weakref
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, Subset, default_collate

import workbench as wb
from workbench.events import Message

pytestmark = pytest.mark.usefixtures("one_thread")

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
TRACE: dict[str, list[float]] = defaultdict(list)
"""The value of each kind of state at each step."""
CALLS = 0


@dataclass
class Record:
    value: float = 0.0


class Meter:
    def __init__(self) -> None:
        self.sum, self.inner = 0.0, types.SimpleNamespace(by_name={"k": [torch.zeros(1)]})

    def update(self, value: float) -> float:
        self.sum += value
        return float(self.inner.by_name["k"][0].add_(value)) + self.sum


class Slots:
    __slots__ = ("tensor", "value")

    def __init__(self) -> None:
        self.value, self.tensor = 0.0, torch.zeros(1)

    def add(self, step: float) -> float:
        self.value += step
        return float(self.tensor.add_(step)) + self.value


class Hidden:
    """A copy of weights that no optimizer sees."""

    def __init__(self) -> None:
        self.networks = [nn.Linear(1, 1)]
        nn.init.zeros_(self.networks[0].weight)


def rebound(module: Any, name: str, step: float) -> float:
    setattr(module, name, getattr(module, name) + step)
    return float(torch.as_tensor(getattr(module, name)).sum())


def anew(module: Any, name: str, step: float) -> float:
    setattr(module, name, Record(getattr(module, name).value + step))
    return float(getattr(module, name).value)


def made_late(module: Any, name: str, step: float) -> float:
    vars(module)["late"] = vars(module).get("late", 0.0) + step
    return float(module.late)


def two_names() -> Any:
    tensor = torch.zeros(1)
    return types.SimpleNamespace(now=tensor, past=tensor)


def replaced(module: Any, name: str, step: float) -> float:
    tensors = getattr(module, name)
    tensors.past, tensors.now = tensors.now, tensors.now + step
    return float(tensors.now + 100 * tensors.past)


def added(
    make: Callable[[], Any], add: Callable[[Any, float], Any]
) -> tuple[Callable[[], Any], Callable[[Any, str, float], float]]:
    return make, lambda module, name, step: float(add(getattr(module, name), step))


def set_item(container: Any, key: Any, value: float) -> float:
    container[key] = value
    return value


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any, str, float], float]]] = {
    "number": (lambda: 0.0, rebound),
    "tensor_rebound": (lambda: torch.zeros(1), rebound),
    "array_rebound": (lambda: np.zeros(1), rebound),
    "numpy_scalar": (lambda: np.float64(0), rebound),
    "flag": (lambda: False, lambda module, name, step: float(setattr(module, name, not getattr(module, name)) or getattr(module, name))),
    "object_made_anew": (Record, anew),
    "made_late": (lambda: None, made_late),
    "tensor": added(lambda: torch.zeros(1), lambda tensor, step: tensor.add_(step)),
    "array": added(lambda: np.zeros(1), lambda array, step: array.__iadd__(step)[0]),
    "list_of_tensors": added(lambda: [torch.zeros(1) for _ in range(100)], lambda tensors, step: tensors[90].add_(step)),
    "dict_of_arrays": added(lambda: {"k": np.zeros(1)}, lambda arrays, step: arrays["k"].__iadd__(step)[0]),
    "dict_of_objects": added(lambda: {"k": Slots()}, lambda objects, step: objects["k"].add(step)),
    "counter": added(Counter, lambda counter, step: counter.update("k") or counter["k"]),
    "defaultdict": added(lambda: defaultdict(float), lambda container, step: set_item(container, "k", container["k"] + step)),
    "ordered": added(OrderedDict, lambda container, step: set_item(container, len(container), step) * len(container)),
    "deque": added(lambda: deque(maxlen=3), lambda queue, step: queue.append(step + sum(queue)) or sum(queue)),
    "bytearray": added(bytearray, lambda content, step: content.append(len(content)) or sum(content)),
    "array_array": added(lambda: array("d", [0.0]), lambda numbers, step: set_item(numbers, 0, numbers[0] + step)),
    "mp_value": added(lambda: multiprocessing.Value("d", 0.0), lambda value, step: rebound(value, "value", step)),
    "list_of_mp_arrays": added(lambda: [multiprocessing.RawArray("d", 2)], lambda arrays, step: set_item(arrays[0], 1, arrays[0][1] + step)),
    "removed": (lambda: 1.0, lambda module, name, step: float(vars(module).pop(name, 0.0))),
    "replaced": (two_names, replaced),
    "set": added(set, lambda values, step: values.add(len(values)) or len(values)),
    "namespace": added(lambda: types.SimpleNamespace(v=0.0), lambda space, step: rebound(space, "v", step)),
    "dataclass": added(Record, lambda record, step: rebound(record, "value", step)),
    "meter": added(Meter, lambda meter, step: meter.update(step)),
    "slots": added(Slots, lambda slots, step: slots.add(step)),
    "hidden": added(Hidden, lambda hidden, step: hidden.networks[0].weight.data.add_(step)),
    "partial": added(lambda: functools.partial(Slots.add, Slots()), lambda add, step: add(step)),
    "bound_method": added(lambda: Meter().update, lambda update, step: update(step)),
    "count": added(itertools.count, lambda count, step: next(count)),
    "iterator": added(lambda: iter([*range(1000)]), lambda numbers, step: next(numbers)),
    "torch_generator": added(lambda: torch.Generator().manual_seed(1), lambda generator, step: torch.rand(1, generator=generator)),
    "numpy_generator": added(lambda: types.SimpleNamespace(of=np.random.default_rng(1)), lambda held, step: held.of.normal()),
    "python_generator": added(lambda: [random.Random(1)], lambda held, step: held[0].random()),
}  # fmt: skip


class Holder(nn.Module):
    """Holds one of each kind, and changes all at each step."""

    def __init__(self) -> None:
        super().__init__()
        for name, (make, _) in KINDS.items():
            setattr(self, f"a_{name}", make())
        self.register_buffer("passing", torch.zeros(1), persistent=False)

    def step(self, place: str) -> None:
        for name, (_, change) in KINDS.items():
            TRACE[f"{place}: {name}"].append(change(self, f"a_{name}", 0.25))
        TRACE[f"{place}: passing"].append(float(self.passing.add_(0.25)))


class Net(Holder):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.step("model")
        return self.layer(x)


class Loss:
    """No module; its state is in a closure, in itself, and in a global."""

    def __init__(self) -> None:
        self.holder = Holder()
        self.scale = closure()

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        global CALLS
        if torch.is_grad_enabled():
            CALLS += 1
            self.holder.step("loss")
            TRACE["loss: global"].append(CALLS)
        return F.mse_loss(output, y) * self.scale()


def closure() -> Callable[[], float]:
    calls, seen = 0, np.zeros(1)

    def scale() -> float:
        nonlocal calls
        if torch.is_grad_enabled():
            calls += 1
            seen[0] += 1
            scale.calls += 1
            TRACE["loss: closure"].append(calls + 100 * float(seen[0]) + 10_000 * scale.calls)
        return 1.0

    scale.calls = 0
    return scale


class Data(Dataset[Any]):
    def __init__(self) -> None:
        self.holder, self.transform = Holder(), Holder()

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.holder.step("data")
        self.transform.step("transform")
        return X[index], X[index, :1]


class Collate:
    batches = 0
    latest: list[float] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.slots = Slots()

    def __call__(self, samples: list[Any]) -> Any:
        Collate.batches += 1
        self.latest.append(1.0)
        TRACE["collate"].append(
            self.slots.add(1.0) + 100 * Collate.batches + 10_000 * len(self.latest)
        )
        return default_collate(samples)


class Order(Sampler[int]):
    def __init__(self) -> None:
        self.passes, self.weights = 0, np.ones(4)

    def __len__(self) -> int:
        return len(X)

    def __iter__(self) -> Any:
        self.passes += 1
        self.weights *= 2
        TRACE["sampler"].append(self.passes + float(self.weights[0]))
        seed = self.passes + int(self.weights[0])
        return iter(torch.randperm(len(X), generator=torch.Generator().manual_seed(seed)).tolist())


class Stream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.passes, self.slots, self.seen = 0, Slots(), [0]

    def __iter__(self) -> Any:
        self.passes += 1
        for x in X:
            self.seen[0] += 1
            TRACE["stream"].append(self.passes + self.slots.add(1.0) + 1000 * self.seen[0])
            yield x, x[:1]


DATA: dict[str, Callable[[], Any]] = {
    "samples": lambda: DataLoader(Subset(Data(), range(len(X))), 8, collate_fn=Collate()),
    "sampler": lambda: DataLoader(Data(), 8, sampler=Order()),
    "stream": lambda: DataLoader(Stream(), 8, collate_fn=Collate()),
}


def made(data: str, root: Path, **settings: Any) -> wb.Workbench:
    global CALLS
    torch.manual_seed(0)
    CALLS = Collate.batches = 0
    Collate.latest.clear()
    return wb.Workbench(
        Net(),
        train=DATA[data](),
        loss=Loss(),
        optimizer=torch.optim.SGD,
        lr=0.05,
        root=root,
        accelerator="cpu",
        max_epochs=2,
        **settings,
    )


def traced(bench: wb.Workbench, **settings: Any) -> tuple[wb.Run, dict[str, list[float]]]:
    TRACE.clear()
    run = bench.fit(**settings).result()
    return run, {"losses": run.history["loss"].tolist()} | {
        name: list(values) for name, values in TRACE.items()
    }


def different(
    trace: dict[str, list[float]], whole: dict[str, list[float]], *, ends: bool = False
) -> list[str]:
    """The names of what differs. ends: `trace` is of the rest of a run; its last values are compared."""
    if not ends:
        return [name for name, values in whole.items() if trace[name] != values]
    last = {name: values[-3:] for name, values in trace.items()}
    return [
        name
        for name, values in whole.items()
        if not last[name] or last[name] != values[-len(last[name]) :]
    ]


@pytest.mark.parametrize("data", DATA)
def test_fits_searches_and_resumed_runs_find_the_state_of_the_start(
    data: str, tmp_path: Path
) -> None:
    bench = made(data, tmp_path)
    _, whole = traced(bench)
    assert len(set(whole["model: meter"])) > 5, "the state moves"
    assert different(traced(bench)[1], whole) == []
    bench.find_lr(num_training=4).result()
    assert different(traced(bench)[1], whole) == []
    part, _ = traced(bench, max_steps=7)
    assert different(traced(bench, start=part.id, max_steps=None)[1], whole, ends=True) == []
    other = made(data, tmp_path)
    assert different(traced(other, start=part.id, max_steps=None)[1], whole, ends=True) == []
    assert different(traced(other)[1], whole) == []


def test_what_is_changed_between_two_jobs_is_the_new_start(tmp_path: Path) -> None:
    told: list[str] = []
    data = Data()
    bench = wb.Workbench(
        nn.Linear(4, 1), train=data, loss=F.mse_loss, batch_size=8, max_steps=2, root=tmp_path, accelerator="cpu",
        listeners=[lambda event: told.append(event.text) if isinstance(event, Message) else None],
    )  # fmt: skip
    _, whole = traced(bench)
    data.holder.a_numpy_generator.of.normal()  # looked at: it is put back
    assert different(traced(bench)[1], whole) == []
    assert told == []
    data.holder.a_namespace.v = 5.0
    _, changed = traced(bench)
    assert different(changed, whole) == ["data: namespace"]
    assert (
        "train.holder.a_namespace: changed by other code than the job's; the fit starts from its present state."
        in told
    )
    assert different(traced(bench)[1], changed) == []


class Weighted(Dataset[Any]):
    """Changes an array and two tables of its own, in place."""

    def __init__(self) -> None:
        self.seen, self.record = np.zeros(3), Record()
        self.rows, self.column = (
            pd.DataFrame({"x": [0.0], "name": ["a"]}),
            pl.DataFrame({"x": [0.0]}),
        )

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.seen += 1
        self.rows.loc[len(self.rows)] = [self.seen[0], "b"]
        self.column[0, "x"] = self.column[0, "x"] + 1
        sizes = self.seen[0] + len(self.rows) + self.column[0, "x"]
        return X[index] * (1 + 0.01 * float(sizes)), X[index, :1]


def test_tables_are_restored_and_are_named_where_a_checkpoint_has_none(tmp_path: Path) -> None:
    data, log = Weighted(), pd.DataFrame({"loss": [0.0]})
    rows = data.rows

    def logged(output: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(output, y)
        log.loc[len(log)] = [float(loss.detach())]
        return loss

    with pytest.warns(UserWarning, match="cannot be stored in a checkpoint") as warned:
        bench = wb.Workbench(
            nn.Linear(4, 1),
            train=data,
            loss=logged,
            batch_size=8,
            max_steps=3,
            root=tmp_path,
            accelerator="cpu",
        )
    assert len(log) == 1
    assert "Weighted.rows (a DataFrame), Weighted.column (a DataFrame)" in str(warned[0].message)
    assert data.rows is rows
    assert (data.rows.to_dict("list"), data.column.to_dicts()) == (
        {"x": [0.0], "name": ["a"]},
        [{"x": 0.0}],
    )
    losses = [bench.fit().result().history["loss"].tolist() for _ in range(2)]
    assert losses[0] == losses[1]
    assert len(log) == 7  # what functions use as a variable is a log
    data.seen[0] = 50  # the new start, also of the fit after the next
    changed = [bench.fit().result().history["loss"].tolist() for _ in range(2)]
    assert changed[0] == changed[1] != losses[0]


def test_objects_that_the_user_has_replaced_are_freed(tmp_path: Path) -> None:
    data = Weighted()
    bench = wb.Workbench(
        nn.Linear(4, 1),
        train=data,
        loss=F.mse_loss,
        batch_size=8,
        max_steps=1,
        root=tmp_path,
        accelerator="cpu",
        dry_run=False,
        keep_start=0,
    )
    replaced = []
    for _ in range(3):
        replaced.append(weakref.ref(data.record))
        data.record = Record(1.0)
        bench.fit().result()
    gc.collect()
    assert [record() for record in replaced] == [None, None, None]


class Environment:
    """Has state that no file can hold."""

    def __init__(self) -> None:
        self.states = (number for number in range(1000))

    def step(self) -> int:
        return next(self.states)


def test_what_no_checkpoint_can_store_is_named_when_the_bench_is_made_and_in_health(
    tmp_path: Path,
) -> None:
    class Playing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(4, 1), None
            self.environment = Environment()

        def forward(self, x: Tensor) -> Tensor:
            self.last = object()
            return self.layer(x) + 0 * self.environment.step()

    with pytest.warns(UserWarning, match="cannot be") as warned:
        bench = wb.Workbench(
            Playing(),
            train=(X, X[:, :1]),
            loss=F.mse_loss,
            batch_size=8,
            max_steps=2,
            root=tmp_path,
            accelerator="cpu",
        )
    texts = [str(one.message) for one in warned]
    assert any(
        "cannot restore: 0:.environment.states (a generator that was read further)" in text
        for text in texts
    )
    assert any(
        "cannot be stored in a checkpoint: Playing.last (an object)" in text for text in texts
    )
    health = [str(finding) for finding in bench.fit().result().health]
    assert any(
        "Playing.last (an object) cannot be stored in a checkpoint" in text for text in health
    )


def test_objects_that_refer_to_one_another_still_do_once_a_bench_is_made(tmp_path: Path) -> None:
    class Logs(Net):
        def __init__(self) -> None:
            super().__init__()
            self.log: dict[str, list[float]] = {"norm": []}
            self.norms = self.log["norm"]

        def forward(self, x: Tensor) -> Tensor:
            self.norms.append(1.0)
            return self.layer(x)

    model = Logs()
    bench = wb.Workbench(
        model,
        train=(X, X[:, :1]),
        loss=F.mse_loss,
        batch_size=8,
        max_epochs=1,
        root=tmp_path,
        accelerator="cpu",
    )
    assert model.norms is model.log["norm"]
    for _ in range(2):
        bench.fit().result()
        assert model.norms is model.log["norm"]
        assert len(model.log["norm"]) == 5


def test_a_large_array_of_a_data_set_is_data_and_what_lies_beside_it_is_state(
    tmp_path: Path,
) -> None:
    class Large(Dataset[Any]):
        def __init__(self) -> None:
            self.values, self.seen = np.zeros(80 << 20, np.uint8), np.zeros(2)

        def __len__(self) -> int:
            return len(X)

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            self.seen += 1
            return X[index] * (1 + 0.01 * float(self.seen[0])), X[index, :1]

    data = Large()
    bench = wb.Workbench(
        nn.Linear(4, 1),
        train=data,
        loss=F.mse_loss,
        batch_size=8,
        max_epochs=1,
        root=tmp_path,
        accelerator="cpu",
    )
    assert data.seen.tolist() == [0, 0]
    losses = [bench.fit().result().history["loss"].tolist() for _ in range(2)]
    assert losses[0] == losses[1]
