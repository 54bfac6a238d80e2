"""What a run keeps to be repeated is code: that of somebody else is not unpacked without a word."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch
from torch import nn

import workbench as wb
from workbench.launch.start import kept_start

API_KEY = "sk-" + "k1" * 20
X, Y = torch.randn(16, 4), torch.randn(16, 1)


class Marks(nn.Linear):
    """Leaves a file where it is unpacked."""

    def __init__(self, file: Path) -> None:
        super().__init__(4, 1)
        self.file = file

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self.file.touch()


class Reads(nn.Linear):
    """Has secrets in an attribute, in a closure and in its code."""

    def __init__(self) -> None:
        super().__init__(4, 1)
        secret, self.hf_token = "hf_" + "t2" * 15, "hf_" + "t1" * 15
        self.use = lambda: (secret, API_KEY, "sk-k3k3k3k3k3k3k3k3k3k3k3k3k3k3k3")


def fitted(root: Path, model: nn.Module) -> wb.Run:
    with wb.Workbench(
        model, train=(X, Y), loss=nn.functional.mse_loss, max_epochs=1, root=root, dry_run=False
    ) as bench:
        return bench.fit().result()


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that somebody else has made, in a root of this user; its code leaves a file "ran"."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "them"))
    folder = fitted(tmp_path, Marks(tmp_path / "ran")).folder
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "me"))
    assert folder is not None
    return folder


def test_nothing_of_somebody_else_is_unpacked(theirs: Path) -> None:
    ran = theirs.parents[1] / "ran"
    with pytest.raises(PermissionError, match=r"no signature of yours.*would run with your rights"):
        wb.rerun(theirs.name, theirs.parents[1])
    assert not ran.exists()
    assert wb.rerun(theirs.name, theirs.parents[1], trust=True).result().status == "finished"
    assert ran.exists()


def test_a_signature_that_somebody_writes_is_none(theirs: Path) -> None:
    path = theirs / "start" / "start.json"
    for signature in ("", "0" * 64, None, 5, [], {"a": 1}, "é"):
        head = {**json.loads(path.read_text()), "signature": signature}
        path.write_text(json.dumps(head))
        with pytest.raises(PermissionError, match="no signature of yours"):
            wb.rerun(theirs.name, theirs.parents[1])
    assert not (theirs.parents[1] / "ran").exists()


def test_a_start_that_was_changed_is_refused(tmp_path: Path) -> None:
    run = fitted(tmp_path, Marks(tmp_path / "ran"))
    start = tmp_path / "runs" / run.id / "start"
    code, head = (start / "code").read_bytes(), (start / "start.json").read_bytes()
    (start / "code").write_bytes(code.replace(b"ran", b"run"))
    with pytest.raises(RuntimeError, match="code was changed since it was written"):
        wb.rerun(run)
    (start / "code").write_bytes(code)
    (start / "start.json").write_bytes(head.replace(b'"path": [', b'"path": ["/evil",'))
    with pytest.raises(PermissionError, match="or it was changed since"):
        wb.rerun(run)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["", "start.json", "code"])
def test_a_link_is_not_followed(name: str, tmp_path: Path) -> None:
    run = fitted(tmp_path, nn.Linear(4, 1))
    path, moved = tmp_path / "runs" / run.id / "start" / name, tmp_path / "elsewhere"
    shutil.move(path, moved)
    path.symlink_to(moved)
    with pytest.raises(OSError):
        wb.rerun(run)


def test_data_of_another_name_is_not_taken_over(tmp_path: Path) -> None:
    data = torch.randn(300_000, 1), torch.zeros(300_000, 1)
    given = {"train": data, "loss": nn.functional.mse_loss, "max_steps": 1, "batch_size": 300_000}
    with wb.Workbench(nn.Linear(1, 1), root=tmp_path, dry_run=False, **given) as bench:
        bench.fit().result()
        for file in (tmp_path / "runs" / "0001-fit" / "start").glob("*.data"):
            file.write_bytes(bytes(file.stat().st_size))
        run = bench.fit().result()
    assert "repeats 0002-fit: 1 of 1" in str(list(wb.rerun(run).result().events))


def test_the_key_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    run = fitted(tmp_path, nn.Linear(4, 1))
    key = kept_start._key_file()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    os.chmod(key, 0o644)  # somebody else may have read it
    with pytest.raises(PermissionError, match="no signature of yours"):
        wb.rerun(run)


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    run = fitted(tmp_path, Reads())
    files = list((tmp_path / "runs" / run.id / "start").iterdir())
    assert len(files) == 2
    for secret in (b"t1t1", b"t2t2", b"k1k1", b"k3k3"):
        assert not [file for file in files if secret in file.read_bytes()]
    with pytest.warns(UserWarning, match="secrets are not kept.*API_KEY.*hf_token"):
        wb.rerun(run).result()


def test_a_full_disk_fails_no_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_start, "create_private", full)
    run = fitted(tmp_path, nn.Linear(4, 1))
    assert run.status == "finished"
    assert "could not be kept for wb.rerun ([Errno 28]" in str(list(run.events))
