"""Packages in files are their owner's alone, and nothing else is opened."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import warm
from workbench.launch.accelerate import private_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "launch" / "job"


def test_what_was_sealed_comes_out_of_files_that_only_we_can_read(path: Path) -> None:
    before = os.umask(0)
    try:
        tensor = torch.arange(1 << 20)
        private_file.write(
            path, {"tensor": tensor, "view": tensor[5:], "array": np.ones(1000)}, head={"n": 3}
        )
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"job": 0o600, "job.data": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    found = private_file.read(path)
    assert found.head == {"n": 3}
    private_file.remove(path)
    assert not path.parent.exists()
    opened = found.open()  # its data are mapped, whatever has become of the names
    assert torch.equal(opened["tensor"], tensor)
    opened["tensor"][5] = -1
    assert opened["view"][0] == -1


def test_processes_map_the_same_data(path: Path) -> None:
    private_file.write(path, torch.arange(1 << 22, dtype=torch.uint8))
    code = (
        "import sys; from pathlib import Path; from workbench.launch.accelerate import private_file; t = private_file.read(Path(sys.argv[1])).open();"
        "lines = [l for l in open('/proc/self/maps') if 'job.data' in l]; print(len(lines), lines[0].split()[1], int(t.sum()))"
    )
    if sys.platform != "linux":
        pytest.skip("the system does not tell what is mapped")
    told = warm.python().run("-c", code, str(path))
    assert told.returncode == 0, told.stderr
    count, mode, total = told.stdout.split()
    assert (count, mode, int(total)) == (
        "1",
        "rw-p",
        int(torch.arange(1 << 22, dtype=torch.uint8).sum()),
    )


@pytest.mark.parametrize("which", ["job", "job.data"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_open_is_refused(path: Path, which: str, mode: int) -> None:
    private_file.write(path, torch.ones(1 << 20))
    (path.parent / which).chmod(mode)
    with pytest.raises(PermissionError, match=f"mode {mode:o}, not 600"):
        private_file.read(path)


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root can give a file away"
)
def test_a_file_of_another_user_is_refused(path: Path) -> None:
    private_file.write(path, 1)
    os.chown(path, 12345, -1)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        private_file.read(path)


def test_links_and_pipes_are_refused(path: Path) -> None:
    private_file.write(path, 1)
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        private_file.read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match=r"not a regular file|directory"):
        private_file.read(path)


def test_nothing_that_is_there_is_written_over(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path.parent.mkdir()
    path.with_name("job.data").symlink_to(victim)
    with pytest.raises(FileExistsError):
        private_file.write(path, torch.ones(1000))
    assert victim.read_text() == "mine"
