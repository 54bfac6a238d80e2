"""Options with which a script would train nothing are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.export.export_running import exported

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), loss=F.cross_entropy, batch_size=25"
REFUSED = {
    "--max_steps 0": "--max_steps 0: give a number above 0.",
    "--max_steps -2": "--max_steps -2: give a number above 0.",
    "--lr nan": "--lr nan: give 0 or more.",
    "--batch_size -1": "--batch_size -1: give 0 or more.",
    "--accumulate_grad_batches 0": "--accumulate_grad_batches 0: give a number above 0.",
    "--limit_train_batches 0": "--limit_train_batches 0.0: give a number above 0.",
    "--limit_train_batches 0.01": (
        "An epoch has no update: --limit_train_batches leaves no batch."
    ),
    "--warmup 5": "warmup=5 is not shorter than the 5 updates of the training.",
}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Any:
    lengths = "max_steps=5, limit_train_batches=0.5, warmup=3, lr_schedule='linear'"
    return exported(
        tmp_path_factory.mktemp("script"), f"{PAIR}, accumulate_grad_batches=2, {lengths}"
    )


@pytest.mark.parametrize("options", REFUSED)
def test_options_that_train_nothing(
    options: str,
    script: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", *options.split(), "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as error:
        script.main(script.parse())
    assert REFUSED[options] in f"{error.value} {capsys.readouterr().err}"
    assert not (tmp_path / "last.pt").exists()


def test_what_may_be_zero(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", "train.py --lr 0 --seed 0 --warmup 0".split())
    assert script.parse() == script.Config(lr=0.0, seed=0, warmup=0)
