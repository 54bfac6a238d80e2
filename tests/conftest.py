"""What all tests share: one thread where sums must repeat, more examples in `make soak`."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import workbench
from workbench.export.source import origins

WORKERS = os.environ.get("PYTEST_XDIST_WORKER_COUNT")
if WORKERS is not None:
    # Each worker's share of the cores, for the processes that it starts too: threads that wait for a core spin on another's.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(WORKERS))))

# no test asks a hub, nor do its processes: a download fails
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Hundreds of processes import the same files: the first one keeps their bytecode for the others.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# until all is imported and collected: nothing of it is garbage, and the collector looks through it
# again and again
gc.disable()

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # jsonschema does without; it compiles 39 grammars for a second
# Each Trainer of Lightning asks for entry points, which reads those of all packages.
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)

HERE = Path(__file__).parent
SOAK = os.environ.get("WORKBENCH_SOAK", "") not in ("", "0")

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("soak" if SOAK else "ci")


def count(n_ci: int, n_soak: int) -> int:
    """`n_ci`, or `n_soak` under `make soak`."""
    return n_soak if SOAK else n_ci


@pytest.fixture(scope="session", autouse=True)
def _hidden_gpu() -> Iterator[pytest.MonkeyPatch]:
    """No GPU is seen, here and in the processes that tests start: "auto" is the CPU, on which most tests count.

    For the session, since fixtures of whole modules train and start processes too. CUDA itself has been asked already, and
    still has its devices: `_shown_gpu` shows them again.
    """
    with pytest.MonkeyPatch.context() as patch:
        _hide_gpu(patch)
        yield patch


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Iterator[None]:
    """Nothing waits for the disk: a fit does so seven times, and no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: None)
        yield


AHEAD = (
    "tests.short_trials", "pytest", "hypothesis", "workbench.bench", "tests.engine.problems", "tests.engine.fit_results", "tests.engine.resuming",
    "tests.engine.sharded", "tests.reference.techniques", "tests.huge_pages",
)  # fmt: skip
"""What nearly every process of the fork server would import for a function of a test, for a tenth of a second. The trials are short
ones. The last one makes forks cheaper.
"""


@pytest.fixture(scope="session", autouse=True)
def _imported_ahead() -> Iterator[None]:
    """The fork server imports what it finds there and what this process has imported."""
    from tests import short_trials  # noqa: F401
    from workbench.launch.process import fork_client

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_client, "IF_LOADED", (*fork_client.IF_LOADED, *AHEAD))
        yield


@pytest.fixture(scope="session", autouse=True)
def _unverified() -> Iterator[None]:
    """`bench.export` runs no script, for seconds each, unless a test says `verify=True`."""
    from workbench.bench.workbench import Workbench

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(Workbench.export.__kwdefaults__, "verify", False)
        yield


@pytest.fixture(autouse=True)
def _no_seed_of_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `L.seed_everything` left in the environment in another test would decide the `seed` of this one."""
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)


@pytest.fixture(autouse=True)
def _shown_gpu(request: pytest.FixtureRequest, _hidden_gpu: pytest.MonkeyPatch) -> Iterator[None]:
    """A test marked `gpu` sees what there is. What is started once for all tests has the environment of each call, not of its start."""
    marked = request.node.get_closest_marker("gpu") is not None
    if marked:
        _hidden_gpu.undo()
    yield
    if marked:
        _hide_gpu(_hidden_gpu)


def _hide_gpu(patch: pytest.MonkeyPatch) -> None:
    import torch

    if _cuda():
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.accelerator, "is_available", lambda: False)
        patch.setattr(torch.cuda, "device_count", lambda: 0)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        return
    for device in (torch.cuda, torch.xpu, torch.mtia):
        # torch would write down the call stack of each seed that such a device never gets
        if not device.is_available():
            patch.setattr(device, "manual_seed_all", lambda seed: None, raising=False)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One torch thread and a seeded generator, so that sums repeat to the last bit; put back afterwards."""
    import torch

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_rng_state(state)
    torch.set_num_threads(threads)


@pytest.fixture
def forked_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that this test starts have imported torch already."""
    from tests import warm

    monkeypatch.setenv("JUPYTER_PATH", str(warm.kernels()))


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`accelerate launch` and its ranks have imported torch already, where a bench of this process starts them.

    torchrun starts ranks by the Python of this variable, which forked processes take for their own `sys.executable`, too.
    """
    from tests import warm

    monkeypatch.setenv("PYTHON_EXEC", str(warm.python().executable))
    monkeypatch.setattr(sys, "executable", str(warm.python().executable))


