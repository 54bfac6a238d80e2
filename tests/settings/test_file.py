"""Settings from a YAML file."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import workbench as wb


def load(folder: Path, text: str) -> wb.Settings:
    path = folder / "settings.yaml"
    path.write_text(text)
    return wb.Settings.load(path)


def test_a_file_is_read_as_its_settings(tmp_path: Path) -> None:
    text = (
        "lr: 1e-3  # not a text, as YAML 1.1 has it\nmax_time: 10:00:00:00\naccumulate_grad_batches: {0: 8, 4: 4}\n"
        "early_stopping:\n- {monitor: val_loss, patience: 2}\ngradient_clip_val: null\ndevices: [0, 1]\n"
    )
    assert load(tmp_path, text) == wb.Settings.make(
        lr=1e-3, max_time="10:00:00:00", accumulate_grad_batches={0: 8, 4: 4}, gradient_clip_val=None, devices=[0, 1],
        early_stopping=wb.EarlyStopping("val_loss", patience=2),
    )  # fmt: skip


def test_an_empty_file_has_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "# nothing yet\n") == wb.Settings()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("learning_rate: 0.1", ["learning_rate", "'lr'"]),
        ("lr: fast", ["lr='fast'"]),
        ("max_epochs: 2\nlr: 0.1\nmax_epochs: 3", ["'max_epochs' is there twice"]),
        ("- lr", ["lr: 0.01"]),
        ("lr: 0.1\n" + "# a book\n" * 20_000, ["65536 characters"]),
        ("lr: " + "[" * 50_000, ["settings.yaml", "nested too deeply"]),
        (
            "a: &a [1, 1]\n"
            + "".join(
                f"{n}: &{n} [*{o}, *{o}]\n" for o, n in itertools.pairwise("abcdefghijklmnopqrstu")
            ),
            ["100000 values"],
        ),
        ("1: 2", ["lr: 0.01"]),
        ("{a: b: c}", ["valid YAML"]),
        ("loss: !!python/name:torch.nn.functional.cross_entropy", ["valid YAML"]),
        ("val_check_interval: 99:00:00", ["val_check_interval"]),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, text: str, named: list[str]) -> None:
    with pytest.raises(wb.SettingsError) as error:
        load(tmp_path, text)
    for part in ["settings.yaml", *named]:
        assert part in str(error.value)
