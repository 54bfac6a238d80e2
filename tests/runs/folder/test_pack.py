"""A run as one file: packed, unpacked in another root, and used there as the first one is used."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import nn

import workbench as wb
from tests import warm
from tests.runs.records import read_events, write_run
from workbench.cli import main
from workbench.engine.checkpoint.files import read_weights
from workbench.events import RunEnded, RunStarted
from workbench.runs.checkpoints import list_checkpoints, shard_of
from workbench.runs.folder.annotations import annotate
from workbench.runs.folder.ids import new_id, reserve_id
from workbench.runs.store import RunFolder

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
LARGE = torch.randn(1 << 18, 4)  # has a file of its own


class Net(nn.Sequential):
    """A network that holds large data."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.data = LARGE


def bench(root: Path) -> wb.Workbench:
    torch.manual_seed(0)
    return wb.Workbench(
        Net(), train=(X, X[:, :1]), val=(X, X[:, :1]), loss=nn.MSELoss(), root=root, batch_size=8, max_epochs=2,
        accelerator="cpu", save_top_k=-1, enable_progress_bar=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wb.Run]:
    with bench(tmp_path_factory.mktemp("first")) as first:
        run = first.fit().result()
        run.annotate(name="baseline", notes="two epochs", tags=["sgd"], pinned=True)
        yield run


def names(file: Path) -> list[str]:
    with tarfile.open(file) as archive:
        return archive.getnames()


def test_it_is_the_same_run_elsewhere(run: wb.Run, tmp_path: Path) -> None:
    file = run.pack(tmp_path / "a.tar")
    again = wb.Run.unpack(file, tmp_path / "root")
    assert (again.id, again.status, again.name, again.tags, again.pinned) == (
        "0001-fit",
        "finished",
        "baseline",
        ("sgd",),
        True,
    )
    assert again == run
    assert again.history["loss"].tolist() == run.history["loss"].tolist()
    assert (
        [point.name for point in again.checkpoints]
        == [point.name for point in run.checkpoints]
        != []
    )
    assert again.figure() is not None
    assert wb.compare(run, again).settings == {}
    assert not any("start/" in name or "control" in name for name in names(file))


def test_shards_of_several_ranks_are_packed_too(run: wb.Run, tmp_path: Path) -> None:
    folder = tmp_path / "first" / "runs" / run.id
    shutil.copytree(run.folder, folder)
    point = list_checkpoints(folder)[-1].path
    for whole in (folder / "checkpoints" / "start.safetensors", point / "model.safetensors"):
        tensors = load_file(whole)
        for index, names_of_rank in enumerate((list(tensors)[:2], list(tensors)[2:])):
            save_file({name: tensors[name] for name in names_of_rank}, shard_of(whole, index, 2))
        whole.unlink()
        again = wb.Run.unpack(wb.Run.open(folder).pack(tmp_path / "a.tar"), tmp_path / whole.stem)
        torch.testing.assert_close(
            read_weights(again.folder / whole.relative_to(folder)), tensors, rtol=0, atol=0
        )


def test_it_continues_there_to_the_last_bit(run: wb.Run, tmp_path: Path) -> None:
    wb.Run.unpack(run.pack(tmp_path / "a.tar", "last"), tmp_path / "root")
    with bench(tmp_path / "root") as other, bench(run.folder.parents[1]) as first:  # type: ignore[union-attr]
        continued, expected = (
            b.fit(start="0001-fit", max_epochs=4).result() for b in (other, first)
        )
        assert continued.step == 16
        assert continued.history["loss"].tolist() == expected.history["loss"].tolist()
        other.load("0001-fit", "start")  # the weights of its beginning are there, too


def test_it_is_repeated_there_if_asked(run: wb.Run, tmp_path: Path) -> None:
    file = run.pack(tmp_path / "a.tar", start=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sum(name.endswith(".data") for name in names(file)) == 1
    again = wb.Run.unpack(file, tmp_path / "root")
    start = again.folder / "start"  # type: ignore[operator]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (start, *start.iterdir())} == {
        0o700,
        0o600,
    }
    repeated = wb.rerun(again).result()
    assert repeated.repeats == "repeats 0001-fit: 8 of 8 losses equal, and 2 of 2 validations"
    with pytest.raises(FileNotFoundError, match="no start"):
        wb.Run.unpack(run.pack(file), tmp_path / "without").pack(file, start=True)