@pytest.fixture(autouse=True)
def public_names() -> Iterator[None]:
    """A stand-in that a test puts in the place of `workbench.Workbench` does not outlive the test."""
    handed_out = vars(workbench)
    before = {name: handed_out[name] for name in workbench.__all__ if name in handed_out}
    yield
    for name in workbench.__all__:
        handed_out.pop(name, None)
    handed_out.update(before)


@pytest.fixture(scope="module", autouse=True)
def _own_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """A bench sees the file of its test as a user's own, and none of the hundreds of other files that this process has collected.

    It would ask the disk for each of them whether it has changed.
    """
    origins._others.discard(request.module.__name__)
    yield
    origins._others.add(request.module.__name__)


PAGES = ("browser/test_html_manager.py", "browser/test_marimo.py", "browser/panel/test_plots.py")
TOGETHER = {
    "browser": "kernels",
    **dict.fromkeys(PAGES, "pages without JupyterLab"),
    **dict.fromkeys(("launch", "share"), "processes"),
    **dict.fromkeys(("notebooks", "test_demo.py"), "notebooks"),
    "export": "scripts",
}
"""The folders and files of tests that look at the whole machine (shared memory, processes) or share a server or a browser.

Those of a group run one after another, others beside. The longest groups come first, and begin first.
"""


ONCE_MORE = ("browser", "launch", "share", "notebooks", "test_demo.py")
"""Tests of browsers and processes, which a busy machine can upset: one that fails runs once more, and pytest lists it under RERUN."""


def pytest_configure(config: pytest.Config) -> None:
    from tests import warm  # before a test changes the environment

    # the workers of xdist, which this process starts later, find the folder
    if not hasattr(config, "workerinput"):
        config.add_cleanup(functools.partial(shutil.rmtree, warm.begin_run(), ignore_errors=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if _place(item) in ONCE_MORE:
                item.add_marker(pytest.mark.flaky(reruns=1))
    groups = [*dict.fromkeys(TOGETHER.values()), None]
    sizes = {path: path.stat().st_size for path in {item.path for item in items}}

    def when(item: pytest.Item) -> tuple[int, int]:
        """A group begins at once. Then come the longest files: those that wait among those that compute, and short ones at the end."""
        group = _group(item.path.relative_to(HERE))
        return groups.index(group), -sizes[item.path] if group is None else 0

    items.sort(key=when)
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _cuda():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Several processes (`make test` has three): the tests of a file stay in one, which makes the fixtures of the file once.

    No groups of xdist: pytest 9.2 ignores the names that xdist 3.8 gives to them, and each test goes where there is room.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = Path(nodeid.partition("::")[0]).relative_to("tests")
            return _group(file) or str(file)

    return ByFile(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported and collected stays: no garbage collection looks through it again, here or in a forked process.

    What is imported later stays too, and each collection of old objects would look through that: there are fewer of them.
    """
    # see `_own_module`
    origins._others.update(
        item.module.__name__ for item in session.items if isinstance(item, pytest.Function)
    )
    gc.collect()
    gc.freeze()
    importlib.import_module("tests.huge_pages")
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[pytest.TestReport]:
    """A job that a failed test has left running is stopped: those of later tests would wait for their turn until they time out.

    A job that other tests of the file share is stopped, too.
    """
    report = yield
    if report.failed:
        from workbench.commands import Stop
        from workbench.launch.job import Job

        for job in [one for one in gc.get_objects() if issubclass(type(one), Job)]:
            with contextlib.suppress(AttributeError):  # one that a test has made only in part
                # `stop()` would call listeners, and one of them may be what the test waited for
                job._inbox.put(Stop())
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """What a file of tests has imported and left in caches stays, too: searches collect garbage after each trial."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def _place(item: pytest.Item) -> str:
    """The folder in `tests/`, or the file there, that a test belongs to."""
    return item.path.relative_to(HERE).parts[0]


def _group(file: Path) -> str | None:
    """The group of a file of `tests/`, which has its folder's unless it has one of its own."""
    return TOGETHER.get(str(file), TOGETHER.get(file.parts[0]))


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()
