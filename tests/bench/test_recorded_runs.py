"""What a bench does with its recorded runs: compare, show, delete, and the script before it is written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

import workbench as wb
from tests.engine.problems import labelled, plain_net, sgd
from workbench.cli import main
from workbench.events import Called, Compared, Deleted, Shown
from workbench.launch import turns
from workbench.runs.record.event_log import Recorded

pytestmark = pytest.mark.usefixtures("one_thread")


def a_bench(root: Path) -> wb.Workbench:
    return wb.Workbench(
        plain_net(), train=labelled(), val=labelled(20, seed=3), loss=F.cross_entropy, optimizer=sgd, root=root,
        accelerator="cpu", batch_size=8, max_epochs=1,
    )  # fmt: skip


def test_every_line_moves_the_views(tmp_path: Path) -> None:
    bench = a_bench(tmp_path)
    one, two = bench.fit().result(), bench.fit(lr=0.5).result()
    heard: list[Any] = []
    bench.subscribe(heard.append)
    both = bench.compare(one, "0002-fit")
    assert both.settings == {"lr": ("1e-3", "0.5")}
    assert repr(both) == repr(bench.compare(*bench.runs)) == repr(wb.compare(one, two))
    assert bench.compare() is None
    bench.show(one)
    bench.show()
    bench.delete("0001-fit")
    told = [event for event in heard if isinstance(event, Called | Compared | Shown | Deleted)]
    assert told == [
        Called("bench.compare('0001-fit', '0002-fit')"), Compared(("0001-fit", "0002-fit")),
        Called("bench.compare('0001-fit', '0002-fit')"), Compared(("0001-fit", "0002-fit")),
        Called("bench.compare()"), Compared(()),
        Called("bench.show('0001-fit')"), Shown("0001-fit"), Called("bench.show()"), Shown(""),
        Called("bench.delete('0001-fit')"), Deleted("0001-fit"),
    ]  # fmt: skip
    assert [run.id for run in bench.runs] == ["0002-fit"]
    assert not (tmp_path / "runs" / "0001-fit").exists()
    assert one.metrics["loss"]  # what was heard stays
    with pytest.raises(
        FileNotFoundError, match=r"run '0001-fit' has no record: it was a dry run, or it is deleted"
    ):
        bench.show(one)
    with pytest.raises(FileNotFoundError, match=r"no run '0001-fit' in .*there are: 0002-fit"):
        bench.compare("0001-fit", two)
    with pytest.raises(TypeError, match="7 is not a run"):
        bench.delete(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 run to compare"):
        bench.compare(two)
    with pytest.raises(TypeError, match=r"compare\(\) got a RunList: .* bench.compare\(\*runs\)"):
        bench.compare(bench.runs)  # type: ignore[call-overload]
    bench.find_lr(num_training=3).result()
    with pytest.raises(
        ValueError, match="run 0003-find_lr is a find_lr: only fits can be compared"
    ):
        bench.compare(two, "0003-find_lr")


def test_the_list_of_runs_reads_the_ends_of_the_records_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = a_bench(tmp_path)
    bench.fit().result()
    gone = bench.fit().result()
    runs = bench.runs
    bench.delete(gone)

    def whole(*_: Any) -> None:
        raise AssertionError("a record was read")

    monkeypatch.setattr(Recorded, "stream", whole)
    head, first, second = repr(runs).splitlines()
    assert head.split()[:4] == ["run", "status", "updates", "time"]
    assert "loss" in head.split()
    assert first.split()[:3] == ["0001-fit", "finished", "7"]
    assert f"val_loss {gone.metrics['val_loss']:.4g}" in first
    assert second.split()[:3] == ["0002-fit", "deleted", "7"]


def test_runs_of_another_folder_are_compared_and_no_more(tmp_path: Path) -> None:
    """Their ids may be those of other runs here; and what a bench deletes is its own."""
    here, there = a_bench(tmp_path / "here"), a_bench(tmp_path / "there")
    one, other = here.fit().result(), there.fit(lr=0.5).result()
    dry = here.fit(fast_dev_run=True).result()
    (tmp_path / "here" / "runs" / "0009-fit").symlink_to(tmp_path / "there" / "runs" / "0001-fit")
    heard: list[Any] = []
    here.subscribe(heard.append)
    assert here.compare(one, other).settings == {"lr": ("1e-3", "0.5")}
    assert here.compare(one, dry).runs[1].id == dry.id
    for call in (here.show, here.delete):
        with pytest.raises(
            ValueError, match=r"lies in .*there.runs, not among the runs of .*here: use a bench"
        ):
            call(other)
    for call in (here.show, here.delete, here.load, lambda id: here.fit(start=id)):
        with pytest.raises(
            FileNotFoundError, match=r"0009-fit is a link to .*there.runs.0001-fit: use a bench"
        ):
            call("0009-fit")
    assert heard == []
    assert [run.id for run in there.runs] == ["0001-fit"]


def test_a_run_that_goes_on_or_that_a_fit_waits_for_stays(tmp_path: Path) -> None:
    bench = a_bench(tmp_path)
    one = bench.fit().result()
    going = bench.fit(max_epochs=100_000)
    waiting = bench.fit(start=one.id, max_epochs=2)
    try:
        with pytest.raises(
            RuntimeError, match=f"run {one.id} is needed: {waiting.id} starts from it"
        ):
            bench.delete(one)
        with pytest.raises(RuntimeError, match=f"run {going.id} is not over"):
            bench.delete(going.id)
        with pytest.raises(RuntimeError, match="a job is running or queued"):
            bench.script(one)
    finally:
        going.stop()
    assert waiting.result().resumes[0].run == one.id
    bench.delete(one)
    # It had taken over what it went on from.
    assert bench.fit(start=waiting.id, max_epochs=3).result().status == "finished"


def test_the_script_is_what_export_writes(tmp_path: Path) -> None:
    bench = a_bench(tmp_path / "runs")
    one, two = bench.fit().result(), bench.fit(lr=0.5).result()
    heard: list[Any] = []
    bench.subscribe(heard.append)
    text = bench.script(one.id, path=tmp_path / "train.py")
    assert heard == []
    assert not (tmp_path / "train.py").exists()
    assert bench.export(tmp_path / "train.py", run=one).read_text(encoding="utf-8") == text
    assert heard == [
        Called(f"bench.export({str(tmp_path / 'train.py')!r}, run='0001-fit', verify=False)")
    ]
    assert bench.script() == bench.script(two, "train.py") != text


def test_jobs_wait_while_a_script_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens a session on the model; jobs of another bench have the process's random states."""
    bench, jobs = a_bench(tmp_path), []
    bench.fit().result()

    def slow(*of: Any) -> str:
        jobs.append(bench.fit())
        assert not jobs[0].wait(0.3)
        assert jobs[0].status == "queued"
        with turns.alone():  # the same thread goes through
            return "# the script"

    monkeypatch.setattr("workbench.export.script.script", slow)
    assert bench.script() == "# the script"
    assert jobs[0].wait(120)
    with monkeypatch.context() as changed:
        changed.setattr(turns, "PATIENCE", 0.05)
        other = a_bench(tmp_path / "other")
        going = other.fit(max_epochs=100_000)
        try:
            while going.status != "running":
                time.sleep(0.01)
            with pytest.raises(RuntimeError, match="a job of another bench runs"):
                bench.script()
        finally:
            going.stop()
            going.wait()


