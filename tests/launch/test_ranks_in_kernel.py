"""Ranks from a real kernel, with everything defined in its cells."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.manager import KernelManager

from tests import warm
from tests.launch.pools import named
from tests.waiting import wait_for

CELLS = """
import json, os
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
import workbench as wb

class Noisy:
    def __call__(self, x):
        return x + 0.1 * x.sin()

class Points(Dataset):
    def __init__(self, count, transform):
        generator = torch.Generator().manual_seed(3)
        self.x, self.y = torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)
        self.transform = transform
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return {"x": self.transform(self.x[index]), "y": self.y[index]}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
    def forward(self, x):
        return self.head(F.relu(self.body(x)))

def collate(samples):
    return torch.stack([s["x"] for s in samples]), torch.stack([s["y"] for s in samples])

def loss(output, y):
    return F.cross_entropy(output, y, label_smoothing=0.1)

def accuracy(output, y):
    return (output.argmax(1) == y).float().mean()

torch.manual_seed(0)
model = Net()
weight = model.body.weight
bench = wb.Workbench(
    model, train=Points(100, Noisy()), val=Points(30, Noisy()), loss=loss, metrics={"accuracy": accuracy},
    optimizer=torch.optim.SGD, lr=0.5, max_epochs=3, collate_fn=collate, accelerator="cpu",
)

def told(devices, batch_size, **more):
    run = bench.fit(start="fresh", devices=devices, batch_size=batch_size, **more).result()
    said = {name: [float(v) for v in run.history[name]] for name in ("loss", "grad_norm")}
    said |= {name: [float(v) for v in run.validation[name]] for name in ("val_loss", "val_accuracy")}
    said["weights"] = [float(p.detach().double().sum()) for p in model.parameters()]
    return said
"""


class Kernel:
    """An IPython kernel that runs cells."""

    def __init__(self, folder: Path, forked: bool = True) -> None:
        """forked: it and its fork server have torch imported already; otherwise both are started as Python, as a user's are."""
        with pytest.MonkeyPatch.context() as patch:
            if forked:
                patch.setenv("JUPYTER_PATH", str(warm.kernels()))
            self.manager = KernelManager(kernel_name="python3")
            self.manager.start_kernel(cwd=str(folder))
        self.client: Any = self.manager.blocking_client()
        self.client.start_channels()

    def begin(self) -> None:
        """Run CELLS, also where they have been run before, and after a restart."""
        self.client.wait_for_ready(timeout=200)
        self.run(CELLS)

    def run(self, cell: str) -> str:
        """What it prints to stdout; a cell that fails fails the test."""
        printed: list[str] = []

        def hear(message: Any) -> None:
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])

        try:
            reply = self.client.execute_interactive(cell, timeout=200, output_hook=hear)
        except TimeoutError:
            # for the second run of the test, and for the tests after it
            self.manager.restart_kernel(now=True)
            raise
        assert reply["content"]["status"] == "ok", "\n".join(
            [*printed, *reply["content"].get("traceback", ())]
        )
        return "".join(printed)

    def value(self, expression: str) -> Any:
        return json.loads(self.run(f"print('\\n' + json.dumps({expression}))").splitlines()[-1])

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """For all tests here, one after another: it takes seconds to start."""
    found = Kernel(tmp_path_factory.mktemp("kernel"))
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def kernel(one: Kernel) -> Kernel:
    one.begin()
    return one


def assert_close(found: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=2e-4, abs=1e-6), name


