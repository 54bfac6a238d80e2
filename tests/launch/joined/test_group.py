"""Ranks that cannot join, or that run other code than each other."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import torch.distributed as dist

from tests.launch.joined.test_joined import environment
from workbench.launch.joined.environment import Place
from workbench.launch.joined.group import Joined, RankError


def met(files: list[dict[str, str]]) -> list[str]:
    """What each of two ranks is told at a call, with these files of the user's code; "" without an error."""
    store, said = dist.HashStore(), ["", ""]

    def meet(rank: int) -> None:
        place = Place("torchrun", rank, 2, rank, 2, "127.0.0.1", 1)
        try:
            Joined(place, store).meet("bench.fit()", {"model": "Net"}, files[rank])
        except RankError as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return said


def test_a_file_that_differs_between_ranks_is_named_on_each() -> None:
    texts = met([{"train.py": "a", "model": "b"}, {"train.py": "a", "model": "c"}])
    host = socket.gethostname()
    for text in texts:
        assert text.startswith(f"model on rank 1 ({host}) is another one than on rank 0 ({host})")
        assert "copy the files to each again" in text


def test_a_module_that_one_rank_alone_has_imported_is_no_difference() -> None:
    assert met([{"train.py": "a", "tracker": "b"}, {"train.py": "a"}]) == ["", ""]


def test_a_port_that_another_program_has_is_named(tmp_path: Path) -> None:
    code = """
import torch
import workbench as wb
wb.Workbench(torch.nn.Linear(2, 1), train=(torch.zeros(4, 2), torch.zeros(4, 1)), loss=torch.nn.MSELoss(), accelerator="cpu")
"""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env=environment() | place,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert ended.returncode == 1
    assert f"rank 0 of 2 (torchrun) cannot join the others at 127.0.0.1:{port}: " in ended.stderr
    assert "address already in use" in ended.stderr
    assert "All 2 must be started; MASTER_ADDR and MASTER_PORT name the host" in ended.stderr