def test_a_file_or_folder_that_is_no_run_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bench = a_bench(tmp_path / "root")
    weights = {name: value + 1 for name, value in bench.model.state_dict().items()}
    (tmp_path / "in").mkdir()
    torch.save(weights, "sd.pt")
    torch.save(weights, "in/sd.pt")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    for call in (bench.load, lambda start: bench.fit(start=start)):
        for given in ("sd.pt", "in/sd.pt", Path("sd.pt")):
            with pytest.raises(
                (FileNotFoundError, wb.SettingsError),
                match=r"a file\. If it holds a state dict: bench\.model\.load_state_dict",
            ) as refused:
                call(given)
        for folder in ("hf", "./hf", Path("hf")):
            with pytest.raises(
                (FileNotFoundError, wb.SettingsError),
                match=r"Model\.from_pretrained\('(\./)?hf'\).* a new bench",
            ):
                call(folder)
        with pytest.raises((FileNotFoundError, ValueError), match=r"'x{5000}'"):
            call("x" * 5000)
    exec(
        str(refused.value).partition("state dict: ")[2].partition(", then")[0],
        {"bench": bench, "torch": torch},
    )
    assert all(
        torch.equal(value, weights[name]) for name, value in bench.model.state_dict().items()
    )
    run = bench.fit(max_steps=1).result()
    assert run.folder is not None
    with pytest.raises(FileNotFoundError, match=f"give its id, '{run.id}'"):
        bench.load(str(run.folder))


def test_a_run_that_is_missing_is_told_with_the_newest(tmp_path: Path) -> None:
    bench = a_bench(tmp_path)
    for number in range(1, 9):
        (tmp_path / "runs" / f"{number:04d}-fit").mkdir(parents=True)
    with pytest.raises(
        FileNotFoundError,
        match="there are: 0008-fit, 0007-fit, 0006-fit, 0005-fit, 0004-fit and 3 more",
    ):
        bench.load("0009-fit")


def test_a_root_stays_where_it_is_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.chdir(first)
    bench = a_bench(Path("records"))
    run = bench.fit().result()
    monkeypatch.chdir(second)
    assert bench.root == first / "records"
    assert [one.id for one in bench.runs] == [run.id]
    assert bench.fit(start="continue", max_epochs=2).result().id == "0002-fit"
    bench.load(run, "last")
    assert wb.Run.open(first / "records" / "runs" / run.id).checkpoints == run.checkpoints
    assert not [*second.iterdir()]


def test_the_home_folder_may_stand_in_every_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    bench = a_bench(Path("~/runs"))
    run = bench.fit().result()
    assert run.folder == tmp_path / "runs" / "runs" / run.id
    assert wb.attach(run.id, root="~/runs").result().id == run.id
    run.to_csv("~/history.csv")
    assert run.figure().save("~/plot.png") == tmp_path / "plot.png"
    assert run.to_lightning("~/last.ckpt") == tmp_path / "last.ckpt"
    bench.load("~/last.ckpt")
    assert bench.fit(start="~/last.ckpt", max_epochs=2).result().step == 2 * run.step
    assert bench.export("~/train.yaml") == tmp_path / "train.yaml"
    assert wb.Settings.load("~/train.yaml").max_epochs == 2
    with pytest.raises(wb.SettingsError, match="is a file"):
        bench.fit(start=Path("~/history.csv"))
    assert CliRunner().invoke(main, ["runs", "show", run.id, "--root=~/runs"]).exit_code == 0
    assert not (tmp_path / "~").exists()
