"""A packed run that a stranger has made: it becomes a folder of the root, or nothing."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import workbench as wb
from tests.runs.records import write_run
from workbench.cli import main
from workbench.runs.folder import pack

HEADER = b'{"kind": "fit"}'


def archive(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo) -> Path:
    """A tar file with these members, after those that a run needs."""
    with tarfile.open(path, "w") as file:
        for member in (("0001-fit/run.json", HEADER), ("0001-fit/metrics.jsonl", b""), *members):
            if isinstance(member, tarfile.TarInfo):
                file.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                file.addfile(info, io.BytesIO(member[1]))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def refused(file: Path, root: Path) -> str:
    """The error; nothing is left in the root, and nothing beside it is written."""
    before = {path for path in root.parent.rglob("*") if root not in path.parents}
    with pytest.raises(ValueError, match="is no packed run") as error:
        wb.Run.unpack(file, root)
    assert {path for path in root.parent.rglob("*") if root not in path.parents} - before <= {root}
    assert [path.name for path in (root / "runs").iterdir()] == []
    return str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "../evil", "0001-fit/../../evil", "/tmp/evil", "0001-fit//run.json", "0001-fit/./run.json", "0001-fit/checkpoints/../x",
        "0001-fit/control/1-stop.json", "0001-fit/launch/job", "0001-fit/launch.sh", "0001-fit/deleted-next", "0001-fit/.reserve",
        "0001-fit/start/evil.py", "0001-fit/start/../../code", "0001-fit/checkpoints/00000002/evil.pt", "0001-fit/checkpoints/x/state.pt",
        "0001-fit/run.json.py", "0001-fit", "run.json", "0001-fit\\..\\evil", "0001-fit/checkpoints/٠٠٠٠٠٠٠٢/info.json",
    ],
)  # fmt: skip
def test_a_file_that_no_run_has_is_refused(name: str, tmp_path: Path) -> None:
    text = refused(archive(tmp_path / "a.tar", (name, b"x")), tmp_path / "root")
    assert "is no file of a run that this version knows" in text


@pytest.mark.parametrize("id", ["..", ".", ".git", "-x", "a" * 65, "0001-fit\n", "x y", "fit."])
def test_an_id_that_is_none_is_refused(id: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as file:
        info = tarfile.TarInfo(f"{id}/run.json")
        info.size = len(HEADER)
        file.addfile(info, io.BytesIO(HEADER))
    assert "cannot be a run's id" in refused(tmp_path / "a.tar", tmp_path / "root")


@pytest.mark.parametrize(
    "kind", ["SYMTYPE", "LNKTYPE", "FIFOTYPE", "CHRTYPE", "DIRTYPE", "CONTTYPE", "GNUTYPE_SPARSE"]
)
def test_nothing_but_a_file_is_taken(kind: str, tmp_path: Path) -> None:
    member = special("0001-fit/annotations.json", getattr(tarfile, kind), "/etc/passwd")
    refused(archive(tmp_path / "a.tar", member), tmp_path / "root")


def test_a_long_name_and_headers_of_pax_are_refused(tmp_path: Path) -> None:
    """A reader of tar keeps them in memory, whatever their size."""
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=format) as file:
            file.addfile(tarfile.TarInfo("0001-fit/" + "é" * 200))
        refused(tmp_path / "a.tar", tmp_path / "root")


def test_two_runs_and_two_files_of_a_name_are_refused(tmp_path: Path) -> None:
    assert "several runs" in refused(
        archive(tmp_path / "a.tar", ("0002-fit/run.json", HEADER)), tmp_path / "root"
    )
    assert "twice" in refused(
        archive(tmp_path / "b.tar", ("0001-fit/run.json", HEADER)), tmp_path / "root"
    )


def test_what_is_cut_off_or_no_archive_is_refused(tmp_path: Path) -> None:
    whole = (
        wb.Run.open(write_run(tmp_path / "first", "0001-fit")).pack(tmp_path / "a.tar").read_bytes()
    )
    file, root = tmp_path / "b.tar", tmp_path / "root"
    for length in (0, 100, 512, 600, 1024, len(whole) - 1024, len(whole) - 1600):
        file.write_bytes(whole[:length])
        refused(file, root)
    for data in (b"\0" * 1024, os.urandom(4096), b"PK\x03\x04" + b"x" * 2000):
        file.write_bytes(data)
        refused(file, root)
    file.write_bytes(whole.replace(b'"kind": "fit"', b'"kind": [12] '))
    refused(file, root)


def test_sizes_are_not_believed(tmp_path: Path) -> None:
    info = tarfile.TarInfo("0001-fit/annotations.json")
    info.size = 1 << 50
    file = tmp_path / "a.tar"
    with tarfile.open(file, "w") as writer:
        header = tarfile.TarInfo("0001-fit/run.json")
        header.size = len(HEADER)
        writer.addfile(header, io.BytesIO(HEADER))
    whole = file.read_bytes()[:1024]
    file.write_bytes(whole + info.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
    assert "is cut off" in refused(file, tmp_path / "root")
    with file.open("wb") as hole:
        hole.write(whole)
        hole.truncate(shutil.disk_usage(tmp_path).free + (1 << 30))
    with pytest.raises(OSError, match="are free in"):
        wb.Run.unpack(file, tmp_path / "root")


def test_the_number_of_files_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "_MOST", 20)
    many = [(f"0001-fit/checkpoints/{number:08d}/info.json", b"{}") for number in range(30)]
    assert "more than 20 files" in refused(archive(tmp_path / "a.tar", *many), tmp_path / "root")
    archive(tmp_path / "b.tar", *many[:18])
    assert wb.Run.unpack(tmp_path / "b.tar", tmp_path / "root").id == "0001-fit"


def test_modes_and_owners_are_the_users(tmp_path: Path) -> None:
    code = tarfile.TarInfo("0001-fit/start/code")
    code.mode, code.uid = 0o6777, 12345
    run = wb.Run.unpack(archive(tmp_path / "a.tar", code), tmp_path / "root")
    assert run.folder is not None
    stat = (run.folder / "start/code").stat()
    assert (stat.st_mode & 0o7777, stat.st_uid) == (0o600, os.getuid())


def test_links_in_a_folder_are_not_packed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    folder = write_run(tmp_path / "first", "0001-fit")
    (folder / "checkpoints").symlink_to(tmp_path)
    with pytest.raises(OSError, match="is a link"):
        wb.Run.open(folder).pack(tmp_path / "a.tar")
    (folder / "checkpoints").unlink()
    (folder / "annotations.json").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        wb.Run.open(folder).pack(tmp_path / "a.tar")
    assert not list(tmp_path.glob("*.tar*"))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar")
    done = CliRunner().invoke(
        main, ["runs", "unpack", str(tmp_path / "a.tar"), "--root", str(tmp_path / "root")]
    )
    assert done.exit_code == 1
    assert "is not a regular file" in done.stderr


def test_names_are_shown_without_control_characters(tmp_path: Path) -> None:
    file = archive(tmp_path / "a.tar", ("0001-fit/\x1b[31mred", b""))
    done = CliRunner().invoke(main, ["runs", "unpack", str(file), "--root", str(tmp_path / "root")])
    assert done.exit_code == 1
    assert "\x1b" not in done.output
