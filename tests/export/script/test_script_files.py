"""Which files an export writes, which it leaves alone, and where the weights come from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import workbench as wb
from tests.export.export_running import PRELUDE, make_bench
from workbench.export.errors import ExportError

PAIR = "model, train=(x, y), loss=F.cross_entropy, max_epochs=1"


@pytest.fixture
def bench(tmp_path: Path) -> wb.Workbench:
    made = make_bench(tmp_path, PAIR)
    made.fit().result()
    return made


def start_of(bench: wb.Workbench) -> Path:
    """The starting weights of the last run."""
    folder = bench.job.result().folder  # type: ignore[union-attr]
    assert folder is not None
    return Path(folder) / "checkpoints" / "start.safetensors"


def test_files_of_the_user_stay(bench: wb.Workbench, tmp_path: Path) -> None:
    source = (tmp_path / "user.py").read_text()
    with pytest.raises(ExportError, match=r"user\.py was not written by export"):
        bench.export(tmp_path / "user.py")
    assert (tmp_path / "user.py").read_text() == source

    script, weights = tmp_path / "train.py", tmp_path / "train.start.safetensors"
    weights.write_text("mine")
    with pytest.raises(ExportError, match="without the script"):
        bench.export(script)
    assert weights.read_text() == "mine"
    assert not script.exists()

    weights.unlink()
    bench.export(script)
    first = script.read_text()
    weights.write_text("torn")
    assert bench.export(script).read_text() == first  # our own are replaced
    assert weights.read_bytes() == start_of(bench).read_bytes()


def test_code_that_grew_out_of_an_export_stays(tmp_path: Path) -> None:
    bench = make_bench(
        tmp_path, PAIR, prelude='"""Mine.\n\nWritten by Tuning Workbench 0.1.\n"""\n' + PRELUDE
    )
    bench.fit().result()
    with pytest.raises(ExportError, match=r"user\.py was not written by export"):
        bench.export(tmp_path / "user.py")


def test_places_that_cannot_be_written(
    bench: wb.Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("", ".", "..", str(folder)):
        with pytest.raises(ExportError, match="not a name for a script"):
            bench.export(name)
    with pytest.raises(ExportError, match="cannot be written"):
        bench.export(tmp_path / "user.py" / "train.py")
    with pytest.raises(ExportError, match="cannot be written"):
        bench.export("n" * 300 + ".py")
    assert list(folder.iterdir()) == []

    write = Path.write_text

    def full(path: Path, text: str, **options: str) -> int:
        write(path, text[:9], **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ExportError, match="No space left"):
        bench.export("train.py")
    assert list(folder.iterdir()) == []  # the weights are not left behind either


def test_starting_weights_that_are_gone(bench: wb.Workbench, tmp_path: Path) -> None:
    start = start_of(bench)
    os.rename(start, tmp_path / "kept")
    with pytest.raises(ExportError, match=r"starting weights of run .* are gone .*keep_runs"):
        bench.export(tmp_path / "out" / "train.py")
    shutil.rmtree(start.parents[1])
    with pytest.raises(ExportError, match=r"starting weights of run .* are gone"):
        bench.export(tmp_path / "out" / "train.py")
    assert not (tmp_path / "out").exists()


def test_a_run_of_another_bench(bench: wb.Workbench, tmp_path: Path) -> None:
    run = bench.job.id  # type: ignore[union-attr]
    named = make_bench(tmp_path, PAIR, "class Other(Net):\n    pass\n\n\nmodel = Other()\n")
    with pytest.raises(ExportError, match="trained Net, and this bench has Other"):
        named.export(tmp_path / "train.py", run=run)
    same_count = (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.head, self.more = nn.Linear(8, 3), nn.Parameter(torch.zeros(200))\n\n"
        "    def forward(self, x):\n        return self.head(x) + self.more.sum()\n\n\nmodel = Net()\n"
    )
    shaped = make_bench(tmp_path, PAIR, same_count)
    with pytest.raises(
        ExportError,
        match=r"began with more of shape None, and in the model of this bench it is \(200,",
    ):
        shaped.export(tmp_path / "train.py", run=run)
    assert not (tmp_path / "train.py").exists()


def test_tied_weights_are_the_same_model(tmp_path: Path) -> None:
    tied = make_bench(tmp_path, PAIR, "model.again = model.body\n")
    tied.fit().result()
    assert tied.export(tmp_path / "train.py").exists()


def test_the_head_says_what_it_needs(bench: wb.Workbench, tmp_path: Path) -> None:
    head = bench.export(tmp_path / "train.py").read_text().split('"""')[1]
    assert "\nNeeds: torch, accelerate. The run had torch " in head
    before = "from sklearn.preprocessing import StandardScaler\n\nx = torch.tensor(StandardScaler().fit_transform(x)).float()\n"
    other = make_bench(tmp_path, PAIR, before)
    other.fit().result()
    assert (
        "\nNeeds: torch, accelerate, scikit-learn. "
        in other.export(tmp_path / "train.py").read_text()
    )
