"""`wb.rerun` repeats a fit of another process to the last bit, from what the fit kept."""

from __future__ import annotations

import json
import platform
import re
import stat
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import workbench as wb
from tests import warm
from tests.bench import rerun_cases
from workbench.events import Message
from workbench.launch.job import AnyJob
from workbench.launch.start import kept_start
from workbench.runs.read import read_header
from workbench.share import portable

pytestmark = pytest.mark.filterwarnings("ignore:.* is repeated under other conditions")


def said(job: AnyJob, *, wait: bool = False) -> list[str]:
    if wait:
        job.wait()
    return [event.text for event in job.events if isinstance(event, Message)]


def said_at_the_end(job: AnyJob) -> str:
    return said(job, wait=True)[-1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The root of runs that another process has made, and what it wrote about each."""
    folder = tmp_path_factory.mktemp("rerun")
    done = warm.python().run(rerun_cases.__file__, str(folder), folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "root", json.loads((folder / "runs.json").read_text())


@pytest.mark.parametrize("name", rerun_cases.CASES)
def test_another_process_repeats_it(name: str, recorded: tuple[Path, dict[str, Any]]) -> None:
    root, runs = recorded
    id, updates = runs[name]
    job = wb.rerun(id, root)
    again = job.result()
    assert again.step == updates
    assert said(job)[-1].startswith(f"repeats {id}: "), said(job)


X, Y = torch.randn(24, 4), torch.randn(24, 1)


def bench_of(root: Path, model: nn.Module | None = None, **given: Any) -> wb.Workbench:
    given = {"train": (X, Y), "max_epochs": 2, "batch_size": 8, **given}
    loss = nn.functional.mse_loss
    model = model or nn.Linear(4, 1)
    return wb.Workbench(model, loss=loss, root=root, accelerator="cpu", dry_run=False, **given)


class Reading(nn.Linear):
    """Adds the number in a file: what a run reads is not kept."""

    def __init__(self, file: Path) -> None:
        super().__init__(4, 1)
        self.file = file

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + float(self.file.read_text())


def test_a_run_that_differs_says_where(tmp_path: Path) -> None:
    file = tmp_path / "number"
    file.write_text("1")
    run = bench_of(tmp_path, Reading(file)).fit().result()
    file.write_text("2")
    job = wb.rerun(run.id, tmp_path)
    assert said_at_the_end(job).rstrip(".") == job.result().repeats
    assert said(job)[-1].startswith(
        "does not repeat 0001-fit: the loss of update 0 is the first to differ (it is "
    )
    assert "0 of 6 losses equal. What no run keeps may be the cause: files" in said(job)[-1]
    assert job.result().repeats in repr(job.result())
    assert read_header(tmp_path / "runs" / "0002-fit")["repeats"] == "0001-fit"
    file.unlink()
    job = wb.rerun(run.id, tmp_path)
    with pytest.raises(FileNotFoundError):
        job.result()
    assert said(job)[-1].endswith("it ended before update 0; 0 of 6 losses equal.")


def test_large_data_is_shared_by_the_runs_of_a_root(tmp_path: Path) -> None:
    data = torch.randn(70_000, 4), torch.zeros(70_000, 1)
    given = {"train": data, "batch_size": 7_000, "max_steps": 2}
    with bench_of(tmp_path, **given) as bench:
        bench.fit().result()
    with bench_of(tmp_path, **given) as bench:  # with other weights
        run = bench.fit().result()
    folders = [tmp_path / "runs" / id / "start" for id in ("0001-fit", "0002-fit")]
    files = [sorted(folder.glob("*.data")) for folder in folders]
    assert len(files[0]) == 1  # the other one is smaller
    assert files[0][0].samefile(files[1][0])
    assert [stat.S_IMODE(file.stat().st_mode) for file in folders[1].iterdir()] == [0o600] * 3
    assert stat.S_IMODE(folders[1].stat().st_mode) == 0o700
    bench.delete("0001-fit")
    assert said_at_the_end(wb.rerun(run)).startswith("repeats 0002-fit: 2 of 2 losses equal")


def test_what_is_not_kept_is_named(tmp_path: Path) -> None:
    data = torch.randn(70_000, 4), torch.zeros(70_000, 1)
    with bench_of(tmp_path, train=data, batch_size=7_000, max_steps=1, keep_start=1) as bench:
        large = bench.fit()
        text = "train has 1 MB or more (keep_start=1 MB; keep_start=None has no limit)"
        assert [one for one in said(large, wait=True) if text in one]
        match = f"0001-fit cannot be repeated.*{re.escape(text)}"
        with pytest.raises(FileNotFoundError, match=match):
            wb.rerun(large.result())
        off = bench.fit(keep_start=0).result()
        assert not (tmp_path / "runs" / off.id / "start").exists()
        with pytest.raises(FileNotFoundError, match="the fit had keep_start=0"):
            wb.rerun(off)
    model = nn.Linear(4, 1)
    model.lock = threading.Lock()  # type: ignore[assignment]
    with bench_of(tmp_path, model) as bench:
        locked = bench.fit().result()
    with pytest.raises(FileNotFoundError, match=r"start was not kept: model.lock cannot be"):
        wb.rerun(locked)


def test_data_of_very_many_objects_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portable, "_SECONDS", 0.0)
    with bench_of(tmp_path, train=list(zip(X, Y, strict=True)) * 10, max_steps=1) as bench:
        texts = [said(bench.fit(), wait=True) for _ in range(2)]  # the second one does not try
        monkeypatch.undo()
        run = bench.fit(keep_start=None).result()
    text = "train takes more than 0 s to pack (keep_start=200 MB; keep_start=None has no limit)"
    assert [[text in one for one in fit].count(True) for fit in texts] == [1, 1]
    assert said_at_the_end(wb.rerun(run)).startswith("repeats 0003-fit")


def test_a_module_that_is_missing_and_a_checkpoint_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("site_packages_lib")
    net = type("Net", (nn.Linear,), {"__module__": module.__name__})
    module.Net = net  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with bench_of(tmp_path, net(4, 1)) as bench:
        first = bench.fit(max_epochs=1).result()
        second = bench.fit(start="continue", max_epochs=3).result()
        monkeypatch.delitem(sys.modules, module.__name__)
        with pytest.raises(ImportError, match="0001-fit cannot be repeated here: its code imports"):
            wb.rerun(first)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        assert said_at_the_end(wb.rerun(second)).startswith("repeats 0002-fit: 9 of 9 losses")
        bench.delete(first)
    with pytest.raises(FileNotFoundError, match="the checkpoint that it continues is gone"):
        wb.rerun(second)


def test_other_versions_are_named_and_another_python_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench_of(tmp_path).fit().result()
    now = kept_start.versions()
    monkeypatch.setattr(kept_start, "versions", lambda: {**now, "torch": "9.1"})
    with pytest.warns(UserWarning, match=f"torch {re.escape(torch.__version__)} there, 9.1 here"):
        wb.rerun(run).result()
    monkeypatch.setattr(platform, "python_version", lambda: "3.99.0")
    with pytest.raises(RuntimeError, match=r"Python 3\.\d+\.\d+, and this is Python 3\.99"):
        wb.rerun(run)


def test_what_cannot_be_repeated_is_refused(tmp_path: Path) -> None:
    with bench_of(tmp_path, val=(X, Y)) as bench:
        bench.validate().result()
    with pytest.raises(ValueError, match="run 0001-validate is a validate: only fits"):
        wb.rerun("0001-validate", tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no run '0007-fit'"):
        wb.rerun("0007-fit", tmp_path)