def test_two_ranks_are_one_process_on_the_global_batch_whatever_the_kernel_did_before(
    kernel: Kernel,
) -> None:
    """100 samples in batches of 8: in the last round one rank has 4 samples, and the other none."""
    alone = kernel.value("told(1, 16)")
    kernel.run(
        "from accelerate import Accelerator\nmine = Accelerator(cpu=True)\n(torch.randn(700, 700) @ torch.randn(700, 700)).sum()"
    )
    kernel.run(
        "line = nn.Linear(2, 1)\nline, steps = mine.prepare(line, torch.optim.SGD(line.parameters(), lr=0.1))"
    )
    first, second = kernel.value("told(2, 8)"), kernel.value("told(2, 8)")
    assert len(alone["loss"]) == 21
    assert_close(first, alone)
    assert second == first
    assert kernel.value("weight is model.body.weight and not weight.is_shared()")
    kernel.run(
        "before = line.weight.clone()\nmine.backward(line(torch.ones(4, 2)).sum())\nsteps.step()"
    )
    assert kernel.value(
        "[mine.num_processes, mine.is_main_process, torch.equal(before, line.weight)]"
    ) == [1, True, False]
    assert kernel.value("told(1, 16)") == alone, "in the kernel all is as before"


def test_loader_workers_of_ranks_have_what_is_defined_in_cells(kernel: Kernel) -> None:
    assert_close(
        kernel.value("told(2, 8, num_workers=2)"), kernel.value("told(1, 16, num_workers=2)")
    )
    assert_close(
        kernel.value("told(2, 8, num_workers=1, persistent_workers=False)"),
        kernel.value("told(1, 16)"),
    )


def test_all_kinds_of_jobs_go_to_the_ranks_and_what_they_print_comes_back(kernel: Kernel) -> None:
    kernel.run(
        "def loss(output, y):\n    print('in', os.getpid())\n    return F.cross_entropy(output, y)\n"
    )
    kernel.run(
        "talking = wb.Workbench(model, train=Points(32, Noisy()), val=Points(32, Noisy()), loss=loss, collate_fn=collate, "
        "accelerator='cpu', devices=2, batch_size=8, max_epochs=1)"
    )
    printed = kernel.run("run = talking.fit().result()")
    own = kernel.value("os.getpid()")
    pids = {int(line.split()[-1]) for line in printed.splitlines() if "in " in line}
    assert len(pids) == 2
    assert own not in pids
    assert any(line.startswith("[rank 1] in ") for line in printed.splitlines())
    metrics = kernel.value("talking.validate().result()")
    assert metrics["val_loss"] == pytest.approx(kernel.value("run.metrics['val_loss']"), rel=1e-5)
    assert kernel.value("len(talking.find_lr(num_training=20).result().lrs)") == 20
    assert kernel.value(
        "[len(part) for part in talking.predict(Points(32, Noisy())).result()]"
    ) == [8, 8, 8, 8]


def test_a_kernel_that_restarts_in_a_fit_leaves_no_process_and_no_segment(kernel: Kernel) -> None:
    ends_in_a_fit(kernel, lambda pid: kernel.manager.restart_kernel(now=False))
    kernel.begin()
    assert len(kernel.value("told(2, 8)")["loss"]) == 21


def test_a_kernel_that_is_killed_in_a_fit_leaves_no_process_and_no_segment(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, forked=False)
    try:
        kernel.begin()
        ends_in_a_fit(kernel, lambda pid: os.kill(pid, signal.SIGKILL))
    finally:
        kernel.close()


def ends_in_a_fit(kernel: Kernel, end: Callable[[int], None]) -> None:
    """Fit in two ranks, end the kernel, and wait until nothing of it is left."""
    before = named()
    kernel.run(
        "job = bench.fit(start='fresh', devices=2, batch_size=8, num_workers=1, max_epochs=100_000)"
    )
    kernel.run("import time\nwhile len(job.events) < 8:\n    time.sleep(0.05)")
    pid = kernel.value("os.getpid()")
    theirs = psutil.Process(pid).children(recursive=True)
    assert len(theirs) >= 5, "the server, two ranks and their loader workers"
    end(pid)
    _, alive = psutil.wait_procs(theirs, timeout=200)
    assert alive == []
    # a stranger's name that nobody has mapped yet is there for a moment
    wait_for(lambda: named() <= before)
