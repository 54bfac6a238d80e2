"""The settings of a run as YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench as wb
from tests.export.export_running import make_bench

MANY = (
    "model, train=(x, y), val=(x, y), loss=F.cross_entropy, optimizer=torch.optim.SGD, lr=1e-5, max_epochs=2, "
    "accumulate_grad_batches={0: 2, 1: 4}, gradient_clip_val=0.5, early_stopping=wb.EarlyStopping('val_loss', patience=2), "
    "max_time='10:00:00:00', val_check_interval=0.5, limit_train_batches=0.5"
)


def test_the_file_is_read_as_the_settings_of_the_run(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, MANY)
    run = bench.fit().result()
    path = bench.export(tmp_path / "out" / "settings.yaml")
    assert wb.Settings.load(path) == run.settings
    assert path.read_text() == bench.script(format="settings")
    assert [file.name for file in path.parent.iterdir()] == ["settings.yaml"], "it needs no weights"
    assert "no code and no data: loss, model, train, val." in path.read_text()
    bench.export(path)  # ours, so that it may be replaced
    bench.close()


def test_a_rate_at_its_default_is_written_too(tmp_path: Path) -> None:
    bench = make_bench(
        tmp_path,
        "model, train=(x, y), loss=F.cross_entropy, optimizer=lambda p: torch.optim.SGD(p, lr=0.5), lr=1e-3, max_steps=1",
    )
    bench.fit().result()
    path = bench.export(tmp_path / "settings.yml")
    assert wb.Settings.load(path).model_dump(exclude_unset=True).keys() == {
        "lr",
        "batch_size",
        "max_steps",
    }
    bench.close()


def test_live_changes_are_named(tmp_path: Path) -> None:
    bench = make_bench(
        tmp_path, "model, train=(x, y), loss=F.cross_entropy, max_epochs=2, find_lr_at={1}"
    )
    bench.fit().result()
    assert "changed during the run: the later values of lr" in bench.script(format="settings")
    bench.close()


def test_the_code_need_not_be_found(tmp_path: Path) -> None:
    bench = make_bench(
        tmp_path,
        "**given, max_steps=2",
        "given = {'train': (x, y), 'model': model, 'loss': F.cross_entropy}",
    )
    run = bench.fit().result()
    assert wb.Settings.load(bench.export(tmp_path / "settings.yaml")) == run.settings
    bench.close()


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("train.py", "notebook"),
        ("train.ipynb", "script"),
        ("a.yaml", "lightning"),
        ("train.py", "pdf"),
    ],
)
def test_a_name_that_does_not_fit_the_format_is_refused(
    tmp_path: Path, name: str, format: str
) -> None:
    bench = make_bench(tmp_path, "model, train=(x, y), loss=F.cross_entropy, max_steps=1")
    bench.fit().result()
    with pytest.raises(wb.ExportError, match=f"format='{format}'"):
        bench.export(tmp_path / name, format=format)  # type: ignore[arg-type]
    assert not (tmp_path / name).exists()
    bench.close()