def test_checkpoints_are_chosen(run: wb.Run, tmp_path: Path) -> None:
    file = tmp_path / "a.tar"

    def weights(*which: str) -> list[str]:
        run.pack(file, *which)  # type: ignore[arg-type]
        return [
            name.partition("checkpoints/")[2]
            for name in names(file)
            if name.endswith(".safetensors")
        ]

    assert len(weights()) == len(run.checkpoints) + 1
    assert weights("last") == ["start.safetensors", f"{run.checkpoints[-1].name}/model.safetensors"]
    assert weights("none") == []
    assert len(weights("best")) == 2
    with pytest.raises(ValueError, match="checkpoints='first': give 'all', 'last', 'best', 'none'"):
        run.pack(file, "first")  # type: ignore[arg-type]


def test_ids_are_kept_or_new(tmp_path: Path) -> None:
    root = tmp_path / "root"
    files = []
    for id in ("0012-fit", "0003-find_lr", "baseline"):
        folder = write_run(tmp_path / "first", id, kind=id.partition("-")[2] or "fit")
        files.append(wb.Run.open(folder).pack(tmp_path / f"{id}.tar"))
    assert [wb.Run.unpack(file, root).id for file in files] == [
        "0012-fit",
        "0013-find_lr",
        "baseline",
    ]
    assert [wb.Run.unpack(file, root).id for file in files] == [
        "0014-fit",
        "0015-find_lr",
        "0016-fit",
    ]
    (root / "runs" / "0016-fit" / "run.json").unlink()
    assert new_id(root, "fit") == "0017-fit"
    assert reserve_id(root, "0016-fit", "fit") == "0018-fit"  # it had a run of this number


def test_a_run_that_trains_is_not_packed(tmp_path: Path) -> None:
    running = write_run(tmp_path, "0001-fit", over=False)
    with pytest.raises(RuntimeError, match=r"0001-fit is not over \(running\): wait for its end"):
        wb.Run.open(running).pack(tmp_path / "a.tar")
    with pytest.raises(IsADirectoryError, match=r"0002-fit\.tar"):
        wb.Run.open(write_run(tmp_path, "0002-fit")).pack(tmp_path)
    assert not (tmp_path / "a.tar").exists()


def test_that_its_process_has_died_is_known_elsewhere(tmp_path: Path) -> None:
    """On another machine nobody can see it."""
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    folder = write_run(tmp_path, "0001-fit", over=False)
    with RunFolder.take_over(folder) as record:
        record.append(RunStarted("0001-fit", "fit", {}, "cpu"))
        record.name_writer(int(dead.stdout))
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"type": "Steps')  # it was killed while it wrote
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**header, "pid_started": 1.0}))
    first = wb.Run.open(folder)
    assert first.status == "failed"
    again = wb.Run.unpack(first.pack(tmp_path / "a.tar"), tmp_path / "root")
    ended = read_events(again.folder)[-1]  # type: ignore[arg-type]
    assert isinstance(ended, RunEnded)
    assert (ended.status, ended.error) == ("failed", first.error)
    assert again.status == "failed"


def test_on_the_command_line(run: wb.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = str(run.folder.parents[1])  # type: ignore[union-attr]

    def say(*arguments: str) -> str:
        done = CliRunner().invoke(main, ["runs", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert say("pack", "1", "--root", root).startswith("0001-fit.tar is written (")
    assert say("unpack", "0001-fit.tar") == "0001-fit is unpacked.\n"
    assert say("unpack", "0001-fit.tar") == "0001-fit is unpacked as 0002-fit, the next id here.\n"
    assert "baseline" in say("show", "2")
    twice = CliRunner().invoke(main, ["runs", "pack", "1", "--root", root])
    assert (twice.exit_code, twice.stderr) == (
        1,
        "Error: 0001-fit.tar exists: give another name, or --force to replace it.\n",
    )
    assert say("pack", "1", "--root", root, "--force", "--checkpoints", "none").startswith(
        "0001-fit.tar is written"
    )
    annotate(tmp_path / ".workbench/runs/0002-fit", name="mine")  # the first one stays as it is
    assert run.name == "baseline"


def test_it_exports_there(tmp_path: Path) -> None:
    """The code is the bench's own; weights, settings and losses are those of the file."""
    (tmp_path / "train.py").write_text(
        "import sys, torch\nfrom torch import nn\nimport workbench as wb\ntorch.manual_seed(0)\n"
        "x = torch.randn(64, 4)\nmodel = nn.Linear(4, 1)\n"
        "bench = wb.Workbench(model, train=(x, x[:, :1]), loss=nn.MSELoss(), max_epochs=2, accelerator='cpu', root=sys.argv[1])\n"
        "if sys.argv[1] == 'first':\n    bench.fit(lr=0.03).result().pack('run.tar')\n"
        "else:\n    bench.export('out.py', run=wb.Run.unpack('run.tar', 'other'))\nbench.close()\n"
    )
    for root in ("first", "other"):
        done = warm.python().run("train.py", root, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "updates repeat the run" in done.stdout
    assert "lr: float = 0.03" in (tmp_path / "out.py").read_text()
